"""Texts of a run: published completions, whether each is right, and answers before and after training side by side.

Right and rewarded are two things: the verifier reads only `<answer>…</answer>`. The questions of a comparison are chosen before
anything is answered, so that the examples flatter nobody.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rl_swarm.errors import BadDocument, NotFound
from rl_swarm.rollout import BUNDLE_BYTES, TOLERANCE, Rollout, decode
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout, node_of_file, recognised, round_of_folder
from rl_swarm.swarm.rounds import FIRST_STAGE
from rl_swarm.tasks import PASS, parsed_answer
from rl_swarm.tasks.styles import bare_answer

RIGHT, NOT_READ, PARTLY, WRONG = "right", "right, not in <answer>", "partly right", "wrong"


@dataclass(frozen=True)
class Answered:
    """One question, one answer to it, and its author. `reward` is the author's claim; `key` is the right answer, if known."""

    prompt: str
    text: str
    reward: float
    by: str
    key: str | None = None

    @property
    def good(self) -> bool:
        """Whether it has the full reward."""
        return self.reward >= PASS

    @property
    def verdict(self) -> str:
        """RIGHT at full reward, NOT_READ if only the form is wrong, PARTLY at a part of the reward, else WRONG."""
        if self.good:
            return RIGHT
        if self.key is not None and parsed_answer(self.text) is None and bare_answer(self.text) == self.key.strip():
            return NOT_READ
        return PARTLY if self.reward >= TOLERANCE else WRONG


@dataclass(frozen=True)
class Example:
    """Answers before and after training: to the same question, or else to two questions of the same task."""

    task: str
    before: Answered
    after: Answered

    @property
    def same_question(self) -> bool:
        return self.before.prompt == self.after.prompt

    @property
    def turned(self) -> bool:
        """From less than the full reward to the full one."""
        return self.after.good and not self.before.good


def bundle_keys(store: Store, layout: Layout, number: int, stage: int, node_id: str) -> list[str]:
    """Return the files with a node's rollouts of a stage of a round; the archived ones if there are no others."""
    for folder in (layout.rollouts_of(number, stage), layout.archived_of(number, stage)):
        if found := [f"{folder}/{name}" for name in store.list(folder) if node_of_file(name) == node_id]:
            return found
    return []


def published(store: Store, layout: Layout, number: int, stage: int, node_id: str) -> list[Rollout]:
    """Return a node's rollouts of a stage of a round, without those that cannot be read now."""
    found: list[Rollout] = []
    for key in bundle_keys(store, layout, number, stage, node_id):
        try:
            found += decode(store.get(key, limit=BUNDLE_BYTES)).rollouts
        except (NotFound, BadDocument):
            continue
    return found


def completions_of(rollout: Rollout) -> list[Answered]:
    question, by = rollout.question, f"{rollout.node_id}, round {rollout.round}"
    return [Answered(question.prompt, done.text, done.reward, by, question.answer) for done in rollout.completions]


def pick_pair(rollouts: Sequence[Rollout]) -> tuple[Answered | None, Answered | None]:
    """Pick a completion with the full reward and the worst one; of one question if possible, since a node learns from that."""
    goods, others = list[Answered](), list[Answered]()
    for rollout in rollouts:
        ranked = sorted(completions_of(rollout), key=lambda done: done.reward)
        good, other = [done for done in ranked[-1:] if done.good], [done for done in ranked[:1] if not done.good]
        if good and other:
            return good[0], other[0]
        goods, others = goods + good, others + other
    return next(iter(goods), None), next(iter(others), None)


def published_examples(store: Store, layout: Layout, numbers: Sequence[int], nodes: Sequence[str]) -> list[Example]:
    """For each task the first completion of the first round and of the last. Their questions differ, but no model is needed.

    The first round is the oldest of which rollouts are there or archived.
    """
    there = rounds_with_rollouts(store, layout)
    kept = [number for number in numbers if number in there]
    if len(kept) < 2:
        return []
    before, after = (_first_of_task(store, layout, number, nodes) for number in (kept[0], kept[-1]))
    return [Example(task, before[task], after[task]) for task in sorted(before.keys() & after.keys())]


def rounds_with_rollouts(store: Store, layout: Layout) -> set[int]:
    """Rounds of which rollouts are there or archived; two listings."""
    names = [*store.list(layout.rollouts), *store.list(layout.archived)]
    return recognised(round_of_folder, names)


def _first_of_task(store: Store, layout: Layout, number: int, nodes: Sequence[str]) -> dict[str, Answered]:
    found: dict[str, Answered] = {}
    for rollout in (each for node in nodes for each in published(store, layout, number, FIRST_STAGE, node)):
        if rollout.completions and rollout.question.task:
            found.setdefault(rollout.question.task, completions_of(rollout)[0])
    return found


def telling(examples: Sequence[Example]) -> Example:
    """The first that turned from wrong to right, or else the first."""
    return next((each for each in examples if each.turned), examples[0])
