"""Answers before and after training, side by side: asked of the models, or else taken from published rollouts.

The questions are chosen before anything is answered, so that the examples flatter nobody.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rl_swarm.runs.following import GOOD, published
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.rounds import FIRST_STAGE


@dataclass(frozen=True)
class Answered:
    """One question, one answer to it, and its author."""

    prompt: str
    text: str
    reward: float
    by: str


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
        """From wrong to right."""
        return self.before.reward < GOOD <= self.after.reward


def published_examples(store: Store, layout: Layout, numbers: Sequence[int], nodes: Sequence[str]) -> list[Example]:
    """For each task the first completion of the first round and of the last. Their questions differ, but no model is needed."""
    if len(numbers) < 2:
        return []
    before, after = (_first_of_task(store, layout, number, nodes) for number in (numbers[0], numbers[-1]))
    return [Example(task, before[task], after[task]) for task in sorted(before.keys() & after.keys())]


def _first_of_task(store: Store, layout: Layout, number: int, nodes: Sequence[str]) -> dict[str, Answered]:
    found: dict[str, Answered] = {}
    for rollout in (each for node in nodes for each in published(store, layout, number, FIRST_STAGE, node)):
        question, by = rollout.question, f"{rollout.node_id} in round {rollout.round}"
        if rollout.completions and question.task:
            first = rollout.completions[0]
            found.setdefault(question.task, Answered(question.prompt, first.text, first.reward, by))
    return found


def telling(examples: Sequence[Example]) -> Example:
    """The first that turned from wrong to right, or else the first."""
    return next((each for each in examples if each.turned), examples[0])
