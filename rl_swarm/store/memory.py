"""A store inside one process, for tests, simulations and swarms whose nodes share a process."""

import sys
import threading

from rl_swarm.clock import Clock
from rl_swarm.errors import NotFound
from rl_swarm.store.base import Store


class MemoryStore(Store):
    _contents: dict[str, dict[str, bytes]] = {}  # by name: nodes of one process share a store and count apart
    _lock = threading.Lock()

    def __init__(self, url: str = "memory://", clock: Clock | None = None, data: dict[str, bytes] | None = None) -> None:
        super().__init__(url, clock)
        self._data = {} if data is None else data

    @classmethod
    def named(cls, store_name: str, clock: Clock | None = None) -> "MemoryStore":
        return cls(f"memory://{store_name}", clock, cls._contents.setdefault(store_name, {}))

    @property
    def about(self) -> str:
        return f"{self.url} lives inside one process: other processes do not share it"

    def _put(self, key: str, data: bytes) -> bool:
        with self._lock:
            if key in self._data:
                return False
            self._data[key] = data
            return True

    def _rewrite(self, key: str, data: bytes) -> None:
        with self._lock:
            self._data[key] = data

    def _get(self, key: str, limit: int, offset: int) -> bytes:
        try:
            data = self._data[key]
        except KeyError:
            raise NotFound(key) from None
        return data[offset:][: limit + 1]

    def _size(self, key: str) -> int:
        return len(self._get(key, sys.maxsize - 1, 0))

    def _list(self, folder: str) -> list[str]:
        prefix = folder.rstrip("/") + "/"
        with self._lock:
            below = [key[len(prefix) :] for key in self._data if key.startswith(prefix)]
        return sorted({head + slash for head, slash, _ in (key.partition("/") for key in below)})

    def _delete(self, key: str) -> None:
        with self._lock:
            self._data.pop(key, None)
