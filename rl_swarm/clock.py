"""Time as an argument, so that a simulation can drive the shipped loops with a virtual clock."""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    def wall(self) -> float:
        """Seconds since the epoch: for people to read, never for comparing two machines."""

    def monotonic(self) -> float:
        """Seconds on this machine: for every time-out."""

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """Real time; `wake` ends the current and every later sleep at once, which is how a signal stops a waiting node."""

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
