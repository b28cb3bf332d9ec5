"""Publish own rollouts, gather peers'.

Gathering reads the files of the window in an order drawn from the node's generator, until J informative rollouts are known and
J files were looked into (so that a batch is not all of one peer), or the budget of peers and seconds is spent. Its cost follows
J, not the number of peers or of files: peers take turns, each within its quota. A peer's bad file is counted, set aside and
skipped; one that is not all there yet is looked at again; a peer that keeps sending bad files is muted. Text that was trained on
once is not taken again, whoever sends it. Whether a rollout is true is the business of `verify`, which is an argument; it is told
how many seconds are left, and refuses what takes longer. All checking of a round takes no longer than the node's own generation,
or a short while; what is left unchecked then waits for the next round, and is nobody's fault. What is good and not used yet is
kept, within a limit of bytes.

Every file's place in that order is drawn for itself, so that one which turns up later seldom moves another: what is read ahead
while the node generates is then mostly what `gather` wants, and reading ahead changes nothing but the moment of a read.
"""

import contextlib
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rl_swarm.clock import Clock
from rl_swarm.document import Count, typed
from rl_swarm.errors import BadDocument, BadRollout, Incomplete, NotFound, Refused, StoreAway
from rl_swarm.randomness import stream_seed
from rl_swarm.rollout import BUNDLE_BYTES, GROUP_LIMITS, Bundle, Rollout, decode, decode_plain, encode
from rl_swarm.store import Store
from rl_swarm.swarm.choice import eligible
from rl_swarm.swarm.layout import Layout, node_of_file, slot_of_file
from rl_swarm.swarm.peers import NodeName
from rl_swarm.swarm.publisher import Publisher
from rl_swarm.swarm.quota import CHECKING_SHARE, FILES, POOL_BYTES, Allowance, Budget
from rl_swarm.swarm.read_ahead import ReadAhead
from rl_swarm.swarm.signatures import Signatures
from rl_swarm.swarm.standing import MOST_PEERS, Standing, Standings

MOST_QUARANTINED = 100
REMEMBERED = 1 << 14  # texts trained on: two thousand rounds of eight rollouts

RolloutId = Annotated[str, Meta(max_length=200)]
TextId = Annotated[str, Meta(max_length=64)]
Reason = Annotated[str, Meta(max_length=64)]


@dataclass(frozen=True)
class ExchangeSettings:
    node_id: str
    own_count: int = 8
    frequency: str = "stage"
    choice: str = "informative"
    window: int = 3
    fetch_peers: int = 10
    fetch_seconds: float = 30.0
    cache: bool = True
    most_completions: int = GROUP_LIMITS[1]  # of one rollout: each is scored, and may be trained on
    model: str = ""
    tasks_version: str = ""
    secret: str = ""  # part of every draw of an order: nobody can make up names that this node will read first


