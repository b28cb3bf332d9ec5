"""The contract of every store.

A key is a relative path of plain names joined by '/'. Callers may rely on this much, on the worst backend:

- `put` writes a document once. It returns False, and changes nothing, if the key exists.
- `get` returns the document or part of it (documents check themselves), or raises NotFound, which means "not yet".
- `list` names what lies directly below a folder, folders with a trailing '/'. It may lag, repeat or omit. `list_from` gives a part.
- `size` is the number of bytes of a key, as far as they are there.
- `rewrite` replaces a key; nothing that matters relies on it.
- `append` adds whole lines to a key; call it only where the backend is `appendable`.
- A name that can never be used (a link, a pipe, a folder, no permission, too large) raises Refused; other names work.

Transient errors are retried with jittered back-off; if they persist, StoreAway is raised. A backend with `hang_seconds` raises it
without a retry for an operation that takes longer, so that a hanging mount blocks nobody. Every operation is counted.
Locks, rename and modification times are not part of the contract.
"""

import math
import random
import re
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from rl_swarm.clock import Clock, SystemClock
from rl_swarm.errors import NotFound, Refused, StoreAway, StoreError
from rl_swarm.store.aside import StillRunning, aside

T = TypeVar("T")
Names = list[str]  # an alias, since inside the class `list` is the operation
Hanging = list[tuple[str, Future[Any]]]

MOST_HANGING = 4  # operations left behind before the store is no longer asked
REST_SECONDS = 60.0  # between two attempts while an operation hangs

_KEY = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]*/)*[A-Za-z0-9_-][A-Za-z0-9._-]*/?")


class Transient(Exception):
    """Raised by a backend for an error that may pass."""


