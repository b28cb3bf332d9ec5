"""Time as an argument, so that a simulation can drive the shipped loops with a virtual clock."""

import random
import threading
import time
from typing import Protocol


class Clock(Protocol):
    def wall(self) -> float:
        """Seconds since the epoch: for people, never for comparing two machines."""

    def monotonic(self) -> float:
        """Seconds on this machine: for every timeout."""

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """Real time; `wake` ends the current and every later sleep, so that a signal can stop a waiting node."""

    def __init__(self) -> None:
        self._woken = threading.Event()

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        self._woken.wait(seconds)

    def wake(self) -> None:
        self._woken.set()


class Pauses:
    """Jittered pauses that grow up to `longest`: an early answer is noticed early, and a long wait costs few looks.

    They grow by a fifth: what is awaited is noticed late by about a tenth of the wait.
    """

    def __init__(self, clock: Clock, longest: float, chance: random.Random) -> None:
        self.clock = clock
        self.longest = longest
        self.chance = chance
        self.next = min(0.02, longest)

    def pause(self, at_most: float = float("inf")) -> None:
        self.clock.sleep(max(0.001, min(self.next * (0.5 + self.chance.random()), at_most)))
        self.next = min(self.next * 1.2, self.longest)
