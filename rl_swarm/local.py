"""What a node keeps on its own disk: its name, a lock, a secret, its spool, its checkpoints and bad files set aside.

The folder is tied to the experiment's id, not only to its name: an experiment that was deleted and begun again under the same
name starts from nothing.
"""

import contextlib
import fcntl
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rl_swarm.config import Config
from rl_swarm.errors import ConfigError
from rl_swarm.swarm.experiment import Experiment

MODEL_FILE = "model"


@dataclass(frozen=True)
class LocalFolder:
    """The folder of one node, locked for as long as this process lives."""

    node_id: str
    path: Path
    lock: IO[str]

    @property
    def spool(self) -> Path:
        return self.path / "spool"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def fetched(self) -> Path:
        """Checkpoints that were brought from the store; beside the node's own ones, never among them."""
        return self.path / "fetched"

    @property
    def quarantine(self) -> Path:
        return self.path / "quarantine"

    @property
    def secret(self) -> str:
        """Random, made once and told to nobody."""
        path = self.path / "secret"
        if not path.exists():
            path.write_text(secrets.token_hex(16))
        return path.read_text()

    def remember_model(self, name: str) -> None:
        """For whoever asks the model later: the store may say anything about it, and `auto` stands for several."""
        with contextlib.suppress(OSError):  # a full disk may do without
            (self.path / MODEL_FILE).write_text(name, "utf-8", "surrogateescape")

    @property
    def keys(self) -> Path:
        """The keys that peers' names belong to, as this node has seen them first."""
        return self.path / "keys"


def experiment_folder(config: Config, experiment: Experiment) -> Path:
    return Path(config.home).expanduser() / f"{experiment.experiment}-{experiment.experiment_id[:8]}"


def remembered_model(folder: Path) -> str | None:
    """The model that the node of this folder has trained last."""
    try:
        return (folder / MODEL_FILE).read_text("utf-8", "surrogateescape")
    except OSError:
        return None


def claim(config: Config, experiment: Experiment) -> LocalFolder:
    """Take the named node's folder, or without a name the first of this machine's own nodes that is not running."""
    root = experiment_folder(config, experiment)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"RL_SWARM_HOME cannot be used, got {config.home!r} ({error.strerror}): name a folder that can be written"
        ) from None
    if config.node_id is not None:
        lock = _lock(root / config.node_id)
        if lock is None:
            raise ConfigError(f"NODE_ID {config.node_id!r} is already running on this machine: stop it or choose another NODE_ID")
        return LocalFolder(config.node_id, root / config.node_id, lock)
    made_here = sorted(path.name for path in root.glob(f"{config.role}-*") if (path / "made_here").exists())
    for node_id in [*made_here, f"{config.role}-{secrets.token_hex(3)}"]:
        lock = _lock(root / node_id)
        if lock:
            (root / node_id / "made_here").touch()
            return LocalFolder(node_id, root / node_id, lock)
    raise AssertionError("a new name is always free")


def _lock(folder: Path) -> IO[str] | None:
    folder.mkdir(parents=True, exist_ok=True)
    handle = open(folder / "lock", "a+")  # noqa: SIM115 – held for as long as the node lives
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        return None
    with contextlib.suppress(OSError):
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
    return handle
