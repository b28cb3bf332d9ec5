"""Open files below a shared folder, one path component at a time, so that nothing planted there leads out of it.

Strangers can write to the folder. Every step goes through a directory handle (`dir_fd`) with O_NOFOLLOW, only regular files are
opened, and no open waits for the other end of a pipe. The links in the path that the user typed are resolved once, by the caller.
This module alone opens paths in the store; `tests/redteam/test_syscalls.py` watches the system calls.
"""

import errno
import io
import os
import secrets
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
    """The folder `names` below `root`, for as long as the context lasts.

    Without `before_making` a missing folder raises FileNotFoundError. With it, missing folders are made; it is called first and
    may raise.
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
    """Make a folder with the mode of the root, whatever the umask: who may write to the store may write to all of it."""
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
        """Names in this folder, those of folders with a trailing '/'; a link is a plain name, whatever it points to."""
        handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | _NO_LINK, dir_fd=self._handle)
        try:
            with os.scandir(handle) as entries:
                return [entry.name + "/" * entry.is_dir(follow_symlinks=False) for entry in entries]
        finally:
            os.close(handle)

    @property
    def unwritable(self) -> str:
        """Why this user may not write here: owner and mode; empty if it may."""
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

    def modified(self, name: str) -> float:
        return os.stat(name, dir_fd=self._handle, follow_symlinks=False).st_mtime

    def reading(self, name: str) -> BinaryIO:
        return os.fdopen(self._open(name, os.O_RDONLY), "rb")

    def creating(self, name: str) -> BinaryIO:
        """A new file, open for writing; FileExistsError if anything has its name."""
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o600, dir_fd=self._handle)
        with suppress(OSError):  # a mount that knows no modes
            os.fchmod(handle, self._mode)
        return os.fdopen(handle, "wb")

    def writing(self, name: str) -> io.FileIO:
        """A file that is there or new, open for reading and writing without a buffer, its content untouched.

        A file with a second name is refused, which may be a stranger's hard link to a file of this user's.
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
        """Take away the content of a regular file; anything else is left alone, also what may be a file elsewhere."""
        with suppress(OSError), self._changing(name) as file:
            file.truncate(0)

    def remove(self, name: str) -> None:
        os.unlink(name, dir_fd=self._handle)

    def remove_folder(self, name: str) -> None:
        os.rmdir(name, dir_fd=self._handle)

    def _changing(self, name: str) -> io.FileIO:
        file = io.FileIO(self._open(name, os.O_RDWR), "r+")
        try:
            there = os.stat(name, dir_fd=self._handle, follow_symlinks=False)  # after opening: a second name could be taken away
            if there.st_nlink > 1 or _place(there) != _place(os.fstat(file.fileno())):
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


def _place(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def part_name(name: str) -> str:
    """A hidden name for a file that is being written; no listing shows it."""
    return f".{name}.{secrets.token_hex(6)}"
