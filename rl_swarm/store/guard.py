"""Open files below a shared folder, one path component at a time, so that nothing planted there leads out of it.

Strangers can write to the folder. Every step goes through a directory handle (`dir_fd`) with O_NOFOLLOW, only regular files are
opened, and no open waits for the other end of a pipe. The caller resolves the links in the path that the user typed, once.
Only this module opens paths in the store; `tests/redteam/test_syscalls.py` watches the system calls.
"""

import errno
import io
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC
_STEP = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | _NO_LINK  # O_PATH: a mount is asked for the name only
_AT_ONCE = os.O_NONBLOCK | _NO_LINK


class RootGone(OSError):
    """The shared folder itself is not there, or does not answer."""


@contextmanager
def open_folder(root: Path, names: Sequence[str], before_making: Callable[[], None] | None = None) -> Iterator["Folder"]:
    """Open the folder `names` below `root`.

    A missing folder raises FileNotFoundError. With `before_making`, it is made after calling that, which may raise.
    """
    try:
        handle = os.open(root, _STEP)
    except OSError as error:
        raise RootGone(error.errno, error.strerror) from error
    mode = stat.S_IMODE(os.fstat(handle).st_mode)
    try:
        for name in names:
            try:
                below = os.open(name, _STEP, dir_fd=handle)
            except FileNotFoundError:
                if before_making is None:
                    raise
                before_making()
                below = _make(name, handle, mode)
            os.close(handle)
            handle = below
        yield Folder(handle, mode)
    finally:
        os.close(handle)


def _make(name: str, parent: int, mode: int) -> int:
    """Make a folder with the mode of the root, whatever the umask: whoever may write to the store may write to all of it."""
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
        handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _NO_LINK, dir_fd=parent)
        try:
            with suppress(OSError):  # a mount that knows no modes
                os.fchmod(handle, mode)
        finally:
            os.close(handle)
    return os.open(name, _STEP, dir_fd=parent)


class Folder:
    """An open folder. Every name is a single component; a link, pipe, device or folder under it raises OSError."""

    def __init__(self, handle: int, mode: int) -> None:
        self._handle = handle
        self._mode = 0o600 | (mode & 0o444)  # of new files: whoever may read the root may read them

    def names(self) -> list[str]:
        """Names in this folder, folders with a trailing '/'; a link is a plain name, whatever its target."""
        handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | _NO_LINK, dir_fd=self._handle)
        try:
            with os.scandir(handle) as entries:
                return [entry.name + "/" * entry.is_dir(follow_symlinks=False) for entry in entries]
        finally:
            os.close(handle)

    @property
    def unwritable(self) -> str:
        """Owner and mode if this user may not write here; empty if it may."""
        if os.access(".", os.W_OK | os.X_OK, dir_fd=self._handle):
            return ""
        found = os.fstat(self._handle)
        return f"owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}"

    def exists(self, name: str) -> bool:
        """Whether anything has this name, a link to nowhere included."""
        try:
            os.stat(name, dir_fd=self._handle, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def size(self, name: str) -> int:
        """The size of a regular file."""
        found = os.stat(name, dir_fd=self._handle, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EISDIR, "it is no regular file")
        return found.st_size

    def reading(self, name: str) -> BinaryIO:
        return os.fdopen(self._open(name, os.O_RDONLY), "rb")

    def creating(self, name: str) -> BinaryIO:
        """Open a new file for writing; FileExistsError if anything has its name."""
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o600, dir_fd=self._handle)
        with suppress(OSError):  # a mount that knows no modes
            os.fchmod(handle, self._mode)
        return os.fdopen(handle, "wb")

    def writing(self, name: str) -> io.FileIO:
        """Open an existing or new file for reading and writing, unbuffered, without touching its content.

        A file with a second name is refused: it may be a stranger's hard link to a file of this user's.
        """
        try:
            return self._changing(name)
        except FileNotFoundError:
            self.creating(name).close()
            return self._changing(name)

    def link(self, name: str, new_name: str) -> None:
        os.link(name, new_name, src_dir_fd=self._handle, dst_dir_fd=self._handle, follow_symlinks=False)

    def replace(self, name: str, new_name: str) -> None:
        os.replace(name, new_name, src_dir_fd=self._handle, dst_dir_fd=self._handle)

    def empty(self, name: str) -> None:
        """Truncate a regular file; anything else stays as it is, also what may be a file elsewhere."""
        with suppress(OSError), self._changing(name) as file:
            file.truncate(0)

    def remove(self, name: str) -> None:
        os.unlink(name, dir_fd=self._handle)

    def remove_folder(self, name: str) -> None:
        os.rmdir(name, dir_fd=self._handle)

    def _changing(self, name: str) -> io.FileIO:
        file = io.FileIO(self._open(name, os.O_RDWR), "r+")
        try:
            # After opening, since a second name could be removed in between.
            there = os.stat(name, dir_fd=self._handle, follow_symlinks=False)
            if there.st_nlink > 1 or not os.path.samestat(there, os.fstat(file.fileno())):
                raise OSError(errno.EMLINK, "it has a second name elsewhere")
        except OSError:
            file.close()
            raise
        return file

    def _open(self, name: str, flags: int) -> int:
        handle = os.open(name, flags | _AT_ONCE, dir_fd=self._handle)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.EISDIR, "it is no regular file")
        return handle
