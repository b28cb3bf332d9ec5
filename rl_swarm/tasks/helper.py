"""Make questions and judge answers in another process, which can be killed when code never returns or takes all memory.

sympy on `9**9**9**9`, a puzzle solver on an unlucky seed and an own task with an endless loop hold the interpreter: no thread and
no Python signal handler can stop them. A process with a deadline can always be killed. Waiting for a turn on a processor costs more
than most questions and verdicts, so one request asks for many; each has its own deadline.

Each node has one loader process, which imports reasoning-gym and forks the helpers; the node never imports it. Helpers run with
PYTHONHASHSEED=0: some generators of reasoning-gym iterate over sets of words, and peers must get the same question. All `Tasks` of
a process with the same specs share a helper, which ends with the last of them. The loader ends with the process.
"""

import contextlib
import dataclasses
import json
import math
import os
import select
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from itertools import count
from typing import IO, Any

from rl_swarm.errors import ConfigError, SwarmError
from rl_swarm.processes.children import python
from rl_swarm.tasks.bench import CannotMake, Item, Verdict
from rl_swarm.tasks.serving import ITEM_SECONDS, JUDGE_SECONDS, ORDER, START_SECONDS, Reply
from rl_swarm.tasks.spec import TaskSpec
from rl_swarm.text import visible

HANGS_FORGIVEN = 2  # in one group of answers; the rest of it is worth 0, unread
RESTARTS = 3
REPLY_BYTES = 8 << 20  # several times the longest question and its answer, escaped
LOOK_SECONDS = 0.2
EXIT_SECONDS = 0.3

Place = tuple[int, int, int]  # of a question: the task's number, seed, index

_decode = json.JSONDecoder().decode  # half the time of json.loads, which looks at encodings and options first


class Gone(Exception):
    """The helper gave no reply: it "hung" and must be killed, or it "died"."""


class TooSlow(Exception):
    """The caller's seconds were over before the last reply."""


class Job:
    """A question to make, the answers to judge, and the replies so far."""

    def __init__(self, place: Place, prompt: str | None = None, answers: Sequence[str] = ()) -> None:
        self.place, self._prompt, self._answers = place, prompt, answers
        self.made: Item | CannotMake | None = None
        self.verdicts: list[Verdict] = []
        self._begun = False  # the helper has made the question and is at the answers

    @property
    def done(self) -> bool:
        return isinstance(self.made, CannotMake) or (self.made is not None and len(self.verdicts) == len(self._answers))

    @property
    def result(self) -> Item | CannotMake:
        assert self.made is not None, "this job is not done"
        return self.made

    def request(self) -> list[Any]:
        """What is left to do, as `serving.py` reads it."""
        self._begun = False
        return [*self.place, self._prompt, self._answers[len(self.verdicts) :]]

    def take(self, reply: Reply) -> None:
        """Take the reply to the question, later one verdict."""
        if self._begun:
            self.verdicts.append(Verdict(reply["score"], reply["problem"]))
        elif "problem" in reply:
            self._cannot_make(reply["problem"], reply["detail"])
        else:
            self.made = Item(reply["prompt"], reply["answer"], {})
            self._begun = True

    def fail(self, gone: Gone) -> None:
        """Blame the loss of the helper on this question, or on the answer that it was judging."""
        cause = "timeout" if str(gone) == "hung" else "raised"
        if not self._begun:
            self._cannot_make(f"question_{cause}", f"the helper {gone}")
            return
        self.verdicts.append(Verdict(0.0, f"scorer_{cause}"))
        if [verdict.problem for verdict in self.verdicts].count("scorer_timeout") >= HANGS_FORGIVEN:
            self._fill("scorer_timeout")

    def _cannot_make(self, problem: str, detail: str) -> None:
        """There is no such question; if there was one before a restart, the remaining answers are worth nothing."""
        if self.made is None:
            self.made = CannotMake(problem, detail)
        else:
            self._fill(problem)

    def _fill(self, problem: str) -> None:
        self.verdicts += [Verdict(0.0, problem)] * (len(self._answers) - len(self.verdicts))


