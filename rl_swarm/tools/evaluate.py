"""Measure the base model and the trained one on the held-out questions, with the same prompts and greedy decoding for both."""

from dataclasses import dataclass
from typing import Any

import msgspec
from rich.console import Group
from rich.text import Text

from rl_swarm.learning.evaluation import HeldOut
from rl_swarm.node.learner import make_tasks
from rl_swarm.runs.record import Evaluated
from rl_swarm.runs.summary import Change
from rl_swarm.show.card import HELD_OUT_READINGS
from rl_swarm.show.formats import percent, within
from rl_swarm.show.steps import Step, unseen
from rl_swarm.show.tables import make_table
from rl_swarm.text import counted
from rl_swarm.tools.ask import load_trained
from rl_swarm.tools.opening import Run


@dataclass(frozen=True)
class Measured:
    model: str
    node_id: str
    round: int
    base: Evaluated
    trained: Evaluated

    @property
    def view(self) -> Group:
        """The three figures with their intervals, then those of each task as the verifier reads."""
        asked = self.base.held_out_questions
        table = make_table("held-out questions", numbers=("base", "", "trained", " "))
        for name, field in HELD_OUT_READINGS.items():
            change = Change(getattr(self.base, field), getattr(self.trained, field))
            ends = ((each, within(each, asked)) for each in (change.before, change.after))
            table.add_row(f"all {asked}, {name}", *(cell for each, range_of in ends for cell in (percent(each, ".1%"), range_of)))
        for task, after in self.trained.held_out_by_task.items():
            table.add_row(Text(task), percent(self.base.held_out_by_task[task], ".1%"), "", percent(after, ".1%"), "")
        return Group(Text(f"base: {self.model}; trained: {self.node_id}, round {self.round}"), table)

    def as_dict(self) -> dict[str, Any]:
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]


def evaluate(run: Run, step: Step = unseen) -> Measured:
    """Measure the newest model of NODE_ID, or of the node that came furthest on this machine, and its base model."""
    trained = load_trained(run, step)
    step("making held-out questions")
    measure = HeldOut(make_tasks(trained.config), trained.policy)
    trained.policy.check_fits(measure.questions)
    asked = counted(len(measure.questions), "question")
    step(f"asking the base model {asked}, twice")
    base = Evaluated(round=0, **measure())
    trained.apply()
    step(f"asking the trained model {asked}, twice")
    after = Evaluated(round=trained.round, **measure())
    return Measured(trained.policy.name, trained.node_id, trained.round, base, after)
