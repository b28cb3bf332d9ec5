"""Announce rounds, and nothing else: no model, no data, no torch.

The coordinator resumes from the newest round in the store, catches up with workers that went ahead, and never rewinds. Two
coordinators do no harm: every round number is written once, and the one with the lower epoch stands down.

Only valid documents of registered workers count as progress; reads of anything else in the folders are bounded. A worker that has
submitted nothing yet is waited for in its first two whole rounds, and again once it has submitted.
"""

import contextlib
import math
from collections import Counter

from rl_swarm.clock import Pauses
from rl_swarm.config import Config
from rl_swarm.errors import BadDocument, Refused, StoreAway
from rl_swarm.node.journal import Journal
from rl_swarm.processes.stopping import Stop
from rl_swarm.randomness import generator
from rl_swarm.swarm.membership import Membership
from rl_swarm.swarm.peers import Liveness, newest_heartbeat, read_registration, registered
from rl_swarm.swarm.rounds import FIRST_STAGE, MOST_EPOCHS, Announcement, CurrentState, Rounds, read_reward, submitted

POLL_SECONDS = 1.0  # longest pause between two looks at who has submitted
LIVENESS_INTERVALS = 2  # a worker counts as live for this many round intervals after its last sign
MOST_ASKED = 50  # nodes whose registration or heartbeat is read in one go
MOST_DOUBLED = 8  # times that the pause between two reads of an unreadable registration doubles
FIRST_ROUNDS = 2  # whole rounds that a worker may miss before its first reward
LOOKED_BACK = 8  # earlier rounds that are searched for such a worker's first reward: it may be slow
MOST_NAMED = 1000  # nodes in one announcement, which keeps it readable however many have registered
MOST_PASSED = 10  # numbers taken by unusable files that are skipped at once; each later one costs the time of a round


class StoodDown(Exception):
    """Another coordinator with a higher epoch has taken over."""


