"""How a process is asked to stop, and how long a node may take for it.

The node that stops and the launcher that waits for it share one time budget. A node stops between two steps of a round, or at once
while it starts. The phases after that run one after the other, and each ends at its limit. The first two are only allowances:
neither a training step nor a file that is being written can be left half-way.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

STEP_SECONDS = 90.0  # allowed for the step that is under way
SAVE_SECONDS = 30.0  # allowed for the last checkpoint, and for the export that is pushed
PUSH_SECONDS = 60.0  # for the push to the hub; an upload that takes longer is given up
PUSH_KILL_SECONDS = 10.0  # ... and killed
DRAIN_SECONDS = 30.0  # for publishing what is in the spool; the rest stays there for the next start
MERGE_SECONDS = 20.0  # for merging journals; what is not merged is in their segments
TRACKERS_SECONDS = 15.0  # for finishing trackers
SPARE_SECONDS = 15.0

NODE_SECONDS = STEP_SECONDS + SAVE_SECONDS + PUSH_SECONDS + PUSH_KILL_SECONDS + DRAIN_SECONDS + MERGE_SECONDS + TRACKERS_SECONDS
LAUNCHER_SECONDS = NODE_SECONDS + SPARE_SECONDS  # a node that still runs after that hangs

LAUNCHER = "RL_SWARM_LAUNCHER"  # the variable with a launcher's process id, set for its nodes
LOOK_SECONDS = 1.0  # between two looks whether the launcher still runs


class Stopped(BaseException):
    """A stop was requested while nothing could be lost by leaving at once."""


class Stop:
    """Requested by a signal, obeyed between the steps of a round."""

    def __init__(self) -> None:
        self.requested = False
        self._at_once = False

    def obey(self) -> None:
        """Raise Stopped within `at_once`. For the signal handler that has just requested a stop."""
        if self._at_once:
            raise Stopped

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Raise Stopped if a stop is requested before or during the context: for long work that keeps nothing."""
        self._at_once = True
        try:
            if self.requested:
                raise Stopped
            yield
        finally:
            self._at_once = False


@contextmanager
def on_signals(handle: Callable[[int], None], *, closed_terminal: bool = False) -> Iterator[None]:
    """Within the context, call `handle` with each SIGTERM and SIGINT, and with SIGHUP if `closed_terminal`."""
    numbers = (signal.SIGTERM, signal.SIGINT, *((signal.SIGHUP,) if closed_terminal else ()))
    before = {number: signal.signal(number, lambda got, frame: handle(got)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def launcher_of(environment: Mapping[str, str]) -> int | None:
    """Return the process id of the launcher that started this node, or None."""
    said = environment.get(LAUNCHER, "")
    return int(said) if said.isdecimal() and len(said) < 10 else None


@contextmanager
def watching_launcher(launcher: int | None, gone: Callable[[], None]) -> Iterator[None]:
    """Call `gone`, once and in another thread, when the launcher has died and this process has another parent.

    A killed launcher cannot pass a signal on, and only Linux can signal the children of a process that dies.
    """
    over = threading.Event()

    def look() -> None:
        while os.getppid() == launcher:
            if over.wait(LOOK_SECONDS):
                return
        gone()

    if launcher is not None:
        threading.Thread(target=look, name="launcher watch", daemon=True).start()
    try:
        yield
    finally:
        over.set()
