"""The same rows from runs that were done elsewhere: every experiment in a store is a cell, by what its own files say.

Experiments with the same settings but for the seed are one arm. Nothing is believed that a node of ours would not write, and
nothing of the runs is changed. Nodes of one experiment are compared round by round as far as all of them came. A node that has less
than half of the rounds which others have is left out, so that no name that somebody registers ends the comparison.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rl_swarm.errors import ConfigError
from rl_swarm.reproduce.plan import Arm, Cell
from rl_swarm.reproduce.results import CellResult, NodeRound, node_round
from rl_swarm.reproduce.split import Split
from rl_swarm.runs import progress
from rl_swarm.runs.progress import EVENTS, data_of
from rl_swarm.runs.record import Evaluated, valid
from rl_swarm.runs.signed import signed_line
from rl_swarm.store import Store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.experiment import Experiment
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import most_alive, read_registration

COUNTED_APART = ("NUM_TRAIN_SAMPLES", "NUM_TRANSPLANT_TREES", "MAX_ROUNDS")


@dataclass(frozen=True)
class _Run:
    """The rows of an experiment's workers by name, and lines about those that are not compared."""

    experiment: Experiment
    rows: Mapping[str, list[NodeRound]]
    left_out: tuple[str, ...]


def read_experiments(store: Store, names: Sequence[str], founder: str | None = None) -> list[CellResult]:
    """A finished cell for each experiment, all of one length.

    Raises ConfigError for one that holds nothing to compare, or that `founder`, if it is given, has not signed.
    """
    read = [_result(store, Layout(name), _read(store, Layout(name), founder)) for name in names]
    rounds = min(cell.cell.rounds for cell in read)
    return [_cut(result, rounds) for result in _numbered(read)]


def about(store: Store, name: str, founder: str | None = None) -> list[str]:
    """Whose figures of an experiment are signed, in one line, and then who was left out."""
    run = _read(store, Layout(name), founder)
    rewards = {node: {row.round: row.reward for row in found} for node, found in run.rows.items()}
    return [signed_line(store, Layout(name), run.experiment.experiment_id, rewards), *run.left_out]


def _read(store: Store, layout: Layout, founder: str | None) -> _Run:
    experiment = experiments.read(store, layout, founder)
    if experiment is None:
        raise ConfigError(f"there is no experiment {layout.experiment_name!r} in {store.url!r}: check GDRIVE_PATH and the name")
    signatures = experiments.reader(store, layout, founder)
    named, more = most_alive(store, layout)
    registrations = {node: read_registration(store, layout, node, signatures) for node in named}
    workers = [node for node, found in registrations.items() if found and found.node_role == "worker"]
    rows = {node: [node_round(node, row) for row in progress.records(store, layout, node)] for node in workers}
    rows = {node: found for node, found in rows.items() if found}
    if not rows:
        raise ConfigError(f"experiment {layout.experiment_name!r} has no rounds yet: analyse it when its nodes have worked")
    usual = _usual(rows)
    shares = {node: len(usual.intersection(row.round for row in found)) for node, found in rows.items()}
    lines = [f"left out: {node}, with {share} of {len(usual)} rounds" for node, share in shares.items() if 2 * share < len(usual)]
    if more:
        lines.append(f"left out: {more} more that have registered, with the fewest signs of life")
    return _Run(experiment, {node: found for node, found in rows.items() if 2 * shares[node] >= len(usual)}, tuple(lines))


def _usual(rows: Mapping[str, Sequence[NodeRound]]) -> set[int]:
    """The rounds that at least half of the workers have done."""
    counts = Counter(number for found in rows.values() for number in {row.round for row in found})
    return {number for number, count in counts.items() if 2 * count >= len(rows)}


def _result(store: Store, layout: Layout, run: _Run) -> CellResult:
    found = run.rows.values()
    common = set.intersection(*({row.round for row in each} for each in found)) if found else set()
    if not common:
        raise ConfigError(f"the nodes of experiment {layout.experiment_name!r} have no round in common: they cannot be averaged")
    kept = [row for each in found for row in each if row.round in common]
    split = Split(_most(kept, "own_wanted"), _most(kept, "external_wanted"))
    settings = {name: value for name, value in run.experiment.settings.items() if name not in COUNTED_APART}
    cell = Cell(Arm(str(split), split, len(found)), 0, len(common), settings, {"tasks": run.experiment.tasks_version})
    return CellResult(cell, tuple(sorted(kept, key=lambda row: (row.round, row.node))), _before(store, layout, list(run.rows)))


def _numbered(read: Sequence[CellResult]) -> list[CellResult]:
    """Runs of one arm are numbered in the order in which they were named: that is how they are paired."""
    seen: dict[str, int] = {}
    numbered = []
    for result in read:
        seen[result.cell.arm.name] = seen.get(result.cell.arm.name, 0) + 1
        numbered.append(replace(result, cell=replace(result.cell, seed=seen[result.cell.arm.name])))
    return numbered


def _cut(result: CellResult, rounds: int) -> CellResult:
    numbers = sorted({row.round for row in result.rows})[:rounds]
    rows = tuple(row for row in result.rows if row.round in set(numbers))
    return replace(result, cell=replace(result.cell, rounds=rounds), rows=rows)


def _before(store: Store, layout: Layout, nodes: Sequence[str]) -> tuple[float, float] | None:
    for node in nodes:
        events: list[dict[str, Any]] = progress.rows(progress.lines(store, layout.log(node, EVENTS)))
        for each in valid(data_of(events, "evaluation"), Evaluated):
            if each.round == 0:
                return each.held_out, each.held_out_style_blind
    return None


def _most(rows: Sequence[NodeRound], name: str) -> int:
    values = [getattr(row, name) for row in rows]
    return int(max(set(values), key=values.count))
