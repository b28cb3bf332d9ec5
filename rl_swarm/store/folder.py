"""A folder as a store: a local disk, a network disk, or a Drive mounted by FUSE.

On a local disk a write is temp file + fsync + link, so that a reader never sees half a file and of two writers one wins; where
the file system has no hard links, rename takes the place of link. On a FUSE or network mount neither is to be
trusted (a rename there can leave two files), so the file is created exclusively under its own name and written in place; a reader
that comes too early finds a document without its closing checksum and looks again later.

The root is never made again once opened: a root that vanished is a mount that died, not an empty store.
"""

import contextlib
import errno
import io
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from rl_swarm.clock import Clock
from rl_swarm.errors import ConfigError, NotFound, Refused
from rl_swarm.store.base import Store, Transient

NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES, errno.EXDEV}
NO_DOCUMENT = {  # what a name says that has no readable file behind it, while the store itself is well
    *(errno.ENOENT, errno.EISDIR, errno.ENOTDIR),
    *(errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO),  # somebody's file, link or socket that is not for us
}
NETWORK_TYPES = ("fuse", "nfs", "cifs", "smb", "9p", "drive", "webdav", "davfs", "afs", "osxfuse", "macfuse")


class FolderStore(Store):
    def __init__(self, root: Path, clock: Clock | None = None, local: bool | None = None) -> None:
        super().__init__(str(root), clock)
        self.root = root
        self.local = on_local_disk(root) if local is None else local
        self._links = True
        self._unfinished: set[Path] = set()  # written in place, not to the end, and not removable at that moment

    @classmethod
    def open(cls, path: str, clock: Clock | None = None) -> "FolderStore":
        root = Path(path).expanduser().absolute()
        try:
            if root.exists() and not root.is_dir():
                raise ConfigError(f"GDRIVE_PATH must be a folder, got the file {path!r}: name the folder that all nodes share")
            if not root.exists() and not root.parent.is_dir():
                raise ConfigError(
                    f"GDRIVE_PATH cannot be made, {str(root.parent)!r} does not exist, got {path!r}: "
                    "mount the drive or make the folder"
                )
            root.mkdir(exist_ok=True)
            probe = root / f".probe-{secrets.token_hex(8)}"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise ConfigError(
                f"GDRIVE_PATH is not writable, got {path!r} ({error.strerror}): "
                "mount it again, change its permissions, or choose another"
            ) from None
        return cls(root, clock)

    def local_path(self, key: str) -> Path | None:
        return self.root / key if self.local else None

    def _put(self, key: str, data: bytes) -> bool:
        return self._put_from(key, io.BytesIO(data))

    def _put_file(self, key: str, path: Path) -> bool:
        with path.open("rb") as source:
            return self._put_from(key, source)

    def _put_from(self, key: str, source: BinaryIO) -> bool:
        path = self.root / key
        with _passing():
            if path in self._unfinished:
                path.unlink(missing_ok=True)
                self._unfinished.discard(path)
            if path.exists():
                return False
            self._make_parent(path)
            if not self.local:
                return self._create_in_place(path, source)
            part = self._write_part(path, source)
            try:
                return self._move_new(part, path)
            finally:
                part.unlink(missing_ok=True)

    def _get_file(self, key: str, path: Path, limit: int) -> None:
        with _passing():
            try:
                with open(self.root / key, "rb", opener=_no_link) as source, path.open("wb") as target:
                    found = os.fstat(source.fileno())
                    if not stat.S_ISREG(found.st_mode) or found.st_size > limit:
                        raise Refused(f"{key} is no file of at most {limit} bytes")
                    shutil.copyfileobj(_Limited(source, limit, key), target, 1 << 20)
            except FileNotFoundError:
                self._check_root()
                raise NotFound(key) from None
            except OSError as error:
                if error.errno not in NO_DOCUMENT:
                    raise
                raise Refused(f"{key} cannot be read ({error.strerror})") from None

    def _rewrite(self, key: str, data: bytes) -> None:
        path = self.root / key
        with _passing():
            self._make_parent(path)
            if self.local:
                os.replace(self._write_part(path, io.BytesIO(data)), path)
            else:
                path.write_bytes(data)

    def _get(self, key: str, limit: int | None) -> bytes:
        with _passing():
            try:
                with open(self.root / key, "rb", opener=_at_once) as file:
                    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                        raise NotFound(key)
                    return file.read() if limit is None else file.read(limit + 1)
            except OSError as error:
                if error.errno not in NO_DOCUMENT:
                    raise
                self._check_root()
                raise NotFound(key) from None

    def _list(self, folder: str) -> list[str]:
        with _passing():
            try:
                with os.scandir(self.root / folder) as entries:
                    return sorted(entry.name + "/" * _is_folder(entry) for entry in entries if not entry.name.startswith("."))
            except (FileNotFoundError, NotADirectoryError):
                self._check_root()
                return []

    def _delete(self, key: str) -> None:
        with _passing():
            path = self.root / key
            with contextlib.suppress(FileNotFoundError):
                if not self.local:
                    os.truncate(path, 0)  # a Drive keeps deleted files for 30 days and counts them: leave nothing to keep
                path.unlink()

    def _check_root(self) -> None:
        if not self.root.is_dir():
            raise Transient("the folder itself is not there")

    def _make_parent(self, path: Path) -> None:
        if not path.parent.is_dir():
            self._check_root()
            path.parent.mkdir(parents=True, exist_ok=True)

    def _write_part(self, path: Path, source: BinaryIO) -> Path:
        part = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
        try:
            _fill(open(part, "xb"), source)  # noqa: SIM115 – closed by _fill
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return part

    def _move_new(self, part: Path, path: Path) -> bool:
        if self._links:
            try:
                os.link(part, path)
                return True
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                self._links = False
        if path.exists():
            return False
        os.replace(part, path)
        return True

    def _create_in_place(self, path: Path, source: BinaryIO) -> bool:
        try:
            file = open(path, "xb")  # noqa: SIM115 – closed by _fill
        except FileExistsError:
            return False
        try:
            _fill(file, source)
        except BaseException:
            self._unfinished.add(path)  # a mount that dies half-way lets nothing be removed: then the next try begins with that
            path.unlink(missing_ok=True)
            self._unfinished.discard(path)
            raise
        return True


@contextlib.contextmanager
def _passing() -> Iterator[None]:
    """Whatever a disk or mount says may pass: Errno 5, 107, 116, a false ENOENT, a full disk, a quota."""
    try:
        yield
    except OSError as error:
        raise Transient(f"Errno {error.errno}, {error.strerror}") from error


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno != errno.ELOOP:  # a link to itself must not cost the whole listing
            raise
        return False


def _at_once(path: str, flags: int) -> int:
    """Open without waiting: a pipe that somebody put under a document's name would wait for a writer for ever."""
    return os.open(path, flags | os.O_NONBLOCK)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


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
    """Whether `path` lies on this machine's own disk, where append and rename can be trusted."""
    if sys.platform == "darwin":
        return "CloudStorage" not in path.parts and "Volumes" not in path.parts[:2]
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return True
    best, kind = "", ""
    for line in mounts:
        point, fs_type = (part.encode().decode("unicode_escape") for part in line.split(" ")[1:3])
        inside = str(path) == point or str(path).startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fs_type
    return not kind.lower().startswith(NETWORK_TYPES)
