"""Make questions and judge answers in another process, where code that never returns or takes all memory can be ended.

sympy on `9**9**9**9`, a puzzle solver on an unlucky seed and an own task with an endless loop hold the interpreter: no thread and
no Python signal handler gets through to them. A process with a deadline can always be killed. Since to wait for its turn on a
processor costs more than most questions and verdicts, many are asked for in one request; each has a deadline of its own.

One loader a process imports reasoning-gym and forks the helpers; the node never imports it. They run with PYTHONHASHSEED=0: some of
reasoning-gym's generators walk through sets of words, and peers must arrive at the same question. All `Tasks` of a process with the
same specs share a helper, which ends with the last of them. The loader ends with the process.
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
from collections.abc import Iterator, Sequence
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
    """The helper gave no reply: it `hung` and has to be killed, or it died by itself."""

    def __init__(self, hung: bool) -> None:
        super().__init__("hung" if hung else "died")
        self.hung = hung


class TooSlow(Exception):
    """The caller's seconds were over before the last reply."""


class Job:
    """A question to be made, the answers to it to be judged, and how far that is."""

    def __init__(self, place: Place, prompt: str | None = None, answers: Sequence[str] = ()) -> None:
        self._place, self._prompt, self._answers = place, prompt, answers
        self.made: Item | None = None
        self.verdicts: list[Verdict] = []
        self._failure: CannotMake | None = None
        self._hangs = 0
        self._begun = False

    @property
    def done(self) -> bool:
        return self._failure is not None or (self.made is not None and len(self.verdicts) == len(self._answers))

    @property
    def failure(self) -> CannotMake:
        assert self._failure is not None, "this question was made"
        return self._failure

    def request(self) -> list[Any]:
        """What is left to do, as `serving.py` reads it."""
        self._begun = False
        return [*self._place, self._prompt, self._answers[len(self.verdicts) :]]

    def take(self, reply: Reply) -> None:
        """Take in the question or what was wrong with it, later a verdict."""
        if self._begun:
            self.verdicts.append(Verdict(reply["score"], reply["problem"]))
        elif "problem" in reply:
            self._give_up(reply["problem"], reply["detail"])
        else:
            self.made = Item(reply["prompt"], reply["answer"], {})
            self._begun = True

    def fail(self, gone: "Gone") -> None:
        """The helper is gone: that is this question's fault, or that of the answer it was at."""
        if not self._begun:
            self._give_up("question_timeout" if gone.hung else "question_raised", f"the helper {gone}")
            return
        self._hangs += gone.hung
        self.verdicts.append(Verdict(0.0, "scorer_timeout" if gone.hung else "scorer_raised"))
        if self._hangs >= HANGS_FORGIVEN:
            self._fill(Verdict(0.0, "scorer_timeout"))

    def _give_up(self, problem: str, detail: str) -> None:
        """There is no such question; if there was one a moment ago, the answers that are left are worth nothing."""
        if self.made is None:
            self._failure = CannotMake(problem, detail)
        else:
            self._fill(Verdict(0.0, problem))

    def _fill(self, verdict: Verdict) -> None:
        self.verdicts += [verdict] * (len(self._answers) - len(self.verdicts))


