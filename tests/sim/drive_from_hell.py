"""A shared drive with every bad habit that users report of mounted Drives, seeded, so that each failure replays.

`Cloud` is what truly is, `DriveFromHell` how one machine's mount shows it: writes land in place, in two steps, and appear
elsewhere late, out of order or twice; listings lag, omit and repeat; reads are short, stale or missing; Errno 5 and 107 come for
a while, the mount dies and returns, the disk is full; names are not unique. It never loses a write that it acknowledged, and it
tells no lie without counting it: who judges what a node did must know what the node was told.
"""

import errno
import os
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import NoReturn

from rl_swarm.clock import Clock
from rl_swarm.errors import NotFound
from rl_swarm.store.base import Store, Transient

HABITS = (
    "late",
    "out_of_order",
    "twice",
    "duplicate_name",
    "list_lags",
    "list_omits",
    "list_repeats",
    "read_short",
    "read_stale",
    "read_missing",
    "false_enoent",
    "errno_5",
    "errno_107",
    "dead_mount",
    "full_disk",
    "torn_write",
    "lost_answer",
)


@dataclass(frozen=True)
class Storm:
    """A time in which every operation of a mount fails: the mount is `dead` (107), `busy` (5) or, for writes alone, `full` (28)."""

    kind: str
    begins: float
    ends: float


@dataclass(frozen=True)
class Temper:
    """How bad a drive is: chances an operation, and seconds."""

    latency: float = 0.2
    lag: float = 0.0  # a write is seen elsewhere up to this much later
    stale: float = 0.0  # how old the past is that a stale listing or read shows
    listing: float = 0.0  # each of: a stale listing, names omitted, names repeated
    reading: float = 0.0  # each of: a short, a stale and a missing read
    missing: float = 0.0  # a key that is not found begins to be so for `stale` seconds
    failing: float = 0.0  # each of: Errno 5, Errno 107
    writing: float = 0.0  # each of: torn in the middle, done but not acknowledged, appearing twice
    storms: tuple[Storm, ...] = ()


@dataclass
class File:
    """One file of the cloud. Several may have one key: names are not unique."""

    key: str
    writer: str
    created: float
    shown: float  # when others see it
    versions: list[tuple[float, bytes]] = field(default_factory=list)
    removed: float = float("inf")

    def seen_by(self, machine: str, moment: float) -> bool:
        return self.created <= moment and (self.writer == machine or self.shown <= moment)

    def at(self, machine: str, moment: float) -> bytes:
        """The content as `machine` sees it: a version reaches others as much later as the file did."""
        delay = 0.0 if machine == self.writer else self.shown - self.created
        return next((data for written, data in reversed(self.versions) if written + delay <= moment), self.versions[0][1])


class Cloud:
    """Everything that was ever written, and what was told about it."""

    def __init__(self) -> None:
        self.files: dict[str, list[File]] = {}
        self.folders: dict[str, dict[str, list[File]]] = {}  # folder → name directly below → files there
        self.told: Counter[str] = Counter()
        self.deleted: list[tuple[float, str, str]] = []
        self.beats: list[File] = []  # every heartbeat

    def create(self, file: File) -> None:
        self.files.setdefault(file.key, []).append(file)
        self.beats += [file] if "/peers/" in file.key else []
        parts = file.key.split("/")
        for depth in range(1, len(parts)):
            name = parts[depth] + "/" * (depth < len(parts) - 1)
            self.folders.setdefault("/".join(parts[:depth]), {}).setdefault(name, []).append(file)

    def remove(self, file: File) -> None:
        self.files[file.key].remove(file)
        parts = file.key.split("/")
        for depth in range(1, len(parts)):
            name = parts[depth] + "/" * (depth < len(parts) - 1)
            self.folders["/".join(parts[:depth])][name].remove(file)

    def find(self, key: str, machine: str, moment: float) -> list[File]:
        return [file for file in self.files.get(key, ()) if file.seen_by(machine, moment)]

    def names(self, folder: str, machine: str, moment: float) -> list[str]:
        below = self.folders.get(folder.rstrip("/"), {})
        return [name for name, files in below.items() if any(file.seen_by(machine, moment) for file in files)]

    def truth(self) -> dict[str, list[bytes]]:
        """What every key holds in the end, when all has appeared everywhere."""
        return {key: [file.versions[-1][1] for file in files] for key, files in self.files.items() if files}


