"""Announced rounds and submitted rewards: what the swarm agrees on, round by round.

`state/round_N.json` is written once and is the truth; `current_state.json` is for people, and at most a hint. The next round is
looked up by name, since listings lag and grow. Nothing here waits or decides: see pace.py and node/coordinator.py.

Anybody can make files and folders by the thousand. So only a valid document below the last round makes a round count as announced
or reached, and of very many numbers only some are examined.
"""

import contextlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from rl_swarm.config import MOST_ROUNDS
from rl_swarm.document import SCHEMA, SMALL_BYTES, seal, unseal
from rl_swarm.errors import BadDocument, NotFound, Refused
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout, node_of_file, recognised, round_of_file, round_of_folder
from rl_swarm.swarm.peers import (
    STOOD_DOWN,
    Heartbeat,
    NodeName,
    has_left,
    newest_beats,
    read_registration,
    registered,
)
from rl_swarm.swarm.signatures import Signatures, read_signed

MOST_EPOCHS = 10**6
EPOCH_LEAP = 1_000  # every start of a coordinator adds one: an epoch this far above all others is made up
STRIDE = 20  # numbers without a valid document, after which higher ones are taken for made up
MOST_NAMES = 10  # rewards of one round that are read to find a valid one
FIRST_STAGE = 0  # every round has it; today it is the only one that is played

Number = Annotated[int, Meta(ge=0, lt=10**15)]
RoundNumber = Annotated[int, Meta(ge=0, lt=MOST_ROUNDS)]
T = TypeVar("T", bound=msgspec.Struct)


class Announcement(msgspec.Struct, frozen=True):
    """One round, as its coordinator opened it."""

    round: RoundNumber
    coordinator: NodeName
    session: Annotated[str, Meta(max_length=64)]
    epoch: Annotated[int, Meta(ge=0, lt=MOST_EPOCHS)]
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
    round: RoundNumber
    updated_at: float
    updated_by: str
    experiment_name: str
    status: str
    stage: int = 0
    schema: int = SCHEMA


class Reward(msgspec.Struct, frozen=True):
    """A node's mean reward over its own completions of one round."""

    peer_id: NodeName
    round: RoundNumber
    reward: float
    completions: Number
    submitted_at: float
    stage: Number = 0
    schema: int = SCHEMA


