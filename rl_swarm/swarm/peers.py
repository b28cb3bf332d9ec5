"""Who is in the swarm and who is live.

A node registers once and sends a numbered heartbeat when it has been silent for long. Liveness is judged by the observer's own
clock since it last saw *something new* of a node; clocks of two machines are never compared.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from rl_swarm.clock import Clock
from rl_swarm.document import SCHEMA, SMALL_BYTES, seal, unseal
from rl_swarm.errors import BadDocument, NotFound
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout, node_of_file, sequence_of_file

NodeName = Annotated[str, Meta(max_length=64)]
Text = Annotated[str, Meta(max_length=200)]


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
    schema: int = SCHEMA


def register(store: Store, layout: Layout, registration: Registration) -> Registration:
    """Register once; a node that comes back finds its registration and leaves it."""
    if store.put(layout.peer(registration.peer_id), seal(registration)):
        return registration
    return read_registration(store, layout, registration.peer_id) or registration


def read_registration(store: Store, layout: Layout, node_id: str) -> Registration | None:
    try:
        found = unseal(store.get(layout.peer(node_id), limit=SMALL_BYTES), Registration)
    except (NotFound, BadDocument):
        return None
    return found if found.peer_id == node_id else None


def registered(store: Store, layout: Layout) -> set[str]:
    return {node for node in map(node_of_file, store.list(layout.peers)) if node is not None}


def newest_heartbeat(store: Store, layout: Layout, node_id: str) -> int | None:
    numbers = [number for number in map(sequence_of_file, store.list(layout.heartbeats(node_id))) if number is not None]
    return max(numbers, default=None)


def read_heartbeat(store: Store, layout: Layout, node_id: str, sequence: int) -> Heartbeat | None:
    try:
        return unseal(store.get(layout.heartbeat(node_id, sequence), limit=SMALL_BYTES), Heartbeat)
    except (NotFound, BadDocument):
        return None


class Pulse:
    """A node's own heartbeats: numbered on from what is in the store, only the last two kept there."""

    def __init__(self, store: Store, layout: Layout, node_id: str, clock: Clock) -> None:
        self.store = store
        self.layout = layout
        self.node_id = node_id
        self.clock = clock
        self._sequence: int | None = None

    def beat(self, doing: str, round_number: int) -> None:
        if self._sequence is None:
            self._sequence = (newest_heartbeat(self.store, self.layout, self.node_id) or 0) + 1
        beat = Heartbeat(self.node_id, self._sequence, self.clock.wall(), doing[:200], round_number)
        self.store.put(self.layout.heartbeat(self.node_id, self._sequence), seal(beat))
        if self._sequence > 2:
            self.store.delete(self.layout.heartbeat(self.node_id, self._sequence - 2))
        self._sequence += 1


class Liveness:
    """When each node last showed something new, on this observer's clock."""

    def __init__(self, clock: Clock, limit_seconds: float) -> None:
        self.clock = clock
        self.limit_seconds = limit_seconds
        self._marks: dict[str, dict[str, int]] = {}
        self._seen: dict[str, float] = {}

    def sign(self, node_id: str, kind: str, mark: int) -> None:
        """Note a numbered sign of one kind; only a number higher than before is a sign of life."""
        marks = self._marks.setdefault(node_id, {})
        if mark > marks.get(kind, -1):
            marks[kind] = mark
            self._seen[node_id] = self.clock.monotonic()

    def live(self) -> set[str]:
        return {node for node, seen in self._seen.items() if self.clock.monotonic() - seen < self.limit_seconds}

    def silent(self) -> set[str]:
        """Nodes not heard of for half the limit: worth asking the store for a heartbeat."""
        return {node for node, seen in self._seen.items() if self.clock.monotonic() - seen >= self.limit_seconds / 2}
