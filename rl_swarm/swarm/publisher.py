"""Publish in the background: `put` makes a document safe on the local disk, and a thread brings it to the store.

The spool outlives the process: the next start publishes what a killed node left behind. It is bounded: if the store stays away for
very long, the oldest rollouts are dropped and counted; rewards are kept. While the local disk is full, documents wait in memory.
A document that the store refuses is set aside, reported, and tried again at the next start. The training loop never waits for the
store.
"""

import contextlib
import math
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rl_swarm.clock import Clock
from rl_swarm.document import SMALL_BYTES
from rl_swarm.errors import ConfigError, NotFound, Refused, StoreAway
from rl_swarm.store import Store, is_key
from rl_swarm.swarm.layout import is_rollouts

MOST_SPOOLED = 5_000
LONGEST_PAUSE_SECONDS = 30.0
REFUSED = ".refused"
MOST_REFUSED = 500  # refused documents that are kept
BUSY_BEATS = 4  # a node that publishes all the time sends a heartbeat after this many times the usual silence

Upload = tuple[str, Path, tuple[str, ...], tuple[str, bytes] | None]


@dataclass(eq=False)
class Publisher:
    """`pump` does all the work. A thread calls it in a real node (`background`), a simulation calls it itself.

    `mine` says whether this node signed a document, so that nothing else may have its name. `copy` brings journals to the store;
    its argument is True when the node stops. `clean` removes old files, likewise. `tell` is given a line for people about
    every document that was refused. `confirm` raises ConfigError if this node should publish nothing any more; it is asked until
    the first document is in the store.
    """

    store: Store
    folder: Path
    clock: Clock
    beat: Callable[[], None] | None = None
    beat_seconds: float = 30.0
    background: bool = True
    mine: Callable[[str, bytes], bool] = lambda key, data: False
    copy: Callable[[bool], None] = lambda all_of_it: None
    clean: Callable[[bool], object] = lambda all_of_it: None
    tell: Callable[[str], None] = lambda line: None
    confirm: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.away = False
        self._last_sent, self._last_beat = self.clock.monotonic(), -math.inf  # the first heartbeat says that the node is back
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob(f"*{REFUSED}"):  # somebody may have repaired the store since
            path.rename(path.with_suffix(""))
        left_over = sorted(path for path in self.folder.iterdir() if path.name.isdigit())
        self._left_over = set(left_over)
        self._queue: deque[Path] = deque(left_over)
        self._in_memory: dict[Path, bytes] = {}  # documents that found the disk full
        self._next = int(left_over[-1].name) + 1 if left_over else 0
        self._sending: Path | None = None  # on its way, or half written when the store went away: must not be dropped
        self._upload: Upload | None = None
        self._wake = threading.Condition()
        self._pumping = threading.Lock()
        self._closing, self._until = False, -math.inf
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True) if self.background else None
        if self._thread:
            self._thread.start()

    @property
    def pending(self) -> int:
        return len(self._queue) + (self._upload is not None)

    def put(self, key: str, data: bytes) -> None:
        """Accept a document. It survives the death of this process, unless the local disk is full."""
        self.check()
        with self._wake:
            self._queue.append(self._spooled(key.encode() + b"\n" + data))
            if len(self._queue) > MOST_SPOOLED:
                self._drop_oldest_rollouts()
            self._wake.notify()
        if not self._thread:
            self.pump()

    def upload(self, key: str, path: Path, outdated: tuple[str, ...] = (), beside: tuple[str, bytes] | None = None) -> None:
        """Accept a large file, sent after all documents, a document to put `beside` it, and keys to delete after both.

        A newer upload replaces one that was not sent yet. Anything in the store under its key is replaced.
        """
        with self._wake:
            self._upload = (key, path, outdated, beside)
            self._wake.notify()

    def pump(self) -> bool:
        """Send everything that waits; False if the store is away."""
        with self._pumping:
            try:
                if self._queue and not self.counters["published"]:
                    self.confirm()
                while (path := self._take_next()) is not None:
                    self._send(path)
                self.copy(self._closing)
                self._beat_if_due()
                if upload := self._upload:
                    self.copy(True)  # who resumes from it elsewhere finds the record of all rounds before it
                    self._send_large(upload)
                self.clean(self._closing)
            except (StoreAway, NotFound):  # a document that exists and is not found will be found later
                self.counters["store_away"] += 1
                self.away = True
            else:
                self.away = False
            return not self.away

    def check(self) -> None:
        """Raise the failure of the thread: a bug there must not go unnoticed."""
        if isinstance(self._failure, ConfigError):  # no bug: what `confirm` says
            raise self._failure
        if self._failure:
            raise RuntimeError("the publishing thread failed") from self._failure

    def close(self, patience_seconds: float, persist: bool = False) -> None:
        """Send what waits, for at most this long; the rest stays on disk for the next start.

        If the store is away, give up at once or, with `persist`, try again until the time is over.
        """
        self._until = self.clock.monotonic() + patience_seconds if persist else -math.inf
        self._closing = True
        if not self._thread:
            self.pump()
            return
        with self._wake:
            self._wake.notify()
        self._thread.join(patience_seconds)
        with self._wake:
            for path in list(self._in_memory):
                self._write(path)
        self.check()

    def _run(self) -> None:
        pause = 0.5
        try:
            while True:
                with self._wake:
                    if seconds := self._idle_seconds(pause):
                        self._wake.wait(seconds)
                    last = self._closing
                pause = 0.5 if self.pump() else min(pause * 2, LONGEST_PAUSE_SECONDS)
                if last and not self._persists:
                    return
        except BaseException as failure:  # raised in the loop's own thread by check()
            self._failure = failure

    @property
    def _persists(self) -> bool:
        """Whether a node that ends still tries a store that is away."""
        return self.away and self.clock.monotonic() < self._until

    def _idle_seconds(self, pause: float) -> float:
        """How long to wait before the next look; `pause` is for a store that is away."""
        if self._closing:
            return min(pause, 1.0) if self._persists else 0.0
        if self.away:
            return pause
        return 0.0 if self.pending else min(1.0, self.beat_seconds / 4)

    def _spooled(self, content: bytes) -> Path:
        """Add a document to the spool."""
        path = self.folder / f"{self._next:012d}"
        self._next += 1
        self._in_memory[path] = content
        if not self._write(path):
            self.counters["spool_full"] += 1
        return path

    def _write(self, path: Path) -> bool:
        """Move a document from memory to the disk; False if there is no room for it."""
        part = path.with_suffix(".part")
        try:
            part.write_bytes(self._in_memory[path])
            part.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            return False
        del self._in_memory[path]
        return True

    def _take_next(self) -> Path | None:
        with self._wake:
            self._sending = self._queue[0] if self._queue else None
            return self._sending

    def _remove(self, path: Path, rename_to: str = "") -> Path | None:
        """Take a document out of the spool; keep it under another suffix if one is given and the disk has room."""
        with self._wake:
            self._queue.remove(path)
            kept = bool(rename_to) and (path not in self._in_memory or self._write(path))
            self._in_memory.pop(path, None)
        if kept:
            return path.rename(path.with_suffix(rename_to))
        path.unlink(missing_ok=True)
        return None

    def _send(self, path: Path) -> None:
        content = self._in_memory.get(path)
        first_line, _, data = (path.read_bytes() if content is None else content).partition(b"\n")
        key = first_line.decode(errors="replace")
        if not is_key(key):  # the disk has damaged it: keep it for people, and go on
            self._remove(path, ".damaged")
            self.counters["spool_damaged"] += 1
            return
        try:
            created = self.store.put(key, data)
            if not created:
                self._settle(key, data, path in self._left_over)
        except Refused as error:
            self._set_aside(path, key, error)
            return
        self._remove(path)
        self._last_sent = self.clock.monotonic()
        self.counters["published" if created else "already_there"] += 1

    def _set_aside(self, path: Path, key: str, error: Refused) -> None:
        """Keep a document that the store refuses, and let everything else go on."""
        kept = self._remove(path, REFUSED)
        self.counters["refused"] += 1
        if self.counters["refused"] > MOST_REFUSED:  # an attack: drop the oldest
            min(self.folder.glob(f"*{REFUSED}")).unlink()
            self.counters["refused_dropped"] += 1
        where = kept or "nowhere, the disk is full"
        self.tell(f"{error}; what was to be published as {key} is kept in {where}, and tried again at the next start")

    def _beat_if_due(self) -> None:
        """Send a heartbeat at the start, after a silence, and at the end, where it says how the node ended.

        Also now and then in any case: heartbeats reveal a name that is used twice.
        """
        now = self.clock.monotonic()
        silent, late = now - self._last_sent >= self.beat_seconds, now - self._last_beat >= BUSY_BEATS * self.beat_seconds
        if not self.beat or not (silent or late or self._closing):
            return
        try:
            if not self.counters["published"]:
                self.confirm()
            self.beat()
        except Refused as error:
            self.counters["refused"] += 1
            self.tell(f"no heartbeat could be sent: {error}")
        self._last_sent = self._last_beat = self.clock.monotonic()

    def _settle(self, key: str, data: bytes, left_over: bool) -> None:
        """Examine the document that has this name already: it may be half of this one, or a stranger's.

        A process killed while writing in place (mounts have no rename) leaves the beginning of this very document. A stranger's
        file under the name of a document that this node signs is replaced.
        """
        signed = self.mine(key, data)
        if not (left_over or signed):
            return
        there: bytes | None = None
        try:
            there = self.store.get(key, limit=len(data) + SMALL_BYTES, listed=True)
        except Refused:  # not a readable file: on a disk it is replaced, unless it is a folder
            if not signed:
                raise
        if there is not None and len(there) < len(data) and data.startswith(there):
            self.store.rewrite(key, data)
        elif signed and (there is None or not self.mine(key, there)):
            self.store.rewrite(key, data)
            self.counters["reclaimed"] += 1
            self.tell(f"somebody had put a file of theirs at {key}, which this node has replaced by its own")

    def _send_large(self, upload: Upload) -> None:
        key, path, outdated, beside = upload
        try:
            if not self.store.put_file(key, path):
                self.store.delete(key)
                if not self.store.put_file(key, path):
                    raise Refused(f"{key} is taken by something that cannot be replaced: remove it")
            if beside:
                self.store.rewrite(*beside)
            self.counters["uploaded"] += 1
            for old in outdated:
                self.store.delete(old)
                self.store.remove_folder(old.rpartition("/")[0])
        except FileNotFoundError:  # pruned meanwhile: a newer one follows
            pass
        except Refused as error:
            self.counters["refused"] += 1
            self.tell(f"a checkpoint was not copied to the store: {error}")
        with self._wake:
            if self._upload is upload:
                self._upload = None

    def _drop_oldest_rollouts(self) -> None:
        """Called under the lock. Keeps the document on its way, and everything that is not a rollout."""
        excess = len(self._queue) - MOST_SPOOLED
        for path in list(self._queue):
            if excess <= 0:
                return
            if path is not self._sending and is_rollouts(self._first_line(path).decode(errors="replace")):
                self._remove(path)
                self.counters["spool_dropped"] += 1
                excess -= 1

    def _first_line(self, path: Path) -> bytes:
        if path in self._in_memory:
            return self._in_memory[path].partition(b"\n")[0]
        with path.open("rb") as file:
            return file.readline(1000)
