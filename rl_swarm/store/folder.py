"""A folder as a store: a local disk, a network disk, or a Drive mounted by FUSE.

On a local disk a write is temp file + fsync + link: a reader never sees half a file, and of two writers one wins. A file system
without hard links gets a rename instead. A FUSE or network mount can be trusted with neither (a rename there can leave two files),
so the file is created exclusively under its own name and written in place. A reader that comes too early finds a document without
its closing checksum and looks again later. `guard.py` opens every path.

The root is never made again once opened: a vanished root is a dead mount, not an empty store.
"""

import contextlib
import errno
import io
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from rl_swarm.clock import Clock
from rl_swarm.errors import ConfigError, NotFound, Refused, StoreAway
from rl_swarm.store.base import Store, Transient
from rl_swarm.store.guard import Folder, RootGone, open_folder
from rl_swarm.values import expanded

NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES, errno.EXDEV}
REMEDIES = {  # errors that mean this one name cannot be used; the store itself works
    errno.ELOOP: "it is a symbolic link: remove it",
    errno.ENOTDIR: "a file or a link stands where a folder should be: remove it",
    errno.EISDIR: "it is a folder, a pipe or a device: remove it",
    errno.ENXIO: "it is a pipe or a socket: remove it",
    errno.EMLINK: "it has a second name, which may be a file elsewhere: remove it",
    errno.EACCES: "no permission: let its owner run chmod -R, folders should have the mode of the shared folder itself",
    errno.EPERM: "not permitted: let its owner remove it",
    errno.ENAMETOOLONG: "the name is too long",
}
GIANT_BYTES = 1 << 40  # no journal grows to this size: a file that cannot grow beyond it was planted
HELD = "another process holds it (a lease): remove it, or end that process"
NETWORK_TYPES = ("fuse", "nfs", "cifs", "smb", "9p", "drive", "webdav", "davfs", "afs", "osxfuse", "macfuse")
HANG_SECONDS = 15.0  # after this long without an answer a mount is away
_OCTAL = re.compile(rb"\\([0-7]{3})")


