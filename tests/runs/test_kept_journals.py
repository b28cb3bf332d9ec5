"""The index on this machine: a second look reads only what is new, and gives what the reader of journals gives."""

from pathlib import Path

import pytest

from rl_swarm.runs import progress
from rl_swarm.runs.kept_journals import KeptJournals
from rl_swarm.store import Store
from rl_swarm.store.folder import FolderStore
from rl_swarm.store.memory import MemoryStore
from tests.support.clocks import VirtualClock
from tests.support.sample_run import LAYOUT, SampleRun

METRICS = LAYOUT.log("w1", "metrics.jsonl")


@pytest.fixture(params=["disk", "mount", "memory"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> SampleRun:
    (tmp_path / "store").mkdir()
    clock = VirtualClock()
    store: Store = MemoryStore(clock=clock)
    if request.param != "memory":
        store = FolderStore(tmp_path / "store", clock, local=request.param == "disk")
    return SampleRun(store, tmp_path)


def looks_alike(run: SampleRun, tmp_path: Path, node_id: str = "w1") -> KeptJournals:
    """A new index, as another process would make it, agrees with the one reader."""
    index = KeptJournals(tmp_path / "home", run.store, LAYOUT)
    assert index.records(node_id) == progress.records(run.store, LAYOUT, node_id)
    return index


def test_it_gives_what_the_journals_say_at_every_moment(run: SampleRun, tmp_path: Path) -> None:
    looks_alike(run, tmp_path)
    for _ in range(4):
        run.play(2)
        for node_id in ("w1", "w2", "boss"):
            looks_alike(run, tmp_path, node_id)
    for member in run.members:
        member.merge(run.clock.monotonic() + 60.0)
    looks_alike(run, tmp_path)
    run.play(1)
    assert len(looks_alike(run, tmp_path).records("w1")) == 9


def test_a_second_look_reads_little(run: SampleRun, tmp_path: Path) -> None:
    run.play(16)
    looks_alike(run, tmp_path)
    before, size = run.store.counts["bytes_in"], len(progress.lines(run.store, METRICS)) * 1000
    read = run.store.counts["bytes_in"]
    assert len(KeptJournals(tmp_path / "home", run.store, LAYOUT).records("w1")) == 16
    assert run.store.counts["bytes_in"] - read < 300 < size < read - before + size


def test_a_journal_that_was_rewritten_is_read_again(run: SampleRun, tmp_path: Path) -> None:
    run.play(3)
    looks_alike(run, tmp_path)
    for key in progress.segment_keys(run.store, METRICS):
        run.store.delete(key)
    run.store.rewrite(METRICS, b'{"timestamp": 1.0, "round": 7, "reward": 0.25}\n')
    assert [row.round for row in looks_alike(run, tmp_path).records("w1")] == [7]


@pytest.mark.parametrize("damage", [b"", b"junk", b'{"key": 1}\n', None])
def test_a_damaged_index_costs_nothing_but_time(run: SampleRun, tmp_path: Path, damage: bytes | None) -> None:
    run.play(3)
    path = looks_alike(run, tmp_path).folder / "w1"
    path.write_bytes(path.read_bytes().replace(b'"reward":', b'"rewarx":') if damage is None else damage)
    looks_alike(run, tmp_path)


def test_a_home_that_cannot_be_written_does(run: SampleRun, tmp_path: Path) -> None:
    run.play(2)
    (tmp_path / "file").write_text("no folder")
    assert len(KeptJournals(tmp_path / "file" / "home", run.store, LAYOUT).records("w1")) == 2


def test_what_is_forgotten_is_gone_and_others_stay(run: SampleRun, tmp_path: Path) -> None:
    run.play(1)
    index = looks_alike(run, tmp_path)
    other = KeptJournals(tmp_path / "home", run.store, type(LAYOUT)("other"))
    assert other.folder != index.folder
    index.forget()
    index.forget()
    assert not index.folder.exists()