class Helper:
    """A bench behind pipes, for any thread. Loads its tasks at once, and again after every failure."""

    def __init__(self, specs: Sequence[TaskSpec]) -> None:
        self._specs = _line(specs)
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._start()

    def items(self, places: Sequence[Place]) -> list[Item | CannotMake]:
        """Make questions, all in one request."""
        jobs = [Job(place) for place in places]
        self.do(jobs)
        return [job.result for job in jobs]

    def do(self, jobs: Sequence[Job], seconds: float = math.inf, go_on: Callable[[], None] = lambda: None) -> None:
        """Do all jobs in one request, one caller at a time; raise TooSlow after `seconds`.

        A question that differs from its prompt counts as one that cannot be made, and a verifier's failure as a verdict of 0. After
        a failure that ended the helper, `go_on` is called before the rest is requested; it may raise. An interrupted helper is
        replaced, lest its late replies answer the next request.
        """
        if seconds <= 0:  # a fast helper might reply in no time
            raise TooSlow
        with self._lock:
            try:
                if self._child is None or not self._child.idle:
                    self._replace()
                deadline = time.monotonic() + seconds
                left = list(jobs)
                while left:
                    self._request(left, deadline)
                    left = [job for job in left if not job.done]
                    if left:
                        go_on()
            except TooSlow:
                self._replace()
                raise
            except BaseException:  # also an interrupt
                self._stop()
                raise

    def _request(self, jobs: Sequence[Job], deadline: float) -> None:
        """Do at least one of the jobs, and replace the helper if one made it fail or swell."""
        assert self._child is not None
        child, job = self._child, jobs[0]
        try:
            child.send(_line([job.request() for job in jobs]))
            for job in jobs:
                job.take(child.reply(ITEM_SECONDS, deadline))
                while not job.done and not child.spent:
                    job.take(child.reply(JUDGE_SECONDS, deadline))
                if child.spent:
                    break
        except Gone as gone:
            job.fail(gone)
            child.spent = True
        if child.spent:
            self._replace()

    def _replace(self) -> None:
        """Start another helper and wait for it here, so that the caller whose job broke this one pays for that time, too."""
        for attempt in range(RESTARTS):
            self._stop()
            try:
                self._start()
                return
            except ConfigError as error:
                failure = error
                time.sleep(attempt)
        raise SwarmError(f"the tasks were loaded once and cannot be loaded again: {failure}")

    def _start(self) -> None:
        child = _Child()
        try:
            child.send(self._specs)
            reply = child.reply(START_SECONDS)
        except Gone as gone:
            why = child.loader.explanation()
            raise ConfigError(f"TASKS needs a helper process, which {gone} at its start{why}: run 'rl-swarm doctor'") from None
        if "config_error" in reply:
            raise ConfigError(reply["config_error"])
        self._child = child

    def _stop(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


class _Child:
    """One helper process seen from the node: its pipes, with data not yet written or read. `spent`: it must be replaced."""

    def __init__(self) -> None:
        self.loader = warm_up()
        self.spent = False
        requests, self._requests = os.pipe()
        self._replies, replies = os.pipe()
        self._done, done = os.pipe()
        ours, theirs = (self._requests, self._replies, self._done), (requests, replies, done)
        self.end = weakref.finalize(self, _end_child, self.loader, self.loader.start(theirs), ours)
        for pipe in theirs:
            os.close(pipe)
        for pipe in ours:
            os.set_blocking(pipe, False)
        self._unsent, self._received = b"", bytearray()
        self._poll = select.poll()
        self._poll.register(self._done, select.POLLIN)
        self._poll.register(self._requests, 0)

    @property
    def idle(self) -> bool:
        """Alive, with no unread reply."""
        with contextlib.suppress(Gone):
            self._read()
            return not self._received
        return False

    def send(self, request: bytes) -> None:
        """Begin to send; `reply` sends the rest."""
        self._unsent += request
        self._write()

    def reply(self, most_seconds: float, deadline: float = math.inf) -> Reply:
        """The next reply; raise Gone if there is none after `most_seconds`, and TooSlow if the deadline comes first.

        Waking a process costs more than a verdict: only the last reply to a request wakes this one. Until then it looks every
        `LOOK_SECONDS` how far the helper is."""
        end = min(time.monotonic() + most_seconds, deadline)
        while (length := self._received.find(b"\n")) < 0:
            left = end - time.monotonic()
            self._poll.poll(math.ceil(max(0.0, min(left, LOOK_SECONDS)) * 1000))
            if self._unsent:
                self._write()
            self._read()
            if left <= 0 and b"\n" not in self._received:
                if end == deadline:
                    raise TooSlow
                raise Gone("hung")
        reply: Reply = _decode(self._received[:length].decode())
        del self._received[: length + 1]
        self.spent = reply.get("swollen", False)
        return reply

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._requests, self._unsent) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            raise Gone("died") from None
        self._poll.modify(self._requests, select.POLLOUT if self._unsent else 0)

    def _read(self) -> None:
        """Read without waiting; raise Gone at the end of the replies, or if one is too long."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._done, 1 << 10)
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._replies, 1 << 16)
            self._received += data
            if not data or len(self._received) > REPLY_BYTES:
                raise Gone("died")


def _end_child(loader: "_Loader", number: int, pipes: tuple[int, ...]) -> None:
    for pipe in pipes:
        os.close(pipe)
    loader.stop(number)


class _Loader:
    """The process that forks helpers, seen from the node. It starts in the background; orders wait until it has loaded."""

    def __init__(self) -> None:
        self._numbers = count()
        self._orders, theirs = socket.socketpair()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process that writes to it
        with theirs:
            self._process = subprocess.Popen(
                python("from rl_swarm.tasks.serving import load; load()"),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._output,
                env={**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is for the node, which ends its helpers when it is done with them
            )
        self.end = weakref.finalize(self, _end_loader, self._process, self._orders, self._output)

    def start(self, pipes: Sequence[int]) -> int:
        """Have a helper forked with these ends of its pipes, and return its number. If the loader has died, they just close."""
        number = next(self._numbers)
        with contextlib.suppress(ConnectionError):
            socket.send_fds(self._orders, [ORDER.pack(True, number)], pipes)
        return number

    def stop(self, number: int) -> None:
        with contextlib.suppress(OSError):  # the loader has ended: its helpers are gone or about to go
            self._orders.sendall(ORDER.pack(False, number))

    def explanation(self) -> str:
        """Why the loader died, if it did: its exit code and its last line."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(1.0)
            self._output.seek(0)
            lines = self._output.read()[-2000:].decode(errors="replace").split("\n")
            last = next(filter(str.strip, reversed(lines)), "no output")
            return f" (exit code {code}: {visible(last)[:300]})"
        return ""


