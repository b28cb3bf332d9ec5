"""The result of a cell: the record of every node and round, in one compressed JSON file, and the figures that follow from it.

A file is written when its cell is finished, whole or not at all. Columns of times have names that begin with `seconds`, and
`operations` also counts what nodes do by the clock; everything else is the same whenever a cell is run again.

The measure that counts is reward over *own* rollouts. The paper's table may have counted external ones too, which were chosen for
being informative: that measure rises without any learning. It is reported under the name `mixed`, and never tested.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

import rl_swarm
from rl_swarm.errors import BadDocument
from rl_swarm.packing import SMALLEST, packed, unpacked
from rl_swarm.reproduce.plan import SMOOTHED_ROUNDS, Cell
from rl_swarm.runs.record import Evaluated, Round
from rl_swarm.show.drawing import smooth

SAVED = "saved.json"  # in the folder of an interrupted cell: where it goes on
LARGEST_BYTES = 1 << 30  # of one result, unpacked: our own file, so only damage is refused
OPERATIONS = ("get", "put", "list", "delete")
LEARNING_CODE = ("learning", "tasks", "swarm", "node")
TRAINED_COST = 3  # a token that is trained on costs a forward and a backward pass, about three times a written one
COLLAPSED = 0.5  # share of its peak that a run may lose before it counts as collapsed


@dataclass(frozen=True)
class Curves:
    """A cell round by round: means over its nodes, the band of their smoothed rewards, and costs of all nodes so far."""

    own: tuple[float, ...]
    smoothed: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    mixed: tuple[float, ...]
    generated: tuple[int, ...]
    compute: tuple[int, ...]


@dataclass(frozen=True)
class Answers:
    """A held-out question, its answer key, and what the first node wrote before and after training."""

    prompt: str
    key: str | None
    before: str
    after: str


@dataclass(frozen=True)
class CellResult:
    """A finished cell. `before` is held-out accuracy before training, where measured.

    `right_before` and `right`, of each node at the end, say for each of the three readings which questions were answered
    rightly, as a 1 or a 0 each. `code` is a digest of the code that ran.
    """

    cell: Cell
    rows: tuple[Round, ...]
    before: Evaluated | None = None
    seconds: float = 0.0
    answers: tuple[Answers, ...] = ()
    right_before: Mapping[str, str] = field(default_factory=dict)
    right: tuple[Mapping[str, str], ...] = ()
    prompt_tokens: float = 0.0  # of a prompt, on the mean; 0 where nothing was evaluated
    code: str = ""

    @cached_property
    def by_round(self) -> Mapping[int, Sequence[Round]]:
        found: dict[int, list[Round]] = {}
        for row in sorted(self.rows, key=lambda row: row.round):
            found.setdefault(row.round, []).append(row)
        return found

    @cached_property
    def curves(self) -> Curves:
        rounds = self.by_round.values()
        own = [fmean(row.reward for row in rows) for rows in rounds]
        rewards: dict[str, list[float]] = {}
        for row in (row for rows in rounds for row in rows):
            rewards.setdefault(row.node_id, []).append(row.reward)
        nodes = [smooth(values, SMOOTHED_ROUNDS) for values in rewards.values()]
        generated = [sum(row.tokens for row in rows) for rows in rounds]
        computed = [round(sum(map(self._computed, rows))) for rows in rounds]
        return Curves(
            own=tuple(own),
            smoothed=tuple(smooth(own, SMOOTHED_ROUNDS)),
            low=tuple(map(min, zip(*nodes, strict=False))),
            high=tuple(map(max, zip(*nodes, strict=False))),
            mixed=tuple(fmean(map(mixed_reward, rows)) for rows in rounds),
            generated=tuple(accumulate(generated)),
            compute=tuple(accumulate(computed)),
        )

    def _computed(self, row: Round) -> float:
        """Tokens that the model read or wrote, those trained on three times. The completions of a rollout share its prompt."""
        written = row.tokens + self.prompt_tokens * row.own_wanted
        return written + TRAINED_COST * (row.tokens_trained + self.prompt_tokens * row.informative)

    @cached_property
    def right_at_end(self) -> list[float]:
        """The share of the nodes that answered each held-out question rightly, as the verifier reads."""
        return [fmean(map(int, marks)) for marks in zip(*(each["held_out"] for each in self.right), strict=True)]

    @cached_property
    def knowledge(self) -> dict[int, float]:
        """Held-out accuracy as the verifier reads by the number of rounds played: the mean of the nodes."""
        start = {0: self.before.held_out} if self.before else {}
        found = {number: [row.held_out for row in rows if row.held_out is not None] for number, rows in self.by_round.items()}
        return start | {number + 1: fmean(values) for number, values in found.items() if values}

    @property
    def last_evaluated(self) -> list[Round]:
        """The rows of the round in which held-out accuracy was last measured."""
        evaluated = [row for row in self.rows if row.held_out is not None]
        return [row for row in evaluated if row.round == max(each.round for each in evaluated)]

    @cached_property
    def by_task(self) -> dict[str, float]:
        """Held-out accuracy of each task at the end: the mean of the nodes."""
        tables = [row.held_out_by_task for row in self.last_evaluated]
        return {task: fmean(table[task] for table in tables) for task in tables[0]} if tables else {}

    @cached_property
    def measures(self) -> dict[str, Any]:
        """The cell in numbers. Tokens and seconds are of the whole swarm; external figures are means per node and round."""
        rows, found, last = self.rows, self.curves, self.last_evaluated
        ages = [(row.external_age, row.external_used) for row in rows if row.external_age is not None and row.external_used]
        last_round = max(row.round for row in rows)
        return {
            "cumulative": sum(found.own),  # over rounds, of the mean over nodes
            "final": fmean(ending(found.own)),
            "cumulative_mixed": sum(found.mixed),
            "held_out": fmean(row.held_out or 0.0 for row in last) if last else None,
            "held_out_in_form": fmean(row.held_out_in_form or 0.0 for row in last) if last else None,
            "held_out_style_blind": fmean(row.held_out_style_blind or 0.0 for row in last) if last else None,
            "oscillation": oscillation(found.smoothed),
            "collapse": collapse(found.smoothed),
            "collapsed": collapse(found.smoothed) > COLLAPSED,
            "own_used": fmean(row.own_used for row in rows),
            "external_wanted": fmean(row.external_wanted for row in rows),
            "external_used": fmean(row.external_used for row in rows),
            "external_age": sum(age * used for age, used in ages) / sum(used for _, used in ages) if ages else None,
            "origins": origins(rows),
            "operations": operations(rows),
            "tokens_generated": found.generated[-1],
            "tokens_trained": sum(round(row.tokens_trained) for row in rows),
            "compute": found.compute[-1],
            "seconds_working": sum(row.seconds.get(phase, 0.0) for row in rows for phase in ("generate", "train")),
            "rejected": sum(sum(row.rejected_total.values()) for row in rows if row.round == last_round),
            "failed_verdicts": sum(failed_verdicts(row) for row in rows if row.round == last_round),
            "seconds": self.seconds,
        }


def mixed_reward(row: Round) -> float:
    """The mean over own rollouts and the external ones that were trained on."""
    used = row.external_used if row.external_reward is not None else 0
    return (row.own_wanted * row.reward + used * (row.external_reward or 0.0)) / max(1, row.own_wanted + used)


def failed_verdicts(row: Round) -> int:
    """Completions of a node so far whose verifier took too long, raised, or gave no number between 0 and 1."""
    return sum(count for name, count in row.tasks_total.items() if name.startswith("scorer_"))


def operations(rows: Sequence[Round]) -> float:
    """Reads, writes and listings of the store, per node and round. All nodes of a cell share one store, which counts them."""
    return max(sum(row.store_total.get(name, 0) for name in OPERATIONS) for row in rows) / len(rows)


def authors(row: Round) -> Counter[str]:
    return Counter(rollout_id.partition("/")[0] for rollout_id in row.external_ids)


def origins(rows: Sequence[Round]) -> float:
    """The effective number of authors of a node's external rollouts, 1 / Σ share², mean over nodes."""
    taken: dict[str, Counter[str]] = {}
    for row in rows:
        taken.setdefault(row.node_id, Counter()).update(authors(row))
    effective = [1 / sum((count / each.total()) ** 2 for count in each.values()) for each in taken.values() if each]
    return fmean(effective) if effective else 0.0


