"""A node's folder on its own disk: its name, lock, secret, spool and checkpoints, and bad files set aside.

The folder is tied to the experiment's id, not only to its name: an experiment that was deleted and made again starts from nothing.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rl_swarm.config import Config
from rl_swarm.errors import ConfigError
from rl_swarm.processes.stopping import LAUNCHER_SECONDS, LOOK_SECONDS
from rl_swarm.swarm.experiment import Experiment
from rl_swarm.values import expanded

POLL_SECONDS = 0.2
NOTICE_SECONDS = 3 * LOOK_SECONDS  # in which a node notices that its launcher died, and marks itself as stopping
STOPPING = "stopping"
MODEL_FILE, TASK_FILES_FILE = "model", "task_files"


@dataclass(frozen=True)
class LocalFolder:
    """The folder of one node, locked while this process lives. A node alone keeps its record in its store, which nodes share."""

    node_id: str
    path: Path
    lock: IO[str]
    shared_record: Path | None = None

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def record(self) -> Path:
        """The root of the keys under which this node writes its journals."""
        return self.shared_record or record_of(self.path)

    @property
    def secret(self) -> str:
        """A random text, made once and never published."""
        path = self.path / "secret"
        if not path.exists():
            path.write_text(secrets.token_hex(16))
        return path.read_text()

    def remember_model(self, name: str) -> None:
        """Keep the model's name for later questions to it: the store is not trusted, and `auto` stands for several models."""
        with contextlib.suppress(OSError):  # a node on a full disk does without it
            (self.path / MODEL_FILE).write_text(name, "utf-8", "surrogateescape")

    def remember_task_files(self, paths: Sequence[str]) -> None:
        """Keep where the task files are that this user named: later commands find them there, by their hash."""
        if paths:
            with contextlib.suppress(OSError):
                (self.path / TASK_FILES_FILE).write_text(",".join(paths), "utf-8", "surrogateescape")

    def mark_stopping(self) -> None:
        """Mark in the lock file that the folder will be free soon. Safe in a signal handler."""
        with contextlib.suppress(OSError):  # on a full disk the next start prints a less helpful line
            os.write(self.lock.fileno(), f" {STOPPING}".encode())


@dataclass(frozen=True)
class Holder:
    """The process that holds a node's folder, according to the lock file; `stopping` once it is asked to stop or is done."""

    node_id: str
    pid: int | None
    stopping: bool

    @property
    def shown(self) -> str:
        return "another process" if self.pid is None else f"process {self.pid}"


def experiment_folder(config: Config, experiment: Experiment) -> Path:
    """The folder of an experiment, named by its id and its founder's key: a stranger may copy name and id."""
    known = hashlib.sha256(f"{experiment.experiment_id} {experiment.key or ''}".encode()).hexdigest()
    return home_of(config) / f"{experiment.experiment}-{known[:16]}"


def insist_on_first_founder(config: Config, store_url: str, experiment: Experiment, own_key: str | None = None) -> None:
    """Remember who signed an experiment in a store; raise ConfigError if later somebody else did, or nobody.

    Does not apply if SWARM_FOUNDER names the founder, or if this node is the founder.
    """
    name = hashlib.sha256(f"{store_url} {experiment.experiment}".encode()).hexdigest()[:32]
    path = home_of(config) / "founders" / name
    with contextlib.suppress(OSError):  # a home that cannot be used is reported when it is needed
        first = path.read_text() if path.exists() else None
        if first and experiment.key not in (first, own_key or first) and config.founder is None:
            whose = f"signed with {experiment.key}" if experiment.key else "not signed"
            raise ConfigError(
                f"the experiment {experiment.experiment!r} in {store_url} is {whose}, but was signed with {first} when this "
                f"machine took part before: somebody replaced it. If that is fine, set SWARM_FOUNDER to its key, or delete {path}"
            )
        if experiment.key and experiment.key != first:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(experiment.key)


def record_of(folder: Path) -> Path:
    """Where the node of this folder keeps its record, if it has a store to share."""
    return folder / "record"


def home_of(config: Config) -> Path:
    return expanded(config.home, "RL_SWARM_HOME")


def remembered_model(folder: Path) -> str | None:
    """The model that the node of this folder trained last."""
    return _remembered(folder / MODEL_FILE)


