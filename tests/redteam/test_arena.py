"""Check that the arena notices harm; otherwise every other test here would prove nothing."""

import sys
from pathlib import Path

import pytest

from rl_swarm.document import unseal
from rl_swarm.swarm.experiment import Experiment
from rl_swarm.swarm.peers import read_heartbeat, read_registration
from tests.redteam import attacks
from tests.redteam.arena import SECRET, Arena, assert_refused
from tests.redteam.test_links import run_swarm
from tests.support.standins import make_question


def harm(arena: Arena, how: str) -> None:
    path = arena.precious.path
    if how == "append":
        path.write_bytes(path.read_bytes() + b"x")
    elif how == "rewrite":
        path.write_bytes(path.read_bytes())
    elif how == "chmod":
        path.chmod(0o666)
    elif how == "remove":
        path.unlink()
    elif how == "replace":
        path.unlink()
        path.symlink_to(arena.key.path)
    elif how == "escape":
        (arena.base / "deep" / "private").mkdir()
    elif how == "publish":
        attacks.file(arena.folder, attacks.LAYOUT.log("w1", "metrics.jsonl"), f"x {SECRET} x".encode())
    else:
        assert arena.run_program([sys.executable, "-c", "1 / 0"]).code == 1


@pytest.mark.parametrize("how", ["append", "rewrite", "chmod", "remove", "replace", "escape", "publish", "crash"])
def test_harm_is_noticed(plain: Arena, how: str) -> None:
    plain.assert_contained()
    harm(plain, how)
    with pytest.raises(AssertionError):
        plain.assert_contained()


@pytest.mark.slow
def test_a_swarm_that_nobody_attacks_is_left_alone(arena: Arena) -> None:
    run_swarm(arena, "w1", "w2")
    assert arena.announced() == [0, 1, 2, 3] and 3 in arena.rounds_of("w1") and 3 in arena.rounds_of("w2")
    arena.assert_contained()


def test_forged_documents_are_well_formed(plain: Arena) -> None:
    """A forgery that its reader refuses for its form would prove nothing about keys."""
    attacks.forge_experiment(plain.folder, {"MAX_ROUNDS": "9"})
    attacks.forge_announcement(plain.folder, 3, coordinator="boss", epoch=7)
    attacks.forge_reward(plain.folder, 3, "w1", reward=0.5)
    attacks.forge_rollouts(plain.folder, 3, "w1", make_question(1, 2), ["<answer>1</answer>", "no"])
    attacks.forge_registration(plain.folder, "w1", model="other")
    attacks.forge_heartbeat(plain.folder, "w1", 5, doing="nothing")
    assert plain.unreadable() == []
    assert plain.announced() == [3] and plain.rewards() == {(3, "w1"): 0.5}
    registration = read_registration(plain.store, plain.layout, "w1")
    beat = read_heartbeat(plain.store, plain.layout, "w1", 5)
    assert registration is not None and registration.model == "other"
    assert beat is not None and beat.doing == "nothing"
    attacks.forge_experiment(plain.folder, experiment="another")
    said = unseal((plain.folder / attacks.LAYOUT.experiment).read_bytes(), Experiment)
    assert said.experiment == "another" and said.settings["MAX_ROUNDS"] == "9", "a document that is there is changed, not replaced"


def test_what_nodes_may_do_is_no_harm(plain: Arena) -> None:
    attacks.link(plain.folder, attacks.LAYOUT.peer("w1"), plain.key.path)
    for path in (plain.home() / "trial" / "lock", plain.temporary / "part", plain.folder / "document"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    plain.assert_contained()


def test_a_process_that_hangs_is_killed_with_its_children(plain: Arena, tmp_path: Path) -> None:
    code = "import os, time; os.fork(); os.fork(); time.sleep(60)"
    done = plain.run_program([sys.executable, "-c", code], seconds=1.0)
    assert done.code is None and done.seconds < 5


def test_a_process_cannot_fill_the_disk(plain: Arena) -> None:
    code = f"import time; time.sleep(0.2); open({str(plain.temporary / 'big')!r}, 'wb').truncate(1 << 30)"
    done = plain.run_program([sys.executable, "-c", code])
    assert done.code != 0 and "File too large" in done.err


def test_a_refusal_is_one_line_with_its_facts(plain: Arena) -> None:
    done = plain.run("status", EXPERIMENT_NAME="../x")
    assert_refused(done, "EXPERIMENT_NAME")
    with pytest.raises(AssertionError, match="is missing"):
        assert_refused(done, "some other fact")
