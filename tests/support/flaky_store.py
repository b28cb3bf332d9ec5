"""A memory store with the faults of a mounted Drive, seeded so that every failure replays."""

import random

from rl_swarm.clock import Clock
from rl_swarm.errors import NotFound
from rl_swarm.store.base import Transient
from rl_swarm.store.memory import MemoryStore


class FlakyStore(MemoryStore):
    """Listings lag, repeat and omit; reads fail, come short or find nothing; every fault is transient."""

    def __init__(self, data: dict[str, bytes], seed: int, clock: Clock, trouble: float = 0.3) -> None:
        super().__init__("memory://flaky", clock, data)
        self.chance = random.Random(seed)
        self.trouble = trouble
        self._stale: dict[str, list[str]] = {}

    def _list(self, folder: str) -> list[str]:
        if self.chance.random() < self.trouble / 3:
            raise Transient("Errno 5")
        names = super()._list(folder)
        if self.chance.random() < self.trouble:
            return list(self._stale.get(folder, []))
        self._stale[folder] = names
        shown = [name for name in names if self.chance.random() > self.trouble / 3]
        shown += [name for name in shown if self.chance.random() < self.trouble]
        self.chance.shuffle(shown)
        return shown

    def _get(self, key: str, limit: int, offset: int) -> bytes:
        luck = self.chance.random()
        if luck < self.trouble / 4:
            raise Transient("Errno 107")
        if luck < self.trouble / 2:
            raise NotFound(key)
        data = super()._get(key, limit, offset)
        return data[: self.chance.randrange(len(data) + 1)] if luck < self.trouble else data

    def _put(self, key: str, data: bytes) -> bool:
        if self.chance.random() < self.trouble / 3:
            raise Transient("Errno 5")
        return super()._put(key, data)
