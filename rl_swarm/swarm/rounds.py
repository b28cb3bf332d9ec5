"""Announced rounds and submitted rewards: what the swarm agrees on, round by round.

`state/round_N.json` is written once and is the truth; `current_state.json` is for people, and at most a hint. The next round is
probed by name, since listings lag and grow. Nothing here waits or decides: see worker.py and coordinator.py.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from rl_swarm.document import SCHEMA, SMALL_BYTES, seal, unseal
from rl_swarm.errors import BadDocument, NotFound
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout, node_of_file, round_of_file, round_of_folder

Number = Annotated[int, Meta(ge=0, lt=10**15)]
NodeName = Annotated[str, Meta(max_length=64)]


class Announcement(msgspec.Struct, frozen=True):
    """One round, as its coordinator opened it."""

    round: Number
    coordinator: NodeName
    session: Annotated[str, Meta(max_length=64)]
    epoch: Number
    opened_at: float
    live: list[NodeName]
    submitted_before: list[NodeName]
    stage: Number = 0
    schema: int = SCHEMA

    @property
    def seniority(self) -> tuple[int, str]:
        """Of two coordinators the one with the lower seniority stands down."""
        return (self.epoch, self.session)


class CurrentState(msgspec.Struct, frozen=True):
    round: int
    updated_at: float
    updated_by: str
    experiment_name: str
    status: str
    stage: int = 0
    schema: int = SCHEMA


class Reward(msgspec.Struct, frozen=True):
    """A node's mean reward over its own completions of one round."""

    peer_id: NodeName
    round: Number
    reward: float
    completions: Number
    submitted_at: float
    stage: Number = 0
    schema: int = SCHEMA


class Rounds:
    """Reads and writes announcements, and remembers the newest valid one it has seen."""

    def __init__(self, store: Store, layout: Layout) -> None:
        self.store = store
        self.layout = layout
        self.newest: Announcement | None = None

    def announce(self, announcement: Announcement) -> Announcement:
        """Write a round once; return the announcement that counts for this number, which may be another coordinator's."""
        key = self.layout.round(announcement.round)
        if self.store.put(key, seal(announcement)):
            self._remember(announcement)
            return announcement
        found = self.probe(announcement.round)
        if found is None:  # unreadable, for good or for now: the number is taken, so it is left to whoever took it
            raise BadDocument("incomplete", f"{key} exists and cannot be read")
        return found

    def probe(self, number: int) -> Announcement | None:
        """The announcement of one round if it can be read now."""
        try:
            found = unseal(self.store.get(self.layout.round(number), limit=SMALL_BYTES), Announcement)
        except (NotFound, BadDocument):
            return None
        if found.round != number:
            return None
        self._remember(found)
        return found

    def advance(self, beyond: int) -> Announcement | None:
        """The newest announcement above `beyond` that follows the newest known without a gap: one probe when there is none.

        Announcements at or below `beyond` are heard of on the way: a node that went ahead learns that there is a coordinator. One
        that has heard of none yet takes current_state.json as a hint where to look.
        """
        if self.newest is None:
            hint = self.read_current()
            if hint is None or not self.probe(hint.round):
                return None
        number = (self.newest.round if self.newest else beyond) + 1
        while self.probe(number):
            number += 1
        return self.newest if self.newest and self.newest.round > beyond else None

    def survey(self) -> Announcement | None:
        """The newest valid announcement by listing: for the start, and after a gap that probing cannot cross."""
        floor = self.newest.round if self.newest else -1
        numbers = {number for number in map(round_of_file, self.store.list(self.layout.states)) if number is not None}
        for number in sorted(numbers, reverse=True):
            if number <= floor or self.probe(number):
                break
        return self.newest

    def write_current(self, state: CurrentState) -> None:
        self.store.rewrite(self.layout.current_state, seal(state))

    def read_current(self) -> CurrentState | None:
        try:
            return unseal(self.store.get(self.layout.current_state, limit=SMALL_BYTES), CurrentState)
        except (NotFound, BadDocument):
            return None

    def _remember(self, announcement: Announcement) -> None:
        if self.newest is None or announcement.round > self.newest.round:
            self.newest = announcement


def submitted(store: Store, layout: Layout, number: int) -> set[str]:
    """The nodes that have submitted a reward for a round, by name of file: one listing, whatever the number of nodes."""
    return {node for node in map(node_of_file, store.list(layout.rewards_of(number))) if node is not None}


def read_reward(store: Store, layout: Layout, number: int, node_id: str) -> Reward | None:
    try:
        return unseal(store.get(layout.reward(number, node_id), limit=SMALL_BYTES), Reward)
    except (NotFound, BadDocument):
        return None


def rounds_with_rewards(store: Store, layout: Layout) -> list[int]:
    """Rounds for which any node has submitted, newest first."""
    numbers = {number for number in map(round_of_folder, store.list(layout.rewards)) if number is not None}
    return sorted(numbers, reverse=True)


def newest_of_others(store: Store, layout: Layout, node_id: str, depth: int) -> int | None:
    """The newest round in which another node has submitted, looking at the `depth` newest rounds."""
    for number in rounds_with_rewards(store, layout)[:depth]:
        if submitted(store, layout, number) - {node_id}:
            return number
    return None
