"""Points 6, 9, 11 and part of 14: names in the store that are no documents, and documents that no node would write."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.redteam import attacks
from tests.redteam.arena import Arena, assert_refused, says
from tests.redteam.attacks import LAYOUT
from tests.redteam.test_links import SETTINGS, run_swarm

THINGS: dict[str, Callable[..., Path]] = {
    "pipe": attacks.pipe,
    "folder": attacks.folder,
    "unreadable": attacks.unreadable,
}
LOOK_SECONDS = 20.0


def spooled(arena: Arena, node_id: str) -> list[str]:
    """Return the pending documents of a node."""
    return [path.name for path in arena.home(arena.victim).glob(f"trial-*/{node_id}/spool/*") if path.name.isdigit()]


# 6. A document that cannot be put


def test_a_document_that_cannot_be_put_stops_nothing_else(arena: Arena) -> None:
    """A file where a folder of rollouts should be: round 1 of everybody is lost, and nothing after it."""
    arena.plant(attacks.file, f"{LAYOUT.rollouts}/round_1")
    run_swarm(arena, "w1")
    assert spooled(arena, "w1") == [], "the spool is blocked"
    assert arena.rounds_of("w1") == [0, 1, 2, 3]
    assert says(arena.console("w1"), "rollouts/round_1"), "it was set aside without a word"
    again = arena.start("w1", **SETTINGS | {"MAX_ROUNDS": 5})
    assert arena.finish(again) == 0, arena.console("w1")
    found = [number for number in range(5) if (arena.backing / LAYOUT.bundle(number, "w1")).is_file()]
    assert found == [0, 2, 3, 4]
    assert spooled(arena, "w1") == []
    arena.assert_contained()


# 9. Rounds that nobody played


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "during"])
def test_an_empty_folder_of_rewards_moves_nobody(plain: Arena, when: str) -> None:
    if when == "before":
        plain.plant(attacks.nobodys_round, 777_777)
    settings = SETTINGS | {"MAX_ROUNDS": 2000, "COORDINATOR_ROUND_INTERVAL": 1, "STANDIN_SECONDS": 2.5}
    processes = [plain.start("boss", "coordinator", **settings), plain.start("w1", **settings)]
    plain.wait_until(lambda: plain.rounds_of("w1"), "a round is played")
    plain.plant(attacks.nobodys_round, 777_777)
    time.sleep(6.0)  # the coordinator looks for rounds ahead when one is open for longer than an interval
    played, announced = plain.rounds_of("w1"), plain.announced()
    assert max(announced) < 100 and max(played) < 100, f"announced up to round {max(announced)}, played up to {max(played)}"
    for process in processes:
        assert plain.stop(process, 50) == 0
    plain.assert_contained()


# 11. Things in place of journals


@pytest.mark.parametrize("thing", ["pipe", *(pytest.param(name, marks=pytest.mark.slow) for name in ("folder", "unreadable"))])
def test_a_thing_in_place_of_every_document_of_a_node_stops_nothing(arena: Arena, thing: str) -> None:
    if thing == "unreadable" and not arena.users:
        pytest.skip("root may read every file")
    for key in (*attacks.journals_of("w1"), *attacks.documents_of("w1")):
        arena.plant(THINGS[thing], key)
    run_swarm(arena, "w1", "w2")
    assert 3 in arena.announced() and 3 in arena.rounds_of("w1") and 3 in arena.rounds_of("w2")
    status = arena.run("status", "--json", seconds=LOOK_SECONDS)
    assert status.code == 0, status.output[-3000:]
    assert {node["node_id"] for node in json.loads(status.out)["nodes"]} >= {"boss", "w2"}
    validated = arena.run("validate", "--output", str(arena.temporary / "results.json"), seconds=LOOK_SECONDS)
    assert validated.code in (0, 1), validated.output[-3000:]
    arena.assert_contained()


@pytest.mark.slow
def test_files_in_place_of_a_nodes_folders_stop_nothing(arena: Arena) -> None:
    for key in (f"{LAYOUT.root}/logs/w1", LAYOUT.heartbeats("w1"), f"{LAYOUT.rewards}/round_1"):
        arena.plant(attacks.file, key, b"in the way\n")
    run_swarm(arena, "w1", "w2")
    assert arena.run("status", seconds=LOOK_SECONDS).code == 0
    assert arena.run("validate", "--output", str(arena.temporary / "results.json"), seconds=LOOK_SECONDS).code in (0, 1)
    assert 3 in arena.rounds_of("w1") and 3 in arena.rounds_of("w2")
    arena.assert_contained()


@pytest.mark.slow
@pytest.mark.parametrize("thing", THINGS)
def test_a_thing_in_place_of_the_experiment_is_refused_in_one_line(arena: Arena, thing: str) -> None:
    if thing == "unreadable" and not arena.users:
        pytest.skip("root may read every file")
    arena.plant(THINGS[thing], LAYOUT.experiment)
    for arguments in (("coordinate",), ("work",), ("join", f"{arena.folder}/trial")):
        done = arena.run(*arguments, seconds=LOOK_SECONDS, NODE_ID="w1", MODEL_NAME="nano", CPU_ONLY="true")
        assert_refused(done, "experiment")
    assert arena.run("status", seconds=LOOK_SECONDS).code in (0, 1, 2)
    arena.assert_contained()


# 14. Numbers and crowds


@pytest.mark.slow
def test_the_highest_epoch_does_not_silence_a_coordinator(plain: Arena) -> None:
    plain.plant(attacks.forge_announcement, 0, epoch=10**15 - 1)
    settings: dict[str, Any] = {"NODE_ID": "boss", "MAX_ROUNDS": 4, "COORDINATOR_ROUND_INTERVAL": 0.3, "ROUND_ADVANCE": "timer"}
    done = plain.run("coordinate", **settings)
    assert done.code == 0, done.output
    assert plain.announced() == [0, 1, 2, 3]
    assert len(plain.unreadable()) == 1, "what was planted stays, and is gone past"
    plain.assert_contained()


@pytest.mark.slow
def test_the_highest_segment_hides_no_metrics(mounted: Arena) -> None:
    for key in attacks.journals_of("w1"):
        mounted.plant(attacks.file, LAYOUT.segment(key, 10**15 - 1))
    run_swarm(mounted, "w1")
    assert [row["round"] for row in mounted.metrics("w1")] == [0, 1, 2, 3]
    mounted.assert_contained()


@pytest.mark.slow
def test_fifty_thousand_registrations_are_looked_at_in_a_minute(plain: Arena) -> None:
    run_swarm(plain, "w1", MAX_ROUNDS=2)
    plain.plant(attacks.crowd, 50_000)
    for arguments in (("status",), ("status", "--json"), ("validate", "--output", str(plain.temporary / "results.json"))):
        done = plain.run(*arguments, seconds=60)
        assert done.code in (0, 1), f"{arguments} ended with {done.code} after {done.seconds:.0f} s"
    plain.assert_contained()


@pytest.mark.slow
def test_an_unreadable_registration_is_no_node(plain: Arena) -> None:
    run_swarm(plain, "w1", MAX_ROUNDS=2)
    plain.plant(attacks.file, LAYOUT.peer("ghost"), b"{}\n")
    results = plain.temporary / "results.json"
    plain.run("validate", "--nodes", "2", "--output", str(results))
    counted = [each for each in json.loads(results.read_text())["findings"] if "registered" in each["detail"]]
    assert [each["status"] for each in counted] == ["ok"], counted
    plain.assert_contained()


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--rounds", "--nodes", "--transplants"])
def test_validate_refuses_a_number_below_zero(plain: Arena, option: str) -> None:
    done = plain.run("validate", option, "-5", "--output", str(plain.temporary / "results.json"))
    assert done.code == 2, done.output
    plain.assert_contained()
