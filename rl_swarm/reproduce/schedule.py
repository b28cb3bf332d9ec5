"""Run cells in processes of their own, several at a time, and estimate the time left.

A cell with a result is not run again, so that the same command continues where it was stopped. Ctrl-C ends the running cells, which
then go on from what they last saved, every few minutes. A cell that fails ends the schedule: a table with a hole is no table.
"""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from rl_swarm.errors import SwarmError
from rl_swarm.processes.children import Child, python
from rl_swarm.processes.stopping import on_signals
from rl_swarm.reproduce.plan import Cell
from rl_swarm.reproduce.results import SAVED, CellResult, load
from rl_swarm.show.formats import duration
from rl_swarm.text import counted

POLL_SECONDS = 0.2
STOP_SECONDS = 10.0
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TOKENIZERS_PARALLELISM"), "1")


class CellFailed(SwarmError):
    """A cell ended without a result."""


class _Running(Child):
    """A cell in a process of its own, which stops when this one has died."""

    def __init__(self, cell: Cell, folder: Path) -> None:
        plan = folder / f"{cell.id}.plan"
        plan.write_bytes(msgspec.json.encode(cell))
        command = python("from rl_swarm.reproduce.cell import main; main(sys.argv[1:])", str(plan), str(folder))
        super().__init__(command, {**os.environ, **ONE_THREAD}, plan.with_suffix(".log"))
        self.cell = cell
        self._counter = plan.with_suffix(".round")
        self._rounds = 0
        self.console.unlink(missing_ok=True)  # of an earlier try
        self.start()

    @property
    def rounds(self) -> int:
        """Rounds done, as last reported; the file may be half-written at this moment."""
        with suppress(FileNotFoundError, ValueError):
            self._rounds = int(self._counter.read_text())
        return self._rounds

    def tidy(self) -> None:
        """Remove everything but the result, the output of a failed cell, and what an interrupted one needs to go on."""
        work = self._counter.with_suffix(".work")
        if not (work / SAVED).exists():
            shutil.rmtree(work, ignore_errors=True)
        for suffix in (".plan", ".round", *([".log"] if self.code == 0 else [])):
            self._counter.with_suffix(suffix).unlink(missing_ok=True)


@dataclass
class Schedule:
    """`parallel` processes at most; `watch` is called several times a second with the number of finished cells and a line."""

    cells: Sequence[Cell]
    folder: Path
    parallel: int
    watch: Callable[[int, str], None]
    stopping: bool = False
    _running: list[_Running] = field(default_factory=list)
    _finished: dict[str, CellResult] = field(default_factory=dict)
    _effort_before: float = 0.0
    _began: float = 0.0

    def run(self) -> list[CellResult]:
        """Return the results in the order of the plan: of all cells, or of those that were done when it was stopped."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._finished = {cell.id: result for cell in self.cells if (result := self._known(cell))}
        self._effort_before = sum(cell.effort for cell in self.cells if cell.id in self._finished)
        waiting = [cell for cell in self.cells if cell.id not in self._finished]
        self._began = time.monotonic()
        with on_signals(self._ask_to_stop):
            try:
                while (waiting or self._running) and not self.stopping:
                    while waiting and len(self._running) < self.parallel:
                        self._running.append(_Running(waiting.pop(0), self.folder))
                    self._collect()
                    self.watch(len(self._finished), self._progress())
                    time.sleep(POLL_SECONDS)
            finally:
                self._stop()
        return [self._finished[cell.id] for cell in self.cells if cell.id in self._finished]

    def _known(self, cell: Cell) -> CellResult | None:
        """Its result, which may be that of a study whose folder lies beside this one's."""
        beside = sorted(self.folder.parent.parent.glob(f"*/{self.folder.name}"))
        return next((result for folder in (self.folder, *beside) if (result := load(folder, cell))), None)

    def _collect(self) -> None:
        for running in list(self._running):
            if running.code is None:
                continue
            self._running.remove(running)
            result = load(self.folder, running.cell) if running.code == 0 else None
            if result is None:
                raise CellFailed(
                    f"{running.cell.arm.name} with seed {running.cell.seed} ended with code {running.code}: "
                    f"{running.last_line()} (see {running.console})"
                )
            self._finished[running.cell.id] = result
            running.tidy()

    def _progress(self) -> str:
        done = sum(cell.effort for cell in self.cells if cell.id in self._finished)
        done += sum(each.cell.effort * each.rounds / each.cell.rounds for each in self._running)
        spent, gained = time.monotonic() - self._began, done - self._effort_before
        left = sum(cell.effort for cell in self.cells) - done
        remaining = f", {duration(spent * left / gained)} left" if gained > 0 else ""
        running = "; ".join(
            f"{each.cell.arm.name} seed {each.cell.seed} {each.rounds}/{each.cell.rounds}" for each in self._running
        )
        return f"{len(self._finished)} of {counted(len(self.cells), 'cell')}{remaining}" + (f": {running}" if running else "")

    def _stop(self) -> None:
        for running in self._running:
            running.ask_to_stop()
        deadline = time.monotonic() + STOP_SECONDS
        for running in self._running:
            while running.running and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
            running.kill()
            if result := load(self.folder, running.cell):  # it finished in that very moment
                self._finished[running.cell.id] = result
            running.tidy()

    def _ask_to_stop(self, number: int) -> None:
        self.stopping = True