class FolderStore(Store):
    def __init__(self, root: Path, clock: Clock | None = None, local: bool | None = None) -> None:
        self.root = root.resolve()
        super().__init__(str(self.root), clock)
        self.local = on_local_disk(self.root) if local is None else local
        self.appendable = self.local
        self.hang_seconds = None if self.local else HANG_SECONDS
        self._links = True
        self._unfinished: set[str] = set()  # keys half written in place, which could not be removed at that moment
        self._landmark: str | None = None

    @classmethod
    def open(cls, path: str, clock: Clock | None = None, writable: bool = True) -> "FolderStore":
        root = expanded(path, "GDRIVE_PATH").absolute()
        try:
            if root.exists() and not root.is_dir():
                raise ConfigError(f"GDRIVE_PATH must be a folder, got the file {path!r}: name the folder that all nodes share")
            if not root.exists() and (not writable or not root.parent.is_dir()):
                missing = root if root.parent.is_dir() else root.parent
                raise ConfigError(
                    f"GDRIVE_PATH cannot be used, {str(missing)!r} does not exist, got {path!r}: mount the drive or make the folder"
                )
            if writable:
                root.mkdir(exist_ok=True)
                with open_folder(root.resolve(), ()) as folder:
                    probe = f".probe-{secrets.token_hex(8)}"
                    folder.creating(probe).close()
                    folder.remove(probe)
        except OSError as error:
            raise ConfigError(
                f"GDRIVE_PATH is not writable, got {path!r} ({error.strerror}): "
                "mount it again, change its permissions, or choose another"
            ) from None
        return cls(root, clock)

    @property
    def about(self) -> str:
        disk = "this machine's own disk: other machines see it only if you share or synchronise the folder"
        mount = "a FUSE or network mount: other machines see a write when it is uploaded, on a Drive after seconds to minutes"
        return f"{self.root}, {disk if self.local else mount}"

    def expect(self, key: str) -> None:
        """Make no folder from now on unless this key exists: an empty folder in the root's place is not our store."""
        self._landmark = key

    def unwritable(self, folder: str) -> str:
        """Why this user may not write to a folder ('' is the root); empty if it may, or if there is no such folder."""
        try:
            with self._translated(folder), open_folder(self.root, folder.split("/") if folder else ()) as opened:
                return opened.unwritable
        except NotFound as error:
            return str(error) if isinstance(error, Refused) else ""

    def _remove_folder(self, key: str) -> None:
        folders, name = _split(key)
        with contextlib.suppress(OSError), open_folder(self.root, folders) as folder:
            folder.remove_folder(name)

    def _put(self, key: str, data: bytes) -> bool:
        return self._put_from(key, io.BytesIO(data))

    def _put_file(self, key: str, path: Path) -> bool:
        with path.open("rb") as source:
            return self._put_from(key, source)

    def _put_from(self, key: str, source: BinaryIO) -> bool:
        with self._opened(key, make=True) as (folder, name):
            if key in self._unfinished:
                with contextlib.suppress(FileNotFoundError):
                    folder.remove(name)
                self._unfinished.discard(key)
            if folder.exists(name):
                return False
            if not self.local:
                return self._create_in_place(folder, name, key, source)
            with _written_part(folder, name, source) as part:
                return self._move_new(folder, part, name)

    def _get_file(self, key: str, path: Path, limit: int) -> None:
        with self._opened(key) as (folder, name), folder.reading(name) as source:
            size = os.fstat(source.fileno()).st_size  # of a planted hole: nothing of it is copied
            with path.open("wb") as target:
                while size <= limit and (block := source.read(1 << 20)):
                    target.write(block)
                    size = max(size, target.tell())  # it may grow meanwhile
            if size > limit:
                raise Refused(f"{key} has {size} bytes, the limit for this file is {limit}: remove it")

    def _rewrite(self, key: str, data: bytes) -> None:
        with self._opened(key, make=True) as (folder, name):
            if self.local:
                with _written_part(folder, name, io.BytesIO(data)) as part:
                    folder.replace(part, name)
                return
            with folder.writing(name) as file:
                file.truncate(0)
                _write(file, data)

    def _append(self, key: str, data: bytes) -> None:
        """Add whole lines. Half a line left by a killed process is ended first; a failed write leaves nothing."""
        with self._opened(key, make=True) as (folder, name), folder.writing(name) as file:
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
                data = data if file.read(1) == b"\n" else b"\n" + data
            try:
                file.seek(end)
                _write(file, data)
            except OSError as error:
                with contextlib.suppress(OSError):
                    file.truncate(end)
                if error.errno == errno.EFBIG and end >= GIANT_BYTES:  # below, this process has a limit
                    raise Refused(f"{key} cannot be used, it is as large as a file can be: remove it") from None
                raise

    def _get(self, key: str, limit: int, offset: int) -> bytes:
        with self._opened(key) as (folder, name), folder.reading(name) as file:
            if offset:
                file.seek(offset if offset > 0 else max(0, os.fstat(file.fileno()).st_size + offset))
            return file.read(limit + 1)

    def _size(self, key: str) -> int:
        with self._opened(key) as (folder, name):
            return folder.size(name)

    def _list(self, folder: str) -> list[str]:
        try:
            with self._translated(folder), open_folder(self.root, folder.rstrip("/").split("/")) as opened:
                return sorted(name for name in opened.names() if not name.startswith("."))
        except NotFound:
            return []

    def _delete(self, key: str) -> None:
        with contextlib.suppress(NotFound), self._opened(key) as (folder, name):
            if not self.local:
                folder.empty(name)  # a Drive keeps deleted files for 30 days and counts them: leave nothing to keep
            folder.remove(name)
        if self.local:  # a mount's listings are stale: what looks empty there may not be
            self._remove_empty(_split(key)[0])

    def _remove_empty(self, folders: list[str]) -> None:
        """Remove a folder and those above it, but the first, as far as they are empty. Whoever needs one makes it again."""
        with contextlib.suppress(OSError):
            for depth in range(len(folders), 1, -1):
                with open_folder(self.root, folders[: depth - 1]) as parent:
                    parent.remove_folder(folders[depth - 1])

    @contextlib.contextmanager
    def _opened(self, key: str, make: bool = False) -> Iterator[tuple[Folder, str]]:
        """Open a key's folder; yield it with the key's last name."""
        folders, name = _split(key)
        with self._translated(key, make), open_folder(self.root, folders, self._look_for_landmark if make else None) as folder:
            yield folder, name

    @contextlib.contextmanager
    def _translated(self, key: str, writing: bool = False) -> Iterator[None]:
        """Translate errors of the system: not there yet, never usable, or transient."""
        try:
            yield
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not writing:
                raise NotFound(key) from None
            if error.errno == errno.EROFS:  # no retry helps
                raise StoreAway(f"{self.url} is mounted read-only: mount it for writing") from None
            if error.errno in REMEDIES and not isinstance(error, RootGone):
                raise Refused(f"{key} cannot be used, {REMEDIES[error.errno]}") from None
            if self.local and isinstance(error, BlockingIOError):
                raise Refused(f"{key} cannot be used, {HELD}") from None
            # A disk or mount may raise anything for a while: Errno 5, 107, 116, a full disk, a quota.
            raise Transient(f"Errno {error.errno}, {error.strerror}") from error

    def _look_for_landmark(self) -> None:
        if self._landmark is None:
            return
        folders, name = _split(self._landmark)
        with contextlib.suppress(FileNotFoundError), open_folder(self.root, folders) as folder:
            if folder.exists(name):
                return
        raise Transient(f"{self._landmark} is missing: another folder has taken the place of the store")

    def _move_new(self, folder: Folder, part: str, name: str) -> bool:
        if self._links:
            try:
                folder.link(part, name)
                return True
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                self._links = False
        if folder.exists(name):
            return False
        folder.replace(part, name)
        return True

    def _create_in_place(self, folder: Folder, name: str, key: str, source: BinaryIO) -> bool:
        try:
            file = folder.creating(name)
        except FileExistsError:
            return False
        try:
            _fill(file, source)
        except BaseException:
            self._unfinished.add(key)  # a mount that died lets nothing be removed: the next try begins with that
            with contextlib.suppress(FileNotFoundError):
                folder.remove(name)
            self._unfinished.discard(key)
            raise
        return True


