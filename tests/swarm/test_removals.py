"""Documents about removed rollouts: whose word counts for whose rollouts."""

from pathlib import Path

import pytest

from rl_swarm.identity import Identity, load_identity
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.removals import BY_HAND, Removal, removed_before, write_removal
from rl_swarm.swarm.signatures import Signatures
from tests.swarm.test_exchange import LAYOUT


@pytest.fixture
def founder(tmp_path: Path) -> Identity:
    return load_identity(str(tmp_path / "founder.pem"))


@pytest.fixture
def worker(tmp_path: Path) -> Identity:
    return load_identity(str(tmp_path / "worker.pem"))


def removal(by: str, before: int, everyone: bool = False) -> Removal:
    return Removal(by, before, everyone, False, 1.0)


def test_a_node_speaks_for_itself_and_a_cleaner_for_everyone() -> None:
    store = MemoryStore()
    write_removal(store, LAYOUT, removal("w1", 3), Signatures())
    assert removed_before(store, LAYOUT, ["w1", "w2"], Signatures()) == {"w1": 3, "w2": 0}
    write_removal(store, LAYOUT, removal(BY_HAND, 2, everyone=True), Signatures())
    write_removal(store, LAYOUT, removal("stranger", 9, everyone=True), Signatures())
    assert removed_before(store, LAYOUT, ["w1", "w2"], Signatures()) == {"w1": 3, "w2": 2}, "who never registered is not heard"


def test_a_damaged_document_leaves_the_one_before_it() -> None:
    store = MemoryStore()
    for before in (3, 4, 5):
        write_removal(store, LAYOUT, removal("w1", before), Signatures())
    assert store.list(LAYOUT.removals_of("w1")) == ["round_000004.json", "round_000005.json"]
    store.rewrite(LAYOUT.removal("w1", 5), b"half")
    assert removed_before(store, LAYOUT, ["w1"], Signatures()) == {"w1": 4}


def test_in_a_signed_experiment_who_may_announce_rounds_speaks_for_everyone(founder: Identity, worker: Identity) -> None:
    store, reading = MemoryStore(), Signatures(announcers=frozenset({founder.public}))
    write_removal(store, LAYOUT, removal("boss", 9, everyone=True), Signatures())
    write_removal(store, LAYOUT, removal("w1", 8, everyone=True), Signatures(worker))
    assert removed_before(store, LAYOUT, ["boss", "w1", "w2"], reading) == {"boss": 0, "w1": 0, "w2": 0}
    write_removal(store, LAYOUT, removal("w2", 5), Signatures(worker))
    write_removal(store, LAYOUT, removal(BY_HAND, 4, everyone=True), Signatures(founder))
    assert removed_before(store, LAYOUT, ["boss", "w1", "w2"], reading) == {"boss": 4, "w1": 4, "w2": 5}
