"""The index of a run: it agrees with the summary, follows by offset, and costs the same however long the run is."""

import threading
from pathlib import Path

import pytest

from rl_swarm.errors import ConfigError, StoreAway
from rl_swarm.runs.following import Moment
from rl_swarm.runs.index import RunIndex
from rl_swarm.runs.summary import summarise
from rl_swarm.store import Store
from rl_swarm.store.folder import FolderStore
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.layout import Layout
from tests.support.clocks import VirtualClock
from tests.support.long_run import LongRun
from tests.support.sample_run import LAYOUT, SampleRun


@pytest.fixture(params=["disk", "mount", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    (tmp_path / "store").mkdir()
    if request.param == "memory":
        return MemoryStore(clock=VirtualClock())
    return FolderStore(tmp_path / "store", VirtualClock(), local=request.param == "disk")


def test_its_figures_are_those_of_the_report(store: Store, tmp_path: Path) -> None:
    SampleRun(store, tmp_path).complete()
    index, summary = RunIndex(store, LAYOUT), summarise(store, LAYOUT)
    index.look()
    assert index.workers == ["w1", "w2", "w3"] and not index.behind
    assert index.ledger.uses(index.workers) == summary.uses
    for node in summary.nodes:
        kept = index.ledger.nodes[node.node_id]
        assert (kept.rounds, kept.own_used, kept.got, kept.tokens) == (node.rounds, node.own_used, node.got, node.tokens)
        rewards = [(each.first, each.mean) for each in index.ledger.stretches(node.node_id, "reward")]
        assert rewards == list(summary.rewards[node.node_id])
        assert sorted(kept.evaluations) == [0, 8, 16]


def test_it_follows_a_run_and_its_version_says_when_something_changed(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    run, index = SampleRun(store, tmp_path), RunIndex(store, LAYOUT)
    index.look()
    version = index.version
    index.look()
    assert index.version == version, "nothing new"
    run.play(2)
    index.look()
    assert index.version > version and index.moment.rounds_done == 2 and index.ledger.newest == 1
    assert {each.round for each in index.gossip} == {1}
    run.play(1)
    index.look()
    assert index.gossip[-1].round == 2 and index.gossip[-1].answered.text


def test_a_node_that_a_listing_leaves_out_for_a_moment_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = LongRun(tmp_path, "first", 6, 2)
    store = FolderStore(tmp_path, VirtualClock())
    index = RunIndex(store, run.layout)
    index.look()
    before = {name: (kept.rounds, kept.reward_total, kept.tokens) for name, kept in index.ledger.nodes.items()}
    monkeypatch.setattr("rl_swarm.runs.following.most_alive", lambda *_: (["worker_1"], 1))
    store.clock.sleep(10)
    index.look()
    assert list(index.ledger.nodes) == ["worker_1"], "what nobody follows takes no memory"
    monkeypatch.undo()
    store.clock.sleep(10)
    index.look()
    assert {name: (kept.rounds, kept.reward_total, kept.tokens) for name, kept in index.ledger.nodes.items()} == before


def test_a_journal_longer_than_a_page_is_read_whole_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_swarm.runs.following.PAGE_BYTES", 5000)
    run = LongRun(tmp_path / "store", "long", 50, 2)
    path = run.store.root / run.layout.log("worker_1", "metrics.jsonl")
    path.write_bytes(b"x" * 12_000 + b"\n" + path.read_bytes())  # a line that no page holds
    index = RunIndex(run.store, run.layout)
    index.look()
    while index.behind:
        index.look()
    assert [index.ledger.nodes[name].rounds for name in run.names] == [50, 50]
    before = run.store.counts["bytes_in"]
    for _ in range(5):
        index.look()
    assert run.store.counts["bytes_in"] - before < 5 * 4 * 4000, "only what is new, and heartbeats"
    assert all(len(node.rows) <= 64 for node in index.following._nodes.values())


def test_a_store_that_is_away_leaves_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = LongRun(tmp_path / "store", "long", 5, 2)
    index = RunIndex(run.store, run.layout)
    index.look()

    def away() -> None:
        raise StoreAway("the store does not answer")

    monkeypatch.setattr(index.following, "look", away)
    version = index.version
    index.look()
    assert index.trouble == "the store does not answer" and index.version == version + 1 and index.moment.rounds_done == 5


def test_an_experiment_that_is_not_the_founders_is_refused(tmp_path: Path) -> None:
    run = LongRun(tmp_path / "store", "long", 2, 2)
    with pytest.raises(ConfigError, match="the founder that you named"):
        RunIndex(run.store, Layout("long"), "0" * 64).look()


def test_a_viewer_does_not_wait_forever_for_a_store_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_swarm.runs.index.READING_SECONDS", 0.1)
    run = LongRun(tmp_path / "store", "long", 2, 2)
    index, began, ended = RunIndex(run.store, run.layout), threading.Event(), threading.Event()

    look = index.following.look

    def hang() -> Moment:
        began.set()
        ended.wait(20)
        return look()

    monkeypatch.setattr(index.following, "look", hang)
    looking = threading.Thread(target=index.look, daemon=True)
    looking.start()
    began.wait(20)
    with pytest.raises(StoreAway, match="has not answered"), index.reading():
        pytest.fail("somebody is looking")
    ended.set()
    looking.join()
    with index.reading():
        assert index.moment.rounds_done == 2