class DriveFromHell(Store):
    """One machine's mount of the cloud. `lies` counts what it was told that was not so."""

    def __init__(self, cloud: Cloud, machine: str, seed: int, clock: Clock, temper: Temper) -> None:
        super().__init__(f"hell://{machine}", clock)
        self.cloud = cloud
        self.machine = machine
        self.temper = temper
        self.chance = random.Random(seed)
        self.lies = 0
        self._torn: dict[str, File] = {}  # what this mount could not write to the end
        self._missing: dict[str, float] = {}  # key → until when it is falsely not found
        self._last_shown = 0.0

    def visible(self, key: str) -> bool:
        return bool(self.cloud.find(key, self.machine, self.clock.monotonic()))

    def _put(self, key: str, data: bytes) -> bool:
        self._arrive(writing=True)
        torn = self._torn.pop(key, None)
        if torn is not None:  # as the folder store does: what it left half-written it takes away before it tries again
            self.cloud.remove(torn)
        if self.visible(key):
            if not self._luck(self.temper.reading / 4):
                return False
            self._tell("false_enoent")  # and a second file of that name is made
        if self.cloud.files.get(key):
            self.cloud.told["duplicate_name"] += 1  # somebody else's is not seen from here yet
        file = self._begin(key, data[: self.chance.randrange(len(data) + 1)])
        self._pause()  # killed here, a process leaves half a file
        if self._storming("dead") or self._storming("full") or self._luck(self.temper.writing):
            self._torn[key] = file
            self._tell("torn_write")
            self._fail(errno.ENOSPC if self._storming("full") else errno.EIO)
        file.versions.append((self.clock.monotonic(), data))
        if self._luck(self.temper.writing):
            self.cloud.told["twice"] += 1
            again = self._begin(key, data)
            again.shown += self.chance.random() * self.temper.lag
        if self._luck(self.temper.writing):
            self._tell("lost_answer")
            self._fail(errno.EIO)
        return True

    def _rewrite(self, key: str, data: bytes) -> None:
        self._arrive(writing=True)
        there = self.cloud.find(key, self.machine, self.clock.monotonic())
        if there:
            there[-1].versions.append((self.clock.monotonic(), data))
        else:
            self._begin(key, data)

    def _get(self, key: str, limit: int, offset: int) -> bytes:
        self._arrive()
        now = self.clock.monotonic()
        if self._missing.get(key, 0.0) > now:
            self._tell("read_missing")
            raise NotFound(key)
        there = self.cloud.find(key, self.machine, now)
        if not there:
            raise NotFound(key)
        if self._luck(self.temper.missing):
            self._missing[key] = now + self.chance.random() * self.temper.stale
        if self._luck(self.temper.reading):
            self._tell("false_enoent")
            raise NotFound(key)
        file = there[self.chance.randrange(len(there))]
        data = file.at(self.machine, now)
        if self._luck(self.temper.reading) and file.at(self.machine, now - self.temper.stale) != data:
            self._tell("read_stale")
            data = file.at(self.machine, now - self.temper.stale)
        if data and self._luck(self.temper.reading):
            self._tell("read_short")
            data = data[: self.chance.randrange(len(data))]
        return data[offset:][: limit + 1]

    def _size(self, key: str) -> int:
        return len(self._get(key, sys.maxsize - 1, 0))

    def _list(self, folder: str) -> list[str]:
        self._arrive()
        moment = self.clock.monotonic()
        names = self.cloud.names(folder, self.machine, moment)
        if self._luck(self.temper.listing):
            past = self.cloud.names(folder, self.machine, moment - self.chance.random() * self.temper.stale)
            if past != names:
                self._tell("list_lags")
                names = past
        if names and self._luck(self.temper.listing):
            kept = [name for name in names if self.chance.random() < 0.7]
            if kept != names:
                self._tell("list_omits")
                names = kept
        if names and self._luck(self.temper.listing):
            self.cloud.told["list_repeats"] += 1
            names = [*names, *self.chance.choices(names, k=3)]
            self.chance.shuffle(names)
        return names

    def _delete(self, key: str) -> None:
        self._arrive()
        for file in self.cloud.find(key, self.machine, self.clock.monotonic()):
            self.cloud.deleted.append((self.clock.monotonic(), self.machine, key))
            file.removed = self.clock.monotonic()
            file.versions.append((self.clock.monotonic(), b""))
            self._pause()  # killed here, a process leaves an empty file
            if file in self.cloud.files[key]:
                self.cloud.remove(file)

    # The habits

    def _arrive(self, writing: bool = False) -> None:
        """The way to the drive and back: it takes time, and much can happen on it."""
        self._pause()
        if self._storming("dead"):
            self._tell("dead_mount")
            self._fail(errno.ENOTCONN)
        if self._storming("busy") or self._luck(self.temper.failing):
            self._tell("errno_5")
            self._fail(errno.EIO)
        if self._luck(self.temper.failing):
            self._tell("errno_107")
            self._fail(errno.ENOTCONN)
        if writing and self._storming("full"):
            self._tell("full_disk")
            self._fail(errno.ENOSPC)

    def _begin(self, key: str, data: bytes) -> File:
        """A file as it is while it is being written; others see it after its upload, which has to wait for a dead mount."""
        now = self.clock.monotonic()
        shown = now + self.chance.random() * self.temper.lag
        for storm in self.temper.storms:
            if storm.kind == "dead" and storm.begins <= shown < storm.ends:
                shown = storm.ends + self.chance.random() * self.temper.lag
        self.cloud.told["late"] += shown > now
        self.cloud.told["out_of_order"] += shown < self._last_shown
        self._last_shown = max(self._last_shown, shown)
        file = File(key, self.machine, now, shown, [(now, data)])
        self.cloud.create(file)
        return file

    def _storming(self, kind: str) -> bool:
        now = self.clock.monotonic()
        return any(storm.kind == kind and storm.begins <= now < storm.ends for storm in self.temper.storms)

    def _pause(self) -> None:
        self.clock.sleep(self.temper.latency * self.chance.random())

    def _luck(self, chance: float) -> bool:
        return chance > 0 and self.chance.random() < chance

    def _tell(self, habit: str) -> None:
        self.lies += 1
        self.cloud.told[habit] += 1

    def _fail(self, number: int) -> NoReturn:
        raise Transient(f"Errno {number}, {os.strerror(number)}")
