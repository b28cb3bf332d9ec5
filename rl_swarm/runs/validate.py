"""Check that a run is complete and consistent: rounds, rewards, rollouts, who learnt from whom, logs.

Only registered nodes count; anything else in the folder is a warning. A node's metrics are compared with the files in the store.
Writes nothing there but its own findings. Anybody may have written any of it, so reads are limited, and a limit that was hit is
reported.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rl_swarm.errors import BadDocument, ConfigError, NotFound, StoreError
from rl_swarm.packing import unpacked
from rl_swarm.rollout import BUNDLE_BYTES, decode
from rl_swarm.runs import progress
from rl_swarm.runs.examples import bundle_keys
from rl_swarm.runs.progress import EVENTS, METRICS, data_of, kept_rounds
from rl_swarm.runs.record import Round, by_round, valid
from rl_swarm.runs.signed import signed_line
from rl_swarm.store import Store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout, node_of_file, round_of_file, round_of_folder
from rl_swarm.swarm.peers import most_alive, read_registration
from rl_swarm.swarm.removals import removed_before
from rl_swarm.swarm.rounds import FIRST_STAGE, Rounds, names_at_work, read_reward
from rl_swarm.text import counted, one_line

RESULTS = "test_results.json"
SIGNS_OF_ERROR = ("out of memory", "Traceback (most recent call last)")
MOST_SHOWN = 3
MOST_DIGITS = 6  # of a round's or a stage's number
MOST_ROWS, MOST_ROWS_OF_ALL = 10_000, 200_000  # rows of metrics, of one worker and of all: the newest
JOURNAL_BYTES, JOURNAL_BYTES_OF_ALL = 16 << 20, 1 << 30  # of one journal, and of that journal of all nodes: the newest
ROLLOUT_BYTES = 2 << 30  # of all bundles together
LOOK_BYTES = 4 << 10  # what a look for a node's rollouts of a round counts for at least


@dataclass(frozen=True)
class _Published:
    """The facts to check about a node's rollouts of one stage of a round; the rollouts themselves are not kept."""

    wrong: str = ""
    count: int = 0
    sizes: frozenset[int] = frozenset()  # of groups
    used: frozenset[str] = frozenset()  # ids that some node claims to have used


@dataclass(frozen=True)
class Finding:
    """The result of one check: `status` is ok, warning or failed."""

    check: str
    status: str
    detail: str


@dataclass(frozen=True)
class Expected:
    """What the run should have been; None means whatever the run itself says."""

    rounds: int | None = None
    nodes: int | None = None
    external_count: int | None = None


def validate(store: Store, layout: Layout, expected: Expected, founder: str | None = None) -> list[Finding]:
    return _Checks(store, layout, expected, founder).findings()


