"""The other end of `helper.py`: the loader, a process that loads reasoning-gym once, and the helpers that it forks.

A helper runs a bench for a node until its pipe closes. It guards against accidents and exploding answers; it is no sandbox:
`gates.py` decides which answers reach a verifier. Output of tasks is discarded, and their input is empty.
"""

import contextlib
import gc
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from typing import IO, Any, NoReturn

from rl_swarm.errors import ConfigError
from rl_swarm.tasks.bench import Bench, CannotMake, gym
from rl_swarm.tasks.spec import TaskSpec

START_SECONDS = 60.0
ITEM_SECONDS = 20.0
JUDGE_SECONDS = 5.0
GRACE_SECONDS = 2.0  # after a deadline at which nobody killed it, a helper ends itself: its node is gone

# A GiB above what the loaded tasks take. No honest question or answer was seen to need a tenth of it, and a machine with 8 GB has
# room for the helpers of four workers. Half of it is always free: a helper that keeps more is replaced.
MEMORY_BYTES = 1 << 30
KEPT_BYTES = MEMORY_BYTES // 2

ORDER = struct.Struct("!?Q")  # to the loader: start or end, and a helper's number; with a start come its pipes
PIPES = 3  # requests, replies, and one that gets a byte after the last reply to a request

Reply = dict[str, Any]


def load() -> None:
    """The life of the loader: obey orders from the socket on stdin until it closes."""
    orders = socket.socket(fileno=os.dup(0))
    _silence(0)
    os.dup2(2, 1)  # stderr is a file, from which a failure to load is explained
    with contextlib.suppress(ConfigError):  # not installed: a helper that needs it says so
        gym("factory")
    gc.collect()
    gc.freeze()  # leaves memory that is shared with the helpers untouched
    helpers: dict[int, int] = {}
    while order := _receive(orders):
        start, number, pipes = order
        if not start:
            _kill(helpers.pop(number))
        elif not (pid := os.fork()):
            orders.close()
            _be_helper(*pipes)
        else:
            helpers[number] = pid
        for pipe in pipes:
            os.close(pipe)
    for pid in helpers.values():
        _kill(pid)


def _receive(orders: socket.socket) -> tuple[bool, int, list[int]] | None:
    """The next order, or None when the node is gone."""
    with contextlib.suppress(ConnectionError):
        message, pipes, _, _ = socket.recv_fds(orders, ORDER.size, PIPES)
        if len(message) == ORDER.size:
            return *ORDER.unpack(message), pipes
    return None


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _be_helper(requests: int, replies: int, done: int) -> NoReturn:
    """Serve in this process, which ends here whatever happens."""
    code = 1
    try:
        _silence(1, 2)
        with open(requests, "rb") as incoming:
            serve(incoming, replies, done)
        code = 0
    finally:
        os._exit(code)


def serve(incoming: IO[bytes], replies: int, done: int) -> None:
    """The life of a helper: tasks on the first line, then on each line questions with any number of answers, until the pipe closes.

    The node sleeps until a byte from `done` says that all replies to its line are there."""

    def reply(content: Reply) -> None:
        line = json.dumps(content).encode() + b"\n"
        while line:
            line = line[os.write(replies, line) :]

    _die_after(START_SECONDS)
    _limit_memory()  # the tasks of an experiment may be too large to load
    try:
        bench = Bench([TaskSpec(**each) for each in json.loads(incoming.readline())])
    except Exception as error:  # reported to the node, because output goes nowhere by now
        unknown = f"TASKS cannot be loaded ({' '.join(repr(error).split())[:300]}): run 'rl-swarm doctor'"
        reply({"config_error": str(error) if isinstance(error, ConfigError) else unknown})
        return
    swollen = _limit_memory()
    _die_after(0)
    reply({})
    os.write(done, b".")
    for line in incoming:
        for job in json.loads(line):
            for content in _answer(bench, swollen, *job):
                reply(content)
        os.write(done, b".")
        _die_after(0)


def _answer(
    bench: Bench, swollen: Callable[[], bool], number: int, seed: int, index: int, prompt: str | None, answers: list[str]
) -> Iterator[Reply]:
    """Yield the question, then a verdict for each answer; or why the question cannot be made or differs from `prompt`."""
    _die_after(ITEM_SECONDS)
    try:
        item = bench.item(number, seed, index)
        if prompt is not None and item.prompt != prompt:
            raise CannotMake("question_differs", f"seed {seed} index {index} is another question here")
    except CannotMake as error:
        yield {"problem": error.problem, "detail": error.detail, "swollen": swollen()}
        return
    full = not answers and swollen()  # looking takes longer than most verdicts
    yield {"prompt": item.prompt, "answer": item.answer, "swollen": full}
    for left in range(len(answers), 0, -1):
        _die_after(JUDGE_SECONDS)
        verdict = bench.judge(number, seed, index, answers[-left])
        full = verdict.problem == "scorer_memory" or (left == 1 and swollen())
        yield {"score": verdict.score, "problem": verdict.problem, "swollen": full}


def _silence(*descriptors: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(nothing, descriptor)
    os.close(nothing)


def _die_after(seconds: float) -> None:
    """Have the system end this process soon after its deadline; 0 cancels. There is no handler, so no Python code has to run."""
    signal.setitimer(signal.ITIMER_REAL, seconds and seconds + GRACE_SECONDS)


def _limit_memory() -> Callable[[], bool]:
    """Limit this process's further allocations; return a function that says whether it keeps too much.

    RLIMIT_DATA counts private writable memory. RLIMIT_AS would also count libraries and reserved address space, which differ
    between machines by more than the limit. Only Linux enforces it for all allocations.
    """
    if sys.platform != "linux":
        return lambda: False
    import resource

    statm = os.open("/proc/self/statm", os.O_RDONLY)

    def in_use() -> int:
        return int(os.pread(statm, 200, 0).split()[5]) * resource.getpagesize()

    loaded = in_use()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = [each for each in (loaded + MEMORY_BYTES, soft, hard) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(wanted), hard))
    return lambda: in_use() > loaded + KEPT_BYTES
