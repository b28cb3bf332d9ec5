"""Score hostile answers under the helper's deadline and memory limit, and watch what they do.

    python -m checks.hostile_run [--answers 500] [--seed 1] [--tasks gcd,coin_flip] [--output build/hostile.jsonl]

Every reasoning-gym task that loads gets so many answers. It fails if anything was executed, if one took longer than the deadline
and a second, if a helper grew beyond its limit, or if this process grew. A task that is in the output already is not run again.
"""

import argparse
import contextlib
import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from rl_swarm.errors import ConfigError
from rl_swarm.tasks import helper, serving
from rl_swarm.tasks.bench import CannotMake
from rl_swarm.tasks.spec import TaskSpec
from tests.tasks.hostile_answers import CANARY_FILE, CANARY_VARIABLE, hostile_answers

CANARY = Path(__file__).parents[1] / "tests" / "tasks" / "canary"
QUESTION = (1, 0)  # the seed and the index that are asked of every task
MODEL_ANSWERS = {"propositional_logic": "P ∧ Q", "rubiks_cube": "R U2 F'"}  # to build on, for tasks without an answer key
SLACK_SECONDS = 1.0  # after the deadline, on a busy machine
GROWTH_MB = 8.0  # of this process, over a whole run
OVERHEAD_MB = 64.0  # a helper may be this much above its limit on private memory: stacks, and pages that it shares


@dataclass
class Outcome:
    """How one task took its answers."""

    task: str
    answers: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    slowest_answer: str = ""
    kills: int = 0
    peak_mb: float = 0.0
    limit_mb: float = 0.0
    problems: dict[str, int] = field(default_factory=dict)
    refused: str = ""
    faults: list[str] = field(default_factory=list)


class TimedHelper(helper.Helper):
    """Knows how long it took to replace helpers, which is no part of judging."""

    replacing = 0.0

    def _replace(self) -> None:
        began = time.monotonic()
        super()._replace()
        self.replacing += time.monotonic() - began


def all_tasks() -> list[str]:
    """Asked of another process, so that this one stays as light as a node."""
    code = "from reasoning_gym.factory import DATASETS; print(*sorted(DATASETS))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[Path]:
    """Let helpers be forked by a new loader that is watched by the canary; yields the report, empty unless something happened."""
    report = folder / "report"
    report.touch()
    changed = {"HOSTILE_REPORT": str(report), "PYTHONPATH": os.pathsep.join([str(CANARY), os.environ.get("PYTHONPATH", "")])}
    kept = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    before, helper._loader = helper._loader, None
    try:
        yield report
    finally:
        if helper._loader is not None:
            helper._loader.end()
        helper._loader = before
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Watcher:
    """Looks at the memory of the loader's helpers all the time; `peak_mb` and `limit_mb` are the largest seen since `reset`."""

    def __init__(self, interval: float = 0.02) -> None:
        self._interval, self._ended = interval, threading.Event()
        self.reset()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def reset(self) -> None:
        self.peak_mb = self.limit_mb = 0.0

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(self._interval):
            loader = helper._loader
            for pid in children_of(loader._process.pid) if loader is not None else []:
                with contextlib.suppress(OSError, IndexError):  # it has just ended
                    self.peak_mb = max(self.peak_mb, _kilobytes(pid, "VmHWM") / 1024)
                    limits = Path(f"/proc/{pid}/limits").read_text().partition("Max data size")[2].split()
                    self.limit_mb = max(self.limit_mb, 0.0 if limits[0] == "unlimited" else int(limits[0]) / 2**20)


def children_of(parent: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(folder.name))
    return found


def _kilobytes(pid: int | str, field_name: str) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition(f"{field_name}:")[2].split()[0])


