"""Who takes part in the rounds, and for whom a round is kept open.

Everything is judged on the observer's own clock; clocks of two machines are never compared. A worker counts from its first reward
on. A worker that is later than usual by as much again, or that says it has left, is not waited for until its next reward.
Heartbeats alone make nobody wait: a process that hangs or still loads its model sends them too.

The first round of a run is an exception: workers that were started together load about equally long, and whoever is first waits for
the others as long again as it took itself.
"""

import math
from collections import deque
from collections.abc import Set
from dataclasses import dataclass, field
from statistics import median

from rl_swarm.clock import Clock
from rl_swarm.swarm.peers import PACE_ROUNDS, Heartbeat, has_left, patience

LIVE_INTERVALS = 2  # a worker counts as live for this many round intervals after its last sign
LATE_INTERVALS = 1.1  # after its opening, in which a reward that is too late for its round is still looked for


@dataclass
class Attendant:
    """A worker, as this observer knows it."""

    met: float  # when its registration was found
    seen: float  # when it last showed something new
    asked: float = -math.inf  # when its heartbeats were last read
    beat: int = -1  # the number of the newest one
    left: bool = False  # the newest heartbeat says so
    loading: bool = False  # likewise
    last: int = -1  # the newest round of which it has submitted a reward
    rewarded: float = -math.inf  # when that reward was found
    begins: float = math.inf  # when it could begin its next round; never while that is not open
    paces: deque[float] = field(default_factory=lambda: deque(maxlen=PACE_ROUNDS))  # seconds of its last rounds


class Attendance:
    """The registered workers. `interval` is the longest time that a round is kept open after its first reward."""

    def __init__(self, clock: Clock, interval: float) -> None:
        self.workers: dict[str, Attendant] = {}
        self._clock, self._interval = clock, interval
        self._opened: dict[int, float] = {}
        self._all_there_by = -math.inf  # when the first round stops waiting for workers that load

    def meet(self, node_id: str) -> None:
        """Note a registered worker. It counts as live from now on, and is waited for once it has submitted."""
        now = self._clock.monotonic()
        self.workers.setdefault(node_id, Attendant(now, now))

    def opened(self, number: int) -> None:
        now = self._clock.monotonic()
        newest = max(self._opened, default=number)
        recent = {each: at for each, at in self._opened.items() if each == newest or now - at < LATE_INTERVALS * self._interval}
        self._opened = recent | {number: now}
        for worker in self.workers.values():
            if 0 <= worker.last < number:
                worker.begins = min(worker.begins, now)

    def recent(self) -> list[int]:
        """Rounds before this one for which a reward may still come, newest first: the last one and all that were opened lately."""
        return sorted(self._opened, reverse=True)[1:]

    def behind(self, number: int) -> set[str]:
        """Live workers of which no reward of this round or a later one is known."""
        return {name for name in self.live() if self.workers[name].last < number}

    def submitted(self, node_id: str, number: int, timed: bool = True) -> None:
        """Note a valid reward. It is `timed` unless it may have been there when the round was opened."""
        worker, now = self.workers[node_id], self._clock.monotonic()
        if number <= worker.last:
            return
        if timed and self._opened and all(each.last < 0 for each in self.workers.values()):
            self._all_there_by = now + now - worker.met
        if timed and number in self._opened:
            worker.paces.append(now - max(self._opened[number], worker.rewarded))
        worker.begins = now if number < max(self._opened, default=-1) else math.inf
        worker.last, worker.seen, worker.left, worker.loading = number, now, False, False
        worker.rewarded = now if self._opened else worker.rewarded

    def heard(self, node_id: str, beat: Heartbeat | None) -> None:
        """Note the newest heartbeat of a worker, if it has one. Nothing follows from words that are older than its last reward."""
        worker = self.workers[node_id]
        worker.asked = now = self._clock.monotonic()
        if beat is None or beat.sequence <= worker.beat:
            return
        if worker.beat >= 0:  # the first that is read may be old
            worker.seen = now
        worker.beat = beat.sequence
        outdated = beat.round < worker.last and worker.rewarded > -math.inf
        worker.left, worker.loading = (False, False) if outdated else (has_left(beat.doing), beat.round < 0)

    def live(self) -> set[str]:
        """Workers that have given a sign lately and have not left, whether they count or not."""
        oldest = self._clock.monotonic() - LIVE_INTERVALS * self._interval
        return {name for name, worker in self.workers.items() if worker.seen > oldest and not worker.left}

    def awaited(self) -> set[str]:
        """Workers whose next reward is worth waiting for."""
        now = self._clock.monotonic()
        together = len(self._opened) == 1 and now <= self._all_there_by
        starting = {name for name in self.live() if self.workers[name].last < 0} if together else set()
        return starting | {name for name, worker in self.workers.items() if self._may_come(worker, now)}

    def worth_asking(self, done: Set[str]) -> set[str]:
        """Workers whose heartbeat is worth reading: nothing was seen of them for long, or their reward is overdue."""
        now = self._clock.monotonic()
        unseen = {name for name, each in self.workers.items() if now - max(each.asked, each.rewarded) >= self._interval}
        overdue = set()
        for name in self.awaited() - done if done else ():
            worker = self.workers[name]
            if now - worker.asked >= self._interval / 10 and now - worker.begins > (median(worker.paces) if worker.paces else 0.0):
                overdue.add(name)
        return unseen | overdue

    def _may_come(self, worker: Attendant, now: float) -> bool:
        if worker.left or worker.loading or worker.begins == math.inf:
            return False
        return now - worker.begins <= patience(worker.paces or [self._interval / 2], self._interval)
