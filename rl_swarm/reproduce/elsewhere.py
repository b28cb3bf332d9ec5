"""Read experiments that were run elsewhere as cells, from their own files. Changes nothing in them.

Experiments that differ in nothing but their seed are one arm. Rows that no node of ours would write are left out. Nodes of one
experiment are compared on the rounds that all of them have; a node with less than half of the usual rounds is left out, so that
nobody can end the comparison by registering a name.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from rl_swarm.errors import ConfigError
from rl_swarm.reproduce.plan import Arm, Cell, Split
from rl_swarm.reproduce.results import CellResult
from rl_swarm.runs import progress
from rl_swarm.runs.progress import data_of
from rl_swarm.runs.record import Evaluated, Round, valid
from rl_swarm.runs.signed import signed_line
from rl_swarm.store import Store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import most_alive, read_registration
from rl_swarm.text import counted

COUNTED_APART = ("NUM_TRAIN_SAMPLES", "NUM_TRANSPLANT_TREES", "MAX_ROUNDS")


def read_experiments(store: Store, names: Sequence[str], founder: str | None = None) -> tuple[list[CellResult], list[str]]:
    """A finished cell for each experiment, all of one length; and lines that say who signed its figures, and who was left out.

    Runs of one arm are numbered in the order of their names: that is how they are paired. Raises ConfigError for an experiment
    without rounds to compare, and for one that `founder`, if given, has not signed.
    """
    results, said, runs = list[CellResult](), dict[str, list[str]](), Counter[str]()
    for name in names:
        result, remarks = _read(store, Layout(name), founder)
        runs[result.cell.arm.name] += 1
        results.append(replace(result, cell=replace(result.cell, seed=runs[result.cell.arm.name])))
        for remark in remarks:
            said.setdefault(remark, []).append(name)
    lines = [f"{', '.join(of)}: {remark}" for remark, of in said.items()]
    return [_cut(result, min(each.cell.rounds for each in results)) for result in results], lines


def usual_best(results: Sequence[CellResult]) -> str:
    """The arm to test first where nobody named one: the sharing one with the most own rollouts."""
    sharing = [result.cell.arm for result in results if result.cell.arm.split.external]
    return (max(sharing, key=lambda arm: arm.split.own) if sharing else results[0].cell.arm).name


def _read(store: Store, layout: Layout, founder: str | None) -> tuple[CellResult, list[str]]:
    name = layout.experiment_name
    experiment = experiments.existing(store, layout, founder)
    _, signatures = experiments.reader(store, layout, founder)
    named, more = most_alive(store, layout)
    registrations = {node: read_registration(store, layout, node, signatures) for node in named}
    workers = [node for node, found in registrations.items() if found and found.node_role == "worker"]
    rows = {node: found for node in workers if (found := progress.records(store, layout, node))}
    if not rows:
        raise ConfigError(f"experiment {name!r} has no rounds yet: analyse it when its nodes have worked")
    rows, left_out = _compared(rows)
    rewards = {node: {(row.round, row.stage): row.reward for row in found} for node, found in rows.items()}
    remarks = [signed_line(store, layout, experiment.experiment_id, rewards), *left_out]
    if more:
        remarks.append(f"left out: {more} more that have registered, with the fewest signs of life")
    common = set.intersection(*({row.round for row in found} for found in rows.values())) if rows else set[int]()
    if not common:
        raise ConfigError(f"the nodes of experiment {name!r} have no round in common: they cannot be averaged")
    # The name of its folder counts, whatever a row says of its author.
    kept = [msgspec.structs.replace(row, node_id=node) for node, found in rows.items() for row in found if row.round in common]
    kept.sort(key=lambda row: (row.round, row.node_id))
    split = Split(_most(row.own_wanted for row in kept), _most(row.external_wanted for row in kept))
    settings = {name: value for name, value in experiment.settings.items() if name not in COUNTED_APART}
    adapted = len({row.own_wanted for row in kept}) > 1
    cell = Cell(
        Arm(f"{split} adapted" if adapted else str(split), split, len(rows)),
        0,
        len(common),
        settings,
        {"tasks": experiment.tasks_version},
    )
    return CellResult(cell, tuple(kept), _before(store, layout, rows)), remarks


def _compared(rows: Mapping[str, list[Round]]) -> tuple[dict[str, list[Round]], list[str]]:
    """The nodes with at least half of the rounds that at least half of the nodes have, and a line for each of the others."""
    counts = Counter(row.round for found in rows.values() for row in found)
    usual = {number for number, count in counts.items() if 2 * count >= len(rows)}
    shares = {node: len(usual.intersection(row.round for row in found)) for node, found in rows.items()}
    lines = [
        f"left out: {node}, with {share} of {counted(len(usual), 'round')}"
        for node, share in shares.items()
        if 2 * share < len(usual)
    ]
    return {node: found for node, found in rows.items() if 2 * shares[node] >= len(usual)}, lines


def _cut(result: CellResult, rounds: int) -> CellResult:
    last = sorted(result.by_round)[rounds - 1]
    return replace(result, cell=replace(result.cell, rounds=rounds), rows=tuple(row for row in result.rows if row.round <= last))


def _before(store: Store, layout: Layout, nodes: Iterable[str]) -> Evaluated | None:
    for node in nodes:
        for each in valid(data_of(progress.events(store, layout, node), "evaluation"), Evaluated):
            if each.round == 0:
                return each
    return None


def _most(values: Iterable[int]) -> int:
    return Counter(values).most_common(1)[0][0]