def ending(values: Sequence[float]) -> Sequence[float]:
    """The last tenth, and at least five rounds: how a run stood at the end."""
    return values[-max(5, len(values) // 10) :]


def oscillation(smoothed: Sequence[float]) -> float:
    """The sum of all falls of the smoothed reward, as a share of its peak: 0 for a curve that only rises."""
    falls = sum(max(0.0, before - after) for before, after in pairwise(smoothed))
    return falls / max(smoothed) if max(smoothed) > 0 else 0.0


def collapse(smoothed: Sequence[float]) -> float:
    """The share of its peak that the smoothed reward has lost at the end."""
    return 1 - smoothed[-1] / max(smoothed) if max(smoothed) > 0 else 0.0


@cache
def code_digest() -> str:
    """Of all code and weights that decide what a node learns."""
    package = Path(rl_swarm.__file__).parent
    found = (path for part in LEARNING_CODE for path in sorted((package / part).rglob("*")))
    files = [path for path in found if path.suffix in (".py", ".safetensors")]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:10]


def path_of(folder: Path, cell: Cell) -> Path:
    return folder / f"{cell.id}.json.zst"


def save(folder: Path, result: CellResult) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(folder, result.cell)
    part = path.with_suffix(".part")
    part.write_bytes(packed(msgspec.json.encode(result), "zstd", SMALLEST))
    os.replace(part, path)
    return path


def load(folder: Path, cell: Cell) -> CellResult | None:
    """The result of this cell, whatever the study that ran it called its arm, or None if there is no readable one."""
    try:
        result = msgspec.json.decode(unpacked(path_of(folder, cell).read_bytes(), LARGEST_BYTES), type=CellResult)
    except (FileNotFoundError, BadDocument, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return replace(result, cell=cell) if result.cell.id == cell.id else None
