"""Real processes on a store that an attacker can write to, and everything around the store that must not change.

An arena is a folder of its own: the store, a private folder and a home for each user, a folder for temporary files, and `outside`,
which holds what an attacker would like to read or change. Every process has a limit on memory and on the size of a file, so that an
attack that works fails a test and not the machine.
"""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.redteam.users import Unavailable, User
from tests.support.processes import LocalSwarm, descendants

TRACEBACK = "Traceback (most recent call last)"
SECRET = "no-peer-may-read-this"
MOST_DATA_BYTES = 6 << 30
MOST_FILE_BYTES = 256 << 20
MOUNT_SECONDS = 10.0
LOOK_SECONDS = 0.05

# A real node that is as small as it can be.
NANO: dict[str, Any] = {
    "MODEL_NAME": "nano",
    "CPU_ONLY": "true",
    "TASKS": "easy",
    "NUM_TRAIN_SAMPLES": 2,
    "NUM_GENERATIONS": 4,
    "MAX_NEW_TOKENS": 8,
    "EVAL_INTERVAL": 0,
    "CHECKPOINT_INTERVAL": 1,
    "COORDINATOR_ROUND_INTERVAL": 2,
}


@dataclass(frozen=True)
class Canary:
    """A file outside the store whose bytes, mode and modification time must not change."""

    path: Path
    content: bytes
    mode: int
    modified: int

    @classmethod
    def plant(cls, path: Path, content: str, mode: int = 0o600) -> "Canary":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(mode)
        return cls(path, content.encode(), mode, path.stat().st_mtime_ns)

    def harm(self) -> str:
        """Say what was done to it, or return an empty text."""
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return f"{self.path.name} was removed"
        if not stat.S_ISREG(found.st_mode) or stat.S_IMODE(found.st_mode) != self.mode:
            return f"{self.path.name} has mode {found.st_mode:o}"
        content = self.path.read_bytes()
        if content != self.content:
            return f"{self.path.name} now reads {content[:2000]!r}"
        return "" if found.st_mtime_ns == self.modified else f"{self.path.name} was written to"


@dataclass(frozen=True)
class Done:
    """A command that has ended; `code` is None if it had to be killed."""

    code: int | None
    out: str
    err: str
    seconds: float
    peak_mb: float

    @property
    def output(self) -> str:
        return self.out + self.err


