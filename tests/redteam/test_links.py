"""Points 3 and 10: symbolic links in the store, and mounts that do not look like mounts."""

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.redteam import attacks
from tests.redteam.arena import SECRET, Arena, Mount, says
from tests.redteam.attacks import LAYOUT
from tests.redteam.users import Unavailable

SETTINGS: dict[str, Any] = {
    "MAX_ROUNDS": 4,
    "COORDINATOR_ROUND_INTERVAL": 2,
    "NUM_TRAIN_SAMPLES": 2,
    "NUM_GENERATIONS": 4,
    "NUM_TRANSPLANT_TREES": 1,
    "CHECKPOINT_INTERVAL": 1,
    "STANDIN_SECONDS": 0.2,
}
STOP_SECONDS = 50.0  # a node may take 30 s to send what waits
SETTLED_SECONDS = 3.0


def run_swarm(arena: Arena, *workers: str, **settings: Any) -> None:
    """Run a coordinator and stand-in workers to the end."""
    boss = arena.start("boss", "coordinator", **SETTINGS | settings)
    experiment = arena.backing / LAYOUT.experiment  # on a mount a node that starts meanwhile finds half of it
    arena.wait_until(
        lambda: boss.poll() is not None or (experiment.exists() and experiment.read_bytes().endswith(b"}\n")), "it begins"
    )
    processes = {"boss": boss} | {name: arena.start(name, **SETTINGS | settings) for name in workers}
    for name, process in processes.items():
        code = arena.finish(process)
        assert code == 0, f"{name} ended with {code}: {arena.console(name)[-3000:]}"


# 3. Links


def test_links_in_place_of_documents_lead_nowhere(arena: Arena) -> None:
    """Every name that a worker and its coordinator write to is a link to somebody's file. A second worker is not attacked."""
    for node_id in ("w1", "boss"):
        for key in attacks.journals_of(node_id):
            arena.plant(attacks.link, key, arena.startup.path)
            arena.plant(attacks.link, LAYOUT.segment(key, 1), arena.key.path)  # what a node on a mount merges at its end
        for key in attacks.documents_of(node_id):
            arena.plant(attacks.link, key, arena.precious.path)
    arena.plant(attacks.link, LAYOUT.bundle(0, "reader"), arena.key.path)
    run_swarm(arena, "w1", "w2")
    arena.assert_contained()
    assert 3 in arena.announced() and 3 in arena.rounds_of("w1") and 3 in arena.rounds_of("w2")
    assert says(arena.console("w1"), "link"), "nobody was told that a link lies in the way"


def test_shell_code_in_a_name_reaches_no_startup_file(arena: Arena) -> None:
    for key in attacks.journals_of("boss"):
        arena.plant(attacks.link, key, arena.startup.path)
    settings = {"NODE_ID": "boss", "MAX_ROUNDS": 50, "COORDINATOR_ROUND_INTERVAL": 0.5, "ROUND_ADVANCE": "timer"}
    process = arena.launch("boss", "coordinate", **settings)
    arena.wait_until(lambda: arena.announced() or process.poll() is not None, "the first round is open")
    for number in range(1, 6):
        arena.plant(attacks.forge_announcement, number, coordinator=attacks.SHELL_CODE, epoch=10**9)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(3)  # it stands down, and says for whom
    assert arena.stop(process) == 0, arena.console("boss")
    arena.assert_contained()


@pytest.mark.slow
def test_links_in_place_of_folders_lead_nowhere(arena: Arena) -> None:
    """A node may refuse to start there, or go on without those folders; it ends when asked, and writes nothing elsewhere."""
    keys = (f"{LAYOUT.root}/logs", LAYOUT.rewards, LAYOUT.states, LAYOUT.heartbeats("w1"), f"{LAYOUT.rollouts}/round_0")
    for number, key in enumerate(keys):
        arena.plant(attacks.link, key, arena.refuge(f"refuge-{number}"))
    settings = SETTINGS | {"MAX_ROUNDS": 1000}
    processes = {"boss": arena.start("boss", "coordinator", **settings), "w1": arena.start("w1", **settings)}
    arena.wait_until(lambda: "round" in arena.console("w1") or processes["w1"].poll() is not None, "the worker has begun", 20)
    arena.wait_until(lambda: arena.console("boss") or processes["boss"].poll() is not None, "the coordinator has begun", 20)
    time.sleep(SETTLED_SECONDS)  # it goes on, or has ended by itself: in between it would die of the signal
    for name, process in processes.items():
        code = arena.stop(process, STOP_SECONDS)
        assert code in (0, 1, 2), f"{name} ended with {code}: {arena.console(name)[-3000:]}"
    arena.assert_contained()
    assert says(arena.console("w1") + arena.console("boss"), "link")


