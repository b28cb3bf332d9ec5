"""A bucket whose service does not honour conditional creation: writers cannot be told apart, so readers choose one of them, alike.

A key stands for its candidates, `KEY=TOKEN`, one for each writer. The winner is the one that the service dates earliest; if the
dates are equal, the one with the smallest token. The service's clock dates all of them, so a later candidate never displaces an
earlier one, unless both arrive within the resolution of its dates, which is a second or less. Writers look before they write, and
again afterwards: one that finds that it lost removes its candidate. Costs a listing more for each operation.
"""

import secrets
from pathlib import Path

import obstore

from rl_swarm.errors import NotFound
from rl_swarm.store.base import Store
from rl_swarm.store.bucket import PART_BYTES, PARTS_AT_ONCE, BucketStore, translated

MARK = "="  # in no key


class CandidateBucket(BucketStore):
    exclusive = False
    settle_seconds = 2.0

    @property
    def about(self) -> str:
        return f"{self.url}, a bucket whose service creates a key again for each writer: all readers choose the earliest"

    def _put(self, key: str, data: bytes) -> bool:
        with translated(key):
            if self._candidates(key):
                return False
            mine = _new(key)
            obstore.put(self._small, mine, data)
            return self._keep_winner(key, mine)

    def _put_file(self, key: str, path: Path) -> bool:
        with translated(key):
            if self._candidates(key):
                return False
            mine = _new(key)
            with path.open("rb") as file:
                obstore.put(self._large, mine, file, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
            return self._keep_winner(key, mine)

    def _keep_winner(self, key: str, mine: str) -> bool:
        won = self._winner(key) == mine
        if not won:
            self._remove(mine)
        return won

    def _rewrite(self, key: str, data: bytes) -> None:
        with translated(key):
            first, *others = self._candidates(key) or [_new(key)]
            for name in others:
                self._remove(name)
            obstore.put(self._small, first, data)

    def _get(self, key: str, limit: int, offset: int) -> bytes:
        with translated(key):
            return self._read(self._winner(key), limit, offset)

    def _get_file(self, key: str, path: Path, limit: int) -> None:
        with translated(key):
            self._fetch(self._winner(key), key, path, limit)

    def _size(self, key: str) -> int:
        with translated(key):
            return obstore.head(self._small, self._winner(key))["size"]

    def _list(self, folder: str) -> list[str]:
        return sorted({name.partition(MARK)[0] for name in super()._list(folder)})

    def _list_from(self, folder: str, after: str, most: int) -> list[str]:
        return Store._list_from(self, folder, after, most)  # by the names of keys, not of candidates

    def _delete(self, key: str) -> None:
        with translated(key):
            for name in reversed(self._candidates(key)):  # the winner last: no loser may take its place meanwhile
                self._remove(name)

    def _winner(self, key: str) -> str:
        candidates = self._candidates(key)
        if not candidates:
            raise NotFound(key)
        return candidates[0]

    def _candidates(self, key: str) -> list[str]:
        """All candidates of a key, the winner first."""
        there = obstore.list_with_delimiter(self._small, key.rpartition("/")[0] or None)["objects"]
        found = [(entry["last_modified"], entry["path"]) for entry in there if entry["path"].startswith(key + MARK)]
        return [path for _, path in sorted(found)]


def _new(key: str) -> str:
    return f"{key}{MARK}{secrets.token_hex(8)}"
