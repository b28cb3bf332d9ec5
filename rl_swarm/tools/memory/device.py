"""Where workers compute and how much memory is there: asked of the hardware, or assumed for a machine that is not here."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

GIGABYTE = 1e9


@dataclass(frozen=True)
class Device:
    """`assumed` if it was only described and need not be here."""

    kind: str
    name: str
    total_bytes: int
    free_bytes: int
    assumed: bool = False


def this_device(cpu_only: bool = False) -> Device:
    """The device that a worker would choose here. On CUDA this opens a context, which stays as long as the process."""
    import torch

    from rl_swarm.learning.models import choose_device

    kind = choose_device(cpu_only)
    if kind == "cuda":
        free, total = torch.cuda.mem_get_info()
        return Device(kind, torch.cuda.get_device_name(), total, free)
    if kind == "mps":
        total = torch.mps.recommended_max_memory()
        return Device(kind, f"the GPU of this {platform.machine()} Mac", total, total)
    return Device(kind, f"{os.cpu_count()} cores, {platform.machine()}", *host_memory())


def assumed_gpu(gigabytes: float) -> Device:
    """A CUDA device with so much memory, all of it free, that computes in bfloat16."""
    size = int(gigabytes * GIGABYTE)
    return Device("cuda", f"a GPU of {gigabytes:g} GB", size, size, assumed=True)


def host_memory() -> tuple[int, int]:
    """Memory of this machine and what of it is available, within a container's limit; all of it where the system does not say."""
    total = free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        free = next(int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:")
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text().strip() for name in ("max", "current"))
    except (OSError, StopIteration):  # no Linux, or no container
        return total, free
    return (min(total, int(limit)), min(free, int(limit) - int(used))) if limit.isdigit() else (total, free)
