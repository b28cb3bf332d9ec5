"""Run one cell: all nodes of a swarm in one process on a folder of its own, each in the shipped loop, and keep their records.

Everything random is keyed on the seed, nodes take turns, and no timeout is near: the same cell gives the same rows. `schedule.py`
runs every cell in a process of its own with one thread. A long cell is saved every few minutes, all nodes at the same round, and
continues there. The rollouts that a node had read and not used yet are then read again, so what it chooses may differ.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec

from rl_swarm.clock import SystemClock
from rl_swarm.config import load
from rl_swarm.node.assembly import Node, make_worker
from rl_swarm.node.journal import Journal
from rl_swarm.node.local import claim
from rl_swarm.node.worker import Worker
from rl_swarm.processes.stopping import Stop, launcher_of, watching_launcher
from rl_swarm.randomness import generator
from rl_swarm.reproduce.plan import QUANTISED, Cell
from rl_swarm.reproduce.results import SAVED, Answers, CellResult, code_digest, save
from rl_swarm.rollout import Question
from rl_swarm.runs import progress
from rl_swarm.runs.record import Evaluated, Round
from rl_swarm.store import Store
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout, round_of_folder
from rl_swarm.swarm.membership import enter
from rl_swarm.swarm.protocol import Newsbox
from rl_swarm.tasks import tasks_version, warm_up

if TYPE_CHECKING:
    from rl_swarm.learning.evaluation import HeldOut

LAYOUT = Layout("reproduce")
QUANTISED_LEVELS = 7  # on either side of zero: four bits
SHOWN_ANSWERS = 8  # held-out questions whose answers before and after are kept


class _Start(msgspec.Struct, frozen=True):
    """The base model's held-out accuracy and some of its answers. Of a mixed swarm the first node's model counts."""

    before: Evaluated | None = None
    answers: tuple[str, ...] = ()
    right: dict[str, str] = {}
    prompt_tokens: float = 0.0


class _Saved(msgspec.Struct, frozen=True):
    """Where an interrupted cell goes on: all nodes have a checkpoint of this round, made by this code."""

    round: int
    start: _Start
    seconds: float
    counts: dict[str, int]
    code: str


def run_cell(
    cell: Cell, after_round: Callable[[int], object] = lambda number: None, folder: Path | None = None, save_seconds: float = 300.0
) -> CellResult:
    """Play every round with every node; the order of the nodes changes from round to round, as it would among machines.

    With a `folder`, everything is kept there until the end, and an interrupted cell goes on from what was last saved.
    """
    warm_up()
    with ExitStack() as closing:
        place = folder or Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="reproduce-")))
        if folder and not _can_go_on(folder):
            shutil.rmtree(folder, ignore_errors=True)
        (place / "store").mkdir(parents=True, exist_ok=True)
        store = FolderStore(place / "store", local=True)
        members = [_make_member(cell, number, store, place, closing) for number in range(cell.arm.nodes)]
        saved = _resume(members, place)
        if saved:
            store.counts.update(saved.counts)
        began = last_saved = time.monotonic()
        start = saved.start if saved else _measure_start(members[0][1])
        spent = saved.seconds if saved else 0.0
        for number in range(saved.round if saved else 0, cell.rounds):
            if folder and time.monotonic() >= last_saved + save_seconds:
                last_saved = time.monotonic()
                _save(members, place, _Saved(number, start, spent + last_saved - began, dict(store.counts), code_digest()))
            order = list(members)
            generator(cell.seed, "order", number).shuffle(order)
            for _, worker in order:
                worker.play(number)
            after_round(number + 1)
        answers = [
            Answers(question.prompt, question.answer, first, last)
            for first, (question, last) in zip(start.answers, _answers(members[0][1]), strict=True)
        ]
        rows = sorted((row for node, _ in members for row in _records(node)), key=lambda row: (row.round, row.node_id))
        right = tuple(found.right for _, worker in members if (found := _held_out(worker)))
    assert len(rows) == len(members) * cell.rounds, "a journal lacks a round"
    return CellResult(
        cell,
        tuple(rows),
        before=start.before,
        seconds=spent + time.monotonic() - began,
        answers=tuple(answers),
        right_before=start.right,
        right=right,
        prompt_tokens=start.prompt_tokens,
        code=code_digest(),
    )


def _can_go_on(folder: Path) -> bool:
    """Whether something was saved, and by the code that would go on with it."""
    try:
        return msgspec.json.decode((folder / SAVED).read_bytes(), type=_Saved).code == code_digest()
    except (FileNotFoundError, msgspec.DecodeError):
        return False


def _save(members: Sequence[tuple[Node, Worker]], place: Path, saved: _Saved) -> None:
    """Save all nodes at the same round, and only then say so: of a round that not all have saved, none is used."""
    for _, worker in members:
        worker.save_before(saved.round)
    part = place / "saved.part"
    part.write_bytes(msgspec.json.encode(saved))
    os.replace(part, place / SAVED)


def _resume(members: Sequence[tuple[Node, Worker]], place: Path) -> _Saved | None:
    """Restore all nodes as they were saved, and remove what they published since."""
    from rl_swarm.learning.checkpoint import saved_in

    try:
        saved = msgspec.json.decode((place / SAVED).read_bytes(), type=_Saved)
    except FileNotFoundError:
        return None
    for node, worker in members:
        for number, path in saved_in(node.local.checkpoints):
            if number > saved.round:
                path.unlink()
        assert worker.checkpoints.restore(worker.resume) == saved.round
    for folder in (place / "store" / LAYOUT.root / "rollouts").glob("round_*"):
        if (round_of_folder(folder.name) or 0) >= saved.round:
            shutil.rmtree(folder)
    return saved


def _records(node: Node) -> list[Round]:
    return progress.records(node.record, LAYOUT, node.local.node_id)


def _measure_start(worker: Worker) -> _Start:
    held_out = _held_out(worker)
    if not held_out:
        return _Start()
    figures = Evaluated(round=0, **held_out())
    tokens = fmean(len(held_out.policy.prompt_ids(question.prompt)) for question in held_out.questions)
    return _Start(figures, tuple(text for _, text in _answers(worker)), held_out.right, tokens)


def _answers(worker: Worker) -> list[tuple[Question, str]]:
    held_out = _held_out(worker)
    return held_out.answers(SHOWN_ANSWERS) if held_out else []


def _held_out(worker: Worker) -> "HeldOut | None":
    """What measures this worker's accuracy, if it is to be measured."""
    from rl_swarm.learning.evaluation import HeldOut

    return worker.evaluate if isinstance(worker.evaluate, HeldOut) and worker.config.eval_interval else None


