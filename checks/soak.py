"""A long run of stand-in workers in real processes: memory, open files and store operations a round must not grow.

    python -m checks.soak [--minutes 15] [--workers 16] [--page]

It prints a table by stretch of the run and exits 1 if the last stretch is above the first by more than the allowance. The first
part of the run is left out: processes warm up. It measures leaks, not speed: how many rounds pass depends on the machine. With
`--page` a run that is flat goes to docs/reliability.md.
"""

import argparse
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from checks.reliability import SOAK_HEADING, write_section
from tests.support.processes import LocalSwarm

STRETCHES = 5  # of which the first is for warming up
SAMPLES_A_STRETCH = 12
ALLOWED = {"memory_mb": (1.03, 2.0), "open_files": (1.0, 1.0), "operations": (1.15, 1.0)}  # times the first, plus
OPERATIONS = ("put", "get", "list", "delete")


@dataclass(frozen=True)
class Stretch:
    """Means over nodes and time; `operations` are per node and round, and None where no round was done."""

    seconds: float
    rounds: int
    memory_mb: float
    open_files: float
    operations: float | None


def memory_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) / 1024


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def operations_by_round(swarm: LocalSwarm, workers: list[str]) -> dict[str, list[tuple[int, int]]]:
    """Node → (round, operations up to then), as its own journal says."""
    found = {}
    for name in workers:
        rows = swarm.metrics(name)
        found[name] = [(row["round"], sum(row["store_total"].get(kind, 0) for kind in OPERATIONS)) for row in rows]
    return found


def between(history: list[tuple[int, int]], first: int, last: int) -> float | None:
    """Operations a round of one node, over the rounds it did between two."""
    inside = [count for number, count in history if first <= number <= last]
    return (inside[-1] - inside[0]) / (len(inside) - 1) if len(inside) > 1 else None


def soak(swarm: LocalSwarm, workers: list[str], minutes: float) -> list[Stretch]:
    processes = [swarm.start("boss", "coordinator"), *(swarm.start(name) for name in workers)]
    swarm.wait_for_round(2, 300)
    pause = minutes * 60 / (STRETCHES * SAMPLES_A_STRETCH)
    marks, memory, files, seconds = [newest_round(swarm, workers)], [], [], []
    for _ in range(STRETCHES):
        began, memories, opened = time.monotonic(), [], []
        for _ in range(SAMPLES_A_STRETCH):
            time.sleep(pause)
            ended = [process.args for process in processes if process.poll() is not None]
            assert not ended, f"a node has ended: {ended}"
            memories.append(fmean(memory_mb(process.pid) for process in processes))
            opened.append(fmean(open_files(process.pid) for process in processes))
        marks.append(newest_round(swarm, workers))
        memory.append(median(memories))
        files.append(median(opened))
        seconds.append(time.monotonic() - began)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        assert swarm.wait(process, 120) == 0
    history = operations_by_round(swarm, workers)
    stretches = []
    for number in range(STRETCHES):
        counted = [between(each, marks[number], marks[number + 1]) for each in history.values()]
        known = [count for count in counted if count is not None]
        rounds = marks[number + 1] - marks[number]
        stretches.append(Stretch(seconds[number], rounds, memory[number], files[number], fmean(known) if known else None))
    return stretches


def newest_round(swarm: LocalSwarm, workers: list[str]) -> int:
    return max((row["round"] for name in workers for row in swarm.metrics(name)[-1:]), default=0)


def growth(stretches: list[Stretch]) -> list[str]:
    """What is not flat, in words."""
    first, last = stretches[1], stretches[-1]
    problems = []
    for name, (times, plus) in ALLOWED.items():
        before, after = getattr(first, name), getattr(last, name)
        if before is None or after is None:
            problems.append(f"{name}: no round was done in a stretch")
        elif after > before * times + plus:
            problems.append(f"{name} grew from {before:.1f} to {after:.1f}, allowed is {before * times + plus:.1f}")
    return problems


def table(stretches: list[Stretch]) -> list[str]:
    lines = ["| stretch | seconds | rounds | memory, MB | open files | operations a round |", "|---|---|---|---|---|---|"]
    for number, each in enumerate(stretches):
        operations = "–" if each.operations is None else f"{each.operations:.1f}"
        name = "warming up" if number == 0 else str(number)
        figures = f"{each.seconds:.0f} | {each.rounds} | {each.memory_mb:.1f} | {each.open_files:.1f} | {operations}"
        lines.append(f"| {name} | {figures} |")
    return lines


def page_section(stretches: list[Stretch], workers: int) -> list[str]:
    return [
        f"`make soak`: a coordinator and {workers} stand-in workers as real processes on a folder. Memory and open files",
        "are means over the processes, operations on the store are of one worker; none may grow from the first stretch to",
        "the last by more than 3 % and 2 MB (a worker remembers up to 16,384 texts trained on), 1 file, 15 % and 1 operation.",
        "",
        *table(stretches),
        "",
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run stand-in workers for long, and fail if they grow.")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--page", action="store_true")
    chosen = parser.parse_args(arguments)
    workers = [f"w{number}" for number in range(chosen.workers)]
    with tempfile.TemporaryDirectory() as folder:
        swarm = LocalSwarm(
            Path(folder),
            MAX_ROUNDS=10**6,
            NUM_TRANSPLANT_TREES=4,
            NUM_TRAIN_SAMPLES=4,
            NUM_GENERATIONS=4,
            COORDINATOR_ROUND_INTERVAL=10,
            STANDIN_SECONDS=0.5,
        )
        try:
            stretches = soak(swarm, workers, chosen.minutes)
        finally:
            swarm.close()
    print(*table(stretches), sep="\n")
    problems = growth(stretches)
    if chosen.page and not problems:
        write_section(SOAK_HEADING, page_section(stretches, chosen.workers))
    print(*(problems or ["flat: memory, open files and operations a round"]), sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