def attack(name: str, count: int, seed: int, folder: Path, watcher: Watcher) -> Outcome:
    """Give one task its answers, one at a time so that each is timed."""
    began, outcome = time.monotonic(), Outcome(name)
    watcher.reset()
    try:
        target = TimedHelper([TaskSpec(name)])
        [item] = target.items([(0, *QUESTION)])
    except ConfigError as error:
        outcome.refused = str(error)
        return outcome
    if isinstance(item, CannotMake):
        outcome.refused = str(item)
        return outcome
    problems: Counter[str] = Counter()
    for answer in hostile_answers(item.answer or MODEL_ANSWERS.get(name, "1"), seed, count, folder):
        start, replacing = time.monotonic(), target.replacing
        target.do([job := helper.Job((0, *QUESTION), item.prompt, [answer])])
        seconds = time.monotonic() - start - (target.replacing - replacing)
        [verdict] = job.verdicts
        problems[verdict.problem] += 1
        outcome.kills += verdict.problem == "scorer_timeout"
        if not 0.0 <= verdict.score <= 1.0:
            outcome.faults.append(f"{verdict.score} was paid for {answer[:80]!r}")
        if seconds > outcome.slowest:
            outcome.slowest, outcome.slowest_answer = seconds, answer[:80]
        outcome.answers += 1
    outcome.problems = {problem: times for problem, times in problems.items() if problem}
    outcome.seconds = time.monotonic() - began
    outcome.peak_mb, outcome.limit_mb = watcher.peak_mb, watcher.limit_mb
    outcome.faults += traces(folder)
    if outcome.slowest > helper.JUDGE_SECONDS + SLACK_SECONDS:
        outcome.faults.append(f"{outcome.slowest:.1f} s for {outcome.slowest_answer!r}")
    if sys.platform == "linux" and outcome.peak_mb > (outcome.limit_mb or serving.MEMORY_BYTES / 2**20) + OVERHEAD_MB:
        outcome.faults.append(f"a helper took {outcome.peak_mb:.0f} MB, its limit is {outcome.limit_mb:.0f} MB")
    return outcome


def traces(folder: Path) -> list[str]:
    """Take away what executed answers have left, and say what it was; nothing if none was executed."""
    report, file = folder / "report", folder / CANARY_FILE
    found = report.read_text(errors="replace").splitlines()[:3]
    found += [f"{CANARY_FILE} was written"] if file.exists() else []
    report.write_text("")
    file.unlink(missing_ok=True)
    return found + ([f"{CANARY_VARIABLE} was set"] if CANARY_VARIABLE in os.environ else [])


def memory_mb() -> float:
    gc.collect()
    return _kilobytes("self", "VmRSS") / 1024


def read_done(output: Path, seed: int, count: int) -> dict[str, Outcome]:
    lines = output.read_text().splitlines() if output.exists() else []
    rows = [json.loads(line) for line in lines]
    return {row["outcome"]["task"]: Outcome(**row["outcome"]) for row in rows if (row["seed"], row["count"]) == (seed, count)}


def run(names: list[str], count: int, seed: int, output: Path) -> dict[str, Outcome]:
    """Attack all tasks that are not in the output yet, and say how it goes."""
    done = {name: outcome for name, outcome in read_done(output, seed, count).items() if name in names}
    todo = [name for name in names if name not in done]
    output.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with TemporaryDirectory() as temporary, watched(Path(temporary)), contextlib.closing(Watcher()) as watcher:
        for place, name in enumerate(todo, 1):
            outcome = done[name] = attack(name, count, seed, Path(temporary), watcher)
            with output.open("a") as file:
                file.write(json.dumps({"seed": seed, "count": count, "outcome": asdict(outcome)}) + "\n")
            left = (time.monotonic() - began) / place * (len(todo) - place)
            said = outcome.refused or "; ".join(outcome.faults) or describe(outcome)
            print(f"{place} of {len(todo)}, {left / 60:.0f} min left: {name}: {said}", flush=True)
    return done


def describe(outcome: Outcome) -> str:
    return (
        f"{outcome.answers} answers in {outcome.seconds:.1f} s, slowest {outcome.slowest:.2f} s ({outcome.slowest_answer[:40]!r}), "
        f"{outcome.kills} killed, peak {outcome.peak_mb:.0f} of {outcome.limit_mb:.0f} MB, {outcome.problems}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--answers", type=int, default=500, help="for each task")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tasks", default="", help="names separated by commas [all]")
    parser.add_argument("--output", type=Path, default=Path("build/hostile.jsonl"))
    given = parser.parse_args()
    names = given.tasks.split(",") if given.tasks else all_tasks()
    before = memory_mb()
    outcomes = list(run(names, given.answers, given.seed, given.output).values())
    attacked = [outcome for outcome in outcomes if not outcome.refused]
    faults = [f"{outcome.task}: {fault}" for outcome in attacked for fault in outcome.faults]
    if (grown := memory_mb() - before) > GROWTH_MB:
        faults.append(f"this process grew by {grown:.1f} MB")
    for outcome in outcomes:
        if outcome.refused:
            print(f"not loaded: {outcome.task}: {outcome.refused}")
    answers, kills = sum(each.answers for each in attacked), sum(each.kills for each in attacked)
    slowest, peak = max(each.slowest for each in attacked), max(each.peak_mb for each in attacked)
    print(
        f"{len(attacked)} tasks, {answers} answers, {kills} killed at the deadline, slowest {slowest:.2f} s, "
        f"highest peak {peak:.0f} MB, this process grew by {grown:.1f} MB"
    )
    print("\n".join(faults) or "nothing was executed, nothing hung, nothing grew")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
