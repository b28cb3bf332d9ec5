"""How long a node may take to stop: one budget, known to the node that stops and to the launcher that waits for it.

A stop is obeyed between two steps of a round, and at once while a node starts. The phases that follow come one after the other, and
each ends at its limit. Two limits are allowances only, since neither a step of training nor a file that is being written can be
left half-way.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

STEP_SECONDS = 90.0  # allowed for the step that is under way
SAVE_SECONDS = 30.0  # allowed for the last checkpoint, and for the export that is to be pushed
PUSH_SECONDS = 60.0  # the push to the hub; an upload that is not done then is given up
PUSH_KILL_SECONDS = 10.0  # ... and ended
DRAIN_SECONDS = 30.0  # publishing what waits in the spool; the rest stays there for the next start
MERGE_SECONDS = 20.0  # merging journals; their segments hold everything that is not merged
SPARE_SECONDS = 15.0

NODE_SECONDS = STEP_SECONDS + SAVE_SECONDS + PUSH_SECONDS + PUSH_KILL_SECONDS + DRAIN_SECONDS + MERGE_SECONDS
LAUNCHER_SECONDS = NODE_SECONDS + SPARE_SECONDS  # a node that has not ended by then hangs


class Stopped(BaseException):
    """A stop was asked for while nothing could be lost by leaving at once."""


class Stop:
    """Asked for by a signal, obeyed between the steps of a round."""

    def __init__(self) -> None:
        self.requested = False
        self._at_once = False

    def obey(self) -> None:
        """Called by a signal's handler once a stop is asked for: raise Stopped within `at_once`."""
        if self._at_once:
            raise Stopped

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Raise Stopped where a stop was asked for before, or is asked for within: for work that takes long and keeps nothing."""
        self._at_once = True
        try:
            if self.requested:
                raise Stopped
            yield
        finally:
            self._at_once = False


LAUNCHER = "RL_SWARM_LAUNCHER"  # the variable with which a launcher tells its nodes its own process id
LOOK_SECONDS = 1.0  # between two looks whether the launcher is still there


def launcher_of(environment: Mapping[str, str]) -> int | None:
    """The process id of the launcher that started this node, None for a node that was started by itself."""
    said = environment.get(LAUNCHER, "")
    return int(said) if said.isdecimal() and len(said) < 10 else None


@contextmanager
def watching_launcher(launcher: int | None, gone: Callable[[], None]) -> Iterator[None]:
    """Call `gone`, once and in another thread, when the launcher has died: its children then have another parent.

    A launcher that is killed can pass nothing on, and Linux alone tells children by a signal. The parent's process id is known
    everywhere.
    """
    if launcher is None:
        yield
        return
    over = threading.Event()

    def look() -> None:
        while os.getppid() == launcher:
            if over.wait(LOOK_SECONDS):
                return
        gone()

    threading.Thread(target=look, name="launcher watch", daemon=True).start()
    try:
        yield
    finally:
        over.set()
