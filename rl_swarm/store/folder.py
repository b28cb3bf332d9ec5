"""A folder as a store: a local disk, a network disk, or a Drive mounted by FUSE.

On a local disk a write is temp file + fsync + link, so that a reader never sees half a file and of two writers one wins; where
the file system has no hard links, rename takes the place of link. On a FUSE or network mount neither is to be
trusted (a rename there can leave two files), so the file is created exclusively under its own name and written in place; a reader
that comes too early finds a document without its closing checksum and looks again later. Every path is opened by `guard.py`.

The root is never made again once opened: a root that vanished is a mount that died, not an empty store.
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
from rl_swarm.config import expanded
from rl_swarm.errors import ConfigError, NotFound, Refused
from rl_swarm.store.base import Store, Transient
from rl_swarm.store.guard import Folder, RootGone, open_folder, part_name

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
GIANT_BYTES = 1 << 40  # no journal grows to this: where a file cannot grow beyond it, somebody made it so large
HELD = "another process holds it (a lease): remove it, or end that process"
NETWORK_TYPES = ("fuse", "nfs", "cifs", "smb", "9p", "drive", "webdav", "davfs", "afs", "osxfuse", "macfuse")
HANG_SECONDS = 15.0  # a mount that has not answered by then is away
_OCTAL = re.compile(rb"\\([0-7]{3})")


class FolderStore(Store):
    def __init__(self, root: Path, clock: Clock | None = None, local: bool | None = None) -> None:
        self.root = root.resolve()
        super().__init__(str(self.root), clock)
        self.local = on_local_disk(self.root) if local is None else local
        self.appendable = self.local
        self.hang_seconds = None if self.local else HANG_SECONDS
        self._links = True
        self._unfinished: set[str] = set()  # keys written in place, not to the end, and not removable at that moment
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

    def expect(self, key: str) -> None:
        """From now on make no folder unless this key is there: an empty folder in this one's place is not our store."""
        self._landmark = key

    def modified(self, key: str) -> float:
        """When a key was last written, by the store's clock; for `doctor` only."""
        with self._opened(key) as (folder, name):
            return folder.modified(name)

    def unwritable(self, folder: str) -> str:
        """Why this user may not write to a folder, or to the root if it is empty; empty where it may, or where none is there."""
        try:
            with self._translated(folder), open_folder(self.root, folder.split("/") if folder else ()) as opened:
                return opened.unwritable
        except NotFound as error:
            return str(error) if isinstance(error, Refused) else ""

    def remove_folder(self, key: str) -> None:
        """Remove a folder if it is empty; what is not empty stays."""
        with contextlib.suppress(OSError), open_folder(self.root, _split(key)[0]) as folder:
            folder.remove_folder(_split(key)[1])

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
            size = os.fstat(source.fileno()).st_size
            if size > limit:
                raise Refused(f"{key} has {size} bytes, {limit} are the most that this can be: remove it")
            with path.open("wb") as target:
                shutil.copyfileobj(_Limited(source, limit, key), target, 1 << 20)

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
        """Add whole lines: half a line that a killed process left is ended first, and of a write that fails nothing stays."""
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
                if error.errno == errno.EFBIG and end >= GIANT_BYTES:  # below, it is a limit of this process
                    raise Refused(f"{key} cannot be used, it is as large as a file can be: remove it") from None
                raise

    def _get(self, key: str, limit: int, offset: int) -> bytes:
        with self._opened(key) as (folder, name), folder.reading(name) as file:
            if offset:
                file.seek(offset if offset > 0 else max(0, os.fstat(file.fileno()).st_size + offset))
            return file.read(limit + 1)

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

    @contextlib.contextmanager
    def _opened(self, key: str, make: bool = False) -> Iterator[tuple[Folder, str]]:
        """The open folder of a key and the key's last name."""
        folders, name = _split(key)
        with self._translated(key, make), open_folder(self.root, folders, self._look_for_landmark if make else None) as folder:
            yield folder, name

    @contextlib.contextmanager
    def _translated(self, key: str, writing: bool = False) -> Iterator[None]:
        """Turn what the system says into what it means: not there yet, never usable, or an error that may pass."""
        try:
            yield
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not writing:
                raise NotFound(key) from None
            if error.errno in REMEDIES and not isinstance(error, RootGone):
                raise Refused(f"{key} cannot be used, {REMEDIES[error.errno]}") from None
            if self.local and isinstance(error, BlockingIOError):
                raise Refused(f"{key} cannot be used, {HELD}") from None
            # A disk or mount may say anything for a while: Errno 5, 107, 116, a full disk, a quota.
            raise Transient(f"Errno {error.errno}, {error.strerror}") from error

    def _look_for_landmark(self) -> None:
        if self._landmark is not None:
            folders, name = _split(self._landmark)
            try:
                with open_folder(self.root, folders) as folder:
                    found = folder.exists(name)
            except FileNotFoundError:
                found = False
            if not found:
                raise Transient(f"{self._landmark} is not there: another folder has taken the place of the store")

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
            self._unfinished.add(key)  # a mount that dies half-way lets nothing be removed: then the next try begins with that
            with contextlib.suppress(FileNotFoundError):
                folder.remove(name)
            self._unfinished.discard(key)
            raise
        return True


@contextlib.contextmanager
def _written_part(folder: Folder, name: str, source: BinaryIO) -> Iterator[str]:
    """A hidden file with this content, safe on the disk; it is removed at the end unless it was renamed."""
    part = part_name(name)
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


class _Limited:
    """A file that may grow while it is read, but not beyond a limit."""

    def __init__(self, file: BinaryIO, limit: int, key: str) -> None:
        self._file, self._left, self._key = file, limit, key

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise Refused(f"{self._key} grew while it was read")
        return data


def _fill(file: BinaryIO, source: BinaryIO) -> None:
    """Write out a file that was just created, to the disk itself, and close it."""
    with file:
        shutil.copyfileobj(source, file, 1 << 20)
        file.flush()
        os.fsync(file.fileno())


def on_local_disk(path: Path) -> bool:
    """Whether a resolved path lies on this machine's own disk, where append and rename can be trusted."""
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
