"""Choose device, number format, threads and default model by what this machine can really do.

Asks the hardware and refuses what would crash later. Downloads nothing. Torch is imported where it is used, so that naming a
model stays cheap.
"""

import ctypes
import functools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from rl_swarm.clock import Clock
from rl_swarm.errors import ModelError
from rl_swarm.processes import threads
from rl_swarm.processes.children import python

if TYPE_CHECKING:
    import torch

# The pools from which the original peer-to-peer system took its models.
LARGE_POOL = ("Gensyn/Qwen2.5-1.5B-Instruct", "nvidia/AceInstruct-1.5B", "dnotitia/Smoothie-Qwen3-1.7B")
SMALL_POOL = ("Gensyn/Qwen2.5-0.5B-Instruct", "Qwen/Qwen3-0.6B")
LARGE_FROM_GB = 40.0

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's names and numbers
MOST_BYTES = 2**31 - 1  # that glibc takes as a threshold

EMPTIER_SECONDS = 60.0  # with fewer workers, before the others take their cores
PROBE_SECONDS = 120
# Large enough for the kernels that real layers use: tiny products take another path and prove nothing.
_PROBE = """
import torch
layer = torch.nn.Linear(256, 256, dtype=torch.{dtype})
layer(torch.ones(64, 256, dtype=torch.{dtype})).sum().backward()
assert layer.weight.grad.isfinite().all()
"""


def choose_device(cpu_only: bool = False) -> str:
    """`cuda`, `mps` or `cpu`, the first that this machine has; `cpu` if asked for."""
    import torch

    if cpu_only:
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def choose_dtype(device: str, wanted: str = "auto") -> "torch.dtype":
    """The number format of the weights. Raise ModelError for a format that the processor cannot compute with.

    `auto` is bfloat16 on a CUDA device that computes with it, else float32. Any other format is first tried in another process on
    a CPU: some processors announce instructions that then kill the program.
    """
    import torch

    if wanted == "auto":
        native = device.startswith("cuda") and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float32
    if device == "cpu" and wanted != "float32" and (failure := probe_dtype(wanted)):
        raise ModelError(f"DTYPE={wanted} does not work on this CPU ({failure}): use float32")
    return getattr(torch, wanted)


@functools.cache
def probe_dtype(dtype: str) -> str | None:
    """Compute with this format on the CPU in another process. Return the failure, or None."""
    command = python(_PROBE.format(dtype=dtype))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no result within {PROBE_SECONDS} seconds"
    if done.returncode < 0:
        return f"a trial run was killed by {signal.Signals(-done.returncode).name}"
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1] if done.returncode else None


def keep_freed_memory() -> None:
    """Let this process reuse freed memory instead of returning it: asking again for every tensor costs a sixth of an update.

    Peak memory stays the same. Only glibc has this option; elsewhere nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MOST_BYTES)
        mallopt(M_TRIM_THRESHOLD, MOST_BYTES)


class SharedCores:
    """Keep the threads of this process at its share of the cores while `workers`, counted on this machine, come and go.

    The number falls at once. It rises after a minute with fewer workers: one that restarts comes back soon. A number that the user
    has chosen stays.
    """

    def __init__(self, workers: Callable[[], int], clock: Clock, say: Callable[[str], None]) -> None:
        self._workers, self._clock, self._say = workers, clock, say
        self._fewer_since: float | None = None

    def begin(self) -> None:
        import torch

        if not threads.given(os.environ):
            torch.set_num_threads(threads.share(self._workers()))

    def changed(self) -> bool:
        """Adapt the number of threads. Call it between two rounds, and save after a change: sums differ in their last bits."""
        import torch

        if threads.given(os.environ):
            return False
        workers, used, now = self._workers(), torch.get_num_threads(), self._clock.monotonic()
        share = threads.share(workers)
        if share <= used:
            self._fewer_since = None
        elif self._fewer_since is None:
            self._fewer_since = now
        if share == used or (self._fewer_since is not None and now < self._fewer_since + EMPTIER_SECONDS):
            return False
        torch.set_num_threads(share)
        self._say(f"threads: {share} instead of {used}; workers on the {threads.cores()} cores of this machine: {workers}")
        return True


def resume_threads(saved: int, say: Callable[[str], None]) -> None:
    """Compute with as many threads as a restored checkpoint did, so that it continues to the bit. The user's own number wins."""
    import torch

    now = torch.get_num_threads()
    if not threads.given(os.environ) and saved <= threads.cores():
        torch.set_num_threads(saved)
    elif saved != now:
        say(f"threads: {now}, until this checkpoint {saved}: sums may differ in their last bits")


def device_memory_gb(device: str) -> float:
    """Memory of the accelerator; 0 for the CPU, whose memory does not tell how large a model it can train."""
    import torch

    if device.startswith("cuda"):
        return torch.cuda.get_device_properties(device).total_memory / 1e9
    return torch.mps.recommended_max_memory() / 1e9 if device == "mps" else 0.0


def choose_model(memory_gb: float, seed: int = 0) -> str:
    """Choose the model for `MODEL_NAME=auto`: from the large pool with 40 GB of device memory or more, else from the small one.

    The seed draws the model of the pool, so that nodes of a swarm differ and a restarted node gets the same one again.
    """
    pool = LARGE_POOL if memory_gb >= LARGE_FROM_GB else SMALL_POOL
    return random.Random(f"model {seed}").choice(pool)
