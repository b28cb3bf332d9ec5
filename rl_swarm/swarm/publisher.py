"""Publishing in the background: a document is safe on the local disk when `put` returns, and reaches the store when it can.

The spool outlives the process: what a killed node left behind is published at its next start. It is bounded; when the store stays
away for very long, the oldest rollouts go first, counted, and rewards are kept. While the local disk is full, documents wait in
memory, counted. Nothing in the training loop waits for the store.
"""

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rl_swarm.clock import Clock
from rl_swarm.errors import NotFound, Refused, StoreAway
from rl_swarm.store import Store, is_key

MOST_SPOOLED = 5_000
LONGEST_PAUSE_SECONDS = 30.0


@dataclass(frozen=True)
class _Upload:
    key: str
    path: Path
    outdated: tuple[str, ...]
    beside: tuple[str, bytes] | None


class Publisher:
    """`pump` does all the work; a thread calls it for a real node, a simulation calls it by itself."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        clock: Clock,
        *,
        beat: Callable[[], None] | None = None,
        beat_seconds: float = 30.0,
        background: bool = True,
    ) -> None:
        self.store = store
        self.folder = folder
        self.clock = clock
        self.counters: Counter[str] = Counter()
        self.away_since: float | None = None
        self.background = background
        self._beat = beat
        self._beat_seconds = beat_seconds
        self._last_sent = clock.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        left_over = sorted(path for path in folder.iterdir() if path.name.isdigit())
        self._left_over: set[Path | bytes] = set(left_over)
        self._queue: deque[Path | bytes] = deque(left_over)  # bytes where the disk was full
        self._next = int(left_over[-1].name) + 1 if left_over else 0
        self._upload: _Upload | None = None
        self._wake = threading.Condition()
        self._pumping = threading.Lock()
        self._closing = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True) if background else None
        if self._thread:
            self._thread.start()

    @property
    def pending(self) -> int:
        return len(self._queue) + (self._upload is not None)

    def put(self, key: str, data: bytes) -> None:
        """Accept a document: durable against the death of this process when it returns, unless the local disk is full."""
        self.check()
        with self._wake:
            self._queue.append(self._spooled(key.encode() + b"\n" + data))
            if len(self._queue) > MOST_SPOOLED:
                self._drop_oldest_rollouts()
            self._wake.notify()
        if not self._thread:
            self.pump()

    def upload(self, key: str, path: Path, outdated: tuple[str, ...] = (), beside: tuple[str, bytes] | None = None) -> None:
        """Accept a large file, sent after everything small, a document to follow it, and what to delete once both are there.

        A newer one takes the place of one not sent yet. What the store has under that key, half a file or somebody else's, is
        replaced.
        """
        with self._wake:
            self._upload = _Upload(key, path, outdated, beside)
            self._wake.notify()

    def pump(self) -> bool:
        """Send all that waits; False if the store is away."""
        with self._pumping:
            try:
                while self._queue:
                    self._send(self._queue[0])
                if self._upload:
                    self._send_large(self._upload)
                if self._beat and self.clock.monotonic() - self._last_sent >= self._beat_seconds:
                    self._beat()
                    self._last_sent = self.clock.monotonic()
            except (StoreAway, NotFound):  # what exists and is not found will be found later
                self.counters["store_away"] += 1
                self.away_since = self.away_since or self.clock.wall()
                return False
            self.away_since = None
            return True

    def check(self) -> None:
        """Raise what the thread died of: a bug there must not pass in silence."""
        if self._failure:
            raise RuntimeError("the publishing thread failed") from self._failure

    def close(self, patience_seconds: float) -> None:
        """Send what waits, for at most this long; what is left stays on disk for the next start."""
        if not self._thread:
            self.pump()
            return
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(patience_seconds)
        with self._wake:
            self._queue = deque(self._spooled(item) if isinstance(item, bytes) else item for item in self._queue)
        self.check()

    def _run(self) -> None:
        pause = 0.5
        try:
            while True:
                with self._wake:
                    if not self._closing and (not self.pending or self.away_since):
                        self._wake.wait(pause if self.away_since else min(1.0, self._beat_seconds / 4))
                    last = self._closing
                sent = self.pump()
                pause = 0.5 if sent else min(pause * 2, LONGEST_PAUSE_SECONDS)
                if last and (sent or self.away_since):
                    return
        except BaseException as failure:  # kept and raised in the loop's own thread by check()
            self._failure = failure

    def _spooled(self, content: bytes) -> Path | bytes:
        """Write a document to the spool; what the disk has no room for is kept as it is."""
        path = self.folder / f"{self._next:012d}"
        part = path.with_suffix(".part")
        try:
            part.write_bytes(content)
            part.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            self.counters["spool_full"] += 1
            return content
        self._next += 1
        return path

    def _send(self, item: Path | bytes) -> None:
        first_line, _, data = (item.read_bytes() if isinstance(item, Path) else item).partition(b"\n")
        key = first_line.decode(errors="replace")
        if isinstance(item, Path) and not is_key(key):  # the disk has damaged it: kept for people, and nothing stops for it
            item.rename(item.with_suffix(".damaged"))
            self._queue.popleft()
            self.counters["spool_damaged"] += 1
            return
        created = self.store.put(key, data)
        if not created and item in self._left_over:
            self._finish_half_written(key, data)
        self._queue.popleft()
        if isinstance(item, Path):
            item.unlink()
        self._last_sent = self.clock.monotonic()
        self.counters["published" if created else "already_there"] += 1

    def _finish_half_written(self, key: str, data: bytes) -> None:
        """A process killed while it wrote in place (no rename on such mounts) leaves a beginning of this very document."""
        there = self.store.get(key, limit=len(data), listed=True)
        if len(there) < len(data) and data.startswith(there):
            self.store.rewrite(key, data)

    def _send_large(self, upload: "_Upload") -> None:
        try:
            if not self.store.put_file(upload.key, upload.path):
                self.store.delete(upload.key)
                self.store.put_file(upload.key, upload.path)
            if upload.beside:
                self.store.rewrite(*upload.beside)
            self.counters["uploaded"] += 1
            for old in upload.outdated:
                self.store.delete(old)
        except FileNotFoundError:
            pass  # pruned meanwhile: a newer one follows
        except Refused:  # somebody's folder or link has this name: the next one has another
            self.counters["upload_refused"] += 1
        with self._wake:
            if self._upload == upload:
                self._upload = None

    def _drop_oldest_rollouts(self) -> None:
        """Called under the lock. Keeps the head, which may be on its way, and everything that is no rollout."""
        excess = len(self._queue) - MOST_SPOOLED
        for item in list(self._queue)[1:]:
            if excess <= 0:
                return
            if b"/rollouts/" not in (item.read_bytes() if isinstance(item, Path) else item).partition(b"\n")[0]:
                continue
            self._queue.remove(item)
            if isinstance(item, Path):
                item.unlink()
            self.counters["spool_dropped"] += 1
            excess -= 1