def _make_member(cell: Cell, place: int, store: Store, folder: Path, closing: ExitStack) -> tuple[Node, Worker]:
    """Assemble a node as `open_node` in node/assembly.py does, without signals and threads."""
    from rl_swarm.learning.checkpoint import Checkpoints
    from rl_swarm.node.learner import make_learner

    environment, node_id, clock, news = cell.environment(place), f"node_{place + 1:02d}", SystemClock(), Newsbox()
    model = environment["MODEL_NAME"]
    ours = {"MODEL_NAME": model.removeprefix(QUANTISED), "EXPERIMENT_NAME": LAYOUT.experiment_name, "NODE_ID": node_id}
    # A process that is paused for minutes must not lose rollouts to a timeout: that would be chance.
    patient = {"ROLLOUT_FETCH_TIMEOUT_SECONDS": "1000000"}
    config = load({**patient, **environment, **ours, "RL_SWARM_HOME": str(folder)})
    experiment = experiments.publish(store, LAYOUT, config, tasks_version(), clock)
    local = claim(config, experiment)
    closing.callback(local.lock.close)
    journal = Journal(local.record, LAYOUT, node_id, clock, console=None)
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
    node = Node(config, clock, Stop(), experiment, local, journal, news, member)
    learner = make_learner(config)
    if model.startswith(QUANTISED):
        quantise(learner.policy.model)
    return node, make_worker(node, learner, Checkpoints(local.checkpoints))


def quantise(model: Any) -> None:
    """Round every weight to one of a few levels, as a peer with little memory might load the model."""
    for parameter in model.parameters():
        step = parameter.data.abs().max() / QUANTISED_LEVELS
        parameter.data.div_(step).round_().mul_(step)


def main(arguments: list[str]) -> None:
    """Run the cell whose plan is in a file. The number of rounds done is kept in another file, to show the progress.

    What is needed to go on lies in a folder beside them until the result is there.
    """
    plan, folder = map(Path, arguments)
    cell = msgspec.json.decode(plan.read_bytes(), type=Cell)
    counter = plan.with_suffix(".round")
    with watching_launcher(launcher_of(os.environ), lambda: os._exit(1)):  # it saves nothing before its end
        work = plan.with_suffix(".work")
        save(folder, run_cell(cell, lambda number: counter.write_text(str(number)), work))
        shutil.rmtree(work)
