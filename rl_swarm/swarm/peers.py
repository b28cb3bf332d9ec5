"""Who is in the swarm, and what each node says of itself.

A node registers once and sends a numbered heartbeat after a long silence, and a last one when it leaves.
"""

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Annotated

import msgspec
from msgspec import Meta

from rl_swarm.clock import Clock
from rl_swarm.document import SCHEMA, SMALL_BYTES, seal, unseal
from rl_swarm.errors import BadDocument, ConfigError, NotFound, Refused
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout, node_of_file, recognised, sequence_of_file
from rl_swarm.swarm.signatures import Signatures, read_signed

NodeName = Annotated[str, Meta(max_length=64)]
Text = Annotated[str, Meta(max_length=200)]

MOST_LOOKED_AT = 256  # registered nodes that are shown: thousands may be made up
KEPT_BEATS = 2  # heartbeats that a node leaves in the store
MOST_BEATS = 10**9  # heartbeats with a higher number are ignored
BEATS_LEFT = 10**6  # a node does not continue from a number this close to the limit: a stranger made it up
MOST_CLEARED = 16  # heartbeats that are examined at once for this node's signature
TOLD_SECONDS = 600.0  # between two lines about another process with this node's name
BEAT_SHARE = 2  # a node that publishes nothing sends a heartbeat this many times in a round interval
PACE_ROUNDS = 5  # rounds that a node's pace is taken from
STOOD_DOWN = "stood down"  # in favour of another coordinator
FLOOR_SHARE = 20  # of a round interval: the least that a node may be late, since listings and polls take time


class Registration(msgspec.Struct, frozen=True):
    peer_id: NodeName
    node_role: Text
    registered_at: float
    model: Text
    name: Text
    version: Text
    session: Text
    schema: int = SCHEMA


class Heartbeat(msgspec.Struct, frozen=True):
    peer_id: NodeName
    sequence: int
    sent_at: float
    doing: Text
    round: int
    session: Text = ""  # of the process that sent it
    twin: Text = ""  # the session of another process that sends heartbeats under this name
    schema: int = SCHEMA


def register(store: Store, layout: Layout, registration: Registration, signatures: Signatures | None = None) -> None:
    """Register once; a node that comes back keeps its registration.

    Where everybody signs, a registration is replaced if nobody signed it, or if another key signed it for a name that belongs to
    this node. A name that belongs to another key raises ConfigError. Raises Refused if the registration's place is not a file.
    """
    signatures, key, name = signatures or Signatures(), layout.peer(registration.peer_id), registration.peer_id
    data = signatures.sign(key, seal(registration))
    if store.put(key, data) or not signatures.required:
        signatures.claim(name)
        return
    signed = None
    with contextlib.suppress(NotFound, BadDocument):
        signed = signatures.signer(key, store.get(key, limit=SMALL_BYTES))
    if signed and not signatures.may_take(name, signed):
        raise ConfigError(f"NODE_ID {name!r} belongs to another key in this experiment, {signed}: choose another NODE_ID")
    signatures.claim(name)
    if signed is None or signed != signatures.public:
        store.rewrite(key, data)


def read_registration(store: Store, layout: Layout, node_id: str, signatures: Signatures | None = None) -> Registration | None:
    found = read_signed(store, layout.peer(node_id), Registration, node_id, signatures)
    return found if found and found.peer_id == node_id else None


def registered(store: Store, layout: Layout) -> set[str]:
    return recognised(node_of_file, store.list(layout.peers))


def most_alive(store: Store, layout: Layout, known: Collection[str] = (), most: int = MOST_LOOKED_AT) -> tuple[list[str], int]:
    """Return at most `most` registered nodes, in order, and how many were left out.

    Nodes that are `known`, have sent a heartbeat or keep a journal come first. Takes two listings, whatever their number.
    """
    there = store.list(layout.peers)
    names = recognised(node_of_file, there)
    if len(names) <= most:
        return sorted(names), 0
    beating = {name.rstrip("/") for name in there if name.endswith("/")}
    writing = {name.rstrip("/") for name in store.list(layout.logs)}

    def order(node: str) -> tuple[int, str]:
        return -(2 * (node in known) + (node in beating) + (node in writing)), node

    return sorted(sorted(names, key=order)[:most]), len(names) - most


