"""Publish own rollouts, gather peers'.

Gathering reads the files of the window in an order drawn from the node's generator, until J informative rollouts are known and
J files were looked into (so that a batch is not all of one peer), or the budget of peers and seconds is spent. Its cost follows
J, not the number of peers. A peer's bad file is counted, set aside and skipped; one that is not all there yet is looked at again.
Whether a rollout is true is the business of `verify`, which is an argument.
"""

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_swarm.clock import Clock
from rl_swarm.errors import BadDocument, BadRollout, Incomplete, NotFound, StoreAway
from rl_swarm.rollout import BUNDLE_BYTES, GROUP_LIMITS, Bundle, Rollout, decode, decode_plain, encode
from rl_swarm.selection import eligible
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout, node_of_file
from rl_swarm.swarm.publisher import Publisher

MOST_QUARANTINED = 100


@dataclass(frozen=True)
class ExchangeSettings:
    node_id: str
    frequency: str = "stage"
    choice: str = "informative"
    window: int = 3
    fetch_peers: int = 10
    fetch_seconds: float = 30.0
    cache: bool = True
    model: str = ""
    tasks_version: str = ""


@dataclass(frozen=True)
class _File:
    key: str
    node_id: str
    round: int


class Exchange:
    def __init__(
        self,
        store: Store,
        layout: Layout,
        publisher: Publisher,
        verify: Callable[[Rollout], Rollout],
        clock: Clock,
        settings: ExchangeSettings,
        quarantine: Path | None = None,
    ) -> None:
        self.store = store
        self.layout = layout
        self.publisher = publisher
        self.verify = verify
        self.clock = clock
        self.settings = settings
        self.quarantine = quarantine
        self.counters: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.used: dict[str, int] = {}  # rollout id → its round, for the rounds of the window
        self.policy_version = 0
        self.verify_seconds = 0.0
        self._outbox: list[Rollout] = []
        self._pool: dict[str, Rollout] = {}
        self._read: dict[str, int] = {}  # key of every file that needs no second look → its round
        self._waiting: dict[str, int] = {}  # key of every file that was not all there → its round

    # Publishing

    def offer(self, rollout: Rollout) -> None:
        """Take one own rollout; with frequency 'generation' it is published at once."""
        if self.settings.frequency == "generation":
            self._publish([rollout], rollout.slot)
        else:
            self._outbox.append(rollout)

    def end_stage(self) -> None:
        if self.settings.frequency == "stage":
            self._flush()

    def end_round(self) -> None:
        self._flush()

    def _flush(self) -> None:
        if self._outbox:
            self._publish(self._outbox, None)
            self._outbox = []

    def _publish(self, rollouts: list[Rollout], slot: int | None) -> None:
        first = rollouts[0]
        bundle = Bundle(
            experiment=self.layout.experiment_name,
            node_id=self.settings.node_id,
            round=first.round,
            stage=first.stage,
            timestamp=self.clock.wall(),
            model=self.settings.model,
            policy_version=self.policy_version,
            tasks_version=self.settings.tasks_version,
            rollouts=tuple(rollouts),
        )
        self.publisher.put(self.layout.bundle(first.round, self.settings.node_id, slot, first.stage), encode(bundle))
        self.counters["rollouts_published"] += len(rollouts)

    # Gathering

    def gather(self, round_number: int, wanted: int, chooser: random.Random) -> list[Rollout]:
        """Informative, verified, unused external rollouts of the window; at least `wanted` if there are and the budget allows."""
        self._forget(round_number - self.settings.window + 1)
        if wanted == 0:
            return []
        deadline = self.clock.monotonic() + self.settings.fetch_seconds
        peers: set[str] = set()
        looked_into = 0
        try:
            files = self._unread(round_number)
            chooser.shuffle(files)
            for file in files:
                if self.clock.monotonic() >= deadline or (len(self._pool) >= wanted and looked_into >= wanted):
                    break
                if file.node_id in peers or len(peers) < self.settings.fetch_peers:
                    peers.add(file.node_id)
                    looked_into += self._look_into(file)
        except StoreAway:
            self.counters["gather_store_away"] += 1
        return list(self._pool.values())

    def mark_used(self, rollouts: Iterable[Rollout]) -> None:
        for rollout in rollouts:
            self.used[rollout.id] = rollout.round
            self._pool.pop(rollout.id, None)

    def take_verify_seconds(self) -> float:
        """Seconds spent in `verify` since last asked."""
        seconds, self.verify_seconds = self.verify_seconds, 0.0
        return seconds

    def state(self) -> dict[str, Any]:
        return {"used": dict(self.used), "rejected": dict(self.rejected), "counters": dict(self.counters)}

    def restore(self, state: dict[str, Any]) -> None:
        self.used = dict(state["used"])
        self.rejected = Counter(state["rejected"])
        self.counters = Counter(state["counters"])

    def _unread(self, round_number: int) -> list[_File]:
        files = set()
        for number in range(max(0, round_number - self.settings.window + 1), round_number + 1):
            folder = self.layout.rollouts_of(number)
            for name in self.store.list(folder):
                node_id, key = node_of_file(name), f"{folder}/{name}"
                if node_id is not None and node_id != self.settings.node_id and key not in self._read:
                    files.add(_File(key, node_id, number))
        return sorted(files, key=lambda file: file.key)

    def _look_into(self, file: _File) -> bool:
        """Read one file; True if that cost a read which brought something to judge."""
        try:
            data = self.store.get(file.key, limit=BUNDLE_BYTES, listed=True)
        except NotFound:  # listed, not there yet
            self._waiting[file.key] = file.round
            return False
        try:
            bundle = self._open(data, file)
        except Incomplete:
            self._waiting[file.key] = file.round
            return False
        except BadDocument as error:
            self._set_aside(file, data, error.reason)
            return True
        self._read[file.key] = file.round
        self._waiting.pop(file.key, None)
        for rollout in bundle.rollouts:
            self._admit(rollout)
        return True

    def _open(self, data: bytes, file: _File) -> Bundle:
        try:
            bundle = decode(data)
        except Incomplete:
            decode_plain(data)  # raises Incomplete unless it is the plain documented form, which nobody can check
            raise BadDocument("unverifiable", "no question that can be regenerated") from None
        if (bundle.experiment, bundle.node_id, bundle.round) != (self.layout.experiment_name, file.node_id, file.round):
            raise BadDocument("misplaced", f"{bundle.experiment}/{bundle.round}/{bundle.node_id} lies at {file.key}")
        return bundle

    def _admit(self, rollout: Rollout) -> None:
        if rollout.id in self.used or rollout.id in self._pool:
            return
        self.counters["rollouts_seen"] += 1
        began = self.clock.monotonic()
        try:
            if not GROUP_LIMITS[0] <= len(rollout.completions) <= GROUP_LIMITS[1]:
                raise BadRollout("group_size", str(len(rollout.completions)))
            verified = self.verify(rollout)
        except BadRollout as error:
            self.rejected[error.reason] += 1
            return
        finally:
            self.verify_seconds += self.clock.monotonic() - began
        if eligible(verified, self.settings.choice):
            self._pool[verified.id] = verified
        else:
            self.counters["uninformative"] += 1

    def _set_aside(self, file: _File, data: bytes, reason: str) -> None:
        self.rejected[reason] += 1
        self._read[file.key] = file.round
        self._waiting.pop(file.key, None)
        if self.quarantine is None:
            return
        with contextlib.suppress(OSError):  # kept for curious people: a full disk may do without
            self.quarantine.mkdir(parents=True, exist_ok=True)
            if len(list(self.quarantine.iterdir())) < MOST_QUARANTINED:
                (self.quarantine / f"{file.round}.{file.node_id}.{reason}").write_bytes(data[: 1 << 20])

    def _forget(self, oldest: int) -> None:
        """Drop what has left the window, so that memory does not grow; a file that never became whole is counted now."""
        self.rejected.update("incomplete" for number in self._waiting.values() if number < oldest)
        self.used = {rollout_id: number for rollout_id, number in self.used.items() if number >= oldest}
        self._waiting = {key: number for key, number in self._waiting.items() if number >= oldest}
        if self.settings.cache:
            self._read = {key: number for key, number in self._read.items() if number >= oldest}
            self._pool = {rollout_id: rollout for rollout_id, rollout in self._pool.items() if rollout.round >= oldest}
        else:
            self._read, self._pool = {}, {}
