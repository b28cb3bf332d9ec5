"""A folder in Google Drive through its API, laid out as on a mounted Drive: nodes with a mount and nodes with the API can meet.

Ids are remembered and names never searched. An index of what lies in the folders is filled by listing a folder once, and then kept
by the changes feed: whoever polls for a file or a folder asks the feed, at most once in a while, for all of them together. Listings
lag, so a folder that was there before is listed again some times.

Drive has no exclusive create, and names are not unique. Of several files of one name the one created first counts, by Drive's own
date; of equal dates the one with the smallest id. Several folders of one name count as one folder.
"""

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rl_swarm.clock import Clock, SystemClock
from rl_swarm.errors import ConfigError, NotFound, Refused, StoreAway
from rl_swarm.store.base import Store, Transient
from rl_swarm.store.drive_api import FOLDER, DriveApi, File

READ_SECONDS, WRITE_SECONDS = 3.0, 30.0  # a reader wants to know what the feed said at most so long ago, a writer need not
LAG_SECONDS = (3.0, 15.0, 60.0)  # after its first listing a folder is listed again, and then believed to be known
OPEN_ATTEMPTS = 4
ROOT_FIELDS = "id,mimeType,driveId,capabilities(canAddChildren)"
SMALL_BYTES = 5 << 20  # a larger file is sent in a session that can go on after an interruption


@dataclass(frozen=True, order=True)
class Entry:
    """A file or folder. The smallest of one name counts."""

    created: str
    id: str
    name: str = ""
    parent: str = ""
    folder: bool = False
    size: int = 0
    md5: str = ""


