"""Greedy pass@1 on the held-out questions, which nobody trains on: as the verifier sees it, and whatever the style.

The two stand side by side so that learning to write `<answer>…</answer>` is never sold as learning to reason.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any, Protocol

from rl_swarm.learning.models.styles import style_blind_score
from rl_swarm.rollout import Question

PASS = 1.0 - 1e-6


class Greedy(Protocol):
    def greedy(self, questions: Sequence[Question]) -> list[str]: ...


class HeldOutTasks(Protocol):
    def held_out(self) -> list[Question]: ...
    def score(self, question: Question, text: str) -> float: ...


class HeldOut:
    """Called with a round, returns what goes into the metrics of that round."""

    def __init__(self, tasks: HeldOutTasks, policy: Greedy) -> None:
        self.tasks = tasks
        self.policy = policy
        self.questions = tasks.held_out()

    def __call__(self, round_number: int) -> dict[str, Any]:
        texts = self.policy.greedy(self.questions)
        asked = list(zip(self.questions, texts, strict=True))
        passed = [self.tasks.score(question, text) >= PASS for question, text in asked]
        known = [style_blind_score(self.tasks.score, question, text) >= PASS for question, text in asked]
        by_task: dict[str, list[bool]] = {}
        for (question, _), correct in zip(asked, passed, strict=True):
            by_task.setdefault(question.task or "", []).append(correct)
        return {
            "held_out": fmean(passed),
            "held_out_style_blind": fmean(known),
            "held_out_by_task": {task: fmean(results) for task, results in sorted(by_task.items())},
            "held_out_questions": len(asked),
        }
