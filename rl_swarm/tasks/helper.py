"""Run a bench in another process, where code that never returns can be ended.

sympy on `9**9**9**9`, a puzzle solver on an unlucky seed and an own task with an endless loop hold the interpreter: no thread and
no Python signal handler gets through to them, and SIGALRM is neither there on Windows nor usable off the main thread. A
process with a deadline can always be killed. It lives on between calls, so a call costs a line down a pipe and a line back.

The helper starts with PYTHONHASHSEED=0: some of reasoning-gym's generators walk through sets of words, and peers must arrive
at the same question. It is a guard against accidents, no sandbox: what it may be given is decided by `gates.py`.
"""

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

import rl_swarm
from rl_swarm.errors import ConfigError
from rl_swarm.tasks.bench import Bench, CannotMake, Item, Verdict
from rl_swarm.tasks.spec import TaskSpec

START_SECONDS = 300.0
ITEM_SECONDS = 20.0
JUDGE_SECONDS = 5.0
MEMORY_BYTES = 4 << 30

Reply = dict[str, Any]


class Gone(Exception):
    """The helper gave no reply: it was `hung` and has been killed, or it died by itself."""

    def __init__(self, hung: bool) -> None:
        super().__init__("hung" if hung else "died")
        self.hung = hung


class Helper:
    """A bench behind a pipe: `item` and `judge` as in Bench, started at once and again after every failure."""

    def __init__(self, specs: Sequence[TaskSpec]) -> None:
        self._specs = [dataclasses.asdict(spec) for spec in specs]
        self._seconds = {"item": ITEM_SECONDS, "judge": JUDGE_SECONDS}
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._ready: tuple[int, int, int] | None = None
        with self._lock:
            self._start()

    def item(self, number: int, seed: int, index: int) -> Item:
        try:
            reply = self._ask("item", number, seed, index)
        except Gone as gone:
            raise CannotMake("question_timeout" if gone.hung else "question_raised", f"the helper {gone}") from None
        if "problem" in reply:
            raise CannotMake(reply["problem"], reply["detail"])
        return Item(reply["prompt"], reply["answer"], {})

    def judge(self, number: int, seed: int, index: int, answer: str) -> Verdict:
        try:
            if self._ready != (number, seed, index):
                self.item(number, seed, index)  # so that making the question again is not held against the verifier
                self._ready = (number, seed, index)
            return Verdict(**self._ask("judge", number, seed, index, answer))
        except CannotMake as error:
            return Verdict(0.0, error.problem)
        except Gone as gone:
            return Verdict(0.0, "scorer_timeout" if gone.hung else "scorer_raised")

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _ask(self, what: str, *arguments: Any) -> Reply:
        with self._lock:
            child = self._child or self._start()
            try:
                return child.ask([what, self._seconds[what], *arguments], self._seconds[what])
            except BaseException:  # also an interrupt: the reply to this request must not be taken for the next one's
                self._stop()
                raise

    def _start(self) -> "_Child":
        self._child = _Child()
        try:
            reply = self._child.ask(self._specs, START_SECONDS)
        except Gone as gone:
            self._stop()
            raise ConfigError(f"TASKS needs a helper process, which {gone} at its start: run a task alone to see why") from None
        if "config_error" in reply:
            self._stop()
            raise ConfigError(reply["config_error"])
        return self._child

    def _stop(self) -> None:
        self._ready = None
        if self._child is not None:
            self._child.end()
            self._child = None


class _Child:
    """One process, its pipes, and the thread that reads its replies so that waiting for one can time out."""

    def __init__(self) -> None:
        root = str(Path(rl_swarm.__file__).parents[1])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from rl_swarm.tasks.helper import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self._requests, output = cast("tuple[IO[bytes], IO[bytes]]", (self._process.stdin, self._process.stdout))
        self._replies = queue.SimpleQueue[bytes]()
        reader = threading.Thread(target=_read, args=(output, self._replies), name="tasks-helper", daemon=True)
        reader.start()
        self.end = weakref.finalize(self, _end, self._process, reader, (self._requests, output))

    def ask(self, request: Any, seconds: float) -> Reply:
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()
            reply = self._replies.get(timeout=seconds)
        except queue.Empty:
            raise Gone(hung=True) from None
        except (BrokenPipeError, OSError):
            raise Gone(hung=False) from None
        if not reply:
            raise Gone(hung=False)
        answer: Reply = json.loads(reply)
        return answer


def _read(pipe: IO[bytes], replies: "queue.SimpleQueue[bytes]") -> None:
    for line in iter(pipe.readline, b""):
        replies.put(line)
    replies.put(b"")


def _end(process: subprocess.Popen[bytes], reader: threading.Thread, pipes: tuple[IO[bytes], ...]) -> None:
    """Kill the process and take away what it leaves: a zombie, a thread and two pipes."""
    process.kill()
    process.wait()
    reader.join()
    for pipe in pipes:
        with contextlib.suppress(OSError):  # what was not yet written to a process that is no more
            pipe.close()


def serve() -> None:
    """The life of the helper: tasks on the first line, then a question or a verdict a line, until the pipe closes."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever tasks print goes to stderr and not between the replies
    _limit_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the node, which ends its helper when it is done with it
    try:
        bench = Bench([TaskSpec(**each) for each in json.loads(sys.stdin.readline())])
    except ConfigError as error:
        print(json.dumps({"config_error": str(error)}), file=replies, flush=True)
        return
    print(json.dumps({}), file=replies, flush=True)
    for line in sys.stdin:
        what, seconds, *arguments = json.loads(line)
        _die_after(seconds + 2)
        reply = _item(bench, *arguments) if what == "item" else dataclasses.asdict(bench.judge(*arguments))
        _die_after(0)
        print(json.dumps(reply), file=replies, flush=True)


def _item(bench: Bench, number: int, seed: int, index: int) -> Reply:
    try:
        item = bench.item(number, seed, index)
    except CannotMake as error:
        return {"problem": error.problem, "detail": error.detail}
    return {"prompt": item.prompt, "answer": item.answer}


def _die_after(seconds: float) -> None:
    """Let the system end this process if the node that would kill it is gone; without a handler no Python code has to run."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _limit_memory() -> None:
    """Numbers of a hundred million digits should fail here and not take the machine's memory; only POSIX can say so."""
    try:
        import resource
    except ModuleNotFoundError:
        return
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard), hard))