class Helper:
    """A bench behind pipes, for any thread. Loads its tasks at once, and again after every failure."""

    def __init__(self, specs: Sequence[TaskSpec]) -> None:
        self._specs = _line([dataclasses.asdict(spec) for spec in specs])
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._start()

    def items(self, places: Sequence[Place], seconds: float = math.inf) -> list[Item | CannotMake]:
        """Make questions, all in one request; raise TooSlow after so many seconds."""
        jobs = [Job(place) for place in places]
        self._do(jobs, seconds)
        return [job.made or job.failure for job in jobs]

    def judge(self, place: Place, prompt: str, answers: Sequence[str], seconds: float = math.inf) -> tuple[Item, list[Verdict]]:
        """Make a question and judge all answers to it; raise CannotMake, also where it is another question than `prompt`,
        or TooSlow after so many seconds. A verifier's failure is a verdict of 0."""
        job = Job(place, prompt, answers)
        self._do([job], seconds)
        if job.made is None:
            raise job.failure
        return job.made, job.verdicts

    def _do(self, jobs: Sequence["Job"], seconds: float) -> None:
        with self._turn():
            deadline = time.monotonic() + seconds
            while left := [job for job in jobs if not job.done]:
                self._request(left, deadline)

    def _request(self, jobs: Sequence["Job"], deadline: float) -> None:
        """Do some of the jobs at least: the helper is replaced when one of them has made it fail or swell."""
        assert self._child is not None
        child, job, swollen = self._child, jobs[0], False
        try:
            child.send(_line([job.request() for job in jobs]))
            for job in jobs:
                job.take(reply := child.reply(ITEM_SECONDS, deadline))
                while not (swollen := reply.get("swollen", False)) and not job.done:
                    job.take(reply := child.reply(JUDGE_SECONDS, deadline))
                if swollen:
                    break
        except Gone as gone:
            job.fail(gone)
            swollen = True
        if swollen:
            self._replace()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Be alone with a helper that runs. A reply that was not waited for must not be taken for the next one's."""
        with self._lock:
            try:
                if self._child is None or not self._child.idle:
                    self._replace()
                yield
            except TooSlow:
                self._replace()
                raise
            except BaseException:  # also an interrupt
                self._stop()
                raise

    def _replace(self) -> None:
        """Start another helper and wait for it here, so that whoever made this one hang pays for that time, too."""
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
            raise ConfigError(
                f"TASKS needs a helper process, which {gone} at its start{child.explanation()}: run 'rl-swarm doctor'"
            ) from None
        if "config_error" in reply:
            raise ConfigError(reply["config_error"])
        self._child = child

    def _stop(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


class _Child:
    """One helper seen from the node: its pipes, with what is not yet written and not yet read."""

    _numbers = count()

    def __init__(self) -> None:
        self._loader = _running_loader()
        number = next(self._numbers)
        requests, self._requests = os.pipe()
        self._replies, replies = os.pipe()
        self._done, done = os.pipe()
        ours = (self._requests, self._replies, self._done)
        self.end = weakref.finalize(self, _end_child, self._loader, number, ours)
        self._loader.start(number, (requests, replies, done))
        for pipe in (requests, replies, done):
            os.close(pipe)
        for pipe in ours:
            os.set_blocking(pipe, False)
        self._unsent, self._received = b"", bytearray()
        self._poll = select.poll()
        self._poll.register(self._done, select.POLLIN)

    @property
    def idle(self) -> bool:
        """Alive, and with nothing left to say."""
        with contextlib.suppress(Gone):
            self._read()
            return not self._received
        return False

    def send(self, request: bytes) -> None:
        """Begin to send; `reply` sends the rest."""
        self._unsent += request
        self._write()

    def reply(self, most_seconds: float, deadline: float = math.inf) -> Reply:
        """The next reply; raise Gone if there is none after so many seconds, and TooSlow if the deadline comes first.

        To be woken costs more than a verdict: only the last reply to a request wakes whoever waits. Before it, it looks every
        `LOOK_SECONDS` how far the helper is."""
        end = min(time.monotonic() + most_seconds, deadline)
        while (length := self._received.find(b"\n")) < 0:
            left = end - time.monotonic()
            ready = dict(self._poll.poll(math.ceil(max(0.0, min(left, LOOK_SECONDS)) * 1000)))
            if self._requests in ready:
                self._write()
            self._read()
            if left <= 0 and b"\n" not in self._received:
                if end == deadline:
                    raise TooSlow
                raise Gone(hung=True)
        reply: Reply = _decode(self._received[:length].decode())
        del self._received[: length + 1]
        return reply

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._requests, self._unsent) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            raise Gone(hung=False) from None
        if self._unsent:
            self._poll.register(self._requests, select.POLLOUT)
        else:
            with contextlib.suppress(KeyError):  # mostly all was written at once
                self._poll.unregister(self._requests)

    def _read(self) -> None:
        """Take what has come; raise Gone only if nothing has and nothing will."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._done, 1 << 10)
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._replies, 1 << 16)
            self._received += data
            if not data or len(self._received) > REPLY_BYTES:
                raise Gone(hung=False)

    def explanation(self) -> str:
        return self._loader.explanation()


def _end_child(loader: "_Loader", number: int, pipes: tuple[int, ...]) -> None:
    for pipe in pipes:
        os.close(pipe)
    loader.stop(number)


class _Loader:
    """The process that forks helpers, seen from the node. It starts in the background; orders wait until it has loaded."""

    def __init__(self) -> None:
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

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def start(self, number: int, pipes: Sequence[int]) -> None:
        """Have a helper forked that has the other ends of its pipes. If the loader has died, they just close."""
        with contextlib.suppress(ConnectionError):
            socket.send_fds(self._orders, [ORDER.pack(True, number)], pipes)

    def stop(self, number: int) -> None:
        with contextlib.suppress(OSError):  # it has died, or has been ended before: its helpers are gone or about to go
            self._orders.sendall(ORDER.pack(False, number))

    def explanation(self) -> str:
        """Why it died, as far as that is known: its exit code and its last line."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(1.0)
            self._output.seek(0)
            lines = self._output.read()[-2000:].decode(errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "no output")
            return f" (exit code {code}: {visible(last)[:300]})"
        return ""


def _end_loader(process: subprocess.Popen[bytes], orders: socket.socket, output: IO[bytes]) -> None:
    """Tell it to end its helpers and itself; while it still loads it does not listen."""
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


def warm_up() -> None:
    """Begin to load reasoning-gym in the background, for whoever will need it in some seconds."""
    _running_loader()


def _running_loader() -> _Loader:
    global _loader
    with _lock:
        if _loader is None or not _loader.running:
            _loader = _Loader()
        return _loader


def shared_helper(specs: Sequence[TaskSpec]) -> Helper:
    """The helper of these specs in this process; it ends when nobody holds it any more."""
    key = _line([dataclasses.asdict(spec) for spec in specs])
    with _lock:
        helper = _helpers.get(key)
        if helper is None:
            _helpers[key] = helper = Helper(specs)
        return helper


def _line(content: object) -> bytes:
    return json.dumps(content).encode() + b"\n"
