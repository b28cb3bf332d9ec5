"""Greedy pass@1 on the held-out questions, which nobody trains on, read in three ways.

    held_out               as the verifier reads: what is rewarded
    held_out_style_blind   a right answer in any form: what the model knows
    held_out_in_form       with the completion made to begin with `<answer>`: what it knows in the form that is rewarded

All three stand side by side, so that finding the form is never sold as learning to reason.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from rl_swarm.config import PREFIXES
from rl_swarm.learning.policy import Policy
from rl_swarm.rollout import Question
from rl_swarm.tasks import PASS, Tasks
from rl_swarm.tasks.styles import in_tags

FORM = PREFIXES["answer"]


class HeldOut:
    """Call it to measure the policy as it is now; the figures have their names in the record.

    `right` says of each figure which questions were answered rightly the last time, as a 1 or a 0 each: two models that answer the
    same questions are compared question by question.
    """

    def __init__(self, tasks: Tasks, policy: Policy) -> None:
        self.tasks, self.policy, self.questions = tasks, policy, tasks.held_out()
        self.right: dict[str, str] = {}

    def __call__(self) -> dict[str, Any]:
        plain = self.policy.greedy(self.questions)
        begun = plain if self.policy.prompting.prefix == FORM else self.policy.greedy(self.questions, FORM)
        readings = [(text, in_tags(text), formed) for text, formed in zip(plain, begun, strict=True)]
        passed, known, formed = zip(*self._right(readings), strict=True)
        figures = {"held_out": passed, "held_out_style_blind": known, "held_out_in_form": formed}
        self.right = {name: "".join("01"[right] for right in results) for name, results in figures.items()}
        by_task: dict[str, list[bool]] = {}
        for question, right in zip(self.questions, passed, strict=True):
            by_task.setdefault(question.task or "", []).append(right)
        return {
            **{name: fmean(results) for name, results in figures.items()},
            "held_out_by_task": {task: fmean(results) for task, results in sorted(by_task.items())},
            "held_out_questions": len(self.questions),
        }

    def answers(self, count: int) -> list[tuple[Question, str]]:
        """Greedy answers to a few of the questions, spread evenly over all of them: texts to look at, chosen by no result."""
        step = max(1, len(self.questions) // count)
        chosen = self.questions[::step][:count]
        return list(zip(chosen, self.policy.greedy(chosen), strict=True))

    def _right(self, readings: Sequence[Sequence[str]]) -> list[list[bool]]:
        """Whether each reading of each answer gets the full reward."""
        scores = self.tasks.score_groups(list(zip(self.questions, readings, strict=True)))
        return [[score >= PASS for score in group] for group in scores]
