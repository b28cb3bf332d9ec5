"""So many workers against a device: a finding for whoever is about to start them, and a table for people.

The finding is `failed` only where cutting batches further would not help either; a CPU's memory can be
lent by other programs, so there it is a warning at most.
"""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from rl_swarm.config import Config
from rl_swarm.errors import ModelError
from rl_swarm.processes.children import python
from rl_swarm.runs.validate import Finding
from rl_swarm.store import open_store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.tools.memory.device import GIGABYTE, Device, this_device
from rl_swarm.tools.memory.estimate import Estimate, Workload, estimate, workload_of
from rl_swarm.tools.memory.shape import Shape, shape_of

APART_SECONDS = 120.0


@dataclass(frozen=True)
class Report:
    """What `workers` workers need. `least` is what remains when batches are cut as far as workers cut them by themselves."""

    shape: Shape
    device: Device
    workers: int
    work: Workload
    estimate: Estimate
    least: Estimate

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": asdict(self.shape) | {"checkpoint_bytes": self.shape.checkpoint_bytes},
            "device": asdict(self.device),
            "workers": self.workers,
            "workload": asdict(self.work),
            "parts": [asdict(part) for part in self.estimate.parts],
            "peak_phase": self.estimate.peak_phase,
            "peak_bytes": self.estimate.peak_bytes,
            "least_bytes": self.least.peak_bytes,
            "total_bytes": self.workers * self.estimate.peak_bytes,
            "finding": asdict(verdict(self)),
        }


def check(model: str, workers: int, config: Config, device: Device | None = None) -> Finding:
    """Whether `workers` workers fit, as a finding; that the model cannot be had is one, too."""
    try:
        return verdict(assess(model, workers, config, device=device))
    except ModelError as error:
        return Finding("memory", "failed", str(error))


def check_apart(environment: Mapping[str, str], workers: int) -> Finding:
    """The same from another process, for a launcher: it lives long, and would hold torch and a CUDA context all the while.

    `environment` is what the workers are started with.
    """
    command = python("from rl_swarm.tools.memory.__main__ import main; main()", str(workers))
    try:
        done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=APART_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Finding("memory", "warning", f"the device was not looked at within {APART_SECONDS:.0f} s: it may be busy")
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Finding("memory", "failed", f"the device cannot be looked at ({reason}): 'rl-swarm doctor' says what is broken")
    return Finding(**json.loads(done.stdout.splitlines()[-1]))


def refuse_if_too_large(environment: Mapping[str, str], config: Config, workers: int) -> list[str]:
    """Warnings for a launcher; raise ModelError if so many workers cannot fit. The embedded model always does."""
    published = experiments.read(open_store(config.store_url), Layout(config.experiment_name), config.founder)
    agreed = {name: value for name, value in published.settings.items() if name != "TASKS"} if published else {}
    settings = {**agreed, **environment}  # the model that the nodes will really take
    if settings.get("MODEL_NAME") == "nano":
        return []
    found = check_apart(settings, workers)
    if found.status == "failed":
        raise ModelError(found.detail)
    return [found.detail] if found.status == "warning" else []


def assess(model: str, workers: int, config: Config, *, device: Device | None = None, prompt_tokens: int | None = None) -> Report:
    """Estimate for one worker and count; raise ModelError where the model cannot be had or not be used as asked."""
    device = device or this_device(config.cpu_only)
    shape = shape_of(model, device, dtype=config.dtype, lora_rank=config.lora_rank, token=config.hub_token, seed=config.seed)
    work = workload_of(config, shape, prompt_tokens)
    usual, least = (estimate(shape, work, device.kind, smallest=smallest) for smallest in (False, True))
    return Report(shape, device, workers, work, usual, least)


def verdict(report: Report) -> Finding:
    each, least, free = report.estimate.peak_bytes, report.least.peak_bytes, report.device.free_bytes
    need = f"{_workers(report)} of {report.shape.name} ({report.shape.dtype}) {'need' if report.workers > 1 else 'needs'} about "
    need += f"{gb(report.workers * each)}, {gb(each)} each" if report.workers > 1 else gb(each)
    have = f"{gb(free)} of memory are free" if report.device.kind == "cpu" else f"{gb(free)} are free on {report.device.name}"
    if report.workers * each <= free:
        return Finding("memory", "ok", f"{need}; {have}")
    if report.device.kind == "cpu":
        return Finding("memory", "warning", f"{need}, and only {have}: {_remedy(report, each)}")
    if report.workers * least <= free:
        slower = f"batches will be cut to what fits, {gb(least)} each at least, which is slower"
        return Finding("memory", "warning", f"{need}, and only {have}: {slower}; better {_remedy(report, each)}")
    return Finding("memory", "failed", f"{need}, at the very least {gb(least)} each, and only {have}: {_remedy(report, least)}")


def _remedy(report: Report, each: int) -> str:
    """What would make it fit, the nearest first."""
    fitting = report.device.free_bytes // each
    ways = [f"--workers {fitting}"] if fitting else []
    if each > report.least.peak_bytes and report.work.held_out and report.estimate.peak_phase == "answering":
        ways.append("EVAL_INTERVAL=0")
    if report.shape.lora:
        ways += ["DTYPE=bfloat16"] if report.shape.value_bytes > 2 and report.device.kind == "cuda" else []
    else:
        ways.append("LORA_RANK=16")
    return ", ".join([*ways, "a lower MAX_NEW_TOKENS"]) + " or a smaller MODEL_NAME"


def _workers(report: Report) -> str:
    return f"{report.workers} workers" if report.workers > 1 else "1 worker"


def gb(size: float) -> str:
    """A size for people, in the decimal gigabytes that cards are sold by."""
    return f"{size / GIGABYTE:.1f} GB" if size >= 0.1 * GIGABYTE else f"{size / 1e6:.0f} MB"


def table(report: Report) -> Group:
    """The parts of one worker, and all workers against the device."""
    shape, count = report.shape, report.workers
    title = f"{shape.name}, {shape.parameters / 1e6:.1f} M parameters in {shape.dtype}, {report.device.name}"
    view = Table("part", "when")
    for heading in ("one worker", _workers(report)) if count > 1 else ("1 worker",):
        view.add_column(heading, justify="right")

    def add(name: str, when: str, size: int) -> None:
        view.add_row(name, when, *([gb(size), gb(count * size)] if count > 1 else [gb(size)]))

    for part in report.estimate.parts:
        add(part.name, ", ".join(part.phases) or "always", part.bytes)
    view.add_section()
    add("at its peak", report.estimate.peak_phase, report.estimate.peak_bytes)
    add("in the smallest batches", report.least.peak_phase, report.least.peak_bytes)
    return Group(Text(title), view)
