"""Run one cell: all nodes of a swarm in one process on a memory store, each in the shipped loop, and keep what their journals say.

Everything random is keyed on the seed, nodes take turns, and no time-out is near: the same cell gives the same rows. It is a
process of its own with one thread, `python -m rl_swarm.reproduce.cell PLAN FOLDER`, so that cells share neither memory
nor cores. It has no checkpoints: a cell that was interrupted is run again from its first round.
"""

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from rl_swarm.clock import SystemClock
from rl_swarm.config import Config, load
from rl_swarm.node.assembly import Node, make_worker
from rl_swarm.node.journal import Journal
from rl_swarm.node.local import LocalFolder, claim
from rl_swarm.node.worker import Worker
from rl_swarm.processes.stopping import Stop, launcher_of, watching_launcher
from rl_swarm.randomness import generator
from rl_swarm.reproduce.plan import QUANTISED, Cell
from rl_swarm.reproduce.results import CellResult, node_round, save
from rl_swarm.reproduce.split import LOOKED_BACK, Split, adapted
from rl_swarm.runs.record import Round
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.membership import enter
from rl_swarm.swarm.protocol import Newsbox
from rl_swarm.tasks import tasks_version, warm_up

LAYOUT = Layout("reproduce")
QUANTISED_LEVELS = 7  # on either side of zero: four bits
# A process that is paused for minutes must not lose rollouts to a time-out: that would be chance.
PATIENT = {"ROLLOUT_FETCH_TIMEOUT_SECONDS": "1000000"}


class _NoCheckpoints:
    """A cell is short and is run again from the start; its nodes neither save nor restore."""

    def save(self, round: int, node_state: dict[str, Any], trainer_state: dict[str, Any]) -> None:
        raise AssertionError("a node of a cell saves no checkpoint")

    def restore(self, apply: object) -> None:
        return None


class _Remembering(Journal):
    """The shipped journal, which also keeps its metrics at hand."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.rows: list[Round] = []

    def round_done(self, record: Round) -> None:
        super().round_done(record)
        self.rows.append(record)


@dataclass(frozen=True)
class _Member:
    worker: Worker
    journal: _Remembering
    local: LocalFolder

    def play(self, number: int) -> None:
        self.worker.play(number)

    def adapt(self, first: Split, peers: int) -> None:
        """Change I and J together, by what this node itself has seen so far."""
        split = adapted(first, [row.own_used / row.own_wanted for row in self.journal.rows[-LOOKED_BACK:]], peers)
        self.worker.settings = replace(self.worker.settings, own_count=split.own, external_count=split.external)


def run_cell(cell: Cell, after_round: Callable[[int], None] = lambda number: None) -> CellResult:
    """Play every round with every node; the order of the nodes changes from round to round, as it would among machines."""
    began = time.monotonic()
    warm_up()
    with tempfile.TemporaryDirectory(prefix="reproduce-") as folder, ExitStack() as closing:
        store, members = MemoryStore(), []
        for place in range(cell.arm.nodes):
            members.append(_make_member(cell, place, store, Path(folder)))
            closing.callback(members[-1].local.lock.close)
        before = _evaluate_before(members[0].worker)
        for number in range(cell.rounds):
            order = list(members)
            generator(cell.seed, "order", number).shuffle(order)
            for member in order:
                if cell.arm.adaptive:
                    member.adapt(cell.arm.split, len(members) - 1)
                member.play(number)
            after_round(number + 1)
    rows = [node_round(member.worker.settings.node, row) for member in members for row in member.journal.rows]
    assert len(rows) == len(members) * cell.rounds, "a journal lacks a round"
    return CellResult(cell, tuple(sorted(rows, key=lambda row: (row.round, row.node))), before, time.monotonic() - began)


def _evaluate_before(worker: Worker) -> tuple[float, float] | None:
    """Held-out accuracy of the base model; all nodes begin with the same, but for a mixed swarm, whose first node counts."""
    if not worker.evaluate or not worker.settings.eval_interval:
        return None
    measured = worker.evaluate(0)
    return measured["held_out"], measured["held_out_style_blind"]


def _make_member(cell: Cell, place: int, store: MemoryStore, folder: Path) -> _Member:
    from rl_swarm.node.learner import make_learner

    environment = cell.environment(place)
    node, journal = _open_node(environment, f"node_{place + 1:02d}", store, folder)
    learner = make_learner(node.config, node.local.node_id)
    if environment["MODEL_NAME"].startswith(QUANTISED):
        quantise(learner.policy.model)
    worker = make_worker(node, learner, _NoCheckpoints())
    return _Member(worker, journal, node.local)


def _open_node(environment: dict[str, str], node_id: str, store: MemoryStore, folder: Path) -> tuple[Node, _Remembering]:
    """As `open_node` in node/assembly.py does it, without signals and threads."""
    clock = SystemClock()
    config = _config(environment | {"NODE_ID": node_id, "RL_SWARM_HOME": str(folder)})
    experiment = experiments.publish(store, LAYOUT, config, tasks_version(), clock)
    local = claim(config, experiment)
    journal, news = _Remembering(local.record, LAYOUT, node_id, clock, console=None), Newsbox()
    member = enter(
        config,
        store,
        experiment,
        None,
        folder=local.path,
        record=local.record,
        session="",
        clock=clock,
        news=news,
        doing=lambda: journal.doing,
        background=False,
    )
    return Node(config, clock, Stop(), experiment, local, journal, news, member), journal


def _config(environment: dict[str, str]) -> Config:
    model = environment["MODEL_NAME"].removeprefix(QUANTISED)
    return load({**PATIENT, **environment, "MODEL_NAME": model, "EXPERIMENT_NAME": LAYOUT.experiment_name})


def quantise(model: Any) -> None:
    """Round every weight to one of few levels of its tensor, as a peer with little memory might load the model."""
    for parameter in model.parameters():
        step = parameter.data.abs().max() / QUANTISED_LEVELS
        parameter.data.div_(step).round_().mul_(step)


def main(arguments: list[str]) -> None:
    """Run the cell whose plan is in a file; the number of rounds done stands in a file beside the result, for whoever shows it."""
    plan, folder = Path(arguments[0]), Path(arguments[1])
    cell = msgspec.json.decode(plan.read_bytes(), type=Cell)
    counter = folder / f"{cell.id}.round"

    def count(number: int) -> None:
        counter.write_text(str(number))

    with watching_launcher(launcher_of(os.environ), lambda: os._exit(1)):  # it saves nothing before its end
        save(folder, run_cell(cell, count))
