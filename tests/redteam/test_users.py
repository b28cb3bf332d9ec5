"""Point 7, and what of 14 and 15 needs a second user: nodes of two Unix users on one folder, with the usual umask 022."""

import contextlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.redteam.arena import Arena
from tests.redteam.attacks import LAYOUT
from tests.redteam.test_links import SETTINGS
from tests.redteam.users import User

pytestmark = pytest.mark.slow

REMEDY = re.compile(r"chmod|chgrp|setfacl|permission|\bmode\b", re.IGNORECASE)


def test_nodes_of_two_users_share_one_folder(shared: Arena) -> None:
    first, second = shared.users
    processes = {
        "boss": shared.start("boss", "coordinator", first, **SETTINGS),
        "w1": shared.start("w1", "worker", first, **SETTINGS),
        "w2": shared.start("w2", "worker", second, **SETTINGS),
    }
    for name, process in processes.items():
        assert shared.finish(process) == 0, shared.console(name)[-3000:]
    for name in ("w1", "w2"):
        assert shared.rounds_of(name)[-1] == 3, "on a busy machine it may be late for a round, and leaves that out"
        assert sum(row["external_used"] for row in shared.metrics(name)) > 0, f"{name} took nothing from the other"
    shared.assert_contained()


def test_the_second_user_may_begin(shared: Arena) -> None:
    """Neither of them is special: whoever starts first makes the folders, and the other one writes into them."""
    first, second = shared.users
    for name, user in (("w2", second), ("w1", first)):
        process = shared.start(name, "worker", user, **SETTINGS)
        assert shared.finish(process) == 0, shared.console(name)[-3000:]
        assert shared.rounds_of(name), f"{name} published nothing"
    shared.assert_contained()


def test_the_doctor_says_what_is_wrong_with_folders_of_somebody_else(shared: Arena) -> None:
    """The store itself may be written; what another user has made in it may not."""
    first, second = shared.users
    nano: dict[str, Any] = {"MODEL_NAME": "nano", "CPU_ONLY": "true", "MAX_ROUNDS": 2, "COORDINATOR_ROUND_INTERVAL": 0.2}
    assert shared.run("coordinate", "--round-advance", "timer", user=first, NODE_ID="boss", **nano).code == 0
    close([path for path in shared.folder.rglob("*") if path.is_dir()])
    done = shared.run("doctor", "--json", user=second, seconds=120, NODE_ID="w2", **nano)
    failed = [each["detail"] for each in json.loads(done.out)["findings"] if each["status"] == "failed"]
    assert done.code == 1 and any(REMEDY.search(detail) for detail in failed), done.output[-3000:]
    shared.assert_contained()


def close(places: list[Path]) -> None:
    for path in places:
        path.chmod(0o755)


@pytest.mark.parametrize("inner", [True, False], ids=["folders in it", "the store"])
def test_a_node_that_may_not_write_says_so_in_one_line(shared: Arena, inner: bool) -> None:
    """The owner has closed the folder, or what is in it; the other user's node gives no traceback and can be stopped."""
    first, second = shared.users
    assert shared.finish(shared.start("w1", "worker", first, **SETTINGS | {"MAX_ROUNDS": 2})) == 0
    close([path for path in shared.folder.rglob("*") if path.is_dir()] if inner else [shared.folder])
    process = shared.start("w2", "worker", second, **SETTINGS | {"MAX_ROUNDS": 1000})
    shared.wait_until(lambda: process.poll() is not None or REMEDY.search(shared.console("w2")), "it says what is wrong", 30)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(3)  # it may be about to end by itself
    assert shared.stop(process, 50) in (0, 1, 2), shared.console("w2")[-3000:]
    assert REMEDY.search(shared.console("w2")), shared.console("w2")[-3000:]
    shared.assert_contained()


def test_status_and_validate_need_no_right_to_write(shared: Arena) -> None:
    first, second = shared.users
    assert shared.finish(shared.start("w1", "worker", first, **SETTINGS | {"MAX_ROUNDS": 2})) == 0
    for path in (shared.folder, *(path for path in shared.folder.rglob("*") if path.is_dir())):
        path.chmod(0o555)
    status = shared.run("status", "--json", user=second)
    assert status.code == 0, status.output[-3000:]
    assert [node["node_id"] for node in json.loads(status.out)["nodes"]] == ["w1"]
    validated = shared.run("validate", "--output", str(shared.temporary / "results.json"), user=second)
    assert validated.code in (0, 1) and (shared.temporary / "results.json").exists(), validated.output[-3000:]
    assert not (shared.folder / LAYOUT.root / "results.json").exists()
    shared.assert_contained()


@pytest.mark.parametrize("arguments", [("config",), ("status",), ("coordinate", "--round-advance", "timer")])
def test_a_user_without_an_entry_and_without_a_home_gets_no_traceback(shared: Arena, arguments: tuple[str, ...]) -> None:
    nobody = User("nobody-at-all", 54321, 54321, 54321, shared.users[0].view)
    settings: dict[str, Any] = {"HOME": None, "RL_SWARM_HOME": None, "MAX_ROUNDS": 2, "COORDINATOR_ROUND_INTERVAL": 0.2}
    shared.folder.chmod(0o777)
    done = shared.run(*arguments, user=nobody, **settings)
    assert done.code in (0, 1, 2), done.output[-3000:]
    shared.assert_contained()
