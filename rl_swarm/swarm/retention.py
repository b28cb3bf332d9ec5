"""Remove old rollouts, or archive them: a node its own, the coordinator and `prune` everyone's.

A file is archived by copying it, reading the copy back, and only then deleting it, so that a kill at any moment and any number of
cleaners at once lose nothing. The newest rounds stay in any case: those that a window needs, and those that a node which is behind
and alive may still read. Before anything is deleted a document says which rounds may be gone (`removals.py`), so that `validate`
can tell them from lost ones. Rewards, announcements and journals stay.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from statistics import median

from rl_swarm.clock import Clock
from rl_swarm.config import Config
from rl_swarm.errors import NotFound, Refused
from rl_swarm.rollout import BUNDLE_BYTES
from rl_swarm.store import Store
from rl_swarm.swarm.archive import Archive, open_archive
from rl_swarm.swarm.layout import Layout, node_of_file, recognised, round_of_folder, stage_of_folder
from rl_swarm.swarm.peers import Heartbeat, has_left, newest_heartbeat, read_registration, registered
from rl_swarm.swarm.removals import Removal, write_removal
from rl_swarm.swarm.rounds import FIRST_STAGE, Rounds, read_reward, submitted
from rl_swarm.swarm.signatures import Signatures

SILENT_INTERVALS = 6  # round intervals without a new heartbeat, after which a node that is behind no longer counts
MOST_FILES = 20  # removed in one go, so that nothing else that is to be published waits long
MOST_LISTED = 10  # rounds that are looked into in one go
MOST_ASKED = 50  # nodes whose heartbeat is read in one go
DAY_SECONDS = 86_400.0


@dataclass(frozen=True)
class Policy:
    """Limits on what is kept; None is no limit. Never fewer than `least` rounds, of which nodes read a `window`."""

    rounds: int | None
    days: float | None
    megabytes: float | None
    window: int
    least: int


@dataclass(frozen=True)
class Pruned:
    """What one call removed, or would remove."""

    rounds: tuple[int, ...] = ()
    files: int = 0
    bytes: int = 0
    archived: int = 0

    def and_also(self, other: "Pruned") -> "Pruned":
        rounds = tuple(sorted({*self.rounds, *other.rounds}))
        return Pruned(rounds, self.files + other.files, self.bytes + other.bytes, self.archived + other.archived)


def policy_of(config: Config) -> Policy:
    """The limits that the settings ask for."""
    return Policy(config.most_kept, config.keep_days, config.keep_mb, config.window, config.least_kept)


def retention_of(
    config: Config, store: Store, layout: Layout, clock: Clock, signatures: Signatures, tell: Callable[..., None]
) -> "Retention":
    """What a node removes: a worker its own files, a coordinator everyone's; nothing unless ROLLOUT_CLEANUP_ENABLED."""
    policy = policy_of(config) if config.cleanup else None
    archive = open_archive(config, store) if policy and config.archive else None
    owner = config.node if config.role == "worker" else None
    return Retention(store, layout, clock, config.node, policy, config.round_interval, owner, archive, signatures, tell)


