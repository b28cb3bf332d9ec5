"""Publish own rollouts, gather peers'.

Gathering reads files of the window until it knows J informative rollouts and has looked into J files (so that a batch is not all
of one peer), or the budget of peers and seconds is spent. The cost follows J, not the number of peers or files: peers take turns,
each within its quota. A bad file is counted, set aside and skipped; an incomplete one is looked at again; a peer that keeps sending
bad files is muted. Text that was trained on once is not taken again, whoever sends it. `verify` decides whether a rollout is true;
it is told how many seconds are left and refuses what takes longer. All checking of a round takes no longer than the node's own
generation, or a short while; unchecked rollouts wait for the next round, and are nobody's fault. Good rollouts that are not used
yet are kept, within a limit of bytes. Reading ahead while the node generates changes nothing but the moment of a read.
"""

import contextlib
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from rl_swarm.config import Config
from rl_swarm.document import Count, typed
from rl_swarm.errors import BadDocument, BadRollout, Incomplete, NotFound, Refused, StoreAway
from rl_swarm.packing import packed, unpacked
from rl_swarm.randomness import stream_seed
from rl_swarm.rollout import BUNDLE_BYTES, GROUP_LIMITS, Bundle, Rollout, decode, encode, is_plain
from rl_swarm.swarm.choice import File, eligible, in_turn
from rl_swarm.swarm.layout import node_of_file, slot_of_file
from rl_swarm.swarm.membership import Membership
from rl_swarm.swarm.peers import NodeName
from rl_swarm.swarm.quota import CHECKING_SHARE, FILES, LARGE_GROUP, POOL_BYTES, Allowance, Budget
from rl_swarm.swarm.read_ahead import ReadAhead
from rl_swarm.swarm.standing import MOST_PEERS, Standing, Standings

MOST_QUARANTINED = 100
MOST_LISTED = 1_000  # names in the folder of a round that are looked at: a page of a bucket's listing
REMEMBERED = 1 << 14  # texts trained on: two thousand rounds of eight rollouts

RolloutId = Annotated[str, Meta(max_length=200)]
TextId = Annotated[str, Meta(max_length=64)]
Reason = Annotated[str, Meta(max_length=64)]


class ExchangeState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part of an exchange that outlives a restart; see the members of the same names."""

    used: dict[RolloutId, Count]
    trained: Annotated[list[TextId], Meta(max_length=REMEMBERED)]
    standings: Annotated[dict[NodeName, Standing], Meta(max_length=MOST_PEERS)]
    rejected: dict[Reason, Count]
    counters: dict[Reason, Count] = {}  # in checkpoints of earlier versions


class Plan(NamedTuple):
    """Files in the order of reading; which of them no listing has shown; whether a folder had more names than were listed."""

    files: list[File]
    unlisted: frozenset[str]
    crowded: bool


class NoTimeLeft(Exception):
    """The round's time for checking is over; the rollout under way waits."""


