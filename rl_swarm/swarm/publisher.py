"""Publishing in the background: a document is safe on the local disk when `put` returns, and reaches the store when it can.

The spool outlives the process: what a killed node left behind is published at its next start. It is bounded; when the store stays
away for very long, the oldest rollouts go first, counted, and rewards are kept. While the local disk is full, documents wait in
memory, counted. A document whose name the store refuses is set aside, told in `take_news`, and tried again at the next start.
Nothing in the training loop waits for the store.
"""

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rl_swarm.clock import Clock
from rl_swarm.document import SMALL_BYTES
from rl_swarm.errors import NotFound, Refused, StoreAway
from rl_swarm.store import Store, is_key

MOST_SPOOLED = 5_000
LONGEST_PAUSE_SECONDS = 30.0
REFUSED = ".refused"
MOST_REFUSED = 500  # documents that are kept although the store will not take them
BUSY_BEATS = 4  # a node that publishes all the time sends a heartbeat after so many times the silence that asks for one


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
        mine: Callable[[str, bytes], bool] = lambda key, data: False,
        copy: Callable[[bool], None] = lambda all_of_it: None,
    ) -> None:
        self.store = store
        self.folder = folder
        self.clock = clock
        self.counters: Counter[str] = Counter()
        self.away_since: float | None = None
        self.background = background
        self._mine = mine  # whether a document is this node's own, so that nothing else may have its name
        self._copy = copy  # brings journals to the store, all of it when this node stops
        self._beat = beat
        self._beat_seconds = beat_seconds
        self._last_sent = self._last_beat = clock.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(f"*{REFUSED}"):  # whoever runs this node may have mended the store meanwhile
            path.rename(path.with_suffix(""))
        left_over = sorted(path for path in folder.iterdir() if path.name.isdigit())
        self._left_over: set[Path | bytes] = set(left_over)
        self._queue: deque[Path | bytes] = deque(left_over)  # bytes where the disk was full
        self._next = int(left_over[-1].name) + 1 if left_over else 0
        self._sending: Path | bytes | None = None  # on its way, or half written when the store went away: not to be dropped
        self._news: deque[str] = deque()
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
                while (item := self._take_next()) is not None:
                    self._send(item)
                self._copy(self._closing)
                if self._upload:
                    self._send_large(self._upload)
                self._beat_if_due()
            except (StoreAway, NotFound):  # what exists and is not found will be found later
                self.counters["store_away"] += 1
                self.away_since = self.away_since or self.clock.wall()
                return False
            self.away_since = None
            return True

    def take_news(self) -> list[str]:
        """Lines for people about documents that were set aside since last asked."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def check(self) -> None:
        """Raise what the thread died of: a bug there must not pass in silence."""
        if self._failure:
            raise RuntimeError("the publishing thread failed") from self._failure

    def close(self, patience_seconds: float) -> None:
        """Send what waits, for at most this long; what is left stays on disk for the next start."""
        self._closing = True
        if not self._thread:
            self.pump()
            return
        with self._wake:
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

    def _take_next(self) -> Path | bytes | None:
        with self._wake:
            self._sending = self._queue[0] if self._queue else None
            return self._sending

    def _take_out(self, item: Path | bytes) -> None:
        with self._wake:
            if item in self._queue:  # not if `close` has just put it on the disk
                self._queue.remove(item)

    def _send(self, item: Path | bytes) -> None:
        first_line, _, data = (item.read_bytes() if isinstance(item, Path) else item).partition(b"\n")
        key = first_line.decode(errors="replace")
        if isinstance(item, Path) and not is_key(key):  # the disk has damaged it: kept for people, and nothing stops for it
            self._take_out(item)
            item.rename(item.with_suffix(".damaged"))
            self.counters["spool_damaged"] += 1
            return
        try:
            created = self.store.put(key, data)
            if not created:
                self._settle(key, data, item in self._left_over)
        except Refused as error:
            self._set_aside(item, key, error)
            return
        self._take_out(item)
        if isinstance(item, Path):
            item.unlink()
        self._last_sent = self.clock.monotonic()
        self.counters["published" if created else "already_there"] += 1

    def _set_aside(self, item: Path | bytes, key: str, error: Refused) -> None:
        """Keep a document that the store will not take, and let everything else go on."""
        self._take_out(item)
        kept = self._spooled(item) if isinstance(item, bytes) else item
        where = "nowhere, the disk is full"
        if isinstance(kept, Path):
            where = str(kept.rename(kept.with_suffix(REFUSED)))
        self.counters["refused"] += 1
        if self.counters["refused"] > MOST_REFUSED:  # somebody is at it: what is oldest goes
            min(self.folder.glob(f"*{REFUSED}")).unlink()
            self.counters["refused_dropped"] += 1
        self._news.append(f"{error}; what was to be published as {key} is kept in {where}, and tried again at the next start")

    def _beat_if_due(self) -> None:
        """After a silence; and now and then in any case, since heartbeats show whether a name is used twice."""
        now = self.clock.monotonic()
        silent, late = now - self._last_sent >= self._beat_seconds, now - self._last_beat >= BUSY_BEATS * self._beat_seconds
        if not self._beat or not (silent or late):
            return
        try:
            self._beat()
        except Refused as error:
            self.counters["refused"] += 1
            self._news.append(f"no heartbeat could be sent: {error}")
        self._last_sent = self._last_beat = self.clock.monotonic()

    def _settle(self, key: str, data: bytes, left_over: bool) -> None:
        """Look at what has a document's name already, where it may be half of it or a stranger's.

        A process killed while it wrote in place (no rename on such mounts) leaves a beginning of this very document. What somebody
        else put under the name of a document that this node signs is replaced.
        """
        signed = self._mine(key, data)
        if not (left_over or signed):
            return
        there: bytes | None = None
        try:
            there = self.store.get(key, limit=len(data) + SMALL_BYTES, listed=True)
        except Refused:  # no file that can be read: on a disk it is replaced, unless it is a folder
            if not signed:
                raise
        if there is not None and len(there) < len(data) and data.startswith(there):
            self.store.rewrite(key, data)
        elif signed and (there is None or not self._mine(key, there)):
            self.store.rewrite(key, data)
            self.counters["reclaimed"] += 1
            self._news.append(f"somebody had put a file of theirs at {key}, which this node has replaced by its own")

    def _send_large(self, upload: "_Upload") -> None:
        try:
            if not self.store.put_file(upload.key, upload.path):
                self.store.delete(upload.key)
                if not self.store.put_file(upload.key, upload.path):
                    raise Refused(f"{upload.key} is taken by something that cannot be replaced: remove it")
            if upload.beside:
                self.store.rewrite(*upload.beside)
            self.counters["uploaded"] += 1
            for old in upload.outdated:
                self.store.delete(old)
        except FileNotFoundError:  # pruned meanwhile: a newer one follows
            pass
        except Refused as error:
            self.counters["refused"] += 1
            self._news.append(f"a checkpoint was not copied to the store: {error}")
        with self._wake:
            if self._upload == upload:
                self._upload = None

    def _drop_oldest_rollouts(self) -> None:
        """Called under the lock. Keeps what is on its way, and everything that is no rollout."""
        excess = len(self._queue) - MOST_SPOOLED
        for item in list(self._queue):
            if excess <= 0:
                return
            if item is self._sending or b"/rollouts/" not in _first_line(item):
                continue
            self._queue.remove(item)
            if isinstance(item, Path):
                item.unlink()
            self.counters["spool_dropped"] += 1
            excess -= 1


def _first_line(item: Path | bytes) -> bytes:
    if isinstance(item, bytes):
        return item.partition(b"\n")[0]
    with item.open("rb") as file:
        return file.readline(1000)