class Index:
    """What is known of the files, by parent and name."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._below: dict[str, dict[str, dict[str, Entry]]] = {}  # parent → name → id → entry

    def add(self, file: File) -> None:
        self.remove(file["id"])
        parents = file.get("parents", [])
        if file.get("trashed") or not parents:
            return
        entry = Entry(
            created=file.get("createdTime", ""),
            id=file["id"],
            name=file["name"],
            parent=parents[0],
            folder=file.get("mimeType") == FOLDER,
            size=int(file.get("size", 0)),
            md5=file.get("md5Checksum", ""),
        )
        self._entries[entry.id] = entry
        self._below.setdefault(entry.parent, {}).setdefault(entry.name, {})[entry.id] = entry

    def remove(self, file_id: str) -> None:
        if entry := self._entries.pop(file_id, None):
            same = self._below[entry.parent][entry.name]
            del same[file_id]
            if not same:
                del self._below[entry.parent][entry.name]

    def named(self, parents: Iterable[str], name: str, folder: bool) -> list[Entry]:
        """All files, or folders, of one name; the one that counts comes first."""
        return sorted(entry for parent in parents for entry in self._of(parent, name) if entry.folder == folder)

    def names(self, parents: Iterable[str]) -> set[str]:
        """Names below these folders, folders with a trailing '/'."""
        entries = (entry for parent in parents for same in self._below.get(parent, {}).values() for entry in same.values())
        return {entry.name + "/" * entry.folder for entry in entries if "/" not in entry.name}  # Drive allows it in names

    def _of(self, parent: str, name: str) -> Iterable[Entry]:
        return self._below.get(parent, {}).get(name, {}).values()


class DriveStore(Store):
    attempts = 3  # of the whole operation: each request is tried several times
    first_pause_seconds = 0.5
    retry_seconds = 20.0
    parallel = 4
    journal_seconds = 120.0
    exclusive = False
    settle_seconds = 5.0

    def __init__(self, url: str, api: DriveApi, root: File, path: str = "", clock: Clock | None = None) -> None:
        super().__init__(url, clock)
        self.api = api
        self._root, self._drive_id, self._path = root["id"], root.get("driveId"), path
        self._index = Index()
        self._listed: dict[str, list[float]] = {}  # folder id → when it is to be listed again
        self._known: set[str] = set()  # ids of folders whose content is known, and kept by the feed
        self._lock, self._making = threading.RLock(), threading.RLock()
        self._token = api.start_of_changes(self._drive_id)  # before anything is listed: nothing falls in between
        self._looked = self.clock.monotonic()
        self._began = ""  # Drive's date of the first file of ours: the feed tells all of folders that are younger

    @classmethod
    def open(cls, rest: str, clock: Clock | None = None, writable: bool = True) -> "DriveStore":
        root_id, _, path = rest.strip("/").partition("/")
        url, clock = f"gdrive://{rest.strip('/')}", clock or SystemClock()
        if not root_id:
            raise ConfigError(
                f"GDRIVE_PATH names no folder, got {url!r}: write gdrive://FOLDER_ID, its address in Drive has the id"
            )
        api = DriveApi(clock)
        for left in reversed(range(OPEN_ATTEMPTS)):
            try:
                return cls(url, api, _checked(api.get(root_id, ROOT_FIELDS), url, writable), path, clock)
            except NotFound:
                raise ConfigError(
                    f"GDRIVE_PATH names a folder that this user cannot see, got {url!r}: check the id, or have it shared"
                ) from None
            except Transient as error:
                failure = StoreAway(f"{url} does not answer ({error}): check the network and the credentials")
            if left:
                clock.sleep(cls.first_pause_seconds)
        raise failure

    @property
    def about(self) -> str:
        return f"{self.url}, a folder of Google Drive through its API: of several files of one name the earliest counts"

    def _put(self, key: str, data: bytes) -> bool:
        return self._create(key, lambda name, parent: self.api.create(name, parent, data), _md5_of(data))

    def _put_file(self, key: str, path: Path) -> bool:
        if path.stat().st_size <= SMALL_BYTES:
            return self._put(key, path.read_bytes())
        return self._create(key, lambda name, parent: self.api.create_from(name, parent, path), _md5(path))

    def _create(self, key: str, send: Callable[[str, str], File], md5: str) -> bool:
        """Create a file unless one is known under this name; verify what has arrived."""
        *folders, name = self._names(key)
        parents = self._folders(folders, WRITE_SECONDS)
        if parents and self._files(parents, name):
            return False
        with self._vanishing():
            file = send(name, self._make_folders(folders))
        if file.get("md5Checksum") != md5:
            self.api.delete([file["id"]])
            raise Transient("what has arrived is not what was sent")
        with self._lock:
            self._began = self._began or file["createdTime"]
            self._take_in(file)
            found = self._files(self._folders(folders), name, look=False)
            return not found or found[0].id == file["id"]

    def _rewrite(self, key: str, data: bytes) -> None:
        *folders, name = self._names(key)
        parents = self._folders(folders, WRITE_SECONDS)
        found = self._files(parents, name) if parents else []
        with self._vanishing(*(entry.id for entry in found[:1])):
            file = self.api.update(found[0].id, data) if found else self.api.create(name, self._make_folders(folders), data)
        with self._lock:
            self._take_in(file)

    def _get(self, key: str, limit: int, offset: int) -> bytes:
        entry = self._entry(key)
        first = offset if offset >= 0 else max(0, entry.size + offset)
        last = min(first + limit, entry.size - 1)
        if first > last:
            return b""
        with self._vanishing(entry.id):
            data = self.api.read(entry.id, first, last)
        if len(data) == entry.size and _md5_of(data) == entry.md5:
            return data
        if len(data) == last - first + 1 and len(data) < entry.size:  # a part, of which there is no checksum
            return data
        self._learn(entry.id)  # it was cut on its way, or rewritten since
        raise Transient(f"{len(data)} of {entry.size} bytes came, or not those that were written")

    def _get_file(self, key: str, path: Path, limit: int) -> None:
        entry = self._entry(key)
        if entry.size > limit:
            raise Refused(f"{key} has {entry.size} bytes, the limit for this file is {limit}: remove it")
        with self._vanishing(entry.id), path.open("wb") as target:
            if entry.size:
                self.api.read_to(entry.id, target)
        if _md5(path) != entry.md5:
            self._learn(entry.id)
            raise Transient("other bytes came than were written")

    def _size(self, key: str) -> int:
        return self._entry(key).size

    def _list(self, folder: str) -> list[str]:
        parents = self._folders(self._names(folder.rstrip("/")), READ_SECONDS)
        if not parents:
            return []
        self._know(parents)
        with self._lock:
            return sorted(self._index.names(parents))

    def _delete(self, key: str) -> None:
        *folders, name = self._names(key)
        parents = self._folders(folders, WRITE_SECONDS)
        found = [entry.id for entry in reversed(self._files(parents, name))] if parents else []  # the one that counts last
        for kept in self.api.delete(found) if found else ():
            self.api.update(kept, b"", trashed=True)  # a shared drive lets editors only trash: leave nothing that would fill it
        with self._lock:
            for file_id in found:
                self._index.remove(file_id)

    def _names(self, key: str) -> list[str]:
        return [*filter(None, self._path.split("/")), *key.split("/")]

    def _entry(self, key: str) -> Entry:
        *folders, name = self._names(key)
        parents = self._folders(folders, READ_SECONDS)
        found = self._files(parents, name) if parents else []
        if not found:
            raise NotFound(key)
        return found[0]

    def _folders(self, names: list[str], since: float | None = None) -> list[str]:
        """The ids of a folder, and of others of the same name; none if there is no such folder.

        By what is known now or, with `since`, by what Drive said at most so many seconds ago.
        """
        if since is not None:
            self._look(since)
        ids = [self._root]
        for name in names:
            if since is not None:
                self._know(ids)
            with self._lock:
                ids = [entry.id for entry in self._index.named(ids, name, folder=True)]
        return ids

    def _files(self, parents: list[str], name: str, look: bool = True) -> list[Entry]:
        if look:
            self._know(parents)
        with self._lock:
            return self._index.named(parents, name, folder=False)

    def _make_folders(self, names: list[str]) -> str:
        """Make what is missing of a path; return the id of the folder that new files go to."""
        with self._making:
            for depth in range(1, len(names) + 1):
                if not self._folders(names[:depth]):
                    file = self.api.make_folder(names[depth - 1], self._first(names[: depth - 1]))
                    with self._lock:
                        self._take_in(file)
                        self._known.add(file["id"])
            return self._first(names)

    def _first(self, names: list[str]) -> str:
        """The id of a folder that was there a moment ago."""
        if found := self._folders(names):
            return found[0]
        raise Transient("a folder was deleted meanwhile")

    def _know(self, folders: list[str]) -> None:
        """List folders whose content is not known, and again those that were listed when the listing may have lagged."""
        with self._lock:
            for folder_id in set(folders) - self._known:
                now = self.clock.monotonic()
                due = self._listed.setdefault(folder_id, [now, *(now + lag for lag in LAG_SECONDS)])
                if now < due[0]:
                    continue
                for file in self.api.children(folder_id):
                    self._take_in(file)
                self._listed[folder_id] = later = [at for at in due if at > now]
                if not later:
                    self._known.add(folder_id)

    def _take_in(self, file: File) -> None:
        """Add what Drive says of a file to the index. Called under the lock."""
        self._index.add(file)
        if file.get("mimeType") == FOLDER and self._began and file.get("createdTime", "") > self._began:
            self._known.add(file["id"])

    def _look(self, since: float) -> None:
        """Take in what the feed brings, unless it was asked a moment ago."""
        with self._lock:
            if self.clock.monotonic() - self._looked < since:
                return
            changes, self._token = self.api.changes(self._token, self._drive_id)
            self._looked = self.clock.monotonic()
            for change in changes:
                if change.get("removed") or not change.get("file"):
                    self._index.remove(change["fileId"])
                else:
                    self._take_in(change["file"])

    def _learn(self, file_id: str) -> None:
        """Ask Drive about one file, by its id, which never lags."""
        with self._vanishing(file_id):
            file = self.api.get(file_id)
        with self._lock:
            self._take_in(file)

    @contextlib.contextmanager
    def _vanishing(self, *file_ids: str) -> Iterator[None]:
        """Forget files that were deleted meanwhile."""
        try:
            yield
        except NotFound as error:
            with self._lock:
                for file_id in () if isinstance(error, Refused) else file_ids:
                    self._index.remove(file_id)
            raise


def _checked(root: File, url: str, writable: bool) -> File:
    if root.get("mimeType") != FOLDER:
        raise ConfigError(f"GDRIVE_PATH must name a folder of Drive, got {url!r}: the address of the open folder has its id")
    if writable and not root.get("capabilities", {}).get("canAddChildren", True):
        raise ConfigError(f"GDRIVE_PATH cannot be written by this user, got {url!r}: ask its owner for edit rights")
    return root


def _md5_of(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _md5(path: Path) -> str:
    checksum = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            checksum.update(block)
    return checksum.hexdigest()