class Coordinator:
    def __init__(self, settings: Config, member: Membership, journal: Journal, stop: Stop) -> None:
        self.settings = settings
        self.store, self.layout, self.clock, self.signatures = member.store, member.layout, member.clock, member.signatures
        self.news = member.news
        self.journal = journal
        self.stop = stop
        self.rounds = Rounds(self.store, self.layout, settings.max_rounds, self.signatures)
        self.liveness = Liveness(self.clock, LIVENESS_INTERVALS * settings.round_interval)
        self.session = member.session
        self.epoch = 0
        self.workers: set[str] = set()
        self._no_workers: dict[str, tuple[int, float]] = {}  # node → reads of its registration, and when to read it again
        self._submitted: tuple[int, set[str]] = (-1, set())  # a round, and the workers whose valid rewards for it were read
        self._proven: set[str] = set()  # workers that have submitted since this process began
        self._missed: Counter[str] = Counter()  # worker that has not submitted → whole rounds kept open for it
        self._passed = 0
        self._jitter = generator("poll", settings.node)
        self._next_roll_call = 0.0

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
            self._state("stood down", number)
            return "stood down"
        return self._finish("stopped", number)

    def _begin(self) -> int:
        """Resume from the newest announcement, or from a higher round that workers reached by themselves."""
        while True:
            try:
                newest = self.rounds.survey()
                self.epoch = min(self.rounds.epoch + 1, MOST_EPOCHS - 1)
                self._roll_call()
                furthest = self._reached(newest.round if newest else -1)
                break
            except StoreAway as away:
                self._wait_for_store(away, -1)
                if self.stop.requested:
                    return -1
        self.journal.event("started", round=furthest, epoch=self.epoch)
        if newest is None:
            return self._announce(max(furthest, 0))
        self.journal.say(f"resuming at round {newest.round}, epoch {self.epoch}")
        return self._catch_up(newest.round, furthest)

    def _announce(self, number: int) -> int:
        """Open a round; return its number, which is higher than asked if a file that cannot be read has taken that number."""
        mine: Announcement | None = None
        while not self.stop.requested:
            try:
                mine = mine or self._opening(number)  # a retry after a lost answer must write the same document
                found = self.rounds.announce(mine)
                if found.session != self.session and found.seniority > mine.seniority:
                    raise StoodDown(f"coordinator {found.coordinator} has epoch {found.epoch}, above {self.epoch}: standing down")
                with contextlib.suppress(StoreAway, Refused):  # for people only: the round is open without it
                    self._write_current(number, "running")
                self.journal.note(
                    "round_opened", f"round {number} is open, {len(mine.live)} workers live", round=number, live=len(mine.live)
                )
                self.journal.progress("round_start", number)
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
            live=sorted(self.liveness.live() & self.workers)[:MOST_NAMED],
            submitted_before=sorted(self._done(number - 1))[:MOST_NAMED] if number else [],
        )

    def _keep_open(self, number: int) -> int:
        """Wait until the round may close; return its number, or a higher one that workers have reached."""
        opened, there = self.clock.monotonic(), set(self.workers)
        first_submission: float | None = None
        next_look = opened + self.settings.round_interval
        pauses = Pauses(self.clock, min(POLL_SECONDS, self.settings.round_interval / 20), self._jitter)
        while not self.stop.requested:
            try:
                done = self._done(number)
                self._take_signs(done, number)
                if self.clock.monotonic() >= next_look:
                    next_look = self.clock.monotonic() + self.settings.round_interval
                    furthest = self._reached(number)
                    if furthest > number:
                        return self._catch_up(number, furthest)
                now = self.clock.monotonic()
                first_submission = first_submission or (now if done else None)
                waiting_for = self._waiting_for(done, now - opened, now - first_submission if first_submission else None)
            except StoreAway as away:
                waiting_for = f"the store: {away}"
            if not waiting_for:
                self._note_missing((self.liveness.live() & there) - done)
                return number
            self._state(f"waiting for {waiting_for}"[:200], number)
            pauses.pause()
        return number

    def _waiting_for(self, done: set[str], open_seconds: float, since_first: float | None) -> str:
        """Say in words what keeps the round open; empty when it may close."""
        interval = self.settings.round_interval
        if self.settings.round_advance == "timer":
            return "" if open_seconds >= interval else "the timer"
        missing = (self.liveness.live() & self.workers) - done
        if since_first is None:
            return f"{len(missing)} workers" if missing else "workers: none is live, start one"
        missing -= self._idle()
        if not missing or since_first >= interval:
            return ""
        names = ", ".join(sorted(missing)[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        return f"{names} ({len(done)} submitted)"

    def _take_signs(self, done: set[str], number: int) -> None:
        self._proven |= done
        for node_id in done:
            self.liveness.sign(node_id, "reward", number)
        if self.clock.monotonic() >= self._next_roll_call:
            self._roll_call()
            self._look_back(number)
        for node_id in self._some((self.liveness.silent() & self.workers) - done):
            sequence = newest_heartbeat(self.store, self.layout, node_id, self.signatures)
            if sequence is not None:
                self.liveness.sign(node_id, "heartbeat", sequence)

    def _roll_call(self) -> None:
        """Find new registrations. A new worker counts as live from now on."""
        self._next_roll_call = self.clock.monotonic() + self.settings.round_interval / 10
        for node_id in self._some(set(filter(self._may_look, registered(self.store, self.layout) - self.workers))):
            self._is_worker(node_id)

    def _idle(self) -> set[str]:
        """Workers that are no longer waited for, because they have submitted nothing."""
        return {node_id for node_id, count in self._missed.items() if count >= FIRST_ROUNDS} - self._proven

    def _note_missing(self, missing: set[str]) -> None:
        new = missing - self._proven - self._idle()
        self._missed.update(new)
        if new:
            self._next_roll_call = 0.0  # they may have submitted for an earlier round

    def _look_back(self, number: int) -> None:
        """Find late rewards of idle workers in earlier rounds."""
        idle = self._idle()
        for earlier in range(max(0, number - LOOKED_BACK), number if idle else 0):
            for node_id in self._some(submitted(self.store, self.layout, earlier, FIRST_STAGE) & idle):
                if read_reward(self.store, self.layout, earlier, FIRST_STAGE, node_id, self.signatures):
                    self._proven.add(node_id)

    def _may_look(self, node_id: str) -> bool:
        return self.clock.monotonic() >= self._no_workers.get(node_id, (0, 0.0))[1]

    def _is_worker(self, node_id: str) -> bool:
        """Whether a node has registered as a worker. A valid registration is read once, any other one less and less often."""
        if node_id in self.workers or not self._may_look(node_id):
            return node_id in self.workers
        registration = read_registration(self.store, self.layout, node_id, self.signatures)
        if registration and registration.node_role == "worker":
            self.workers.add(node_id)
            self.liveness.sign(node_id, "registration", 0)
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
        known = self._some(named & self.workers)
        for node_id in known + self._some(set(filter(self._may_look, named - self.workers)))[: MOST_ASKED - len(known)]:
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
        while number < furthest and not self.stop.requested:
            self.journal.event("adopted", round=number + 1)
            number = self._announce(number + 1)
        return number

    def _wait_for_store(self, away: StoreAway, number: int) -> None:
        self._state(f"waiting for the store: {away}"[:200], number)
        self.clock.sleep(POLL_SECONDS * (0.5 + self._jitter.random()))

    def _write_current(self, number: int, status: str) -> None:
        state = CurrentState(number, self.clock.wall(), self.settings.node, self.layout.experiment_name, status)
        self.rounds.write_current(state)

    def _state(self, doing: str, number: int) -> None:
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
