"""Write docs/reliability.md: which faults were injected, how often, and with what result.

    python -m checks.reliability                run the simulated seeds and the mutations, and write the page
    python -m checks.reliability --processes    write only the table of real processes anew

The process tests (pytest -m '' tests/node/test_process_faults.py) record what a swarm survived in the file that RELIABILITY_RECORD
names; from there it comes to the page. Without it the page keeps what it says of them. The long run writes its own section
(python -m checks.soak --page), which is kept here as it is.

Names, numbers of seeds and planned faults are the same on every machine and checked by `make test`; how often a habit was met
changes with the code and is a record of the last writing.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.sim.drive_from_hell import HABITS
from tests.sim.invariants import INVARIANTS
from tests.sim.mutations import MUTATIONS
from tests.support.processes import ROOT

PAGE = ROOT / "docs" / "reliability.md"
RECORD = "RELIABILITY_RECORD"
MEANINGS = {
    "late": "others see a write up to 40 s later",
    "out_of_order": "others see a later write before an earlier one",
    "twice": "a write appears as two files",
    "duplicate_name": "two writers make files of one name",
    "list_lags": "a listing is stale",
    "list_omits": "a listing omits names",
    "list_repeats": "a listing repeats names, in any order",
    "read_short": "a read ends early",
    "read_stale": "a read returns older content",
    "read_missing": "an existing key is not found for a while",
    "false_enoent": "an existing key is not found once",
    "errno_5": "input/output error",
    "errno_107": "transport endpoint is not connected",
    "dead_mount": "the mount is dead for up to 90 s",
    "full_disk": "the disk is full for up to 90 s",
    "torn_write": "a write fails half-way and leaves half a file",
    "lost_answer": "a write succeeds but reports a failure",
}
NODE_FAULTS = {
    "late": "joins late",
    "kill": "killed, and started again with its spool and checkpoints",
    "gone": "killed for good (coordinators)",
    "freeze": "frozen for longer than it counts as live, then continued",
    "stop": "asked to stop, and started again",
    "crash": "crashes on a bug of ours, and is started again",
}
PROCESS_HEADING = "## Real processes"
SOAK_HEADING = "## A long run"
PROCESS_FAULTS = {
    "kill_a_worker": "SIGKILL of a worker",
    "kill_the_coordinator": "SIGKILL of the coordinator",
    "kill_all": "SIGKILL of all at once",
    "freeze_a_worker": "SIGSTOP for longer than a worker counts as live",
    "fill_the_disk": "disk full for store, spool, checkpoints and console",
    "move_the_store": "store folder moved away and back",
}


def record(fault: str, kind: str, times: int) -> None:
    """Called by the process tests when a swarm has survived."""
    path = os.environ.get(RECORD)
    if path:
        found = Counter(json.loads(Path(path).read_text())) if Path(path).exists() else Counter()
        found[f"{fault} {kind}"] += times
        Path(path).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def planned(seeds: Sequence[int]) -> Counter[str]:
    """Faults of nodes that the seeds contain: decided before anything runs."""
    from tests.sim.simulation import draw

    found: Counter[str] = Counter()
    for seed in seeds:
        scenario = draw(seed)
        found["late"] += sum(at > 3.0 for _, at in scenario.joins)
        found.update("gone" if fault.seconds == float("inf") else fault.kind for fault in scenario.faults)
    return found


def structure(seeds: Sequence[int]) -> list[str]:
    """What the page must contain, whatever was measured."""
    faults = planned(seeds)
    return [
        f"{len(seeds)} seeds",
        *(f"| {MEANINGS[habit]} |" for habit in HABITS),
        *(f"| {meaning} | {faults[name]} |" for name, meaning in NODE_FAULTS.items()),
        *(f"| `{name}` |" for name in INVARIANTS),
        *(f"| {mutation.what} |" for mutation in MUTATIONS),
        *(f"| {meaning} |" for meaning in PROCESS_FAULTS.values()),
        SOAK_HEADING,
    ]


def page(seeds: Sequence[int], told: Counter[str], checks: Counter[str], caught: dict[str, tuple[int, str]]) -> str:
    faults = planned(seeds)
    lines = [
        "# Injected faults and their results",
        "",
        "Written by `python -m checks.reliability`; do not edit. The shipped loops run with stand-ins for the learning parts,",
        "except where a column says nano.",
        "",
        f"## A shared drive with bad habits: {len(seeds)} seeds in every `make test`",
        "Whole swarms of 1 to 40 workers and 0 to 3 coordinators in virtual time (`tests/sim/simulation.py`). Each seed replays",
        "exactly: `python -m tests.sim.simulation SEED`. No seed broke an invariant.",
        "",
        "| fault of the drive | times injected | invariants broken |",
        "|---|---|---|",
        *(f"| {MEANINGS[habit]} | {told[habit]} | 0 |" for habit in HABITS),
        "",
        "| fault of a node | times planned | invariants broken |",
        "|---|---|---|",
        *(f"| {meaning} | {faults[name]} | 0 |" for name, meaning in NODE_FAULTS.items()),
        "",
        "| invariant (`tests/sim/invariants.py` defines them) | times checked |",
        "|---|---|",
        *(f"| `{name}` | {checks[name]} |" for name in INVARIANTS),
        "",
        "## Do the invariants notice mistakes?",
        "Each of these mistakes, patched into the shipped classes, is caught (`tests/sim/mutations.py`).",
        "",
        "| mistake | caught by | at seed |",
        "|---|---|---|",
        *(f"| {mutation.what} | `{caught[mutation.name][1]}` | {caught[mutation.name][0]} |" for mutation in MUTATIONS),
        "",
    ]
    return "\n".join(lines) + "\n"


def process_table(processes: Counter[str]) -> list[str]:
    return [
        "`tests/node/test_process_faults.py` injects faults at seeded random moments into a coordinator and three workers on one",
        "folder. Every time all nodes finished the last round by themselves, every document was readable, every reward was there",
        "once, and no node trained on an external rollout twice. A node alone ended with the same weights as one never killed.",
        "",
        "| fault | survived with stand-ins | with nano |",
        "|---|---|---|",
        *(
            f"| {meaning} | {processes[f'{name} stand-in']} | {processes[f'{name} nano']} |"
            for name, meaning in PROCESS_FAULTS.items()
        ),
    ]


def main(arguments: list[str]) -> None:
    path = Path(os.environ.get(RECORD, os.devnull))
    processes: Counter[str] = Counter(json.loads(path.read_text()) if path.is_file() else recorded())
    if arguments != ["--processes"]:
        _write_simulations()
    write_section(PROCESS_HEADING, process_table(processes))


def _write_simulations() -> None:
    from tests.sim.test_simulation import FAST, first_objection, run_all

    problems, told, checks = run_all(FAST)
    if problems:
        raise SystemExit("\n".join(problems))
    caught = {}
    for mutation in MUTATIONS:
        with pytest.MonkeyPatch.context() as monkeypatch:
            caught[mutation.name] = first_objection(mutation, monkeypatch)
    long_run = section(SOAK_HEADING)
    PAGE.write_text(page(FAST, told, checks, caught))
    write_section(SOAK_HEADING, long_run)


def section(heading: str) -> list[str]:
    """The lines that the page has under a heading; none if it has no such heading."""
    lines = (PAGE.read_text() if PAGE.exists() else "").splitlines()
    found = lines[lines.index(heading) + 1 :] if heading in lines else []
    ends = next((place for place, line in enumerate(found) if line.startswith("## ")), len(found))
    return found[:ends]


def write_section(heading: str, lines: Sequence[str]) -> None:
    """Put lines under a heading, in place of what stands there, or at the end."""
    before, _, after = PAGE.read_text().partition(f"{heading}\n")
    _, following, rest = after.partition("\n## ")
    parts = (before.rstrip(), "\n".join([heading, *lines]).rstrip(), (following.lstrip() + rest).rstrip())
    PAGE.write_text("\n\n".join(filter(None, parts)) + "\n")


def recorded() -> dict[str, int]:
    """What the page says already of real processes: kept when the seeds alone are run again."""
    text = PAGE.read_text() if PAGE.exists() else ""
    found: dict[str, int] = {}
    for name, meaning in PROCESS_FAULTS.items():
        for line in text.splitlines():
            if line.startswith(f"| {meaning} |"):
                standins, nano = line.split("|")[2:4]
                found |= {f"{name} stand-in": int(standins), f"{name} nano": int(nano)}
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