@pytest.mark.slow
@pytest.mark.parametrize("key", [LAYOUT.rollouts, LAYOUT.rewards, f"{LAYOUT.root}/logs/w1", LAYOUT.root])
def test_a_folder_that_becomes_a_link_in_mid_run_leads_nowhere(plain: Arena, key: str) -> None:
    refuge = plain.refuge("refuge")
    process = plain.start("w1", **SETTINGS | {"MAX_ROUNDS": 1000})
    plain.wait_for_round(2)
    plain.plant(attacks.divert, key, refuge)
    lines = plain.console("w1").count("\n")
    plain.wait_until(
        lambda: plain.console("w1").count("\n") > lines + 3 or process.poll() is not None, "the worker goes on or ends", 20
    )
    code = plain.stop(process, STOP_SECONDS)
    assert code in (0, 1, 2), plain.console("w1")[-3000:]
    assert list(refuge.iterdir()) == []
    plain.assert_contained()


@pytest.mark.slow
def test_a_private_key_is_not_published_by_merging(mounted: Arena) -> None:
    for key in attacks.journals_of("w1"):
        mounted.plant(attacks.link, LAYOUT.segment(key, 1), mounted.key.path)
    run_swarm(mounted, "w1", MAX_ROUNDS=2)
    assert mounted.leaks() == []
    mounted.assert_contained()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["heartbeats", "current state"])
def test_a_waiting_coordinator_on_a_mount_harms_no_file_behind_a_link(mounted: Arena, kind: str) -> None:
    """It deletes its old heartbeats, which on a mount it empties first, and rewrites current_state.json in place."""
    keys = [LAYOUT.heartbeat("boss", number) for number in (1, 2)] if kind == "heartbeats" else [LAYOUT.current_state]
    for key in keys:
        mounted.plant(attacks.link, key, mounted.precious.path)
    process = mounted.launch("boss", "coordinate", NODE_ID="boss", COORDINATOR_ROUND_INTERVAL=2)
    mounted.wait_until(mounted.announced, "the first round is open")
    time.sleep(5.0 if kind == "heartbeats" else 0.0)  # a coordinator without workers gives a sign every second
    assert mounted.stop(process, STOP_SECONDS) == 0, mounted.console("boss")
    mounted.assert_contained()


@pytest.mark.slow
def test_status_and_validate_show_nothing_behind_a_link(arena: Arena) -> None:
    """`validate` quotes lines of a log that look like an error."""
    run_swarm(arena, "w1", MAX_ROUNDS=2)
    diary = arena.outside / "diary"
    diary.write_text(f"out of memory: {SECRET}\n")
    arena.settle()
    for key in (*attacks.journals_of("w1"), LAYOUT.peer("w2"), LAYOUT.round(0), LAYOUT.bundle(0, "w1"), LAYOUT.reward(0, "w1")):
        arena.plant(attacks.link, key, diary)
    results = arena.temporary / "results.json"
    for arguments in (("status",), ("status", "--json"), ("validate", "--output", str(results))):
        done = arena.run(*arguments)
        assert done.code in (0, 1), done.output[-3000:]
        assert SECRET not in done.output
    assert SECRET not in results.read_text()
    arena.assert_contained()


@pytest.mark.slow
def test_a_link_that_the_user_typed_is_resolved_once(plain: Arena) -> None:
    """The store may be named by a link. Where it points later changes nothing for a node that runs."""
    elsewhere = plain.refuge("elsewhere")
    typed = plain.base / "link-to-store"
    typed.symlink_to(plain.folder)
    plain.settle()
    process = plain.start("w1", **SETTINGS | {"GDRIVE_PATH": typed, "MAX_ROUNDS": 12})
    plain.wait_for_round(2)
    typed.unlink()
    typed.symlink_to(elsewhere)
    assert plain.finish(process) == 0, plain.console("w1")
    assert list(elsewhere.iterdir()) == []
    assert len(plain.rewards()) == 12
    plain.assert_contained()


# 10. Mounts


@pytest.fixture(params=["mount behind a link", "Données d'été 数据"])
def hidden_mount(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Arena]:
    """An arena whose store lies on a mount that does not look like one."""
    behind_link = "link" in request.param
    point = tmp_path / ("point" if behind_link else request.param)
    try:
        mount = Mount(tmp_path / "source", point)
    except Unavailable as reason:
        pytest.skip(str(reason))
    if behind_link:
        (tmp_path / "typed").symlink_to(point)
    arena = Arena(tmp_path, tmp_path / "typed" if behind_link else point, mount=mount)
    arena.backing = mount.source
    yield arena
    arena.close()
    mount.close()


@pytest.mark.slow
def test_a_mount_is_known_whatever_its_name(hidden_mount: Arena) -> None:
    """On a mount journals come in segments; where it is taken for a local disk, nodes rename files, which this one refuses."""
    run_swarm(hidden_mount, "w1", MAX_ROUNDS=2)
    assert list((hidden_mount.backing / LAYOUT.log("w1", "metrics")).glob("*.jsonl")), "no segments"
    done = hidden_mount.run("doctor", "--json")
    findings = {each["check"]: each["detail"] for each in json.loads(done.out)["findings"]}
    assert "mount" in findings["store"], findings["store"]
    assert hidden_mount.tracebacks() == []
