"""Check what a node needs of this machine: libraries, a device, memory, threads, disk and a key."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rl_swarm.config import Config
from rl_swarm.errors import ConfigError, ModelError
from rl_swarm.identity import allowed_keys, load_identity, require_library
from rl_swarm.learning.engine.libraries import NEEDED, fits, installed, name_of, remedy
from rl_swarm.node.local import home_of
from rl_swarm.processes import threads
from rl_swarm.processes.children import python
from rl_swarm.runs.validate import Finding
from rl_swarm.text import counted
from rl_swarm.tools.memory import Device, assess, gb, this_device

IMPORT_SECONDS = 120.0
LITTLE_DISK_BYTES = 1_000_000_000
# Programs that use each library as a node does: transformers and torch can be installed and still not work together. A program may
# print the version that it imported, which may differ from that of the installed package.
LIBRARIES = {
    "torch": "import torch; torch.ones(2).sum().item()",
    "transformers": (
        "import transformers; print(transformers.__version__, flush=True); "
        "from transformers import AutoModelForCausalLM, AutoTokenizer"
    ),
    "reasoning-gym": "import reasoning_gym",
}


def check_libraries(programs: Mapping[str, str] = LIBRARIES, seconds: float = IMPORT_SECONDS) -> list[Finding]:
    """Import each library in another process, all at once: a broken one can raise anything, or kill the process.

    Of the others, which this process may have imported already, only those of a wrong version are reported.
    """
    with ThreadPoolExecutor() as pool:
        tried = list(pool.map(lambda name: _check_library(name, programs[name], seconds), programs))
    others = (each for each in NEEDED if name_of(each) not in programs)
    return tried + [found for each in others if (found := _check_version(name_of(each), installed(name_of(each)))).status != "ok"]


def _check_library(name: str, program: str, seconds: float) -> Finding:
    version, problem = "", f"not done after {seconds:.0f} s"
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(python(program), capture_output=True, text=True, timeout=seconds, check=False)
        version, _, _ = done.stdout.partition("\n")
        problem = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1] if done.returncode else ""
        if done.returncode < 0:
            problem = f"it was killed by {signal.Signals(-done.returncode).name}"
    found = _check_version(name, version or installed(name))
    if problem and found.status == "ok":
        fact = f"{found.detail} cannot be imported ({problem})"
        return Finding(name, "failed", f"{fact}: install it again, or make a new environment")
    return found


def _check_version(name: str, version: str) -> Finding:
    needed = next((each for each in NEEDED if name_of(each) == name), name)
    if not version:
        return Finding(name, "failed", f"is not installed: {remedy([needed])}")
    if not fits(needed, version):
        return Finding(name, "failed", f"{version} does not work here: {remedy([needed])}")
    return Finding(name, "ok", version)


def check_memory(config: Config, workers: int) -> tuple[list[Finding], int | None]:
    """Check the device and its memory; return also the size of a checkpoint, None if the model is not known."""
    device = this_device(config.cpu_only)
    findings = [check_device(device, config.cpu_only)]
    if config.role == "coordinator":
        return [*findings, Finding("memory", "ok", "a coordinator loads no model")], None
    try:
        fit = assess(config, workers, device)
    except (ModelError, ConfigError) as error:
        return [*findings, Finding("model", "failed", str(error))], None
    return [*findings, fit.finding], fit.model.checkpoint_bytes


def check_device(device: Device, cpu_only: bool) -> Finding:
    shown = f"{device.kind}: {device.name}, {gb(device.total_bytes)} of memory, {gb(device.free_bytes)} free"
    if device.kind != "cpu":
        return Finding("device", "ok", shown)
    if cpu_only:
        return Finding("device", "ok", f"{shown}; CPU_ONLY is set")
    if shutil.which("nvidia-smi"):
        remedy = "install a build of torch for CUDA, or set CPU_ONLY=true if you mean the CPU"
        return Finding("device", "warning", f"{shown}; torch does not see the NVIDIA card that seems to be here: {remedy}")
    return Finding("device", "ok", f"{shown}; no GPU, which is enough for nano and slow for models beyond 0.5 B parameters")


def check_threads(environment: Mapping[str, str], workers: int, cores: int | None = None) -> Finding:
    """Compare threads with cores: more threads than cores slow everyone down, several times over."""
    cores = cores or threads.cores()
    right = threads.share(workers, cores)
    said = environment.get("OMP_NUM_THREADS", "").strip()
    if not threads.given(environment):
        return Finding("threads", "ok", f"{right} a process on {counted(cores, 'core')}, which workers share by themselves")
    count = int(said) if said.isdigit() and int(said) else cores
    shown = f"{count} a process on {counted(cores, 'core')}"
    if count * workers <= max(cores, workers):
        return Finding("threads", "ok", shown)
    whose = f"{workers} workers" if workers > 1 else "one worker"
    remedy = f"set OMP_NUM_THREADS={right}, or do not set it: workers share the cores by themselves"
    return Finding("threads", "warning", f"{shown}, {count * workers} for {whose} in all: {remedy}")


def check_home(config: Config, checkpoint_bytes: int | None) -> Finding:
    """Check the folder of spool and checkpoints, or the place where it will be made."""
    try:
        place = home_of(config).absolute()
    except ConfigError as error:
        return Finding("disk", "failed", str(error))
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        return Finding("disk", "failed", f"RL_SWARM_HOME cannot be used, got {config.home!r}: name a folder that can be written")
    return check_disk("disk", str(place), shutil.disk_usage(there).free, checkpoint_bytes)


def check_disk(check: str, place: str, free: int, checkpoint_bytes: int | None) -> Finding:
    """Check that there is room for the two checkpoints that a node keeps, here and in the store."""
    shown = f"{gb(free)} free in {place}"
    if checkpoint_bytes is not None:
        shown += f", a checkpoint takes {gb(checkpoint_bytes)} and two are kept"
        if free < checkpoint_bytes:
            return Finding(check, "failed", f"{shown}: make room, or set LORA_RANK, whose checkpoints are small")
    enough = free >= (LITTLE_DISK_BYTES if checkpoint_bytes is None else 2 * checkpoint_bytes)
    return Finding(check, "ok", shown) if enough else Finding(check, "warning", f"{shown}: make room for checkpoints")


def check_identity(config: Config) -> list[Finding]:
    """Show the public key of this node, which others may want to list; return nothing if nothing is signed."""
    try:
        identity = load_identity(config.identity, Path(config.store) if config.store else None) if config.identity else None
        allowed = allowed_keys(config.allowed_keys) if config.allowed_keys else None
        if config.require_signatures:
            require_library("SWARM_REQUIRE_SIGNATURES")
    except ConfigError as error:
        return [Finding("identity", "failed", str(error))]
    found = [Finding("identity", "ok", f"signs with the public key {identity.public}")] if identity else []
    if identity and allowed and identity.public not in allowed:
        found.append(Finding("identity", "warning", "this key is not in SWARM_ALLOWED_KEYS: peers with the same list refuse it"))
    if (allowed or config.require_signatures) and not identity:
        found.append(Finding("identity", "warning", "asks others for signatures and signs nothing itself: set SWARM_IDENTITY"))
    return found