def heartbeat_numbers(store: Store, layout: Layout, node_id: str) -> set[int]:
    return {number for number in recognised(sequence_of_file, store.list(layout.heartbeats(node_id))) if number < MOST_BEATS}


def newest_beats(store: Store, layout: Layout, node_id: str) -> list[int]:
    """The highest numbers of a node's heartbeats, the newest first: a node keeps two, and few more are worth reading."""
    return sorted(heartbeat_numbers(store, layout, node_id), reverse=True)[: 2 * KEPT_BEATS]


def newest_heartbeat(store: Store, layout: Layout, node_id: str, signatures: Signatures | None = None) -> Heartbeat | None:
    """The newest heartbeat that can be believed, of the few with the highest numbers: a node keeps two."""
    beats = (read_heartbeat(store, layout, node_id, number, signatures) for number in newest_beats(store, layout, node_id))
    return next((beat for beat in beats if beat), None)


def read_heartbeat(
    store: Store, layout: Layout, node_id: str, sequence: int, signatures: Signatures | None = None
) -> Heartbeat | None:
    found = read_signed(store, layout.heartbeat(node_id, sequence), Heartbeat, node_id, signatures)
    return found if found and (found.peer_id, found.sequence) == (node_id, sequence) else None


@dataclass(eq=False)
class Pulse:
    """A node's own heartbeats, numbered on from those in the store, where the last two are kept.

    They also reveal another process with this node's name: its session takes the next number again and again, and `report` is
    given a line about it now and then. Where everybody signs, heartbeats that this node has not signed are replaced, not skipped.
    """

    store: Store
    layout: Layout
    node_id: str
    clock: Clock
    session: str = ""
    report: Callable[[str], None] = lambda line: None
    signatures: Signatures = field(default_factory=Signatures)

    def __post_init__(self) -> None:
        self._insists = self.signatures.required and self.signatures.identity is not None
        self._next = 0  # the number of the next heartbeat; 0 until the store was listed
        self._kept: deque[int] = deque()  # numbers of the heartbeats in the store that are this node's to remove
        self._strangers: Counter[str] = Counter()  # how often another session had taken the next number
        self._twin, self._met_at, self._told_at = "", -TOLD_SECONDS, -TOLD_SECONDS

    def beat(self, doing: str, round_number: int) -> None:
        if not self._next:
            self._kept.extend(self._numbers()[-KEPT_BEATS:])
            self._next = (self._kept[-1] if self._kept else 0) + 1
        try:
            self._send(doing, round_number)
        except Refused:
            self._next += 1  # this number cannot be used
            raise
        while len(self._kept) > KEPT_BEATS:
            self.store.delete(self.layout.heartbeat(self.node_id, self._kept[0]))
            self._kept.popleft()
        self._next += 1

    def _send(self, doing: str, round_number: int) -> None:
        if self._insists:
            self._clear()
        if self._put(doing, round_number):
            return
        if self._insists and self._read(self._next) is None:
            self._put(doing, round_number, anyway=True)
        elif self._meet_stranger():
            self._next = max([self._next, *self._numbers()[-1:]]) + 1
            self._put(doing, round_number)  # so that the other process learns of this one

    def _clear(self) -> None:
        """Remove heartbeats with higher numbers that this node has not signed: readers look at the newest few."""
        above = (number for number in heartbeat_numbers(self.store, self.layout, self.node_id) if number > self._next)
        for number in sorted(above, reverse=True)[:MOST_CLEARED]:
            if self._read(number) is None:
                self.store.delete(self.layout.heartbeat(self.node_id, number))

    def _numbers(self) -> list[int]:
        """Numbers in the store to continue from, in order; where everybody signs, of the newest only this node's."""
        there = heartbeat_numbers(self.store, self.layout, self.node_id)
        usable = sorted(number for number in there if number < MOST_BEATS - BEATS_LEFT)
        if self._insists:
            return [number for number in usable[-MOST_CLEARED:] if self._read(number)]
        return usable

    def _read(self, number: int) -> Heartbeat | None:
        """A heartbeat under this node's name; where everybody signs, None unless this node's key signed it."""
        key = self.layout.heartbeat(self.node_id, number)
        with contextlib.suppress(NotFound, BadDocument):
            data = self.store.get(key, limit=SMALL_BYTES)
            found = unseal(data, Heartbeat)
            if (found.peer_id, found.sequence) == (self.node_id, number) and (not self._insists or self.signatures.mine(key, data)):
                return found
        return None

    def _put(self, doing: str, round_number: int, anyway: bool = False) -> bool:
        """Send a heartbeat; False if its number is taken, unless it is sent `anyway`."""
        twin = self._twin if self.clock.monotonic() - self._met_at < TOLD_SECONDS else ""
        beat = Heartbeat(self.node_id, self._next, self.clock.wall(), doing[:200], round_number, self.session, twin)
        key = self.layout.heartbeat(self.node_id, self._next)
        data = self.signatures.sign(key, seal(beat))
        if anyway:
            self.store.rewrite(key, data)
        elif not self.store.put(key, data):
            return False
        self._kept.append(self._next)
        return True

    def _meet_stranger(self) -> bool:
        """Look whose heartbeat has taken the next number, and report a session that keeps sending them.

        An earlier life of this node may have left heartbeats that a listing concealed: the last two, and one more if it was killed
        before removing it. A session that is met more often is alive.
        """
        found = self._read(self._next)
        if found is None:
            return False
        if found.session == self.session:  # it was written, and the answer was lost
            if self._next not in self._kept:
                self._kept.append(self._next)
            return False
        self._strangers[found.session] += 1
        if self._strangers[found.session] > KEPT_BEATS + 1:
            self._twin, self._met_at = found.session or "unknown", self.clock.monotonic()
            if self._met_at - self._told_at >= TOLD_SECONDS:
                self._told_at = self._met_at
                self.report(
                    f"another process sends heartbeats as {self.node_id} (session {self._twin}): of two nodes with one NODE_ID "
                    "only the faster is heard; stop one of them, or give it another NODE_ID"
                )
        return True