class _Checks:
    """The checks of one experiment, whose files are read once."""

    def __init__(self, store: Store, layout: Layout, expected: Expected, founder: str | None) -> None:
        self.store, self.layout, self.expected, self.founder = store, layout, expected, founder
        signatures = experiments.reader(store, layout)[1]
        newest = Rounds(store, layout, signatures=signatures).survey()
        named, self.left_out = most_alive(store, layout, names_at_work(store, layout, newest))
        found = {node: read_registration(store, layout, node) for node in named}
        roles = {node: registration.node_role for node, registration in found.items() if registration}
        self.nodes = list(roles)
        self.removed = removed_before(store, layout, self.nodes, signatures)
        self.unreadable = [node for node in named if node not in roles]
        self.workers = [node for node, role in roles.items() if role == "worker"]
        self.coordinated = "coordinator" in roles.values()
        self.foreign: dict[str, int] = {}  # worker → rows that no node writes
        self.too_many: list[str] = []  # workers with more rows than are read
        self.most_rows = min(MOST_ROWS, MOST_ROWS_OF_ALL // max(1, len(self.workers)))
        self.journal_bytes = min(JOURNAL_BYTES, JOURNAL_BYTES_OF_ALL // max(1, len(self.nodes)))
        self.metrics = {node: self._read_metrics(node) for node in self.workers}
        done = [row.round for rows in self.metrics.values() for row in rows]
        self.rounds = expected.rounds or max(done, default=-1) + 1
        self._used = {name for rows in self.metrics.values() for row in rows for name in row.external_ids}
        self._own_wanted = {(node, row.round, row.stage): row.own_wanted for node, rows in self.metrics.items() for row in rows}
        self._looks: dict[tuple[str, int, int], _Published] = {}
        self._bytes_left, self._unread = ROLLOUT_BYTES, 0

    def findings(self) -> list[Finding]:
        checks = (
            self._check_nodes,
            self._check_rounds,
            self._check_rewards,
            self._check_signatures,
            self._check_rollouts,
            self._check_sharing,
            self._check_retention,
            self._check_limits,
            self._check_logs,
            self._check_strangers,
        )
        return [finding for check in checks for finding in check()]

    def _check_nodes(self) -> Iterator[Finding]:
        wanted = self.expected.nodes
        shown = f"{len(self.nodes)} registered ({counted(len(self.workers), 'worker')})"
        if wanted is not None and len(self.nodes) + self.left_out != wanted:
            more = f" and {self.left_out} more" if self.left_out else ""
            yield Finding("nodes", "failed", f"{shown}{more}, {wanted} expected")
        elif not self.workers:
            yield Finding("nodes", "failed", f"{shown}: nobody trained")
        else:
            yield Finding("nodes", "ok", shown)
        if self.left_out:
            few = f"{self.left_out} more have registered and were left out: the checked ones show the most signs of life"
            yield Finding("nodes", "warning", few)
        if self.unreadable:  # junk of a stranger, unless there is a journal of that name
            writing = {name.rstrip("/") for name in self.store.list(self.layout.logs)}
            status = "failed" if writing.intersection(self.unreadable) else "warning"
            yield Finding("nodes", status, f"not counted, since their registrations cannot be read: {_some(self.unreadable)}")

    def _check_rounds(self) -> Iterator[Finding]:
        announced = {number for number in map(round_of_file, self.store.list(self.layout.states)) if number is not None}
        came = min(announced, default=0)  # workers may have begun without the coordinator
        missing = [number for number in range(came, self.rounds) if number not in announced]
        if self.coordinated and 0 < came < self.rounds:
            yield Finding("rounds", "warning", f"played before the coordinator came: {_some(list(range(came)))} of {self.rounds}")
        if self.coordinated and missing:
            yield Finding("rounds", "failed", f"not announced: {_some(missing)} of {self.rounds}")
        elif not self.coordinated:
            yield Finding("rounds", "warning", f"{counted(self.rounds, 'round')} without a coordinator")
        else:
            yield Finding("rounds", "ok", f"all {self.rounds - came} announced")
        for node, rows in self.metrics.items():
            done = [row.round for row in rows]
            if not done or max(done) < self.rounds - 1:
                yield Finding("rounds", "failed", f"{node} ended at round {max(done, default=None)}, the last is {self.rounds - 1}")
            elif len(done) < self.rounds:
                yield Finding("rounds", "warning", f"{node} did {len(done)} of {counted(self.rounds, 'round')}")

    def _check_rewards(self) -> Iterator[Finding]:
        missing, redone, count = [], [], 0
        for node, row in self._rows():
            reward = read_reward(self.store, self.layout, row.round, row.stage, node)
            count += 1
            if reward is None:
                missing.append(f"{node} round {row.round}")
            elif reward.reward != row.reward:
                redone.append(f"{node} round {row.round}")
        yield _verdict("rewards", missing, f"all {count} submitted", "missing: ")
        if redone:  # a node killed after it submitted plays the round again, but its first reward stays
            yield Finding("rewards", "warning", f"played again after a restart, with another reward: {_some(redone)}")

    def _redone(self, node: str, row: Round) -> bool:
        """Whether a round was played again after a restart, perhaps with another I: what was published first stays."""
        reward = read_reward(self.store, self.layout, row.round, row.stage, node)
        return reward is not None and reward.reward != row.reward

    def _check_signatures(self) -> Iterator[Finding]:
        """Report whose figures are signed; in a signed experiment all should be."""
        try:
            experiment = experiments.read(self.store, self.layout, self.founder)
        except ConfigError as error:
            yield Finding("signatures", "failed", str(error))
            return
        if experiment is None or not self.workers:
            return
        rewards = {
            node: {(row.round, row.stage): row.reward for row in rows if row.round < self.rounds}
            for node, rows in self.metrics.items()
        }
        line = signed_line(self.store, self.layout, experiment.experiment_id, rewards)
        founder = f"experiment signed by {experiment.key[:16]}; " if experiment.key else ""
        yield Finding("signatures", "warning" if experiment.key and "not signed" in line else "ok", founder + line)

    def _check_rollouts(self) -> Iterator[Finding]:
        wrong, count, removed = [], 0, 0
        for node, row in self._rows():
            found = self._rollouts(node, row.round, row.stage)
            if found is None:
                continue
            count += found.count
            others = found.sizes - {row.group_size} if row.group_size else ()
            if found.count < row.own_wanted and self._removable(node, row.round):
                removed += 1
            elif found.wrong:
                wrong.append(f"{node} round {row.round}: {found.wrong}")
            elif (row.own_wanted not in (0, found.count) and not self._redone(node, row)) or others:
                sizes = f"{found.count} rollouts of {row.own_wanted}, groups of {sorted(found.sizes)}"
                wrong.append(f"{node} round {row.round}: {sizes}")
        also = f"; those of {removed} rounds of nodes were removed" if removed else ""
        yield _verdict("rollouts", wrong, f"all {count} readable and complete{also}")

    def _check_sharing(self) -> Iterator[Finding]:
        wanted = self.expected.external_count
        used = {node: [name for row in rows for name in row.external_ids] for node, rows in self.metrics.items()}
        if wanted is None:
            wanted = max((row.external_wanted for _, row in self._rows()), default=0)
        if not wanted:
            yield Finding("sharing", "ok", "J = 0: no sharing intended")
            return
        if self.expected.external_count is None and len(used) == 1:
            yield Finding("sharing", "warning", f"J = {wanted}, and only one worker has played: nobody to share with yet")
            return
        wrong = []
        if not any(used.values()):
            wrong.append(f"J = {wanted}, but no external rollout was ever used")
        for node, names in used.items():
            if not names and any(used.values()):
                if offered := self._offered(node):
                    wrong.append(f"{node} used none of {offered} informative rollouts of its peers")
                else:
                    yield Finding("sharing", "warning", f"no peer had an informative rollout for {node} in time")
            kept = kept_rounds(self.metrics[node], progress.rows(self._lines(node, EVENTS)))
            trained = [name for row in kept for name in row.external_ids]
            if len(trained) != len(set(trained)):
                wrong.append(f"{node} used an external rollout twice")
            wrong += [f"{node} used {name}, which no peer published" for name in names if not self._published(node, name)]
        also = ", or in its author's record where that was removed" if any(self.removed.values()) else ""
        yield _verdict("sharing", wrong, f"{sum(map(len, used.values()))} uses, each found in a peer's file{also}")

    def _check_retention(self) -> Iterator[Finding]:
        rounds = sorted({number for number in self.removed.values() if number})
        if rounds:
            nodes = [node for node, number in self.removed.items() if number and node in self.workers]
            done = f"rollouts of rounds before {rounds[-1]} were removed or archived on purpose"
            yield Finding("retention", "ok", f"{done}: of {_some(nodes)}")

    def _check_limits(self) -> Iterator[Finding]:
        if self.too_many:
            yield Finding("limits", "warning", f"checked only the newest {self.most_rows} rounds of {_some(self.too_many)}")
        if self._unread:
            most = f"{ROLLOUT_BYTES / 1e9:.1f} GB of rollouts"
            yield Finding("limits", "warning", f"checked {most}, and not the rest: {counted(self._unread, 'round')} of nodes")

    def _check_logs(self) -> Iterator[Finding]:
        wrong = []
        for node in self.nodes:
            errors = data_of(progress.rows(self._lines(node, EVENTS)), "error")
            wrong += [f"{node}: {_message(data)}" for data in errors]
            for name in ("stdout.log", "stderr.log"):
                signs = (line for line in self._lines(node, name) if any(sign in line for sign in SIGNS_OF_ERROR))
                wrong += [f"{node}: {one_line(line)}" for line in signs]
        yield _verdict("logs", wrong, "no errors")
        for node, count in self.foreign.items():
            rows = counted(count, "row")
            yield Finding("logs", "warning", f"skipped {rows} of {node}'s metrics, not in the form that nodes write")

    def _check_strangers(self) -> Iterator[Finding]:
        strangers = set()
        there = (self.store.list(folder) for folder in (self.layout.rewards, self.layout.rollouts))
        numbers = {number for names in there for number in map(round_of_folder, names) if number is not None}
        places = {(number, FIRST_STAGE) for number in numbers if number < self.rounds}
        places |= {(row.round, row.stage) for _, row in self._rows() if row.round in numbers}
        for place in sorted(places):
            for folder in (self.layout.rewards_of(*place), self.layout.rollouts_of(*place)):
                names = self.store.list(folder)
                strangers |= {f"{folder}/{name}" for name in names if node_of_file(name) not in self.nodes}
        if strangers:
            yield Finding("strangers", "warning", f"files of no counted node: {_some(sorted(strangers))}")

    def _rows(self) -> Iterator[tuple[str, Round]]:
        return ((node, row) for node, rows in self.metrics.items() for row in rows if row.round < self.rounds)

    def _read_metrics(self, node: str) -> list[Round]:
        said = progress.rows(self._lines(node, METRICS))
        found = valid(said, Round)
        if len(found) < len(said):
            self.foreign[node] = len(said) - len(found)
        rows = list(by_round(found).values())
        if len(rows) > self.most_rows:
            self.too_many.append(node)
        return rows[-self.most_rows :]

    def _lines(self, node: str, name: str) -> list[str]:
        return progress.lines(self.store, self.layout.log(node, name), self.journal_bytes)

    def _offered(self, node: str) -> int:
        """Count the informative rollouts that peers had published before the node's last round began."""
        last = max((row.round for row in self.metrics[node]), default=0)
        return sum(len(row.own_ids) for peer, row in self._rows() if peer != node and row.round < last)

    def _published(self, node: str, rollout_id: str) -> bool:
        peer, number, stage, slot, *_ = [*rollout_id.split("/", 3), "", "", ""]
        numbers = all(part.isdecimal() and len(part) <= MOST_DIGITS for part in (number, stage))
        known = peer != node and peer in self.nodes and numbers
        found = self._rollouts(peer, int(number), int(stage)) if known else _Published()
        if found is None or rollout_id in found.used:
            return True
        own_wanted = self._own_wanted.get((peer, int(number), int(stage)), 0) if known else 0
        return known and self._removable(peer, int(number)) and slot.isdecimal() and int(slot) < own_wanted

    def _removable(self, node: str, number: int) -> bool:
        """Whether this node's rollouts of a round may have been removed on purpose."""
        return number < self.removed.get(node, 0)

    def _rollouts(self, node: str, number: int, stage: int) -> _Published | None:
        """Describe a node's rollouts of a stage of a round; None if the limit of bytes was reached."""
        if (node, number, stage) not in self._looks:
            found = self._look(node, number, stage) if self._bytes_left > 0 else None
            if found is None:
                self._unread += 1
                return None
            self._looks[node, number, stage] = found
        return self._looks[node, number, stage]

    def _look(self, node: str, number: int, stage: int) -> _Published | None:
        keys = bundle_keys(self.store, self.layout, number, stage, node)
        self._bytes_left -= LOOK_BYTES
        sizes: dict[str, int] = {}
        for key in keys:
            if self._bytes_left <= 0:
                return None
            try:
                data = unpacked(self.store.get(key, limit=BUNDLE_BYTES), BUNDLE_BYTES)
                self._bytes_left -= max(len(data), LOOK_BYTES)
                sizes.update({rollout.id: len(rollout.completions) for rollout in decode(data).rollouts})
            except (NotFound, BadDocument) as error:
                self._bytes_left -= BUNDLE_BYTES if isinstance(error, BadDocument) else 0  # a bomb, perhaps
                if self._removable(node, number):  # just being removed, or half a file in the archive
                    continue
                return _Published(f"{key.rpartition('/')[2]} cannot be read ({error})")
        wrong = "" if keys else "no rollout file"
        return _Published(wrong, len(sizes), frozenset(sizes.values()), frozenset(sizes.keys() & self._used))


def passed(findings: list[Finding]) -> bool:
    return all(finding.status != "failed" for finding in findings)


def results(experiment: str, findings: list[Finding]) -> dict[str, Any]:
    """Return the findings in the form of test_results.json."""
    return {"experiment": experiment, "passed": passed(findings), "findings": [asdict(finding) for finding in findings]}


def write_results(document: dict[str, Any], output: Path | None, store: Store, layout: Layout) -> list[str]:
    """Write the results to a file, or without one into the experiment. Return a warning if the store takes no file."""
    text = json.dumps(document, indent=1) + "\n"
    if output:
        output.write_text(text)
        return []
    key = layout.report(RESULTS)
    try:
        store.rewrite(key, text.encode())
    except StoreError as error:  # a share may be read-only for whoever looks at it
        return [f"the findings are not written to {key} ({error.__cause__ or error}): name a file with --output"]
    return []


def _message(data: Any) -> str:
    return one_line(str(data.get("message", "error"))) if isinstance(data, dict) else "error"


def _verdict(check: str, wrong: Sequence[str], good: str, claim: str = "") -> Finding:
    return Finding(check, "failed", claim + _some(wrong)) if wrong else Finding(check, "ok", good)


def _some(items: Sequence[Any]) -> str:
    shown = ", ".join(one_line(str(item)) for item in items[:MOST_SHOWN])
    return shown + (f" and {len(items) - MOST_SHOWN} more" if len(items) > MOST_SHOWN else "")
