"""Announce rounds, and nothing else: no model, no data, no torch.

The coordinator resumes from the newest round in the store, catches up with workers that went ahead, and never rewinds. Two
coordinators do no harm: every round number is written once, and the one with the lower epoch stands down.

Only valid documents of registered workers count as progress; reads of anything else in the folders are bounded. Whom a round waits
for is decided in `swarm/attendance.py`.
"""

import contextlib
import math
import shlex
from collections.abc import Sequence

from rl_swarm.clock import Pauses
from rl_swarm.config import Config
from rl_swarm.errors import BadDocument, Refused, StoreAway
from rl_swarm.node.journal import Journal
from rl_swarm.processes.stopping import Stop
from rl_swarm.randomness import generator
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.attendance import Attendance
from rl_swarm.swarm.membership import Membership
from rl_swarm.swarm.peers import STOOD_DOWN, newest_heartbeat, read_registration, registered
from rl_swarm.swarm.rounds import FIRST_STAGE, MOST_EPOCHS, Announcement, CurrentState, Rounds, read_reward, submitted
from rl_swarm.text import counted

POLL_SECONDS = 1.0  # longest pause between two looks at who has submitted
LONELY_SECONDS = 5.0  # without a worker, after which the coordinator says how to start one
MOST_ASKED = 50  # nodes whose registration or heartbeat is read in one go
MOST_DOUBLED = 8  # times that the pause between two reads of an unreadable registration doubles
LOOKED_BACK = 8  # rounds in which a coordinator that resumes looks who takes part
MOST_NAMED = 1000  # nodes in one announcement, which keeps it readable however many have registered
MOST_PASSED = 10  # numbers taken by unusable files that are skipped at once; each later one costs the time of a round


class StoodDown(Exception):
    """Another coordinator with a higher epoch has taken over."""