@contextlib.contextmanager
def _written_part(folder: Folder, name: str, source: BinaryIO) -> Iterator[str]:
    """Write a hidden file, which no listing shows, to the disk; remove it at the end unless it was renamed."""
    part = f".{name}.{secrets.token_hex(6)}"
    file = folder.creating(part)
    try:
        _fill(file, source)
        yield part
    finally:
        with contextlib.suppress(FileNotFoundError):
            folder.remove(part)


def _split(key: str) -> tuple[list[str], str]:
    *folders, name = key.split("/")
    return folders, name


def _write(file: io.FileIO, data: bytes) -> None:
    written = 0
    while written < len(data):
        written += file.write(data[written:])


def _fill(file: BinaryIO, source: BinaryIO) -> None:
    """Copy to a new file, flush it to the disk and close it."""
    with file:
        shutil.copyfileobj(source, file, 1 << 20)
        file.flush()
        os.fsync(file.fileno())


def on_local_disk(path: Path) -> bool:
    """Whether a resolved path lies on a local disk, where append and rename can be trusted."""
    if sys.platform == "darwin":
        return "CloudStorage" not in path.parts and "Volumes" not in path.parts[:2]
    try:
        mounts = Path("/proc/self/mounts").read_bytes().splitlines()
    except OSError:
        return True
    inside, best, kind = os.fsencode(path) + b"/", b"", b""
    for line in mounts:
        point, file_system = line.split(b" ")[1:3]
        point = _OCTAL.sub(lambda match: bytes([int(match[1], 8)]), point).rstrip(b"/") + b"/"
        if inside.startswith(point) and len(point) >= len(best):
            best, kind = point, file_system
    return not kind.lower().startswith(tuple(name.encode() for name in NETWORK_TYPES))
