"""What a node needs of this machine: Python, libraries, a device, threads, memory, disk, and settings that mean something."""

import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from rl_swarm import __version__
from rl_swarm.config import Config
from rl_swarm.errors import ConfigError, ModelError
from rl_swarm.identity import allowed_keys, load_identity, require_library
from rl_swarm.learning.engine.libraries import WANTED, usable_transformers
from rl_swarm.node.local import home_of
from rl_swarm.processes.children import python
from rl_swarm.runs.validate import Finding
from rl_swarm.tools.memory import Device, assess, gb, this_device

OLDEST_PYTHON = (3, 10)
IMPORT_SECONDS = 120.0
LITTLE_DISK_BYTES = 1_000_000_000
# What a node imports of each library, as a program: transformers and torch can be there and yet not fit together. A program may
# print the version that it really got, which counts more than what is written down about the installation.
LIBRARIES = {
    "torch": "import torch; torch.ones(2).sum().item()",
    "transformers": (
        "import transformers; print(transformers.__version__, flush=True); "
        "from transformers import AutoModelForCausalLM, AutoTokenizer"
    ),
    "reasoning-gym": "import reasoning_gym",
}


def check_python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    where = f"{version}, {sys.executable}; rl-swarm {__version__}"
    if sys.version_info < OLDEST_PYTHON:
        return Finding("python", "failed", f"{where}: install Python 3.10 or newer")
    return Finding("python", "ok", where)


def check_libraries(programs: Mapping[str, str] = LIBRARIES, seconds: float = IMPORT_SECONDS) -> list[Finding]:
    """Import each library in a process of its own, all at once: a broken one can raise anything, or kill the process."""
    running = {
        name: subprocess.Popen(python(program), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for name, program in programs.items()
    }
    return [_imported(name, process, seconds) for name, process in running.items()]


def _imported(name: str, process: "subprocess.Popen[str]", seconds: float) -> Finding:
    printed, problem = _outcome(process, seconds)
    try:
        version = printed or importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "failed", f"is not installed: run 'pip install {name}' with {sys.executable}, or make setup")
    if name == "transformers" and printed and not usable_transformers(printed):
        return Finding(
            name, "failed", f"{version} does not work here: run pip install '{WANTED}' with {sys.executable}, or make setup"
        )
    if problem:
        return Finding(name, "failed", f"{version} cannot be imported ({problem}): install it again, or make a new environment")
    return Finding(name, "ok", version)


def _outcome(process: "subprocess.Popen[str]", seconds: float) -> tuple[str, str | None]:
    """The first line that a program printed, and its problem if it had one."""
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "", f"not done after {seconds:.0f} s"
    printed = (out.splitlines() or [""])[0]
    if process.returncode < 0:
        return printed, f"it was killed by {signal.Signals(-process.returncode).name}"
    if process.returncode:
        return printed, (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    return printed, None


def check_memory(config: Config, workers: int) -> tuple[list[Finding], int | None]:
    """Device, and memory against the model; with them the size of a checkpoint, None where the model cannot be had."""
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
        remedy = "install a build of torch for CUDA, or set CPU_ONLY=true to mean it"
        return Finding("device", "warning", f"{shown}; there seems to be an NVIDIA card that torch does not see: {remedy}")
    return Finding("device", "ok", f"{shown}; no GPU, which is enough for nano and slow for models beyond 0.5 B parameters")


def check_threads(environment: Mapping[str, str], workers: int, cores: int | None = None) -> Finding:
    """More threads than cores make everyone slow, several times over; the launcher shares them out by itself."""
    cores = cores or os.cpu_count() or 1
    right = max(1, cores // workers)
    said = environment.get("OMP_NUM_THREADS", "").strip()
    threads = int(said) if said.isdigit() and int(said) else cores
    shown = f"{threads} a process on {cores} cores" + ("" if said else " (OMP_NUM_THREADS is not set)")
    if threads * workers <= max(cores, workers):
        return Finding("threads", "ok", shown)
    count = f"{workers} workers" if workers > 1 else "one worker"
    remedy = f"set OMP_NUM_THREADS={right}" + (", or start them with 'rl-swarm swarm', which does" if workers > 1 else "")
    return Finding("threads", "warning", f"{shown}, {threads * workers} for {count} in all: {remedy}")


def check_home(config: Config, checkpoint_bytes: int | None) -> Finding:
    """The folder of spool and checkpoints, or where it will be made."""
    try:
        place = home_of(config).absolute()
    except ConfigError as error:
        return Finding("disk", "failed", str(error))
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        return Finding("disk", "failed", f"RL_SWARM_HOME cannot be used, got {config.home!r}: name a folder that can be written")
    return check_disk("disk", str(place), shutil.disk_usage(there).free, checkpoint_bytes)


def check_disk(check: str, place: str, free: int, checkpoint_bytes: int | None) -> Finding:
    """Two checkpoints of a node are kept, here and in the store."""
    shown = f"{gb(free)} free in {place}"
    if checkpoint_bytes is None:
        enough = free >= LITTLE_DISK_BYTES
        return Finding(check, "ok" if enough else "warning", shown if enough else f"{shown}: make room for checkpoints")
    shown += f", a checkpoint takes {gb(checkpoint_bytes)} and two are kept"
    if free < checkpoint_bytes:
        return Finding(check, "failed", f"{shown}: make room, or set LORA_RANK, whose checkpoints are small")
    return Finding(check, "warning", f"{shown}: make room") if free < 2 * checkpoint_bytes else Finding(check, "ok", shown)


def check_identity(config: Config) -> list[Finding]:
    """The public key of this node, for whoever keeps a list of them; nothing where nothing is signed."""
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
        found.append(Finding("identity", "warning", "wants signatures of others and signs nothing itself: set SWARM_IDENTITY"))
    return found


def check_settings(config: Config) -> list[Finding]:
    if not config.warnings:
        return [Finding("settings", "ok", "nothing that is set is unknown ('rl-swarm config' prints them all)")]
    return [Finding("settings", "warning", warning) for warning in config.warnings]
