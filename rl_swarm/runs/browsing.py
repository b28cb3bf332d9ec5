"""Find published rollouts by node, round, task and reward, a page at a time; the newest first.

A page reads a bounded number of files, however few of their rollouts are wanted. It skips rounds whose rollouts were removed.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from rl_swarm.rollout import Rollout
from rl_swarm.runs.examples import published, rounds_with_rollouts
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.rounds import FIRST_STAGE

MOST_BUNDLES = 24  # read for one page
MOST_CHARACTERS = 2_000_000  # of the texts of one page
MOST_REWARD = 1e12  # as in a record
EPSILON = 1e-8  # as in learning/grpo.py


@dataclass(frozen=True)
class Wanted:
    """Which rollouts to find; None admits all. `low` and `high` bound the mean reward of a rollout."""

    node_id: str | None = None
    round: int | None = None
    task: str | None = None
    low: float | None = None
    high: float | None = None

    def admits(self, rollout: Rollout) -> bool:
        mean = mean_reward(rollout)
        return (
            (self.task is None or rollout.question.task == self.task)
            and (self.low is None or mean >= self.low)
            and (self.high is None or mean <= self.high)
        )


@dataclass(frozen=True)
class Place:
    """Where a page begins: a round, a node in the order of the list, and how many rollouts of its file were shown."""

    round: int
    node: int = 0
    skip: int = 0


def page_of(
    store: Store, layout: Layout, wanted: Wanted, nodes: Sequence[str], start: Place, limit: int
) -> tuple[list[Rollout], Place | None]:
    """Return at most `limit` rollouts of these nodes, and where to go on; None if there are no more."""
    found: list[Rollout] = []
    characters, read = 0, 0
    rounds = {start.round} if wanted.round is not None else rounds_with_rollouts(store, layout)
    for place in _places(start, len(nodes), rounds):
        if read == MOST_BUNDLES:
            return found, place
        read += 1
        rollouts = published(store, layout, place.round, FIRST_STAGE, nodes[place.node])
        for number, rollout in enumerate(rollouts[place.skip :], place.skip):
            if not wanted.admits(rollout):
                continue
            if len(found) == limit or characters > MOST_CHARACTERS:
                return found, Place(place.round, place.node, number)
            found.append(rollout)
            characters += len(rollout.question.prompt) + sum(len(done.text) for done in rollout.completions)
    return found, None


def _places(start: Place, nodes: int, rounds: Iterable[int]) -> Iterator[Place]:
    for number in sorted((number for number in rounds if number <= start.round), reverse=True):
        first = start.node if number == start.round else 0
        for node in range(first, nodes):
            yield Place(number, node, start.skip if (number, node) == (start.round, first) else 0)


def find(store: Store, layout: Layout, node_id: str, number: int, stage: int, slot: int) -> Rollout | None:
    """One rollout by the parts of its id."""
    return next((each for each in published(store, layout, number, stage, node_id) if each.slot == slot), None)


def bounded_rewards(rollout: Rollout) -> list[float]:
    """The claimed rewards; absurd ones are cut, so that sums of them exist."""
    return [min(MOST_REWARD, max(-MOST_REWARD, reward)) for reward in rollout.rewards]


def mean_reward(rollout: Rollout) -> float:
    return fmean(bounded_rewards(rollout))


def advantages(rollout: Rollout) -> list[float]:
    """How much better each completion is than the others of its rollout, by the published rewards."""
    rewards = bounded_rewards(rollout)
    mean, spread = fmean(rewards), pstdev(rewards)
    return [(reward - mean) / (spread + EPSILON) for reward in rewards]
