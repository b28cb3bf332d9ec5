"""Run cells in processes of their own, as many at a time as there are cores, and say how long it will take.

A cell whose result is there is not run again, so that the same command goes on where it was stopped. Ctrl-C ends the running cells,
which are run again from their first round. A cell that fails ends the schedule: a table with a hole would be no table.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import msgspec

from rl_swarm.errors import SwarmError
from rl_swarm.processes.children import python
from rl_swarm.reproduce.plan import Cell
from rl_swarm.reproduce.results import CellResult, load

POLL_SECONDS = 0.2
STOP_SECONDS = 10.0
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TOKENIZERS_PARALLELISM"), "1")


class CellFailed(SwarmError):
    """A cell ended without a result."""


@dataclass(frozen=True)
class Standing:
    """How far the schedule is; `seconds_left` is None until there is a pace to go by."""

    done: int
    cells: int
    running: tuple[tuple[str, int, int], ...]  # arm with seed, rounds done, rounds
    seconds_left: float | None


@dataclass
class _Running:
    cell: Cell
    process: "subprocess.Popen[bytes]"
    console: Path
    counter: Path
    _rounds: int = 0

    @property
    def rounds(self) -> int:
        """As far as it has said; what is being written this moment cannot be read."""
        with suppress(FileNotFoundError, ValueError):
            self._rounds = int(self.counter.read_text())
        return self._rounds


@dataclass
class Schedule:
    """`parallel` processes at most; `watch` is called several times a second with the standing."""

    cells: Sequence[Cell]
    folder: Path
    parallel: int
    watch: Callable[[Standing], None] = lambda standing: None
    stopping: bool = False
    _running: list[_Running] = field(default_factory=list)
    _finished: dict[str, CellResult] = field(default_factory=dict)
    _effort_before: float = 0.0
    _began: float = 0.0

    def run(self) -> list[CellResult]:
        """The results of all cells in the order of the plan, or of those that are there when it was stopped."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._finished = {cell.id: result for cell in self.cells if (result := load(self.folder, cell))}
        self._effort_before = sum(cell.effort for cell in self.cells if cell.id in self._finished)
        waiting = [cell for cell in self.cells if cell.id not in self._finished]
        self._began = time.monotonic()
        with self._signals():
            try:
                while (waiting or self._running) and not self.stopping:
                    while waiting and len(self._running) < self.parallel:
                        self._running.append(self._start(waiting.pop(0)))
                    self._collect()
                    self.watch(self._standing())
                    time.sleep(POLL_SECONDS)
            finally:
                self._stop()
        return [self._finished[cell.id] for cell in self.cells if cell.id in self._finished]

    def _start(self, cell: Cell) -> _Running:
        plan, console = self.folder / f"{cell.id}.plan", self.folder / f"{cell.id}.log"
        plan.write_bytes(msgspec.json.encode(cell))
        command = python("from rl_swarm.reproduce.cell import main; main(sys.argv[1:])", str(plan), str(self.folder))
        with console.open("wb") as output:
            # A session of its own: Ctrl-C reaches this process alone, which passes it on.
            process = subprocess.Popen(
                command,
                env={**os.environ, **ONE_THREAD},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return _Running(cell, process, console, self.folder / f"{cell.id}.round")

    def _collect(self) -> None:
        for running in list(self._running):
            code = running.process.poll()
            if code is None:
                continue
            self._running.remove(running)
            result = load(self.folder, running.cell) if code == 0 else None
            if result is None:
                last = running.console.read_text(errors="replace").strip().splitlines()[-1:]
                raise CellFailed(
                    f"{running.cell.arm.name} with seed {running.cell.seed} ended with code {code}: "
                    f"{last[0] if last else 'it said nothing'} (see {running.console})"
                )
            self._finished[running.cell.id] = result
            _tidy(running)

    def _standing(self) -> Standing:
        done = sum(cell.effort for cell in self.cells if cell.id in self._finished)
        done += sum(each.cell.effort * each.rounds / each.cell.rounds for each in self._running)
        spent, gained = time.monotonic() - self._began, done - self._effort_before
        left = sum(cell.effort for cell in self.cells) - done
        running = tuple((f"{each.cell.arm.name} seed {each.cell.seed}", each.rounds, each.cell.rounds) for each in self._running)
        return Standing(len(self._finished), len(self.cells), running, spent * left / gained if gained > 0 else None)

    def _stop(self) -> None:
        for running in self._running:
            running.process.terminate()
        for running in self._running:
            try:
                running.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                running.process.kill()
                running.process.wait()
            if result := load(self.folder, running.cell):  # it was done in that very moment
                self._finished[running.cell.id] = result
            _tidy(running)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def ask(number: int, frame: FrameType | None) -> None:
            self.stopping = True

        before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _tidy(running: _Running) -> None:
    """Leave the result alone, and of a failed cell also what it said."""
    for suffix in (".plan", ".round", *((".log",) if running.process.returncode == 0 else ())):
        with suppress(FileNotFoundError):
            os.unlink(running.counter.with_suffix(suffix))
