"""Copy the record of each round to trackers: TensorBoard, trackio, Weights & Biases. The journals stay the source of truth.

Everything goes below `trackers/` in RL_SWARM_HOME; nothing leaves the machine unless the tracker's own variables ask for it. A
tracker that fails is reported and dropped; the run goes on.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import msgspec

from rl_swarm.errors import ConfigError
from rl_swarm.extras import install_command
from rl_swarm.runs.record import Round

NOT_FIGURES = ("version", "timestamp", "round")
QUIET = {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}


class Tracker(Protocol):
    def record(self, step: int, figures: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def figures(row: Round) -> dict[str, float]:
    """Every number of a record by its name; those of a dictionary as `seconds/train`."""
    found: dict[str, float] = {}
    for name, value in msgspec.to_builtins(row).items():
        inside = {f"{name}/{part}": each for part, each in value.items()} if isinstance(value, dict) else {name: value}
        found |= {key: float(each) for key, each in inside.items() if isinstance(each, int | float)}
    return {name: value for name, value in found.items() if name not in NOT_FIGURES}


class TensorBoard:
    def __init__(self, folder: Path, experiment: str, node_id: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / experiment / node_id))

    def record(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Trackio:
    def __init__(self, folder: Path, experiment: str, node_id: str) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(folder))  # read when the library is imported
        import trackio

        self._run = trackio.init(
            project=experiment, name=node_id, resume="allow", embed=False, auto_log_cpu=False, auto_log_gpu=False
        )

    def record(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        self._run.finish()


class WandB:
    def __init__(self, folder: Path, experiment: str, node_id: str) -> None:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        import wandb

        self._run = wandb.init(project=experiment, name=node_id, group=experiment, dir=str(folder), reinit="create_new")

    def record(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        self._run.finish()


KINDS: dict[str, Callable[[Path, str, str], Tracker]] = {"tensorboard": TensorBoard, "trackio": Trackio, "wandb": WandB}


def require_trackers(names: Sequence[str]) -> None:
    """Raise ConfigError with the command that installs what is missing."""
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(f"TRACK asks for {name}, which is not installed: {install_command(name)}, or leave it out")


class Trackers:
    """The trackers of one node. Each is opened with the first record, since their libraries take long to import."""

    def __init__(self, names: Sequence[str], folder: Path, experiment: str, node_id: str, say: Callable[[str], None]) -> None:
        self.folder, self.experiment, self.node_id, self.say = folder, experiment, node_id, say
        self._names = list(names)
        self._opened: dict[str, Tracker] = {}

    def record(self, row: Round) -> None:
        for name in list(self._names):
            self._attempt(name, lambda name=name: self._open(name).record(row.round, figures(row)))  # type: ignore[misc]

    def close(self) -> None:
        for name, tracker in self._opened.items():
            self._attempt(name, tracker.close)
        self._opened, self._names = {}, []

    def _open(self, name: str) -> Tracker:
        if name not in self._opened:
            place = self.folder / name
            place.mkdir(parents=True, exist_ok=True)
            self._opened[name] = KINDS[name](place, self.experiment, self.node_id)
            self.say(f"{name} gets the figures of every round, below {place}")
        return self._opened[name]

    def _attempt(self, name: str, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:  # a third-party library can fail in any way, and must not end the run
            self._names = [each for each in self._names if each != name]
            self.say(f"{name} gets no more figures ({type(error).__name__}: {error}): the journals have them")
