"""Points 5 and 12: checkpoints that somebody planted, and duplicates as a Drive names them. All on a finished nano run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.redteam import attacks
from tests.redteam.arena import NANO, Arena, says
from tests.redteam.attacks import LAYOUT, STRANGER
from tests.redteam.conftest import FINISHED_ROUNDS

pytestmark = pytest.mark.slow

LATER = FINISHED_ROUNDS + 2  # the last that a node would take: those beyond MAX_ROUNDS are ignored
QUESTION = "What is 1 + 1?"
MOST_MB = 1000.0  # `ask` takes 450
MOST_BYTES = 100 << 20
GO_ON: dict[str, Any] = NANO | {"NODE_ID": "worker_1", "MAX_ROUNDS": FINISHED_ROUNDS + 2, "NUM_TRANSPLANT_TREES": 0}


@pytest.fixture
def run(plain: Arena, finished: Callable[[Arena], None]) -> Arena:
    finished(plain)
    return plain


def good(arena: Arena) -> Path:
    """The last checkpoint that worker_1 has in the store."""
    return arena.folder / LAYOUT.checkpoint(FINISHED_ROUNDS, "worker_1")


def local(arena: Arena) -> Path:
    [folder] = arena.home().glob("trial-*/worker_1/checkpoints")
    return folder


def test_the_harness_plants_what_a_node_would_take(run: Arena) -> None:
    """A forged checkpoint that is a copy of the good one, byte for byte but for its round, has the right form."""
    document = attacks.read_checkpoint(good(run))
    assert document["round"] == FINISHED_ROUNDS
    shutil.rmtree(run.home())
    run.plant(attacks.forge_checkpoint, FINISHED_ROUNDS + 1, "worker_1", document)
    done = run.run("ask", QUESTION, "--json", **GO_ON)
    assert done.code == 0, done.output
    assert json.loads(done.out)["round"] == FINISHED_ROUNDS + 1


FORGERIES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "NaN weights": lambda document: attacks.with_weights(document, float("nan")),
    "no node state": lambda document: {**document, "node": {}},
    "an empty optimizer": lambda document: {**document, "trainer": {**document["trainer"], "optimizer": {}}},
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_a_planted_checkpoint_that_cannot_be_right_is_refused(run: Arena, forge: Callable[..., Any]) -> None:
    """The node goes on from its own: it plays the rounds that are left, and says what it did not use."""
    run.plant(attacks.forge_checkpoint, LATER, "worker_1", forge(attacks.read_checkpoint(good(run))))
    done = run.run("work", **GO_ON)
    assert done.code == 0, done.output[-3000:]
    assert [row["round"] for row in run.metrics("worker_1")] == list(range(FINISHED_ROUNDS + 2))
    assert says(done.output, "checkpoint", str(LATER)), "the planted checkpoint was passed over without a word"
    assert (local(run) / f"round_{FINISHED_ROUNDS + 2:06d}.pt").exists()
    run.assert_contained()


def test_a_later_checkpoint_is_announced_and_costs_no_local_one(run: Arena) -> None:
    """Without keys a well-formed one may be taken, since a node may have gone on elsewhere. It says so, and loses nothing."""
    run.plant(attacks.forge_checkpoint, LATER, "worker_1", attacks.with_weights(attacks.read_checkpoint(good(run)), 0.0))
    before = {path.name: path.read_bytes() for path in local(run).glob("round_*.pt")}
    assert before
    done = run.run("work", **GO_ON | {"MAX_ROUNDS": LATER + 3})
    assert done.code == 0, done.output[-3000:]
    assert says(done.output, "checkpoint", "store", str(LATER)), done.output
    refused = max(row["round"] for row in run.metrics("worker_1") if row["round"] < LATER) > FINISHED_ROUNDS
    kept = {path.name: path.read_bytes() for path in local(run).rglob("*") if path.is_file()}
    assert refused or before.items() <= kept.items(), "good local checkpoints were pruned because of a fetched one"
    run.assert_contained()


def test_a_checkpoint_that_unpacks_without_end_is_not_unpacked(run: Arena) -> None:
    import torch

    document = attacks.read_checkpoint(good(run))
    name = next(iter(document["trainer"]["model"]))
    bomb = {**document, "trainer": {**document["trainer"], "model": {**document["trainer"]["model"], name: torch.zeros(1 << 28)}}}
    path = run.plant(attacks.forge_checkpoint, LATER, "worker_1", bomb, deflated=True)
    assert path.stat().st_size < 30 << 20
    done = run.run("ask", QUESTION, "--json", **NANO | {"NODE_ID": "worker_1"})
    assert done.peak_mb < MOST_MB, f"{done.peak_mb:.0f} MB"
    assert done.code == 0, done.output[-3000:]
    assert json.loads(done.out)["round"] == FINISHED_ROUNDS
    run.assert_contained()


@pytest.mark.parametrize("command", ["work", "ask"])
def test_a_checkpoint_that_is_a_link_to_an_endless_device_fills_no_disk(run: Arena, command: str) -> None:
    run.plant(attacks.link, LAYOUT.checkpoint(LATER, "worker_1"), Path("/dev/zero"))
    largest = 0

    def watch() -> None:
        nonlocal largest
        largest = max(largest, run.largest_private_file())

    done = run.run(*((command, QUESTION) if command == "ask" else (command,)), watch=watch, **GO_ON)
    assert largest < MOST_BYTES, f"{largest >> 20} MB were copied"
    assert done.code == 0, done.output[-3000:]
    assert command == "ask" or len(run.metrics("worker_1")) == FINISHED_ROUNDS + 2
    assert command == "ask" or says(done.output, "link"), done.output
    run.assert_contained()


def test_ask_and_export_take_no_strangers_checkpoint_by_default(run: Arena) -> None:
    run.plant(attacks.forge_checkpoint, LATER, STRANGER, attacks.read_checkpoint(good(run)))
    asked = run.run("ask", QUESTION, "--json", **NANO)
    assert asked.code == 0, asked.output[-3000:]
    assert json.loads(asked.out)["node_id"] != STRANGER
    exported = run.run("export", str(run.temporary / "model"), **NANO)
    assert exported.code == 0, exported.output[-3000:]
    assert STRANGER not in exported.out
    run.assert_contained()


def test_a_node_whose_disk_is_gone_resumes_by_itself(run: Arena) -> None:
    """What Colab needs: the store's checkpoint is taken when there is no other, and that is announced."""
    shutil.rmtree(run.home())
    done = run.run("work", **GO_ON)
    assert done.code == 0, done.output[-3000:]
    assert says(done.output, "checkpoint", "store", str(FINISHED_ROUNDS)), done.output
    assert [row["round"] for row in run.metrics("worker_1")] == list(range(FINISHED_ROUNDS + 2))
    run.assert_contained()


# 12. Duplicates


@pytest.mark.parametrize("command", ["ask", "export"])
def test_a_duplicate_as_a_drive_names_it_is_no_checkpoint(run: Arena, command: str) -> None:
    for number in (FINISHED_ROUNDS, LATER):
        for name in ("worker_1 (1).pt", "Copy of worker_1.pt", "wörker.pt", ".pt"):
            run.plant(attacks.file, f"{LAYOUT.checkpoint_folder(number)}/{name}", good(run).read_bytes())
    done = run.run(command, QUESTION if command == "ask" else str(run.temporary / "model"), **NANO)
    assert done.code == 0, done.output[-3000:]
    run.assert_contained()