@dataclass(eq=False)
class Rounds:
    """Reads and writes announcements below the round `limit`; remembers the newest valid one and the highest epoch."""

    store: Store
    layout: Layout
    limit: int = MOST_ROUNDS
    signatures: Signatures = field(default_factory=Signatures)
    newest: Announcement | None = None
    epoch: int = 0

    def announce(self, announcement: Announcement) -> Announcement:
        """Write a round once; return the announcement that counts for this number, which may be another coordinator's.

        Where rounds are signed, a file that no coordinator has signed is replaced.
        """
        key = self.layout.round(announcement.round)
        data = self.signatures.sign(key, seal(announcement))
        if not self.store.put(key, data):
            try:
                return self.read(announcement.round)
            except (NotFound, BadDocument) as error:
                if not self.signatures.announcers:  # unreadable, for good or for now: leave the number to its writer
                    raise error if isinstance(error, BadDocument) else BadDocument("incomplete", f"{key} cannot be read") from None
            try:
                self.store.rewrite(key, data)
            except Refused as error:
                raise BadDocument("not_a_file", str(error)) from None
        self._remember(announcement)
        return announcement

    def read(self, number: int) -> Announcement:
        """The announcement of one round; raise NotFound or BadDocument if there is none to be trusted."""
        found = self._read(self.layout.round(number), Announcement)
        if found.round != number:
            raise BadDocument("misplaced", f"it announces round {found.round}")
        if found.epoch > self.epoch + EPOCH_LEAP:
            raise BadDocument("epoch", f"epoch {found.epoch}, the highest before it is {self.epoch}")
        self._remember(found)
        return found

    def look_up(self, number: int) -> Announcement | None:
        """The announcement of one round, if there is such a round and it can be read now."""
        with contextlib.suppress(NotFound, BadDocument):
            return self.read(number) if 0 <= number < self.limit else None
        return None

    def advance(self, beyond: int) -> Announcement | None:
        """The newest announcement above `beyond` that follows the newest known without a gap; one read if there is none.

        Announcements at or below `beyond` are noted on the way: a node that went ahead learns that there is a coordinator. A node
        that knows of none yet takes current_state.json as a hint where to look.
        """
        if self.newest is None:
            hint = self.read_current()
            if hint is None or not self.look_up(hint.round):
                return None
        number = (self.newest.round if self.newest else beyond) + 1
        while self.look_up(number):
            number += 1
        return self.newest if self.newest and self.newest.round > beyond else None

    def survey(self) -> Announcement | None:
        """The newest valid announcement by listing: for the start, and after a gap that `advance` cannot cross."""
        found: int | None = self.newest.round if self.newest else -1
        numbers = recognised(round_of_file, self.store.list(self.layout.states))
        while found is not None:  # search again above it, since every announcement makes higher epochs credible
            above = [number for number in numbers if found < number < self.limit]
            found = highest_good(above, lambda number: self.look_up(number) is not None)
        return self.newest

    def reached(self, beyond: int, is_worker: Callable[[str], bool], chance: random.Random) -> int | None:
        """The newest round above `beyond` in which a registered worker has submitted a valid reward."""
        store, layout = self.store, self.layout
        numbers = [number for number in rounds_with_rewards(store, layout) if beyond < number < self.limit]
        known = registered(store, layout) if numbers else set()

        def done(number: int) -> bool:
            names = sorted(submitted(store, layout, number, FIRST_STAGE) & known)
            some = names if len(names) <= MOST_NAMES else chance.sample(names, MOST_NAMES)
            return any(is_worker(name) and read_reward(store, layout, number, FIRST_STAGE, name, self.signatures) for name in some)

        return highest_good(numbers, done)

    def reached_by_others(self, node_id: str, beyond: int, chance: random.Random) -> int | None:
        """The newest round above `beyond` that another worker has done; where rounds are signed, one that may announce them."""
        trusted = self.signatures.announcers

        def is_other_worker(name: str) -> bool:
            found = read_registration(self.store, self.layout, name, self.signatures) if name != node_id else None
            return found is not None and found.node_role == "worker" and (not trusted or self.signatures.owner(name) in trusted)

        return self.reached(beyond, is_other_worker, chance)

    def coordinator_left(self) -> bool:
        """Whether the coordinator that opened the newest round says, in the same session, that it ended.

        Where rounds are signed, somebody who may announce them must have signed that word. Otherwise anybody can make it up, as
        anybody can announce rounds.
        """
        newest = self.newest
        if newest is None or node_of_file(f"{newest.coordinator}.json") != newest.coordinator:
            return False
        for number in newest_beats(self.store, self.layout, newest.coordinator):
            with contextlib.suppress(NotFound, BadDocument):
                beat = self._read(self.layout.heartbeat(newest.coordinator, number), Heartbeat)
                if (beat.peer_id, beat.sequence, beat.session) == (newest.coordinator, number, newest.session):
                    return has_left(beat.doing) and beat.doing != STOOD_DOWN  # whoever took over announces the next round
        return False

    def write_current(self, state: CurrentState) -> None:
        self.store.rewrite(self.layout.current_state, self.signatures.sign(self.layout.current_state, seal(state)))

    def read_current(self) -> CurrentState | None:
        with contextlib.suppress(NotFound, BadDocument):
            return self._read(self.layout.current_state, CurrentState)
        return None

    def _read(self, key: str, kind: type[T]) -> T:
        data = self.store.get(key, limit=SMALL_BYTES)
        found = unseal(data, kind)
        self.signatures.check_announcement(key, data)
        return found

    def _remember(self, announcement: Announcement) -> None:
        self.epoch = max(self.epoch, announcement.epoch)
        if self.newest is None or announcement.round > self.newest.round:
            self.newest = announcement


def submitted(store: Store, layout: Layout, number: int, stage: int) -> set[str]:
    """The nodes that have submitted a reward for a stage of a round, by file name: one listing, whatever the number of nodes."""
    return {node for node in map(node_of_file, store.list(layout.rewards_of(number, stage))) if node is not None}


def read_reward(
    store: Store, layout: Layout, number: int, stage: int, node_id: str, signatures: Signatures | None = None
) -> Reward | None:
    """The reward of a node for a stage of a round, if it can be read now and belongs there."""
    found = read_signed(store, layout.reward(number, node_id, stage), Reward, node_id, signatures)
    return found if found and (found.peer_id, found.round, found.stage) == (node_id, number, stage) else None


def names_at_work(store: Store, layout: Layout, newest: Announcement | None) -> set[str]:
    """Names in the newest announcement, and those with rewards in the first or the newest rounds.

    Anybody can write there: this says whom to look at first, not who took part.
    """
    numbers = {0, newest.round, newest.round - 1} if newest else {0}
    found = {newest.coordinator, *newest.live} if newest else set()
    return found.union(*(submitted(store, layout, number, FIRST_STAGE) for number in numbers if number >= 0))


def rounds_with_rewards(store: Store, layout: Layout) -> list[int]:
    """Rounds that have a folder of rewards, newest first, whoever made it."""
    return sorted(recognised(round_of_folder, store.list(layout.rewards)), reverse=True)


def highest_good(numbers: Iterable[int], good: Callable[[int], bool]) -> int | None:
    """The highest good number, without examining all of them: most may be made up.

    The newest few come first. If none of them is good, the search for honest progress begins at the lowest: progress leaves no
    large gaps, so the search ends where a whole stride holds nothing good.
    """
    ordered = sorted(numbers)
    for number in reversed(ordered[-STRIDE:]):
        if good(number):
            return number
    below, best, place = ordered[:-STRIDE], None, 0
    while place < len(below):
        stride = below[place : place + STRIDE]
        found = next((index for index in reversed(range(len(stride))) if good(stride[index])), None)
        if found is None:
            break
        best, place = stride[found], place + found + 1
    return best
