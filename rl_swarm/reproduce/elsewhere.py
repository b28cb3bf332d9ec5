"""The same rows from runs that were done elsewhere: every experiment in a store is a cell, by what its own files say.

Experiments with the same settings but for the seed are one arm. Nothing is believed that a node of ours would not write, and
nothing of the runs is changed. Nodes of one experiment are compared round by round as far as all of them came.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rl_swarm.errors import ConfigError
from rl_swarm.reproduce.plan import Arm, Cell
from rl_swarm.reproduce.results import CellResult, NodeRound, node_round
from rl_swarm.reproduce.split import Split
from rl_swarm.runs import progress
from rl_swarm.runs.following import EVENTS, data_of
from rl_swarm.runs.record import Evaluated, valid
from rl_swarm.runs.signed import signed_line
from rl_swarm.store import Store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import read_registration, registered

COUNTED_APART = ("NUM_TRAIN_SAMPLES", "NUM_TRANSPLANT_TREES", "MAX_ROUNDS")


def read_experiments(store: Store, names: Sequence[str]) -> list[CellResult]:
    """A finished cell for each experiment, all of one length; raise ConfigError for one that holds nothing to compare."""
    read = [_read(store, Layout(name)) for name in names]
    rounds = min(cell.cell.rounds for cell in read)
    return [_cut(result, rounds) for result in _numbered(read)]


def _read(store: Store, layout: Layout) -> CellResult:
    experiment = experiments.read(store, layout)
    if experiment is None:
        raise ConfigError(f"there is no experiment {layout.experiment_name!r} in {store.url!r}: check GDRIVE_PATH and the name")
    workers = [node for node in sorted(registered(store, layout)) if _is_worker(store, layout, node)]
    rows = {node: [node_round(node, row) for row in progress.records(store, layout, node)] for node in workers}
    rows = {node: found for node, found in rows.items() if found}
    if not rows:
        raise ConfigError(f"experiment {layout.experiment_name!r} has no rounds yet: analyse it when its nodes have worked")
    common = sorted(set.intersection(*({row.round for row in found} for found in rows.values())))
    if not common:
        raise ConfigError(f"the nodes of experiment {layout.experiment_name!r} have no round in common: they cannot be averaged")
    kept = [row for found in rows.values() for row in found if row.round in set(common)]
    split = Split(_most(kept, "own_wanted"), _most(kept, "external_wanted"))
    settings = {name: value for name, value in experiment.settings.items() if name not in COUNTED_APART}
    cell = Cell(Arm(str(split), split, len(rows)), 0, len(common), settings, {"tasks": experiment.tasks_version})
    return CellResult(cell, tuple(sorted(kept, key=lambda row: (row.round, row.node))), _before(store, layout, list(rows)))


def signatures_of(store: Store, name: str) -> str:
    """Whose figures of an experiment are signed, in one line."""
    layout = Layout(name)
    experiment = experiments.read(store, layout)
    workers = [node for node in sorted(registered(store, layout)) if _is_worker(store, layout, node)]
    rows = {node: [node_round(node, row) for row in progress.records(store, layout, node)] for node in workers}
    rewards = {node: {row.round: row.reward for row in found} for node, found in rows.items() if found}
    return signed_line(store, layout, experiment.experiment_id, rewards) if experiment else "no experiment"


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


def _is_worker(store: Store, layout: Layout, node_id: str) -> bool:
    registration = read_registration(store, layout, node_id)
    return registration is not None and registration.node_role == "worker"


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