@dataclass(eq=False)
class Retention:
    """Removes the old rollouts of `owner`, or everyone's if it is None; `tell` receives an event and a line for people.

    Any thread may call `reached`; `clean` does the work, some of it at a time. One that is not `patient` looks only once, so the
    time in a heartbeat decides whether its node is alive.
    """

    store: Store
    layout: Layout
    clock: Clock
    by: str
    policy: Policy | None
    interval: float
    owner: str | None = None
    archive: Archive | None = None
    signatures: Signatures = field(default_factory=Signatures)
    tell: Callable[..., None] = lambda event, line, **details: None
    patient: bool = True

    def __post_init__(self) -> None:
        self._reached = self._cleaned = self._noted = -1
        self._done: set[int] = set()  # rounds in which nothing is left to remove
        self._tried: set[int] = set()  # rounds that were cleaned, though something may be left, while `_tried_for` was the newest
        self._tried_for = -1
        self._sizes: dict[int, int] = {}  # bytes of rounds that grow no more
        self._workers: dict[str, bool] = {}  # registered nodes, and whether each is a worker
        self._signs: dict[str, tuple[int, float]] = {}  # node → number of its newest heartbeat, and when that was first read
        self._refused: set[str] = set()
        self._measuring = False  # sizes of rounds are still unknown

    def reached(self, number: int) -> None:
        """Note that this node has done a round, or that it is open."""
        self._reached = max(self._reached, number)

    @property
    def due(self) -> bool:
        """Whether there may be something to remove."""
        return self.policy is not None and self._cleaned < self._reached

    def clean(self, all_of_it: bool = False) -> Pruned:
        """Remove some of what is due, or all of it. May raise StoreAway: the next call goes on."""
        found = Pruned()
        while self.due:
            found = found.and_also(self._clean_some())
            if not all_of_it:
                break
        return found

    def _clean_some(self) -> Pruned:
        newest = self._reached
        if newest > self._tried_for:
            self._tried, self._tried_for = set(), newest
        rounds = self.removable(newest)
        if rounds:
            self._note(rounds[-1] + 1)
        found = self._remove(rounds)
        if len(rounds) < MOST_LISTED and self._tried.issuperset(rounds) and not self._measuring:
            self._cleaned = newest
        if found.files:
            self.tell("pruned", "", rounds=list(found.rounds), files=found.files, bytes=found.bytes, archived=found.archived)
        return found

    def removable(self, newest: int) -> list[int]:
        """Rounds of which something may be removed while this round is the newest, oldest first."""
        there = recognised(round_of_folder, self.store.list(self.layout.rollouts))
        self._done &= there
        old = sorted(number for number in there - self._done - self._tried if number <= newest - self._policy.least)
        beyond = {*self._beyond_count(old, newest), *self._beyond_age(old), *self._beyond_size(there, newest)}
        return self._without_needed([number for number in old if number in beyond], newest)

    def plan(self, newest: int) -> Pruned:
        """What there is to remove, all of it; removes nothing."""
        found: dict[int, list[str]] = {}
        done = set(self._done)
        while (rounds := self.removable(newest)) or self._measuring:
            found |= {number: list(self._files(number)) for number in rounds}
            self._done.update(rounds)  # as if they were gone
        self._done = done
        rounds = [number for number, keys in found.items() if keys]
        keys = [key for number in rounds for key in found[number]]
        return Pruned(tuple(rounds), len(keys), sum(map(self._size, keys)), len(keys) if self.archive else 0)

    @property
    def _policy(self) -> Policy:
        assert self.policy is not None, "nothing is removed without a policy"
        return self.policy

    # What the limits leave

    def _beyond_count(self, old: list[int], newest: int) -> list[int]:
        most = self._policy.rounds
        return [] if most is None else [number for number in old if number <= newest - most]

    def _beyond_age(self, old: list[int]) -> list[int]:
        """Rounds that are too old, up to the first that is not; one of unknown age goes with the next."""
        if self._policy.days is None:
            return []
        oldest = self.clock.wall() - self._policy.days * DAY_SECONDS
        last = -1
        for number in old[:MOST_LISTED]:
            moment = self._moment(number)
            if moment is not None and moment > oldest:
                break
            last = number if moment is not None else last
        return [number for number in old if number <= last]

    def _moment(self, number: int) -> float | None:
        """When a round was played; None if that is not known.

        A node that removes its own files goes by its own clock. One that cleans for everyone goes by the announcement; without
        one, by the median of the nodes that played, since the clock of one may be wrong.
        """
        if self.owner is None and (opened := Rounds(self.store, self.layout, signatures=self.signatures).look_up(number)):
            return opened.opened_at
        nodes = [self.owner] if self.owner else sorted(submitted(self.store, self.layout, number, FIRST_STAGE))[:MOST_ASKED]
        rewards = [read_reward(self.store, self.layout, number, FIRST_STAGE, node_id, self.signatures) for node_id in nodes]
        moments = [reward.submitted_at for reward in rewards if reward]
        return median(moments) if moments else None

    def _beyond_size(self, there: set[int], newest: int) -> list[int]:
        """The oldest rounds, as many as must go until the rest fits; none before all rounds are measured."""
        if self._policy.megabytes is None:
            return []
        rounds = sorted((number for number in there - self._done if number <= newest), reverse=True)
        unknown = [number for number in rounds if number not in self._sizes and number <= newest - self._policy.least]
        self._sizes |= {number: self._size_of(number) for number in unknown[:MOST_LISTED]}
        self._measuring = len(unknown) > MOST_LISTED
        left, found = self._policy.megabytes * 1e6, list[int]()
        for number in () if self._measuring else rounds:
            left -= self._sizes[number] if number in self._sizes else self._size_of(number)
            found += [number] if left < 0 else []
        return found

    def _size_of(self, number: int) -> int:
        return sum(map(self._size, self._files(number)))

    def _size(self, key: str) -> int:
        try:
            return self.store.size(key)
        except NotFound:
            return 0

    # What others need

    def _without_needed(self, rounds: list[int], newest: int) -> list[int]:
        """Return the first few rounds, up to one from which a node that is behind and alive may still read."""
        if rounds:
            self._meet_workers()
        beat_of = cache(lambda node_id: newest_heartbeat(self.store, self.layout, node_id, self.signatures))
        players = cache(lambda number: submitted(self.store, self.layout, number, FIRST_STAGE))
        for place, number in enumerate(rounds[:MOST_LISTED]):
            if any(self._needs(node_id, number, beat_of, players) for node_id in self._behind(number, newest, players)):
                return rounds[:place]
        return rounds[:MOST_LISTED]

    def _meet_workers(self) -> None:
        """Find new registrations, which anybody may have made."""
        for node_id in sorted(registered(self.store, self.layout) - self._workers.keys())[:MOST_ASKED]:
            found = read_registration(self.store, self.layout, node_id, self.signatures)
            if found:
                self._workers[node_id] = found.node_role == "worker"

    def _behind(self, number: int, newest: int, players: Callable[[int], set[str]]) -> list[str]:
        """Workers without a known reward for the last round whose window has this one, or for a later round.

        Of very many only some, first those whose heartbeat is known.
        """
        behind = {name for name, works in self._workers.items() if works and name != self.by}
        last = number + self._policy.window - 1
        for later in range(last, min(newest, last + MOST_ASKED) + 1):
            if not behind:
                break
            behind -= players(later)
        return sorted(behind, key=lambda name: (name not in self._signs, name))[:MOST_ASKED]

    def _needs(
        self, node_id: str, number: int, beat_of: Callable[[str], Heartbeat | None], players: Callable[[int], set[str]]
    ) -> bool:
        """Whether a node that is behind may still reach a round whose window has this one."""
        beat = beat_of(node_id)
        if beat and (has_left(beat.doing) or beat.round >= number + self._policy.window):
            return False
        silence = SILENT_INTERVALS * self.interval
        if not self.patient:
            return beat is not None and self.clock.wall() - beat.sent_at < silence
        now = self.clock.monotonic()
        before, since = self._signs.get(node_id, (-1, -math.inf))
        sequence = beat.sequence if beat else 0  # of one that plays, the first may not be listed yet
        plays = any(node_id in players(later) for later in range(number, number + self._policy.window))
        if sequence > before and (beat or plays):
            self._signs[node_id] = (sequence, now)
            return True
        return now - since < silence

    # Removing

    def _note(self, before: int) -> None:
        """Say which rounds may be gone, before they are."""
        if before <= self._noted:
            return
        note = Removal(self.by, before, self.owner is None, self.archive is not None, self.clock.wall())
        write_removal(self.store, self.layout, note, self.signatures)
        self._noted = before

    def _remove(self, rounds: list[int]) -> Pruned:
        """Remove the files of the first of these rounds."""
        sizes: dict[str, int] = {}
        touched: list[int] = []
        for number in rounds:
            if len(sizes) >= MOST_FILES:
                break
            gone = {key: size for key in self._files(number) if (size := self._remove_file(key)) is not None}
            sizes |= gone
            touched += [number] if gone else []
            self._tried.add(number)
            self._sizes.pop(number, None)
            if self.store.appendable or not gone:  # on a mount a listing may lag: wait for one that was empty from the beginning
                self._close(number)
        return Pruned(tuple(touched), len(sizes), sum(sizes.values()), len(sizes) if self.archive else 0)

    def _remove_file(self, key: str) -> int | None:
        """Archive a file if asked to, then delete it; return its size, or None if it stays or somebody else has removed it."""
        try:
            size = self.store.size(key)
            if self.archive and not self.archive.keep(key, self.store.get(key, limit=BUNDLE_BYTES)):
                return None  # half a document, or half a look at one: it stays, and the next round looks again
            self.store.delete(key)
        except Refused as error:
            self._refused.add(key)
            self.tell("refused", f"{error}; old rollouts there stay")
            return None
        except NotFound:
            return None
        return size

    def _close(self, number: int) -> None:
        """Remove the folders of a round if nothing is left in them."""
        folder = self.layout.rollouts_of_round(number)
        if not any(self._all_files(number)):
            for stage in self._stages(number):
                self.store.remove_folder(f"{folder}/{stage}")
            self.store.remove_folder(folder)
        if not any(self._files(number)):
            self._done.add(number)

    def _files(self, number: int) -> Iterator[str]:
        """Files of a round that are this node's to remove; those with foreign names are nobody's."""
        for key in self._all_files(number):
            author = node_of_file(key.rpartition("/")[2])
            if key not in self._refused and author is not None and self.owner in (None, author):
                yield key

    def _all_files(self, number: int) -> Iterator[str]:
        for stage in self._stages(number):
            folder = f"{self.layout.rollouts_of_round(number)}/{stage}"
            yield from (f"{folder}/{name}" for name in dict.fromkeys(self.store.list(folder)) if not name.endswith("/"))

    def _stages(self, number: int) -> list[str]:
        names = dict.fromkeys(self.store.list(self.layout.rollouts_of_round(number)))
        return [name.rstrip("/") for name in names if stage_of_folder(name) is not None]