class Coordinator:
    def __init__(self, settings: Config, member: Membership, journal: Journal, stop: Stop) -> None:
        self.settings = settings
        self.store, self.layout, self.clock, self.signatures = member.store, member.layout, member.clock, member.signatures
        self.news, self.publisher, self.retention = member.news, member.publisher, member.retention
        self.journal = journal
        self.stop = stop
        self.rounds = Rounds(self.store, self.layout, settings.max_rounds, self.signatures)
        self.attendance = Attendance(self.clock, settings.round_interval)
        self.session = member.session
        self.address = experiments.address(self.store, member.experiment)
        self.epoch = 0
        self._no_workers: dict[str, tuple[int, float]] = {}  # node → reads of its registration, and when to read it again
        self._submitted: tuple[int, set[str]] = (-1, set())  # a round, and the workers whose valid rewards for it were read
        self._passed = 0
        self._played_alone = -1  # the newest round that workers played before it was announced: nobody need know that it opens
        self._jitter = generator("poll", settings.node)
        self._next_roll_call = 0.0
        self._lonely_since, self._called = math.inf, False  # without a worker, and whether that was said

    def run(self) -> str:
        """Announce rounds until the last one closes or a stop is requested; return the outcome."""
        number = -1
        try:
            number = self._begin()
            while not self.stop.requested:
                number = self._keep_open(number)
                if self.stop.requested:
                    break
                if number + 1 >= self.settings.max_rounds:
                    return self._finish("complete", number)
                number = self._announce(number + 1)
        except StoodDown as reason:
            self.journal.note("stood_down", str(reason), round=number)
            self._state(STOOD_DOWN, number)
            return STOOD_DOWN
        return self._finish("stopped", number)

    def _begin(self) -> int:
        """Resume from the newest announcement, or from a higher round that workers reached by themselves."""
        while True:
            try:
                newest = self.rounds.survey()
                self.epoch = min(self.rounds.epoch + 1, MOST_EPOCHS - 1)
                self._roll_call()
                if newest:
                    self._look_back(range(newest.round, max(-1, newest.round - LOOKED_BACK), -1))
                furthest = self._reached(newest.round if newest else -1)
                break
            except StoreAway as away:
                self._wait_for_store(away, -1)
                if self.stop.requested:
                    return -1
        self.journal.event("started", round=furthest, epoch=self.epoch)
        if newest:
            self.journal.say(f"resuming at round {newest.round}")
        elif furthest < 0:
            return self._announce(0)
        return self._catch_up(newest.round if newest else furthest - 1, furthest)

    def _announce(self, number: int) -> int:
        """Open a round; return its number, which is higher than asked if a file that cannot be read has taken that number."""
        mine: Announcement | None = None
        while not self.stop.requested:
            try:
                mine = mine or self._opening(number)  # a retry after a lost answer must write the same document
                found = self.rounds.announce(mine)
                if found.session != self.session and found.seniority > mine.seniority:
                    raise StoodDown(f"coordinator {found.coordinator}, started later, announces the rounds now: this one stops")
                with contextlib.suppress(StoreAway, Refused):  # for people only: the round is open without it
                    self._write_current(number, "running")
                live = len(mine.live)
                if number <= self._played_alone:
                    self.journal.event("adopted", round=number)
                else:
                    self.journal.note("round_opened", f"round {number} is open, workers live: {live}", round=number, live=live)
                self.journal.progress("round_start", number)
                self.retention.reached(number)
                return number
            except BadDocument as error:
                if not self._may_pass(number, error):
                    return number  # treat it as open: workers cannot read it either, and get there by themselves
                number, mine = number + 1, None  # skip the file, never overwrite it
            except StoreAway as away:
                self._wait_for_store(away, number)
        return number - 1

    def _may_pass(self, number: int, error: BadDocument) -> bool:
        """Whether to skip a number at once: not beyond the last round, and not so often that the run would end early."""
        line = f"round {number} is taken by a file that cannot be used ({error}): skipping it, and others like it"
        self.journal.note("round_taken", "" if self._passed else line, round=number, error=str(error))
        self._passed += 1
        return number + 1 < self.settings.max_rounds and self._passed <= MOST_PASSED

    def _opening(self, number: int) -> Announcement:
        return Announcement(
            round=number,
            coordinator=self.settings.node,
            session=self.session,
            epoch=self.epoch,
            opened_at=self.clock.wall(),
            live=sorted(self.attendance.live())[:MOST_NAMED],
            submitted_before=sorted(self._done(number - 1))[:MOST_NAMED] if number else [],
        )

    def _keep_open(self, number: int) -> int:
        """Wait until the round may close; return its number, or a higher one that workers have reached."""
        opened, looked = self.clock.monotonic(), False
        self.attendance.opened(number)
        first_submission: float | None = None
        next_look = opened + self.settings.round_interval
        pauses = Pauses(self.clock, min(POLL_SECONDS, self.settings.round_interval / 20), self._jitter)
        while not self.stop.requested:
            try:
                done = self._done(number)
                self._take_signs(done, number, timed=looked)
                looked = True
                if self.clock.monotonic() >= next_look:
                    next_look = self.clock.monotonic() + self.settings.round_interval
                    furthest = self._reached(number)
                    if furthest > number:
                        return self._catch_up(number, furthest)
                now = self.clock.monotonic()
                first_submission = first_submission or (now if done else None)
                waiting_for = self._waiting_for(done, now - opened, now - first_submission if first_submission else None)
                self._call_for_workers()
            except StoreAway as away:
                waiting_for = f"the store: {away}"
            if not waiting_for:
                return number
            self._state(f"waiting for {waiting_for}"[:200], number)
            pauses.pause()
        return number

    def _waiting_for(self, done: set[str], open_seconds: float, since_first: float | None) -> str:
        """Say in words what keeps the round open; empty when it may close."""
        interval = self.settings.round_interval
        if self.settings.round_advance == "timer":
            return "" if open_seconds >= interval else "the timer"
        if since_first is None:
            live = len(self.attendance.live())
            return counted(live, "worker") if live else "workers: none is live, start one"
        missing = self.attendance.awaited() - done
        if not missing or since_first >= interval:
            return ""
        names = ", ".join(sorted(missing)[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        return f"{names} ({len(done)} submitted)"

    def _take_signs(self, done: set[str], number: int, timed: bool) -> None:
        for node_id in sorted(done):
            self.attendance.submitted(node_id, number, timed)
        self._ask(self.attendance.worth_asking(done))
        if self.clock.monotonic() >= self._next_roll_call:
            self._roll_call()
            self._look_back(self.attendance.recent())
        elif done and not self.attendance.awaited() - done:  # the round may close, unless somebody is just one behind
            self._look_back(self.attendance.recent()[:1])

    def _ask(self, nodes: set[str]) -> None:
        for node_id in self._some(nodes):
            self.attendance.heard(node_id, newest_heartbeat(self.store, self.layout, node_id, self.signatures))

    def _roll_call(self) -> None:
        """Find new registrations."""
        self._next_roll_call = self.clock.monotonic() + self.settings.round_interval / 10
        unknown = registered(self.store, self.layout) - self.attendance.workers.keys()
        for node_id in self._some(set(filter(self._may_look, unknown))):
            self._is_worker(node_id)

    def _look_back(self, numbers: Sequence[int]) -> None:
        """Find rewards of earlier rounds, newest round first, which came when those were closed."""
        for number in numbers:
            if behind := self.attendance.behind(number):
                for node_id in self._some(submitted(self.store, self.layout, number, FIRST_STAGE) & behind):
                    if read_reward(self.store, self.layout, number, FIRST_STAGE, node_id, self.signatures):
                        self.attendance.submitted(node_id, number)

    def _call_for_workers(self) -> None:
        """Say once how to start a worker when there has been none for some seconds."""
        now = self.clock.monotonic()
        if self.attendance.live():
            self._lonely_since, self._called = math.inf, False
            return
        self._lonely_since = min(self._lonely_since, now)
        if self._called or now - self._lonely_since < LONELY_SECONDS:
            return
        self._roll_call()
        self._ask(set(self.attendance.workers))
        if not self.attendance.live():
            self._called = True
            line = f"no worker is there: start one in another terminal with: rl-swarm join {shlex.quote(self.address)}"
            self.journal.note("no_workers", line)

    def _may_look(self, node_id: str) -> bool:
        return self.clock.monotonic() >= self._no_workers.get(node_id, (0, 0.0))[1]

    def _is_worker(self, node_id: str) -> bool:
        """Whether a node has registered as a worker. A valid registration is read once, any other one less and less often."""
        if node_id in self.attendance.workers or not self._may_look(node_id):
            return node_id in self.attendance.workers
        registration = read_registration(self.store, self.layout, node_id, self.signatures)
        if registration and registration.node_role == "worker":
            self.attendance.meet(node_id)
            return True
        tries = min(self._no_workers.get(node_id, (0, 0.0))[0] + 1, MOST_DOUBLED)
        pause = math.inf if registration else 2**tries * self.settings.round_interval / 40
        self._no_workers[node_id] = (tries, self.clock.monotonic() + pause)
        return False

    def _done(self, number: int) -> set[str]:
        """Workers with a valid reward for a round. Each is read once; names of unknown nodes come last."""
        if self._submitted[0] != number:
            self._submitted = (number, set())
        done = self._submitted[1]
        named = submitted(self.store, self.layout, number, FIRST_STAGE) - done
        workers = self.attendance.workers.keys()
        known = self._some(named & workers)
        for node_id in known + self._some(set(filter(self._may_look, named - workers)))[: MOST_ASKED - len(known)]:
            if self._is_worker(node_id) and read_reward(self.store, self.layout, number, FIRST_STAGE, node_id, self.signatures):
                done.add(node_id)
        return done

    def _some(self, nodes: set[str]) -> list[str]:
        """All of them, sorted so that a simulated run replays; a random sample if there are many, which may be made up."""
        return sorted(nodes) if len(nodes) <= MOST_ASKED else self._jitter.sample(sorted(nodes), MOST_ASKED)

    def _reached(self, number: int) -> int:
        """Return the newest round that a worker has done, or this one.

        Where rounds are signed, always this one: otherwise any worker could end the run with a reward for the last round. Workers
        that went ahead alone have left rewards for every round, so each closes as soon as it is announced.
        """
        if self.signatures.announcers:
            return number
        found = self.rounds.reached(number, self._is_worker, self._jitter)
        return number if found is None else found

    def _catch_up(self, number: int, furthest: int) -> int:
        """Announce every round up to the one that workers have reached: probing by name needs numbers without gaps."""
        if number < furthest:
            self._played_alone = furthest
            last = ", the last one" if furthest + 1 == self.settings.max_rounds else ""
            self.journal.say(f"workers went on alone and have played round {furthest}{last}: catching up")
        while number < furthest and not self.stop.requested:
            number = self._announce(number + 1)
        return number

    def _wait_for_store(self, away: StoreAway, number: int) -> None:
        self._state(f"waiting for the store: {away}"[:200], number)
        self.clock.sleep(POLL_SECONDS * (0.5 + self._jitter.random()))

    def _write_current(self, number: int, status: str) -> None:
        state = CurrentState(number, self.clock.wall(), self.settings.node, self.layout.experiment_name, status)
        self.rounds.write_current(state)

    def _state(self, doing: str, number: int) -> None:
        self.publisher.check()
        self.journal.tell(self.news.take())
        self.journal.state(doing, number)

    def _finish(self, outcome: str, number: int) -> str:
        try:
            if number >= 0:
                self._write_current(number, "complete" if outcome == "complete" else "running")
        except (StoreAway, Refused) as error:
            self.journal.say(f"{error}; only current_state.json was not written, the rounds themselves are safe")
        if outcome == "complete":
            self.journal.progress("training_complete", number)
        self.journal.note(outcome, f"coordinator {outcome} at round {number}", round=number)
        self._state(outcome, number)
        return outcome
