"""What a cell leaves behind: a row for each node and round, in one JSON file; and the CSV files for everybody else.

A file is written once the cell is finished, whole or not at all: that it is there says that the cell need not be run again.
Times stand in columns whose names
begin with `seconds`: everything else is the same whenever a cell is run again.
"""

import csv
import io
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rl_swarm.reproduce.plan import Cell
from rl_swarm.runs.record import Round


@dataclass(frozen=True)
class NodeRound:
    """One node in one round. `reward` is over own completions; `mixed` adds the external ones that it trained on."""

    node: str
    round: int
    reward: float
    mixed: float
    own_wanted: int
    own_used: int
    external_wanted: int
    external_used: int
    external_age: float | None
    tokens: int
    tokens_trained: int
    held_out: float | None = None
    held_out_style_blind: float | None = None
    authors: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class CellResult:
    """A finished cell. `before` is held-out accuracy before training, as the verifier sees it and style-blind, where measured."""

    cell: Cell
    rows: tuple[NodeRound, ...]
    before: tuple[float, float] | None = None
    seconds: float = 0.0


def node_round(node_id: str, row: Round) -> NodeRound:
    used = row.external_used if row.external_reward is not None else 0
    mixed = (row.own_wanted * row.reward + used * (row.external_reward or 0.0)) / max(1, row.own_wanted + used)
    return NodeRound(
        node=node_id,
        round=row.round,
        reward=row.reward,
        mixed=mixed,
        own_wanted=row.own_wanted,
        own_used=row.own_used,
        external_wanted=row.external_wanted,
        external_used=row.external_used,
        external_age=row.external_age,
        tokens=row.tokens,
        tokens_trained=round(row.tokens_trained),
        held_out=row.held_out,
        held_out_style_blind=row.held_out_style_blind,
        authors=dict(Counter(rollout_id.partition("/")[0] for rollout_id in row.external_ids)),
        seconds=sum(row.seconds.values()),
    )


def path_of(folder: Path, cell: Cell) -> Path:
    return folder / f"{cell.id}.json"


def save(folder: Path, result: CellResult) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(folder, result.cell)
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(result))
    os.replace(part, path)
    return path


def load(folder: Path, cell: Cell) -> CellResult | None:
    """The result of this very cell, or None if it is not finished; a file that cannot be read counts as not finished."""
    try:
        result = msgspec.json.decode(path_of(folder, cell).read_bytes(), type=CellResult)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return result if result.cell.id == cell.id else None


def write_csv(path: Path, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Plain CSV; a float has as many digits as it needs, and what was not measured is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    path.write_text(text.getvalue(), "utf-8")