def remembered_task_files(folder: Path) -> str | None:
    """The task files of the node of this folder, as TASK_FILES names them."""
    return _remembered(folder / TASK_FILES_FILE)


def _remembered(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "surrogateescape")
    except OSError:
        return None


def claim(config: Config, experiment: Experiment, say: Callable[[str], None] = lambda line: None) -> LocalFolder:
    """Lock the folder of NODE_ID, or without NODE_ID that of this machine's first node that is not running.

    Wait for a node of that name that is still stopping, and `say` so.
    """
    root = experiment_folder(config, experiment)
    record = Path(config.store_url) if config.store is None else None
    make_private(root)
    if config.node_id is not None:
        folder = root / config.node_id
        while (lock := _lock(folder, config.role)) is None:
            wait_until_free([folder], say)
        return LocalFolder(config.node_id, folder, lock, record)
    made_here = sorted(path.name for path in root.glob(f"{config.role}-*") if (path / "made_here").exists())
    for node_id in [*made_here, f"{config.role}-{secrets.token_hex(3)}"]:
        lock = _lock(root / node_id, config.role)
        if lock:
            (root / node_id / "made_here").touch()
            return LocalFolder(node_id, root / node_id, lock, record)
    raise AssertionError("a new name is always free")


def make_private(folder: Path) -> None:
    """Make a folder below RL_SWARM_HOME."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"RL_SWARM_HOME cannot be used, {str(folder)!r} cannot be made ({error.strerror}): name a folder that can be written"
        ) from None


def name_in_use(holder: Holder) -> str:
    stop = f"stop it with 'kill {holder.pid}'" if holder.pid else "stop it"
    return f"NODE_ID {holder.node_id!r} is already running on this machine as {holder.shown}: {stop}, or choose another NODE_ID"


def wait_until_free(folders: Sequence[Path], say: Callable[[str], None], refusal: Callable[[Holder], str] = name_in_use) -> None:
    """Wait for stopping nodes to end; raise ConfigError, with this `refusal`, for one that keeps running, or does not end in time.

    A node whose launcher was killed gets a moment to notice it.
    """
    began, told = time.monotonic(), set[str]()
    while holders := [holder for folder in folders if (holder := holder_of(folder))]:
        waited = time.monotonic() - began
        running = [holder for holder in holders if not holder.stopping]
        if running and waited >= NOTICE_SECONDS:
            raise ConfigError(refusal(running[0]))
        if waited >= LAUNCHER_SECONDS:
            raise ConfigError(
                f"NODE_ID {holders[0].node_id!r} has not stopped in {waited:.0f} s as {holders[0].shown}: "
                f"end it with 'kill -9 {holders[0].pid}'; its last checkpoint counts"
            )
        for holder in holders:
            if holder.stopping and holder.node_id not in told:
                told.add(holder.node_id)
                say(f"{holder.node_id} is still stopping as {holder.shown}: waiting for it, at most {LAUNCHER_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)


def holder_of(folder: Path) -> Holder | None:
    """The process that holds a node's folder now, or None."""
    try:
        with open(folder / "lock", "r+") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                pid, *words = handle.read().split() or [""]
                return Holder(folder.name, int(pid) if pid.isdecimal() else None, STOPPING in words)
    except FileNotFoundError:
        return None
    return None


def workers_here(config: Config) -> int:
    """Count the workers that run on this machine with the same RL_SWARM_HOME, whatever their experiments."""
    return sum(map(_is_running_worker, home_of(config).glob("*/*/lock")))


def _is_running_worker(lock: Path) -> bool:
    """Whether a worker holds this lock. Tries it only if the process lives: who claims a free one must find it free."""
    try:
        pid, *words = lock.read_text().split()
        os.kill(int(pid), 0)
    except (OSError, ValueError):
        return False
    return "worker" in words and holder_of(lock.parent) is not None


def _lock(folder: Path, role: str) -> IO[str] | None:
    folder.mkdir(parents=True, exist_ok=True)
    handle = open(folder / "lock", "a+")  # noqa: SIM115 – held for as long as the node lives
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        return None
    with contextlib.suppress(OSError):
        handle.truncate(0)
        handle.write(f"{os.getpid()} {role}")
        handle.flush()
    return handle