class Store(ABC):
    """Retries, counts and checks keys; a backend is a subclass with the underscored methods."""

    attempts = 5
    first_pause_seconds = 0.05
    retry_seconds = math.inf  # after this long an operation is not tried again
    appendable = False
    journal_seconds = 30.0  # between two segments of a journal, where it is not
    exclusive = True  # of several writers of one key, at most one is told that it has written
    settle_seconds = 0.0  # otherwise: after this long all readers agree on one of them
    parallel = 1  # gets that are worth having under way at once
    hang_seconds: float | None = None
    transfer_seconds = 600.0  # the same for a large file

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self.url = url
        self.clock = clock or SystemClock()
        self.counts: Counter[str] = Counter()
        self._counting = threading.Lock()  # a node's publishing thread and its loop share the store
        self._jitter = random.Random(url)
        self._hanging: Hanging = []
        self._hung_at = 0.0

    @property
    def about(self) -> str:
        """What people should know of this store, in one line."""
        return self.url

    def put(self, key: str, data: bytes) -> bool:
        created = self._try("put", key, lambda: self._put(key, data))
        self._count("bytes_out", len(data) if created else 0)
        return created

    def rewrite(self, key: str, data: bytes) -> None:
        self._try("put", key, lambda: self._rewrite(key, data))
        self._count("bytes_out", len(data))

    def append(self, key: str, data: bytes) -> None:
        self._try("put", key, lambda: self._append(key, data))
        self._count("bytes_out", len(data))

    def get(self, key: str, *, limit: int, listed: bool = False, offset: int = 0) -> bytes:
        """Read at most `limit` + 1 bytes from `offset` on; a negative offset counts from the end.

        `listed` says that the key must exist, so not-found is retried.
        """

        def read() -> bytes:
            try:
                return self._get(key, limit, offset)
            except NotFound as error:
                if listed and not isinstance(error, Refused):
                    raise Transient("it was listed and is not found") from error
                raise

        data = self._try("get", key, read)
        self._count("bytes_in", len(data))
        return data

    def list(self, folder: str) -> Names:
        """Names directly below a folder; a missing folder is empty."""
        return self._try("list", folder, lambda: self._list(folder))

    def list_from(self, folder: str, after: str, most: int) -> Names:
        """At most `most` of the names directly below a folder, in order, from the first after `after` on: for huge folders."""
        return self._try("list", folder, lambda: self._list_from(folder, after, most))

    def put_file(self, key: str, path: Path) -> bool:
        """Put a large file, if the backend can without holding it in memory; True if it was written."""
        created = self._try("put", key, lambda: self._put_file(key, path), self.transfer_seconds)
        self._count("bytes_out", path.stat().st_size if created else 0)
        return created

    def get_file(self, key: str, path: Path, *, limit: int) -> None:
        """Fetch a large file to the local disk. On failure nothing stays there; a file above `limit` bytes is Refused."""
        try:
            self._try("get", key, lambda: self._get_file(key, path, limit), self.transfer_seconds)
        except StoreError:
            path.unlink(missing_ok=True)
            raise
        self._count("bytes_in", path.stat().st_size)

    def size(self, key: str) -> int:
        """The bytes of a key; raise NotFound if there is none."""
        return self._try("get", key, lambda: self._size(key))

    def remove_folder(self, key: str) -> None:
        """Remove a folder if it is empty, where a backend has folders. One that cannot be removed stays: it does no harm."""
        self._try("delete", key, lambda: self._remove_folder(key))

    def delete(self, key: str) -> None:
        """Remove a key; a missing one is fine."""
        self._try("delete", key, lambda: self._delete(key))

    def expect(self, key: str) -> None:
        """Treat the store as replaced, and so as away, while this key is missing. Only a folder can be replaced."""
        return

    def _count(self, kind: str, amount: int = 1) -> None:
        with self._counting:
            self.counts[kind] += amount

    def _try(self, kind: str, key: str, operation: Callable[[], T], hang_seconds: float | None = None) -> T:
        if not is_key(key):
            raise ValueError(f"{key!r} is not a valid store key")
        pause, began = self.first_pause_seconds, self.clock.monotonic()
        for left in reversed(range(self.attempts)):
            self._count(kind)
            try:
                return self._in_time(f"{kind} {key}", operation, hang_seconds or self.hang_seconds)
            except Transient as error:
                failure = error
            if self.clock.monotonic() - began >= self.retry_seconds:
                break
            if left:
                self._count("retries")
                self.clock.sleep(pause * (0.5 + self._jitter.random()))
                pause *= 2
        self._count("failures")
        if isinstance(failure.__cause__, NotFound):
            raise failure.__cause__ from None
        raise StoreAway(f"{self.url} does not answer ({kind} {key}: {failure}): nodes go on and try again") from failure

    def _in_time(self, doing: str, operation: Callable[[], T], seconds: float | None) -> T:
        """Run an operation; where the backend may hang, in a thread that can be left behind."""
        if self.hang_seconds is None:
            return operation()
        self._hanging = [(each, call) for each, call in self._hanging if not call.done()]
        rested = time.monotonic() - self._hung_at >= REST_SECONDS
        if self._hanging and (not rested or len(self._hanging) >= MOST_HANGING):
            doing = self._hanging[0][0]
        else:
            call = aside(operation)
            try:
                return call.result(seconds)
            except StillRunning:
                self._hanging.append((doing, call))
                self._hung_at = time.monotonic()
        self._count("failures")
        raise StoreAway(f"{self.url} hangs ({doing}): nodes go on and try again; mount it again")

    @abstractmethod
    def _put(self, key: str, data: bytes) -> bool: ...

    @abstractmethod
    def _rewrite(self, key: str, data: bytes) -> None: ...

    def _put_file(self, key: str, path: Path) -> bool:
        return self._put(key, path.read_bytes())

    def _get_file(self, key: str, path: Path, limit: int) -> None:
        data = self._get(key, limit, 0)
        if len(data) > limit:
            raise Refused(f"{key} is larger than {limit} bytes, the limit for this file: remove it")
        path.write_bytes(data)

    def _append(self, key: str, data: bytes) -> None:
        raise Refused(f"{key} cannot be appended to in {self.url}: it keeps whole documents only")

    @abstractmethod
    def _get(self, key: str, limit: int, offset: int) -> bytes: ...

    @abstractmethod
    def _size(self, key: str) -> int: ...

    @abstractmethod
    def _list(self, folder: str) -> Names: ...

    def _list_from(self, folder: str, after: str, most: int) -> Names:
        return [name for name in sorted(self._list(folder)) if name > after][:most]

    @abstractmethod
    def _delete(self, key: str) -> None: ...

    def _remove_folder(self, key: str) -> None:
        return  # a service has no folders, or might remove one together with what somebody is writing into it


def is_key(text: str) -> bool:
    return _KEY.fullmatch(text) is not None