def _end_loader(process: subprocess.Popen[bytes], orders: socket.socket, output: IO[bytes]) -> None:
    """Tell the loader to end its helpers and itself; kill it if it is still loading and does not listen."""
    orders.close()
    try:
        process.wait(EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    output.close()


_loader: _Loader | None = None
_helpers: "weakref.WeakValueDictionary[bytes, Helper]" = weakref.WeakValueDictionary()
_lock = threading.RLock()


def warm_up() -> _Loader:
    """Begin to load reasoning-gym in the background, unless a loader is running; it takes some seconds."""
    global _loader
    with _lock:
        if _loader is None or _loader._process.poll() is not None:
            _loader = _Loader()
        return _loader


def shared_helper(specs: Sequence[TaskSpec]) -> Helper:
    """This process's helper for these specs; it ends with its last user."""
    with _lock:
        helper = _helpers.get(_line(specs))
        if helper is None:
            _helpers[_line(specs)] = helper = Helper(specs)
        return helper


def try_loading(specs: Sequence[TaskSpec], *, keep_loader: bool) -> None:
    """Load tasks in a helper that ends at once; raise ConfigError if that fails. Unless `keep_loader`, nothing keeps running."""
    global _loader
    try:
        Helper(specs)._stop()
    finally:
        with _lock:
            if _loader and not keep_loader:
                _loader.end()
                _loader = None


def _line(content: object) -> bytes:
    return json.dumps(content, default=dataclasses.asdict).encode() + b"\n"