class Mount:
    """A FUSE mount of one folder on another that refuses to rename, as a Drive mount in effect does."""

    def __init__(self, source: Path, point: Path) -> None:
        for folder in (source, point):
            folder.mkdir(parents=True, exist_ok=True)
        self.source, self.point = source, point
        command = ["bindfs", "-f", "--no-allow-other", "--rename-deny", str(source), str(point)]
        try:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        except FileNotFoundError:
            raise Unavailable("bindfs is not installed: apt-get install bindfs") from None
        deadline = time.monotonic() + MOUNT_SECONDS
        while not point.is_mount():
            if self.process.poll() is not None or time.monotonic() >= deadline:
                self.process.kill()
                raise Unavailable(f"bindfs cannot mount here: {self.process.communicate()[1].strip() or 'it did not say why'}")
            time.sleep(LOOK_SECONDS)

    def freeze(self) -> None:
        """Make every call into the mount hang from now on."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.thaw()
        subprocess.run(["umount", "--lazy", str(self.point)], check=False, capture_output=True)
        self.process.kill()
        self.process.communicate()


class Arena(LocalSwarm):
    """A store under attack. `folder` is what nodes are given, `backing` is where the attacker writes."""

    def __init__(
        self, base: Path, folder: Path | None = None, *, mount: Mount | None = None, users: tuple[User, ...] = (), **settings: Any
    ) -> None:
        super().__init__(base, folder, **settings)
        self.base = base
        self.mount = mount
        self.users = users
        self.backing = mount.source if mount and mount.point == self.folder else self.folder
        self.orphans: set[int] = set()
        self.cwd, self.temporary, self.outside = base / "cwd", base / "tmp", base / "outside"
        for path in (
            self.cwd,
            self.temporary,
            self.outside,
            *map(self.home, users or (None,)),
            *map(self.user_home, users or (None,)),
        ):
            path.mkdir(parents=True, exist_ok=True)
        self.temporary.chmod(0o1777)
        self.key = Canary.plant(self.outside / "id_ed25519", f"PRIVATE KEY {SECRET}\n")
        self.startup = Canary.plant(self.user_home(self.victim) / ".bashrc", "# read by every shell\n", 0o644)
        self.precious = Canary.plant(self.outside / "precious.json", '{"years": "of work"}\n')
        self._own_places()
        self.settle()

    # Who is who

    @property
    def victim(self) -> User | None:
        return self.users[0] if self.users else None

    @property
    def attacker(self) -> User | None:
        return self.users[-1] if self.users else None

    def home(self, user: User | None = None) -> Path:
        """RL_SWARM_HOME, two levels down, so that a path that climbs out of it still ends in this arena."""
        return self.base / "deep" / "down" / f"home{'-' + user.name if user else ''}"

    def user_home(self, user: User | None = None) -> Path:
        return self.base / f"user{'-' + user.name if user else ''}"

    def _own_places(self) -> None:
        """Give each user what belongs to them; what the attacker is after belongs to the victim."""
        for user in self.users:
            for path in (self.home(user), self.user_home(user)):
                os.chown(path, user.uid, user.gid)
        if self.victim:
            for path in (self.outside, self.cwd, *(canary.path for canary in self.canaries)):
                os.chown(path, self.victim.uid, self.victim.gid)

    # Attacks

    @property
    def canaries(self) -> tuple[Canary, ...]:
        return (self.key, self.startup, self.precious)

    @property
    def marker(self) -> Path:
        """A file that the attacker's code makes when it is run."""
        return self.temporary / "executed"

    def refuge(self, name: str) -> Path:
        """An empty folder outside the store, into which the attacker would like files to be written."""
        path = self.outside / name
        path.mkdir()
        if self.victim:
            os.chown(path, self.victim.uid, self.victim.gid)
        self.settle()
        return path

    def settle(self) -> None:
        """Take the current files outside the store as the expected ones."""
        self._before = self._names()

    def plant(self, attack: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Run an attack on the store, as the attacker's user if there are several users."""
        result = attack(self.backing, *arguments, **options)
        if self.attacker:
            for folder, folders, files in os.walk(self.folder):
                for name in (*folders, *files):
                    self._hand_over(Path(folder, name), self.attacker)
        return result

    def _hand_over(self, path: Path, user: User) -> None:
        found = path.lstat()
        if found.st_uid == 0:
            os.chown(path, user.uid, user.shared, follow_symlinks=False)
            if stat.S_ISDIR(found.st_mode):
                path.chmod(0o2775)

    # Processes

    def start(self, node_id: str, role: str = "worker", user: User | None = None, **settings: Any) -> subprocess.Popen[bytes]:
        """Start a stand-in node."""
        user = user or self.victim
        given = {"NODE_ID": node_id, "NODE_ROLE": role} | {name: str(value) for name, value in settings.items()}
        environment = self.environment | self._places(user) | given
        return self.spawn(node_id, [sys.executable, "-m", *self.program], environment, user=user)

    def launch(self, name: str, *arguments: str, user: User | None = None, **settings: Any) -> subprocess.Popen[bytes]:
        """Start a command of rl-swarm and leave it running; `name` is that of its console."""
        user = user or self.victim
        return self.spawn(name, [sys.executable, "-m", "rl_swarm.cli", *arguments], self.settings(user, **settings), user=user)

    def run(
        self,
        *arguments: str | bytes,
        seconds: float = 60.0,
        user: User | None = None,
        cwd: Path | None = None,
        watch: Callable[[], None] = lambda: None,
        **settings: Any,
    ) -> Done:
        """Run a command of rl-swarm to its end, or kill it after so many seconds; `watch` is called all the while."""
        return self.run_program([sys.executable, "-m", "rl_swarm.cli", *arguments], seconds, user, cwd, watch, **settings)

    def run_program(
        self,
        command: list[str | bytes],
        seconds: float = 60.0,
        user: User | None = None,
        cwd: Path | None = None,
        watch: Callable[[], None] = lambda: None,
        **settings: Any,
    ) -> Done:
        name, user = f"command-{len(self.processes)}", user or self.victim
        out, err = (self.base / f"{name}.{each}" for each in ("out", "err"))
        began = time.monotonic()
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = self.spawn(
                name, command, self.settings(user, **settings), user=user, cwd=cwd or self.cwd, stdout=stdout, stderr=stderr
            )
        code, peak_mb = self._watched(process, began + seconds, watch)
        return Done(code, out.read_text(errors="replace"), err.read_text(errors="replace"), time.monotonic() - began, peak_mb)

    def spawn(self, name: str, command: Any, environment: Any, user: User | None = None, **options: Any) -> subprocess.Popen[bytes]:
        user = user or self.victim
        options = {"cwd": self.cwd, "umask": 0o022, "stdin": subprocess.DEVNULL} | options
        if user:
            command = user.command(command, options.pop("cwd"))
        limits = ["prlimit", f"--data={MOST_DATA_BYTES}:", f"--fsize={MOST_FILE_BYTES}:"]
        return super().spawn(name, [*limits, *command], environment, **options)

    def settings(self, user: User | None = None, **settings: Any) -> dict[str, str]:
        """The environment of a command, without the stand-in's model; None takes a variable out."""
        chosen = {**self.environment, **self._places(user), "OMP_NUM_THREADS": "1", "MODEL_NAME": None, **settings}
        return {name: str(value) for name, value in chosen.items() if value is not None}

    def _places(self, user: User | None) -> dict[str, str]:
        temporary = str(self.temporary)
        return {
            "RL_SWARM_HOME": str(self.home(user)),
            "HOME": str(self.user_home(user)),
            "PYTHONUNBUFFERED": "1",  # what a killed process said is of interest, too
            **dict.fromkeys(("TMPDIR", "HF_HOME", "MPLCONFIGDIR", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR"), temporary),
        }

    def _watched(self, process: subprocess.Popen[bytes], deadline: float, watch: Callable[[], None]) -> tuple[int | None, float]:
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, peak_mb(process.pid))
            watch()
            if time.monotonic() >= deadline:
                self.end(process)
                return None, peak
            time.sleep(LOOK_SECONDS)
        return process.returncode, peak

    def finish(self, process: subprocess.Popen[bytes], seconds: float = 40.0) -> int | None:
        """Return the exit code of a process, or None if it had to be killed after so many seconds."""
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.end(process)
            return None

    def stop(self, process: subprocess.Popen[bytes], seconds: float = 20.0) -> int | None:
        """Ask a process to stop; return its exit code, or None if it ran on for so many seconds."""
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        return self.finish(process, seconds)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process and all that it has started."""
        for pid in descendants(process.pid) - {process.pid}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()

    def wait_until(self, condition: Callable[[], Any], what: str, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
            time.sleep(LOOK_SECONDS)

    def close(self) -> None:
        if self.mount:
            self.mount.thaw()
        for process in self.processes:
            if process.poll() is None:
                self.end(process)
        for pid in self.orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # What must hold

    def assert_contained(self) -> None:
        """Check that nothing outside was changed, made or published, and that no process printed a traceback."""
        assert not (harmed := [harm for canary in self.canaries if (harm := canary.harm())]), harmed
        assert not (strays := sorted(self._names() - self._before)), f"made outside the store: {strays}"
        assert not (leaks := self.leaks()), f"a private file was published: {leaks}"
        assert not (tracebacks := self.tracebacks()), tracebacks

    def rounds_of(self, node_id: str) -> list[int]:
        """Rounds for which a node has submitted a reward; what somebody else put under its name does not count."""
        paths = (self.backing / self.layout.rewards).glob(f"round_*/stage_0/{node_id}.json")
        return sorted(int(path.parts[-3].removeprefix("round_")) for path in paths if path.is_file() and not path.is_symlink())

    def leaks(self) -> list[str]:
        """Return the regular files in the store that contain the private key."""
        return [str(path.relative_to(self.backing)) for path, _ in _files(self.backing) if SECRET.encode() in path.read_bytes()]

    def tracebacks(self) -> list[str]:
        texts = {path.name: path.read_text(errors="replace") for path in self._outputs()}
        return [f"{name}: {text[text.index(TRACEBACK) :][-3000:]}" for name, text in texts.items() if TRACEBACK in text]

    def largest_private_file(self) -> int:
        """Bytes of the largest file that nodes have made for themselves."""
        places = [*map(self.home, self.users or (None,)), self.temporary]
        return max((size for place in places for _, size in _files(place)), default=0)

    def _outputs(self) -> list[Path]:
        return sorted(path for ending in ("console", "out", "err") for path in self.base.glob(f"*.{ending}"))

    def _names(self) -> set[str]:
        """Everything in this arena but the store, what nodes keep for themselves, and what processes said."""
        apart = {self.backing, self.folder, self.temporary, *map(self.home, self.users or (None,))}
        apart |= {self.mount.point} if self.mount else set()
        found = set()
        for folder, folders, files in os.walk(self.base):
            folders[:] = [name for name in folders if Path(folder, name) not in apart]
            found |= {str(Path(folder, name).relative_to(self.base)) for name in (*folders, *files)}
        return {name for name in found if not name.endswith((".console", ".out", ".err"))}


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    """Regular files below a folder with their sizes; no link is followed, and what vanishes meanwhile is left out."""
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            try:
                found = path.lstat()
            except FileNotFoundError:
                continue
            if stat.S_ISREG(found.st_mode):
                yield path, found.st_size


def peak_mb(pid: int) -> float:
    """The most memory that a process had so far; 0 when it has ended. What its parent had does not count, as it does in rusage."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024 if "VmHWM:" in status else 0.0


def assert_refused(done: Done, *words: str) -> None:
    """A command ended by itself, with one line that names what is wrong."""
    assert done.code in (1, 2), f"exit code {done.code} after {done.seconds:.0f} s: {done.output[-2000:]}"
    assert TRACEBACK not in done.output, done.output[-3000:]
    lines = [line for line in done.err.splitlines() if line.startswith("rl-swarm: ")]
    assert len(lines) == 1, done.output[-2000:]
    for word in words:
        assert word.lower() in lines[0].lower(), f"{word!r} is missing in {lines[0]!r}"


def says(text: str, *words: str) -> bool:
    """Whether one line has all of these words."""
    return any(all(word.lower() in line.lower() for word in words) for line in text.splitlines())
