"""Pages of rollouts: each is found once, filters hold, and one page reads a bounded number of files."""

from pathlib import Path

import pytest

from rl_swarm.rollout import BUNDLE_BYTES, Completion, Question, Rollout
from rl_swarm.runs.browsing import MOST_BUNDLES, Place, Wanted, advantages, find, mean_reward, page_of
from tests.support.long_run import LongRun

WHOLE = Wanted()


@pytest.fixture
def run(tmp_path: Path) -> LongRun:
    return LongRun(tmp_path / "store", "long", 3, 3)


@pytest.mark.parametrize("limit", [1, 2, 5, 50])
def test_every_rollout_is_on_one_page(run: LongRun, limit: int) -> None:
    found, place = list[str](), Place(2)
    while place:
        page, place = page_of(run.store, run.layout, WHOLE, run.names, place, limit)
        assert len(page) <= limit
        found += [each.id for each in page]
    everything = [f"{name}/{number}/0/{slot}" for number in (2, 1, 0) for name in run.names for slot in (0, 1)]
    assert found == everything


def test_filters_hold(run: LongRun) -> None:
    def ids(wanted: Wanted, nodes: list[str]) -> list[str]:
        return [each.id for each in page_of(run.store, run.layout, wanted, nodes, Place(2), 50)[0]]

    assert ids(Wanted(round=2, task="gcd"), run.names) == [f"{name}/2/0/1" for name in run.names]
    assert ids(Wanted(round=2, high=0.3), ["worker_1"]) == ["worker_1/2/0/0"]
    assert ids(Wanted(round=2, low=0.3), ["worker_1"]) == ["worker_1/2/0/1"]


def test_a_page_reads_a_bounded_number_of_files(tmp_path: Path) -> None:
    run = LongRun(tmp_path / "store", "long", 2, 1)
    for number in range(100):
        run.store.put(run.layout.bundle(number, "stranger"), b"")
    before = run.store.counts["list"]
    page, place = page_of(run.store, run.layout, Wanted(task="nothing"), run.names, Place(99), 10)
    assert page == [] and place == Place(99 - MOST_BUNDLES)
    assert run.store.counts["list"] - before == 2 + 2 * MOST_BUNDLES, "each in its place and in the archive"


def test_rounds_whose_rollouts_are_gone_are_passed_over(tmp_path: Path) -> None:
    run = LongRun(tmp_path / "store", "long", 3, 3)
    kept = run.store.get(run.layout.bundle(0, "worker_1"), limit=BUNDLE_BYTES)
    for number in range(3):
        for name in run.names:
            run.store.delete(run.layout.bundle(number, name))
    run.store.put(f"{run.layout.archived_of(0)}/worker_1.json", kept)
    page, place = page_of(run.store, run.layout, WHOLE, run.names, Place(100_000), 10)
    assert [each.id for each in page] == ["worker_1/0/0/0", "worker_1/0/0/1"] and place is None, "one page, not thousands"


def test_one_rollout_is_found_by_its_id(run: LongRun) -> None:
    found = find(run.store, run.layout, "worker_2", 1, 0, 1)
    assert found is not None and found.id == "worker_2/1/0/1"
    assert find(run.store, run.layout, "worker_2", 1, 0, 7) is None and find(run.store, run.layout, "nobody", 1, 0, 0) is None


def test_advantages_are_those_of_training_and_absurd_rewards_are_cut() -> None:
    rewards = (1.0, 0.0, 0.0, 0.0)
    rollout = Rollout(Question("q"), tuple(Completion("a", reward) for reward in rewards), "w", 0)
    assert advantages(rollout) == pytest.approx([3**0.5, *[-(3**-0.5)] * 3])
    absurd = Rollout(Question("q"), tuple(Completion("a", reward) for reward in (1e308, 1e308, -1e308)), "w", 0)
    assert mean_reward(absurd) == pytest.approx(1e12 / 3) and len(advantages(absurd)) == 3
