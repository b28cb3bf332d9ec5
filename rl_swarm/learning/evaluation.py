"""Greedy pass@1 on the held-out questions, which nobody trains on: as the verifier sees it, and style-blind.

Both stand side by side, so that learning to write `<answer>…</answer>` is never sold as learning to reason.
"""

from statistics import fmean
from typing import Any

from rl_swarm.learning.policy import Policy
from rl_swarm.tasks import PASS, Tasks
from rl_swarm.tasks.styles import style_blind_score


class HeldOut:
    """Call it to measure the policy as it is now; the figures have their names in the record."""

    def __init__(self, tasks: Tasks, policy: Policy) -> None:
        self.tasks, self.policy, self.questions = tasks, policy, tasks.held_out()

    def __call__(self) -> dict[str, Any]:
        texts = self.policy.greedy(self.questions)
        asked = list(zip(self.questions, texts, strict=True))
        passed = [self.tasks.score(question, text) >= PASS for question, text in asked]
        known = [style_blind_score(self.tasks.score, question, text) >= PASS for question, text in asked]
        by_task: dict[str, list[bool]] = {}
        for question, correct in zip(self.questions, passed, strict=True):
            by_task.setdefault(question.task or "", []).append(correct)
        return {
            "held_out": fmean(passed),
            "held_out_style_blind": fmean(known),
            "held_out_by_task": {task: fmean(results) for task, results in sorted(by_task.items())},
            "held_out_questions": len(asked),
        }