def has_left(doing: str) -> bool:
    """Whether a node that says this of itself has ended and will not come before it is started again."""
    return doing in ("complete", "stopped", STOOD_DOWN) or doing.startswith("failed: ")


def patience(paces: Sequence[float], interval: float) -> float:
    """How long to wait for a node whose last rounds took these times: the usual time, and as much again or a little."""
    usual = median(paces)
    return usual + max(usual, interval / FLOOR_SHARE)


def silent_since(ends: Sequence[float], last_sign: float, now: float, interval: float) -> float | None:
    """When a running node fell silent; None while it is not later than its own pace allows.

    For views. `ends` are the times at which the node recorded its last rounds, in order (`timestamp` of the rows in its metrics);
    it may be empty. `last_sign` is the newest time of anything that it wrote: a row, an event, a heartbeat. `interval` is
    COORDINATOR_ROUND_INTERVAL. Ask only about a node that has not left (`has_left(doing)`), and show
    `silent for {now - result}`. `now` should be of the node's own machine, or the result is off by what the clocks differ.
    """
    paces = [after - before for before, after in pairwise(ends[-PACE_ROUNDS - 1 :])]
    between_beats = interval / BEAT_SHARE + interval / FLOOR_SHARE  # in a long step a node sends nothing but heartbeats
    return last_sign if now - last_sign > max(between_beats, patience(paces or [interval / 2], interval)) else None
