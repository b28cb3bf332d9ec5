"""Points 15 and 18 and part of 14: nodes and commands in situations that an attacker, or bad luck, can cause."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.redteam import attacks
from tests.redteam.arena import NANO, Arena
from tests.redteam.test_links import SETTINGS, run_swarm
from tests.support.processes import descendants

pytestmark = pytest.mark.slow

HUNG_SECONDS = 45.0  # for a node to see that a mount does not answer, and go on
STOP_SECONDS = 60.0
NOTICED_SECONDS = 60.0  # a busy node sends a heartbeat every 4 s here, and reports a twin that it has met four times


# 14. Two of one name, a store that was replaced, a launcher that was killed


def test_two_live_workers_of_one_name_are_noticed(plain: Arena) -> None:
    """On two machines, as far as they can tell: each has a private folder of its own."""
    settings = SETTINGS | {"MAX_ROUNDS": 1000}
    first = plain.start("w1", **settings)
    plain.wait_for_round(1)
    second = plain.start("w1", **settings, RL_SWARM_HOME=plain.home() / "other")

    def noticed() -> bool:
        text = plain.console("w1").lower()
        return any(
            "w1" in line and any(word in line for word in ("another", "twice", "already", "two ")) for line in text.splitlines()
        )

    plain.wait_until(lambda: noticed() or second.poll() is not None, "somebody notices", NOTICED_SECONDS)
    codes = [plain.stop(process, STOP_SECONDS) for process in (first, second)]
    assert all(code in (0, 1, 2) for code in codes), codes
    assert noticed(), plain.console("w1")[-3000:]
    plain.assert_contained()


def test_a_store_replaced_by_an_empty_folder_is_not_written_into(plain: Arena) -> None:
    process = plain.start("w1", **SETTINGS | {"MAX_ROUNDS": 15})
    plain.wait_for_round(2)
    aside = plain.base / "tmp" / "aside"
    plain.folder.rename(aside)
    plain.folder.mkdir()
    time.sleep(4.0)
    made = sorted(str(path.relative_to(plain.folder)) for path in plain.folder.rglob("*"))
    if not made:
        plain.folder.rmdir()
        aside.rename(plain.folder)
        assert plain.finish(process) == 0, plain.console("w1")[-3000:]
        assert plain.rounds_of("w1") == list(range(15))
    assert made == [], "an empty folder was taken for the store"
    plain.assert_contained()


def test_a_killed_launcher_does_not_spoil_the_next_start(plain: Arena) -> None:
    """The orphaned nodes end by themselves, or the next start names the processes to stop."""
    settings = NANO | {"MAX_ROUNDS": 500}
    launcher = plain.launch("swarm", "swarm", "--workers", "1", **settings)
    plain.wait_for_round(0, 90)
    plain.orphans = descendants(launcher.pid) - {launcher.pid}
    assert len(plain.orphans) >= 2
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    again = plain.run("swarm", "--workers", "1", seconds=90, **settings | {"MAX_ROUNDS": len(plain.rounds_of("worker_1")) + 4})
    told = again.code in (1, 2) and any(str(pid) in again.output for pid in plain.orphans)
    assert again.code == 0 or told, again.output[-3000:]
    plain.assert_contained()


# 15. Tracebacks


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        (["validate", "--output", "/nonexistent/x"], {}),
        (["analyze", "../a", "--output", "{tmp}/analysis"], {}),
        (["analyze", "trial", "--output", "{file}"], {}),
        (["reproduce", "--quick", "--output", "{file}"], {}),
        (["memory", "nano", "--gpu-gb", "1e308"], {}),
        (["memory", "nano", "--max-new-tokens", "9" * 23], {}),
        (["config", "--max-new-tokens", "9" * 23], {}),
        (["status"], {"GDRIVE_PATH": "~nouser/x"}),
        (["swarm", "--workers", "1"], {"GDRIVE_PATH": "~nouser/x"}),
        (["config"], {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "RL_SWARM_HOME": "/tmp/é"}),
        (["status"], {"EXPERIMENT_NAME": "\udcff"}),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else "",
)
def test_a_command_that_cannot_do_its_work_gives_no_traceback(plain: Arena, arguments: list[str], settings: dict[str, str]) -> None:
    run_swarm(plain, "w1", MAX_ROUNDS=1)
    kept = plain.temporary / "a file"
    kept.write_text("to be kept\n")
    typed = [each.format(tmp=plain.temporary, file=kept) for each in arguments]
    done = plain.run(*typed, **settings)
    assert done.code in (0, 1, 2), done.output[-3000:]
    assert kept.read_text() == "to be kept\n"
    plain.assert_contained()


def test_a_question_that_is_no_text_gives_no_traceback(plain: Arena, finished: Callable[[Arena], None]) -> None:
    finished(plain)
    done = plain.run("ask", b"\xff", **NANO)
    assert done.code in (0, 1, 2), done.output[-3000:]
    plain.assert_contained()


# 18. A mount that hangs


def test_a_mount_that_hangs_hangs_no_node(mounted: Arena) -> None:
    """While the mount hangs, a worker continues alone and still stops when asked; later everything is published."""
    settings: dict[str, Any] = SETTINGS | {"MAX_ROUNDS": 1000, "COORDINATOR_ROUND_INTERVAL": 1, "ROLLOUT_FETCH_TIMEOUT_SECONDS": 2}
    boss, worker = mounted.start("boss", "coordinator", **settings), mounted.start("w1", **settings)
    mounted.wait_until(lambda: len(mounted.rounds_of("w1")) >= 3, "three rounds are played")
    assert mounted.mount is not None
    mounted.mount.freeze()
    try:
        lines = mounted.console("w1").count("\nround ")
        mounted.wait_until(lambda: mounted.console("w1").count("\nround ") >= lines + 2, "the worker goes on alone", HUNG_SECONDS)
        codes = [mounted.stop(process, STOP_SECONDS) for process in (worker, boss)]
    finally:
        mounted.mount.thaw()
    assert codes == [0, 0], mounted.console("w1")[-3000:] + mounted.console("boss")[-3000:]
    last = int(mounted.console("w1").rpartition("\nround ")[2].partition(":")[0])
    again = mounted.start("w1", **settings | {"MAX_ROUNDS": last + 3})
    assert mounted.finish(again) == 0, mounted.console("w1")[-3000:]
    assert mounted.rounds_of("w1")[-1] == last + 2 and last in mounted.rounds_of("w1")
    mounted.assert_contained()


def test_a_frozen_mount_is_what_this_harness_says(mounted: Arena, tmp_path: Path) -> None:
    """Otherwise the test above would prove nothing: a plain read of a frozen mount hangs."""
    mounted.plant(attacks.file, "document", b"x")
    assert mounted.mount is not None
    mounted.mount.freeze()
    try:
        done = mounted.run_program(["cat", str(mounted.folder / "document")], seconds=2.0)
    finally:
        mounted.mount.thaw()
    assert done.code is None