@dataclass(eq=False)
class Exchange:
    """`secret` is part of every draw of an order: nobody can make up names that this node will read first."""

    member: Membership
    config: Config
    verify: Callable[[Rollout, float], Rollout]
    secret: str = ""
    quarantine: Path | None = None

    def __post_init__(self) -> None:
        self.store, self.layout, self.clock = self.member.store, self.member.layout, self.member.clock
        self.publisher, self.signatures = self.member.publisher, self.member.signatures
        self.rejected: Counter[str] = Counter()
        self.used: dict[str, int] = {}  # rollout id → its round, for the rounds of the window
        self.trained: dict[str, None] = {}  # text ids of own and external rollouts trained on, newest last
        self.standings = Standings(self.member.news.add)
        self.verify_seconds = 0.0
        self._ahead = ReadAhead(self.publisher.background, self.store.parallel)
        self._outbox: list[Rollout] = []
        self._outbox_version = 0
        self._pool: dict[str, Rollout] = {}
        self._pool_texts: dict[str, int] = {}  # text id of every rollout in the pool → its round
        self._done: set[File] = set()  # files that need no second look
        self._waiting: set[File] = set()  # files that were incomplete
        self._begun: dict[File, int] = {}  # files that were judged in part → how many of their rollouts
        self._crowded = False  # whether a folder had more names than are listed
        self._round_began = (-1, 0.0)  # the round that was last looked ahead for, and when

    # Publishing

    def offer(self, rollout: Rollout, policy_version: int) -> None:
        """Take one own rollout; with frequency 'generation' it is published at once."""
        if eligible(rollout, self.config.external_choice):
            self._remember(rollout)  # a peer that sends it back sends nothing new
        if self.config.publish_frequency == "generation":
            self._publish([rollout], rollout.slot, policy_version)
        else:
            self._outbox.append(rollout)
            self._outbox_version = policy_version

    def end_stage(self) -> None:
        if self.config.publish_frequency == "stage":
            self.end_round()

    def end_round(self) -> None:
        for stage in sorted({rollout.stage for rollout in self._outbox}):  # a bundle is of one stage
            self._publish([rollout for rollout in self._outbox if rollout.stage == stage], None, self._outbox_version)
        self._outbox = []

    def _publish(self, rollouts: list[Rollout], slot: int | None, policy_version: int) -> None:
        first, node_id = rollouts[0], self.member.node_id
        bundle = Bundle(
            experiment=self.layout.experiment_name,
            node_id=node_id,
            round=first.round,
            stage=first.stage,
            timestamp=self.clock.wall(),
            model=self.config.model,
            policy_version=policy_version,
            tasks_version=self.member.experiment.tasks_version,
            rollouts=tuple(rollouts),
        )
        key = self.layout.bundle(first.round, node_id, slot, first.stage)
        self.publisher.put(key, packed(self.signatures.sign(key, encode(bundle)), self.config.compression))

    # Gathering

    def look_ahead(self, round_number: int, stage: int, wanted: int, chooser: random.Random) -> None:
        """Begin to fetch the files that this round's `gather`, given a generator in the same state, will look into."""

        unlisted = set[str]()

        def plan(ended: Callable[[], bool]) -> list[str]:
            found = self._plan(round_number, stage, wanted, chooser, ended)
            unlisted.update(found.unlisted)
            return [file.key for file in found.files]

        def fetch(key: str) -> bytes:
            data = self._get(key, listed=key not in unlisted)
            decode(data)  # raises if anything is wrong with it
            return data

        self._round_began = (round_number, self.clock.monotonic())
        if wanted:
            self._ahead.begin(plan, wanted, fetch)

    def gather(self, round_number: int, stage: int, wanted: int, chooser: random.Random) -> list[Rollout]:
        """Return verified, unused, eligible rollouts of the window: at least `wanted`, if they exist and the budget allows."""
        deadline = self.clock.monotonic() + self.config.fetch_seconds
        self._ahead.end()
        self._forget(round_number - self.config.window + 1)
        if wanted == 0:
            return []
        looked_into = 0
        with contextlib.suppress(StoreAway):  # the pool may suffice
            plan = self._plan(round_number, stage, wanted, chooser)
            self._crowded = plan.crowded
            budget = self._budget(round_number, wanted, plan.files)
            for file in plan.files:
                enough = len(self._pool) >= wanted and looked_into >= wanted
                if enough or budget.seconds <= 0 or self.clock.monotonic() >= deadline:
                    break
                if not budget.of_peer[file.node_id].spent and not self.standings.muted(file.node_id, round_number):
                    looked_into += self._look_into(file, budget, file.key not in plan.unlisted)
        return list(self._pool.values())

    def mark_used(self, rollouts: Iterable[Rollout]) -> None:
        for rollout in rollouts:
            self.used[rollout.id] = rollout.round
            self._remember(rollout)
            self._pool.pop(rollout.id, None)

    def take_verify_seconds(self) -> float:
        """Seconds spent in `verify` since the last call."""
        seconds, self.verify_seconds = self.verify_seconds, 0.0
        return seconds

    def state(self) -> dict[str, Any]:
        return {
            "used": dict(self.used),
            "trained": list(self.trained),
            "standings": self.standings.state(),
            "rejected": dict(self.rejected),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a `state`; raise CheckpointError, with nothing changed, if it is not one."""
        found = typed(state, ExchangeState)
        self.used = dict(found.used)
        self.trained = dict.fromkeys(found.trained)
        self.standings.restore(found.standings)
        self.rejected = Counter(found.rejected)

    def _remember(self, rollout: Rollout) -> None:
        self.trained[rollout.text_id] = None
        if len(self.trained) > REMEMBERED:
            del self.trained[next(iter(self.trained))]

    def _plan(
        self, round_number: int, stage: int, wanted: int, chooser: random.Random, ended: Callable[[], bool] = lambda: False
    ) -> Plan:
        """Decide which files of the window to read, in which order, without a change to this exchange.

        Of a folder with very many names only a page is listed. It begins with a trusted peer, another one each time, and goes on
        at the beginning of the folder. Files of a few trusted peers are added by their names. So the cost stays the same in a
        swarm of any size, and a flood of made-up names hides nobody who is trusted.
        """
        salt = f"{self.secret}{chooser.getrandbits(63)}"
        trusted = sorted(self.standings.all_trusted(), key=lambda peer: stream_seed(salt, peer))[:wanted] if self._crowded else []
        after = _file_name(trusted[0] if trusted else self.member.node_id)[:-1] if self._crowded else ""
        files, added, crowded = set[File](), set[str](), False
        for number in range(max(0, round_number - self.config.window + 1), round_number + 1):
            if ended():
                break
            folder = self.layout.rollouts_of(number, stage)
            names = self.store.list_from(folder, after, MOST_LISTED)
            if after and len(names) < MOST_LISTED:
                names += self.store.list_from(folder, "", MOST_LISTED - len(names))
            crowded = crowded or len(names) >= MOST_LISTED
            unlisted = {_file_name(peer) for peer in trusted} - set(names)
            added |= {f"{folder}/{name}" for name in unlisted}
            for name in (*names, *unlisted):
                peer = node_of_file(name)
                if peer and peer != self.member.node_id and not self.standings.muted(peer, round_number):
                    files.add(File(f"{folder}/{name}", peer, number, stage, slot_of_file(name)))
        most_files = max(FILES, wanted)
        order = in_turn(files - self._done, self.standings.trusted, self.config.fetch_peers, most_files, salt)
        return Plan(order, frozenset(added), crowded)

    def _budget(self, round_number: int, wanted: int, files: Iterable[File]) -> Budget:
        number, began = self._round_began
        generating = self.clock.monotonic() - began if number == round_number else 0.0
        seconds = max(self.config.fetch_seconds * CHECKING_SHARE, generating)
        taken = Counter((rollout.node_id, rollout.round) for rollout in self._pool.values())
        taken.update((rollout_id.partition("/")[0], number) for rollout_id, number in self.used.items())
        places = max(wanted, self.config.own_count)
        return Budget(round_number, wanted, seconds, places, {file.node_id for file in files}, taken)

    def _look_into(self, file: File, budget: Budget, listed: bool) -> bool:
        """Read one file; True if the read brought something to judge."""
        allowance, data = budget.of_peer[file.node_id], bytes(1)
        allowance.files -= 1
        try:
            data = self._ahead.take(file.key) or self._get(file.key, listed)
            bundle = self._open(_unpacked(data, allowance), file)
        except Refused:
            self._set_aside(file, b"", "not_a_file")
        except (NotFound, Incomplete):  # listed, and missing or incomplete for now
            if listed and data != b"":  # an empty one is not there yet, or just being removed: neither is its author's fault
                allowance.unready -= 1
                self._waiting.add(file)
            return False
        except BadDocument as error:
            self._set_aside(file, data, error.reason)
            if self.signatures.owner(file.node_id) is None:  # otherwise it may come from anyone who wants that node muted
                self.standings.bad(file.node_id, budget.round, error.reason)
        else:
            self._waiting.discard(file)
            self._judge(bundle, file, budget)
        return True

    def _get(self, key: str, listed: bool) -> bytes:
        return self.store.get(key, limit=BUNDLE_BYTES, listed=listed)

    def _open(self, data: bytes, file: File) -> Bundle:
        try:
            bundle = decode(data)
        except Incomplete:
            if is_plain(data):
                raise BadDocument("unverifiable", "no question that can be regenerated") from None
            raise
        said = (bundle.experiment, bundle.node_id, bundle.round, bundle.stage)
        if said != (self.layout.experiment_name, file.node_id, file.round, file.stage):
            raise BadDocument("misplaced", f"{said} lies at {file.key}")
        self.signatures.check(file.key, data, bundle.node_id)
        return bundle

    def _judge(self, bundle: Bundle, file: File, budget: Budget) -> None:
        """Take the good rollouts of a file; one bad rollout makes the file bad for its peer's standing.

        Rollouts that there is no time for wait until the file is looked into again.
        """
        refused, verified, reserve = "", 0, budget.reserve(file.node_id)
        allowance, done = budget.of_peer[file.node_id], self._begun.pop(file, 0)
        for place, rollout in enumerate(bundle.rollouts[done:], done):
            if budget.seconds <= reserve:
                self._begun[file] = place
                break
            if allowance.checked_enough or budget.taken[file.node_id, file.round] >= budget.places:
                self.rejected["over_quota"] += 1
                refused = refused or ("slow_to_check" if allowance.seconds <= 0 else "")
                continue
            try:
                verified += self._admit(rollout, budget, reserve)
            except NoTimeLeft:
                self._begun[file] = place
                break
            except BadRollout as error:
                self.rejected[error.reason] += 1
                refused = error.reason
        if refused:
            self._done.add(file)
            self.standings.bad(bundle.node_id, budget.round, refused)
        elif file not in self._begun:
            if self.config.fetch_cache:
                self._done.add(file)
            if verified:
                self.standings.good(bundle.node_id)
        self._shrink_pool()

    def _admit(self, rollout: Rollout, budget: Budget, reserve: float) -> bool:
        """Verify one rollout and keep it if it is eligible; False if there was nothing new to verify."""
        if rollout.id in self.used or rollout.id in self._pool:
            return False
        text_id = rollout.text_id
        if text_id in self.trained or text_id in self._pool_texts:
            self.rejected["replayed"] += 1  # no fault: nobody can tell who copied whom
            return False
        if not GROUP_LIMITS[0] <= len(rollout.completions) <= max(LARGE_GROUP, 2 * self.config.group_size):
            raise BadRollout("group_size", str(len(rollout.completions)))
        # Its peer's share, or half of what is left, since aborting one is expensive.
        verified = self._verify(rollout, budget, max(budget.seconds - reserve, budget.seconds / 2))
        if eligible(verified, self.config.external_choice):
            self._pool[verified.id] = verified
            self._pool_texts[text_id] = verified.round
            budget.taken[verified.node_id, verified.round] += 1
        return True

    def _verify(self, rollout: Rollout, budget: Budget, seconds: float) -> Rollout:
        """Verify a rollout; raise NoTimeLeft if it ran out of the round's `seconds`, which are not its peer's quota."""
        allowance, began = budget.of_peer[rollout.node_id], self.clock.monotonic()
        allowance.rollouts -= 1
        hurried = seconds < allowance.seconds
        try:
            return self.verify(rollout, min(seconds, allowance.seconds))
        except BadRollout as error:
            if hurried and error.reason == "slow_to_check":
                raise NoTimeLeft from None
            raise
        finally:
            took = self.clock.monotonic() - began
            self.verify_seconds += took
            allowance.seconds -= took
            budget.seconds -= took

    def _shrink_pool(self) -> None:
        """Keep the pool's text within its limit: drop the oldest of the peer that has most, so that nobody displaces others'."""
        # In memory a text takes up to four times as much as in a file.
        sizes = {name: sum(sys.getsizeof(done.text) for done in rollout.completions) for name, rollout in self._pool.items()}
        while sum(sizes.values()) > POOL_BYTES:
            of_peer: Counter[str] = Counter()
            for name, size in sizes.items():
                of_peer[self._pool[name].node_id] += size
            [(peer, _)] = of_peer.most_common(1)
            oldest = min((name for name in sizes if self._pool[name].node_id == peer), key=lambda name: self._pool[name].round)
            del sizes[oldest], self._pool[oldest]

    def _set_aside(self, file: File, data: bytes, reason: str) -> None:
        self.rejected[reason] += 1
        self._done.add(file)
        self._waiting.discard(file)
        if self.quarantine is None:
            return
        with contextlib.suppress(OSError):  # kept for curious people: a full disk may do without
            self.quarantine.mkdir(parents=True, exist_ok=True)
            if len(list(self.quarantine.iterdir())) < MOST_QUARANTINED:
                (self.quarantine / f"{file.round}.{file.node_id}.{reason}").write_bytes(data[: 1 << 20])

    def _forget(self, oldest: int) -> None:
        """Drop everything that has left the window; a file that stayed incomplete is counted now."""
        self.rejected.update("incomplete" for file in self._waiting if file.round < oldest)
        self._waiting = {file for file in self._waiting if file.round >= oldest}
        self._done = {file for file in self._done if file.round >= oldest}
        self.used = {name: number for name, number in self.used.items() if number >= oldest}
        kept = oldest if self.config.fetch_cache else sys.maxsize
        self._pool = {name: rollout for name, rollout in self._pool.items() if rollout.round >= kept}
        self._pool_texts = {name: number for name, number in self._pool_texts.items() if number >= kept}
        self._begun = {file: done for file, done in self._begun.items() if file.round >= kept}


def _file_name(peer: str) -> str:
    return f"{peer}.json"


def _unpacked(data: bytes, allowance: Allowance) -> bytes:
    """Unpack a file at the expense of its peer's quota, which pays for a bomb, too."""
    try:
        plain = unpacked(data, BUNDLE_BYTES)
    except BadDocument:
        allowance.bytes -= BUNDLE_BYTES
        raise
    allowance.bytes -= len(plain)
    return plain
