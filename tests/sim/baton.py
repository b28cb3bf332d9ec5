"""Many loops as threads of which exactly one runs at a time, in an order that virtual time alone decides.

A loop gives the baton away only where it sleeps or waits, so whole runs of the shipped, blocking code replay exactly and hours
pass in milliseconds. Nothing here knows of swarms; it refuses to let two loops run at once, and to let real time decide anything.
"""

import contextlib
import heapq
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

EPOCH = 1_000_000_000.0


class Killed(BaseException):
    """SIGKILL, as a loop meets it: raised wherever it waits, and again wherever it tries to go on."""


class Deadlock(Exception):
    """Every loop waits for another."""


class Loop:
    """One thread of the simulation; `group` is the process that it belongs to."""

    def __init__(self, name: str, group: str, target: Callable[[], object]) -> None:
        self.name = name
        self.group = group
        self.target = target
        self.turn = threading.Lock()
        self.turn.acquire()
        self.waking = 0  # the serial number of the one entry in the queue that counts
        self.killed = False
        self.done = False
        self.failure: BaseException | None = None
        self.waiters: list[Loop] = []


class Baton:
    """The queue of loops by the moment at which each goes on, and the hand-over between them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.switches = 0
        self.loops: list[Loop] = []
        self.current: Loop | None = None
        self._queue: list[tuple[float, int, Loop]] = []
        self._serial = 0
        self._frozen: dict[str, float] = {}
        self._finished = threading.Lock()
        self._finished.acquire()

    # What loops do

    def spawn(self, name: str, group: str, target: Callable[[], object], delay: float = 0.0) -> Loop:
        loop = Loop(name, group, target)
        self.loops.append(loop)
        self._wake_at(loop, self.now + delay)
        threading.Thread(target=self._body, args=(loop,), name=name, daemon=True).start()
        return loop

    def sleep(self, seconds: float) -> None:
        me = self._me()
        self._wake_at(me, self.now + max(0.0, seconds))
        self._hand_over()

    def wait(self, waiters: list[Loop], seconds: float | None) -> None:
        """Until somebody calls `notify` with the same list, or for so long."""
        me = self._me()
        waiters.append(me)
        self._wake_at(me, self.now + seconds if seconds is not None else float("inf"))
        try:
            self._hand_over()
        finally:
            if me in waiters:
                waiters.remove(me)

    def notify(self, waiters: list[Loop]) -> None:
        while waiters:
            self._wake_at(waiters.pop(0), self.now)

    def join(self, loop: Loop, seconds: float | None) -> None:
        if not loop.done:
            self.wait(loop.waiters, seconds)

    # What fate does

    def kill(self, group: str, but: Loop | None = None) -> None:
        for loop in self.running(group):
            if loop is not but and not loop.killed:
                loop.killed = True
                self._wake_at(loop, self.now)

    def running(self, group: str) -> list[Loop]:
        return [loop for loop in self.loops if loop.group == group and not loop.done]

    def freeze(self, group: str, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after so long."""
        self._frozen[group] = max(self._frozen.get(group, 0.0), self.now + seconds)

    def run(self) -> None:
        """Run until no loop is left; called once, by the thread that made this."""
        self._pass_on(self._next())
        self._finished.acquire()

    # Handing over

    def _me(self) -> Loop:
        me = self.current
        assert me is not None and threading.current_thread().name == me.name, "a thread that has no baton"
        if me.killed:
            raise Killed
        return me

    def _wake_at(self, loop: Loop, moment: float) -> None:
        self._serial += 1
        loop.waking = self._serial
        heapq.heappush(self._queue, (moment, self._serial, loop))

    def _next(self) -> Loop | None:
        while self._queue:
            moment, serial, loop = heapq.heappop(self._queue)
            if loop.done or serial != loop.waking:
                continue
            thaw = self._frozen.get(loop.group, 0.0)
            if thaw > max(moment, self.now) and not loop.killed:
                self._wake_at(loop, thaw)
                continue
            if moment == float("inf"):  # nothing else is left in the queue
                loop.failure = Deadlock(f"at {self.now:.0f} s {loop.name} waits for what nobody will do")
                loop.killed = True
            else:
                self.now = max(self.now, moment)
            return loop
        return None

    def _hand_over(self) -> None:
        me = self.current
        assert me is not None
        successor = self._next()
        assert successor is not None  # at least this loop is in the queue
        if successor is not me:
            self.switches += 1
            self._pass_on(successor)
            me.turn.acquire()
        if me.killed:
            raise Killed

    def _pass_on(self, loop: Loop | None) -> None:
        self.current = loop
        if loop is None:
            self._finished.release()
        else:
            loop.turn.release()

    def _body(self, loop: Loop) -> None:
        loop.turn.acquire()
        try:
            if not loop.killed:
                loop.target()
        except Killed:
            pass
        except BaseException as failure:  # kept for whoever asks how the loop ended
            loop.failure = failure
        loop.done = True
        self.notify(loop.waiters)
        self._pass_on(self._next())


class BatonClock:
    """The clock of one machine: its time of day is wrong by `skew`, as those of real machines are."""

    def __init__(self, baton: Baton, skew: float = 0.0) -> None:
        self.baton = baton
        self.skew = skew

    def wall(self) -> float:
        return EPOCH + self.baton.now + self.skew

    def monotonic(self) -> float:
        return self.baton.now

    def sleep(self, seconds: float) -> None:
        self.baton.sleep(seconds)


class BatonThreading:
    """What the package takes from `threading`, on the baton. A lock is never contended between two hand-overs."""

    def __init__(self, baton: Baton) -> None:
        self.baton = baton

    def Lock(self) -> "_Lock":
        return _Lock(self.baton)

    def Condition(self) -> "_Condition":
        return _Condition(self.baton)

    def Thread(self, target: Callable[[], object], name: str, daemon: bool) -> "_Thread":
        return _Thread(self.baton, target, name)

    @contextlib.contextmanager
    def instead_of(self, module: Any) -> Iterator[None]:
        """Let `module` use this for its `threading`."""
        real, module.threading = module.threading, self
        try:
            yield
        finally:
            module.threading = real


class _Lock:
    def __init__(self, baton: Baton) -> None:
        self.baton = baton
        self.waiters: list[Loop] = []
        self.held = False

    def __enter__(self) -> None:
        while self.held:
            self.baton.wait(self.waiters, None)
        self.held = True

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.held = False
        self.baton.notify(self.waiters)


class _Condition:
    def __init__(self, baton: Baton) -> None:
        self.baton = baton
        self.waiters: list[Loop] = []

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None: ...

    def wait(self, seconds: float | None = None) -> None:
        self.baton.wait(self.waiters, seconds)

    def notify(self) -> None:
        self.baton.notify(self.waiters)


class _Thread:
    def __init__(self, baton: Baton, target: Callable[[], object], name: str) -> None:
        self.baton = baton
        self.target = target
        self.name = name
        self.loop: Loop | None = None

    def start(self) -> None:
        current = self.baton.current
        group = current.group if current else ""
        self.loop = self.baton.spawn(f"{group} {self.name}", group, self.target)

    def join(self, seconds: float | None = None) -> None:
        assert self.loop is not None
        self.baton.join(self.loop, seconds)
