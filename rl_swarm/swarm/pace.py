"""Decide which round a worker plays next: nobody waits for a peer, and a missing coordinator costs time once."""

from collections.abc import Callable
from dataclasses import dataclass

from rl_swarm.clock import Clock, Pauses
from rl_swarm.errors import StoreAway
from rl_swarm.randomness import generator
from rl_swarm.swarm.rounds import Rounds

POLL_SECONDS = 1.0  # the longest pause between two looks for the next round
ASK_SHARE = 10  # of a round interval: how often a waiting node looks whether the coordinator has left
PATIENCE_INTERVALS = 1.5  # the coordinator closes a round one interval after the first reward; its announcement takes time


@dataclass(eq=False)
class Pace:
    """Follows the announced rounds; `report` is told when the node goes on alone or the store is away."""

    rounds: Rounds
    clock: Clock
    report: Callable[..., None]
    node_id: str
    round_interval: float
    patient: bool = True

    def __post_init__(self) -> None:
        self._next_survey = 0.0
        self._jitter = generator("wait", self.node_id)

    def first(self, own: int) -> int:
        """The round to start with: the newest of the swarm, or `own` if that is higher or nobody else is there."""
        self._next_survey = self.clock.monotonic() + self.round_interval
        try:
            announced = self.rounds.survey()
            self.patient = announced is not None
            if announced:
                return max(own, announced.round)
            others = self.rounds.reached_by_others(self.node_id, own, self._jitter)
        except StoreAway:
            return own
        return own if others is None else others

    def following(self, number: int, waiting: Callable[[], None]) -> int:
        """The newest round announced above `number`. If there is none, wait at most once, then go on with the next number.

        `waiting` is called before every pause, and may raise to leave.
        """
        began = self.clock.monotonic()
        next_question = began + self.round_interval / ASK_SHARE
        pauses = Pauses(self.clock, min(POLL_SECONDS, self.round_interval / 20), self._jitter)
        while True:
            announced = self._look(number)
            if announced is not None:
                return announced
            now = self.clock.monotonic()
            waited, left = now - began, False
            patience = PATIENCE_INTERVALS * self.round_interval if self.patient else 0.0
            if self.patient and now >= next_question:
                next_question = now + self.round_interval / ASK_SHARE
                left = self._coordinator_left()
            if left or waited >= patience:
                if self.patient:
                    why = "the coordinator has left" if left else f"no round was announced for {waited:.0f} s"
                    self.report(
                        "went_on_alone", f"{why}: going on alone with round {number + 1}", round=number + 1, waited_seconds=waited
                    )
                self.patient = False
                return number + 1
            waiting()
            pauses.pause(patience - waited)

    def _coordinator_left(self) -> bool:
        try:
            return self.rounds.coordinator_left()
        except StoreAway:
            return False

    def _look(self, number: int) -> int | None:
        """Look for a round announced above `number`. Any new announcement makes the node patient again."""
        known = self.rounds.newest
        try:
            announced = self.rounds.advance(number)
            if announced is None and self.clock.monotonic() >= self._next_survey:
                # Looking up the next name crosses no gap, and cannot find a coordinator that started elsewhere.
                self._next_survey = self.clock.monotonic() + self.round_interval
                announced = self.rounds.survey()
        except StoreAway as away:
            self.report("store_away", round=number, error=str(away))
            return None
        if self.rounds.newest is not known:
            self.patient = True
        return announced.round if announced and announced.round > number else None