class ExchangeState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of an exchange outlives a restart; see the members of the same names."""

    used: dict[RolloutId, Count]
    trained: Annotated[list[TextId], Meta(max_length=REMEMBERED)]
    standings: Annotated[dict[NodeName, Standing], Meta(max_length=MOST_PEERS)]
    rejected: dict[Reason, Count]
    counters: dict[Reason, Count]


@dataclass(frozen=True)
class _File:
    key: str
    node_id: str
    round: int
    stage: int
    slot: int


class NoTimeLeft(Exception):
    """The time that a round has for checking is over; what was being checked waits."""


class Exchange:
    def __init__(
        self,
        store: Store,
        layout: Layout,
        publisher: Publisher,
        verify: Callable[[Rollout, float], Rollout],
        clock: Clock,
        settings: ExchangeSettings,
        quarantine: Path | None = None,
        signatures: Signatures | None = None,
    ) -> None:
        self.store = store
        self.layout = layout
        self.publisher = publisher
        self.verify = verify
        self.clock = clock
        self.settings = settings
        self.quarantine = quarantine
        self.signatures = signatures or Signatures()
        self.counters: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.used: dict[str, int] = {}  # rollout id → its round, for the rounds of the window
        self.trained: dict[str, None] = {}  # text ids of what was trained on, own or external, newest last
        self.standings = Standings()
        self.verify_seconds = 0.0
        self._ahead = ReadAhead(publisher.background)
        self._outbox: list[Rollout] = []
        self._outbox_version = 0
        self._pool: dict[str, Rollout] = {}
        self._pool_texts: dict[str, int] = {}  # text id of every rollout in the pool → its round
        self._read: dict[str, int] = {}  # key of every file that needs no second look → its round
        self._bad: dict[str, int] = {}  # the same of every file that had anything wrong with it
        self._waiting: dict[str, int] = {}  # key of every file that was not all there → its round
        self._begun: dict[str, tuple[int, int]] = {}  # key of every file that is judged in part → its round, and how many are
        self._taken: Counter[tuple[str, int]] = Counter()  # how many rollouts of a peer and round are used or in the pool
        self._round_began = (-1, 0.0)  # the round that was last looked ahead for, and when

    # Publishing

    def offer(self, rollout: Rollout, policy_version: int) -> None:
        """Take one own rollout; with frequency 'generation' it is published at once."""
        if eligible(rollout, self.settings.choice):
            self._remember(rollout)  # a peer that sends it back sends nothing new
        if self.settings.frequency == "generation":
            self._publish([rollout], rollout.slot, policy_version)
        else:
            self._outbox.append(rollout)
            self._outbox_version = policy_version

    def end_stage(self) -> None:
        if self.settings.frequency == "stage":
            self._flush()

    def end_round(self) -> None:
        self._flush()

    def _flush(self) -> None:
        if self._outbox:
            self._publish(self._outbox, None, self._outbox_version)
            self._outbox = []

    def _publish(self, rollouts: list[Rollout], slot: int | None, policy_version: int) -> None:
        first = rollouts[0]
        bundle = Bundle(
            experiment=self.layout.experiment_name,
            node_id=self.settings.node_id,
            round=first.round,
            stage=first.stage,
            timestamp=self.clock.wall(),
            model=self.settings.model,
            policy_version=policy_version,
            tasks_version=self.settings.tasks_version,
            rollouts=tuple(rollouts),
        )
        key = self.layout.bundle(first.round, self.settings.node_id, slot, first.stage)
        self.publisher.put(key, self.signatures.sign(key, encode(bundle)))
        self.counters["rollouts_published"] += len(rollouts)

    # Gathering

    def look_ahead(self, round_number: int, stage: int, wanted: int, chooser: random.Random) -> None:
        """Begin to fetch what this round's `gather`, given a generator in the same state, will look into as far as it is there."""

        def plan(ended: Callable[[], bool]) -> list[str]:
            return [file.key for file in self._plan(round_number, stage, wanted, chooser, ended)]

        def fetch(key: str) -> bytes:
            data = self._get(key)
            decode(data)  # raises what is wrong with it
            return data

        self._round_began = (round_number, self.clock.monotonic())
        if wanted:
            self._ahead.begin(plan, wanted, fetch)

    def gather(self, round_number: int, stage: int, wanted: int, chooser: random.Random) -> list[Rollout]:
        """Informative, verified, unused external rollouts of the window; at least `wanted` if there are and the budget allows."""
        deadline = self.clock.monotonic() + self.settings.fetch_seconds
        self._ahead.end()
        self._forget(round_number - self.settings.window + 1)
        if wanted == 0:
            return []
        allowances: dict[str, Allowance] = defaultdict(partial(Allowance.of_round, wanted))
        looked_into = 0
        try:
            files = self._plan(round_number, stage, wanted, chooser)
            budget = self._budget(round_number, wanted, files)
            for file in files:
                enough = len(self._pool) >= wanted and looked_into >= wanted
                if enough or budget.seconds <= 0 or self.clock.monotonic() >= deadline:
                    break
                if not allowances[file.node_id].spent and not self.standings.muted(file.node_id, round_number):
                    looked_into += self._look_into(file, allowances[file.node_id], budget, round_number)
        except StoreAway:
            self.counters["gather_store_away"] += 1
        return list(self._pool.values())

    def _budget(self, round_number: int, wanted: int, files: Iterable[_File]) -> Budget:
        number, began = self._round_began
        generating = self.clock.monotonic() - began if number == round_number else 0.0
        seconds = max(self.settings.fetch_seconds * CHECKING_SHARE, generating)
        return Budget(seconds, max(wanted, self.settings.own_count), {file.node_id for file in files})

    def mark_used(self, rollouts: Iterable[Rollout]) -> None:
        for rollout in rollouts:
            self.used[rollout.id] = rollout.round
            self._remember(rollout)
            self._pool.pop(rollout.id, None)

    def take_verify_seconds(self) -> float:
        """Seconds spent in `verify` since last asked."""
        seconds, self.verify_seconds = self.verify_seconds, 0.0
        return seconds

    def state(self) -> dict[str, Any]:
        return {
            "used": dict(self.used),
            "trained": list(self.trained),
            "standings": self.standings.state(),
            "rejected": dict(self.rejected),
            "counters": dict(self.counters),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken; raise CheckpointError, with nothing changed, if it is no such state."""
        found = typed(state, ExchangeState)
        self.used = dict(found.used)
        self.trained = dict.fromkeys(found.trained)
        self.standings.restore(found.standings)
        self.rejected = Counter(found.rejected)
        self.counters = Counter(found.counters)

    def _remember(self, rollout: Rollout) -> None:
        self.trained[rollout.text_id] = None
        if len(self.trained) > REMEMBERED:
            del self.trained[next(iter(self.trained))]

    def _plan(
        self, round_number: int, stage: int, wanted: int, chooser: random.Random, ended: Callable[[], bool] = lambda: False
    ) -> list[_File]:
        return self._in_turn(self._unread(round_number, stage, ended), max(FILES, wanted), chooser)

    def _unread(self, round_number: int, stage: int, ended: Callable[[], bool]) -> set[_File]:
        files = set()
        for number in range(max(0, round_number - self.settings.window + 1), round_number + 1):
            if ended():
                break
            folder = self.layout.rollouts_of(number, stage)
            for name in self.store.list(folder):
                file = _File(f"{folder}/{name}", node_of_file(name) or "", number, stage, slot_of_file(name))
                if file.node_id in ("", self.settings.node_id) or self.standings.muted(file.node_id, round_number):
                    continue
                if file.key not in self._read and file.key not in self._bad:
                    files.add(file)
        return files

    def _in_turn(self, files: set[_File], most_files: int, chooser: random.Random) -> list[_File]:
        """Every peer's first file before anyone's second, so that none crowds out the others with many.

        Peers whose rollouts were good before and all others take turns, so that many made-up names cost those at most half. Of one
        peer's files those come first that it publishes first: others may have put a thousand beside them under its name.
        """
        salt = f"{self.settings.secret}{chooser.getrandbits(63)}"
        by_peer: dict[str, list[_File]] = {}
        for file in sorted(files, key=lambda file: (file.slot, stream_seed(salt, file.key))):
            by_peer.setdefault(file.node_id, []).append(file)
        peers = sorted(by_peer, key=lambda peer: stream_seed(salt, peer))  # by themselves: who has most files is not the likelier
        trusted = [peer for peer in peers if self.standings.trusted(peer)]
        others = [peer for peer in peers if not self.standings.trusted(peer)]
        turns = [peer for pair in zip_longest(trusted, others) for peer in pair if peer is not None][: self.settings.fetch_peers]
        rows = zip_longest(*(by_peer[peer][:most_files] for peer in turns))
        return [file for row in rows for file in row if file is not None]

    def _look_into(self, file: _File, allowance: Allowance, budget: Budget, round_number: int) -> bool:
        """Read one file; True if that cost a read which brought something to judge."""
        allowance.files -= 1
        try:
            data = self._ahead.take(file.key) or self._get(file.key)
            allowance.bytes -= len(data)
            bundle = self._open(data, file)
        except Refused:
            self._set_aside(file, b"", "not_a_file")
            return True
        except (NotFound, Incomplete):  # listed, and not there yet, or not all of it
            allowance.unready -= 1
            self._waiting[file.key] = file.round
            return False
        except BadDocument as error:
            self._set_aside(file, data, error.reason)
            if self.signatures.owner(file.node_id) is None:  # otherwise it may be anyone's who wants that node muted
                self.standings.bad(file.node_id, round_number, error.reason)
            return True
        self._waiting.pop(file.key, None)
        self._judge(bundle, file, allowance, budget, round_number)
        return True

    def _get(self, key: str) -> bytes:
        return self.store.get(key, limit=BUNDLE_BYTES, listed=True)

    def _open(self, data: bytes, file: _File) -> Bundle:
        try:
            bundle = decode(data)
        except Incomplete:
            decode_plain(data)  # raises Incomplete unless it is the plain documented form, which nobody can check
            raise BadDocument("unverifiable", "no question that can be regenerated") from None
        said = (bundle.experiment, bundle.node_id, bundle.round, bundle.stage)
        if said != (self.layout.experiment_name, file.node_id, file.round, file.stage):
            raise BadDocument("misplaced", f"{said} lies at {file.key}")
        self.signatures.check(file.key, data, bundle.node_id)
        return bundle

    def _judge(self, bundle: Bundle, file: _File, allowance: Allowance, budget: Budget, round_number: int) -> None:
        """Take what is good of a file; the file is bad for its peer's standing if anything in it is.

        What there is no time for now waits until the file is looked into again.
        """
        refused, verified, reserve = "", 0, budget.reserve(file.node_id)
        _, done = self._begun.pop(file.key, (file.round, 0))
        for place, rollout in enumerate(bundle.rollouts[done:], done):
            if budget.seconds <= reserve:
                self._begun[file.key] = (file.round, place)
                break
            if allowance.checked_enough or self._taken[file.node_id, file.round] >= budget.places:
                self.rejected["over_quota"] += 1
                refused = refused or ("slow_to_check" if allowance.seconds <= 0 else "")
                continue
            try:
                verified += self._admit(rollout, allowance, budget, reserve)
            except NoTimeLeft:
                self._begun[file.key] = (file.round, place)
                break
            except BadRollout as error:
                self.rejected[error.reason] += 1
                refused = error.reason
        if refused:
            self._bad[file.key] = file.round
            self.standings.bad(bundle.node_id, round_number, refused)
        elif file.key not in self._begun:
            self._read[file.key] = file.round
            if verified:
                self.standings.good(bundle.node_id)
        self._shrink_pool()

    def _admit(self, rollout: Rollout, allowance: Allowance, budget: Budget, reserve: float) -> bool:
        """Verify one rollout and keep it if it is of use; False if there was nothing new to verify."""
        if rollout.id in self.used or rollout.id in self._pool:
            return False
        text_id = rollout.text_id
        if text_id in self.trained or text_id in self._pool_texts:
            self.rejected["replayed"] += 1  # no fault: who copied whom cannot be told
            return False
        if not GROUP_LIMITS[0] <= len(rollout.completions) <= self.settings.most_completions:
            raise BadRollout("group_size", str(len(rollout.completions)))
        verified = self._verify(rollout, allowance, budget, budget.for_one(reserve))
        if eligible(verified, self.settings.choice):
            self._pool[verified.id] = verified
            self._pool_texts[text_id] = verified.round
            self._taken[verified.node_id, verified.round] += 1
        else:
            self.counters["uninformative"] += 1
        return True

    def _shrink_pool(self) -> None:
        """Keep the pool's text within its limit: of the peer that has most the oldest goes, so that nobody displaces others'."""
        sizes = {name: _text_bytes(rollout) for name, rollout in self._pool.items()}
        excess = sum(sizes.values()) - POOL_BYTES
        while excess > 0:
            of_peer: Counter[str] = Counter()
            for name, size in sizes.items():
                of_peer[self._pool[name].node_id] += size
            [(peer, _)] = of_peer.most_common(1)
            oldest = min((name for name in sizes if self._pool[name].node_id == peer), key=lambda name: self._pool[name].round)
            excess -= sizes.pop(oldest)
            del self._pool[oldest]
            self.counters["pool_dropped"] += 1

    def _verify(self, rollout: Rollout, allowance: Allowance, budget: Budget, seconds: float) -> Rollout:
        """Have a rollout checked; raise NoTimeLeft where it ended for want of `seconds`, which are no quota of its peer."""
        self.counters["rollouts_seen"] += 1
        allowance.rollouts -= 1
        hurried, began = seconds < allowance.seconds, self.clock.monotonic()
        try:
            return self.verify(rollout, min(seconds, allowance.seconds))
        except BadRollout as error:
            if hurried and error.reason == "slow_to_check":
                self.counters["rollouts_seen"] -= 1  # it comes again
                raise NoTimeLeft from None
            raise
        finally:
            took = self.clock.monotonic() - began
            self.verify_seconds += took
            allowance.seconds -= took
            budget.seconds -= took

    def _set_aside(self, file: _File, data: bytes, reason: str) -> None:
        self.rejected[reason] += 1
        self._bad[file.key] = file.round
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
        self.used, self._waiting, self._bad = (_since(oldest, each) for each in (self.used, self._waiting, self._bad))
        if self.settings.cache:
            self._read, self._pool_texts = _since(oldest, self._read), _since(oldest, self._pool_texts)
            self._pool = {rollout_id: rollout for rollout_id, rollout in self._pool.items() if rollout.round >= oldest}
            self._begun = {name: begun for name, begun in self._begun.items() if begun[0] >= oldest}
        else:
            self._read, self._pool, self._pool_texts, self._begun = {}, {}, {}, {}
        self._taken = Counter((rollout.node_id, rollout.round) for rollout in self._pool.values())
        self._taken.update((rollout_id.partition("/")[0], number) for rollout_id, number in self.used.items())


def _text_bytes(rollout: Rollout) -> int:
    """What its texts take in memory: up to four times what they take in a file."""
    return sum(sys.getsizeof(done.text) for done in rollout.completions)


def _since(oldest: int, rounds: dict[str, int]) -> dict[str, int]:
    return {name: number for name, number in rounds.items() if number >= oldest}
