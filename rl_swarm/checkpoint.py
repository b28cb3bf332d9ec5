"""Save and resume everything that a node is: one file a checkpoint, on the local disk first.

The file is what `torch.save` writes, so `torch.load(path, weights_only=True)` reads it without us. It ends with the SHA-256 of
all that comes before, in the comment that a zip archive may have: half a file, or a flipped byte, is never taken for a checkpoint,
wherever it was stored. Nothing is unpickled but tensors and plain values. What they mean, and how a store keeps them, others know.
"""

import hashlib
import io
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from rl_swarm.errors import CheckpointError

SCHEMA = 1
BLOCK_BYTES = 1 << 20

_NAME = re.compile(r"round_(\d{6,})\.pt")
_LABEL = b"sha256:"
_COMMENT_BYTES = len(_LABEL) + 64
_LENGTH = _COMMENT_BYTES.to_bytes(2, "little")  # the last two bytes of a zip archive without a comment are its length, zero
_TAIL_BYTES = len(_LENGTH) + _COMMENT_BYTES

State = dict[str, Any]


class Checkpoints:
    """The checkpoints of one node; `skipped` says which ones `restore` could not use, and why.

    `upload(round, path)` is given each file once it is verified, and must not fail for want of a store; the file stays until
    `keep` newer ones exist. `fetch(folder)` puts what a store holds into the folder, each file under `name(round)`; it is called
    only when nothing on the disk is usable, and what it brings is verified like everything else.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int = 2,
        upload: Callable[[int, Path], None] | None = None,
        fetch: Callable[[Path], None] | None = None,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.skipped: list[str] = []
        self._folder, self._keep, self._upload, self._fetch = Path(folder), keep, upload, fetch

    def save(self, round: int, node_state: State, trainer_state: State) -> Path:
        """Write one checkpoint and prove that it can be read back before it takes its name; raise CheckpointError otherwise."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / self.name(round)
        unproven = path.with_suffix(".partial")
        document = {"schema": SCHEMA, "round": round, "node": node_state, "trainer": trainer_state}
        try:
            with open(unproven, "wb") as file:
                written = _write(document, file)
                file.flush()
                os.fsync(file.fileno())
            if _verify(unproven) != written:
                raise CheckpointError(f"{unproven} does not read back as it was written: the disk is failing")
            _load(unproven, mmap=True)  # reads only the structure: a value whose type would be refused on restoring is refused now
        except (OSError, RuntimeError, CheckpointError) as error:
            unproven.unlink(missing_ok=True)
            # torch reports a full disk as an accident of its own, with the real reason behind it.
            reason = error.__context__ if isinstance(error.__context__, OSError) else error
            raise CheckpointError(f"no checkpoint of round {round} could be written to {self._folder}: {reason}") from error
        os.replace(unproven, path)
        _sync_folder(self._folder)
        self._prune()
        if self._upload:
            self._upload(round, path)
        return path

    def restore(self) -> tuple[int, State, State] | None:
        """Round, node state and trainer state of the newest usable checkpoint, or None where there is none at all.

        A local file that is no whole checkpoint is set aside under another name, so that it does not count among those kept.
        """
        self.skipped = []
        found = self._newest_usable()
        if found is None and self._fetch:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._fetch(self._folder)
            found = self._newest_usable()
        return found

    def newest(self) -> int:
        """The round of the newest file on the disk, usable or not; -1 if there is none."""
        return max((int(match[1]) for path in self._saved() if (match := _NAME.fullmatch(path.name))), default=-1)

    @staticmethod
    def name(round: int) -> str:
        return f"round_{round:06d}.pt"

    def _newest_usable(self) -> tuple[int, State, State] | None:
        for path in self._saved():
            try:
                return _opened(path)
            except OSError as error:
                self.skipped.append(f"{path.name}: cannot be read ({error.strerror})")
            except CheckpointError as error:
                self.skipped.append(f"{path.name}: {error}")
                path.replace(path.with_suffix(".unusable"))
        return None

    def _saved(self) -> list[Path]:
        """Newest first."""
        found = [(int(match[1]), path) for path in self._folder.glob("round_*.pt") if (match := _NAME.fullmatch(path.name))]
        return [path for _, path in sorted(found, reverse=True)]

    def _prune(self) -> None:
        """Of what was set aside the newest stays, for whoever wants to know what happened to it."""
        set_aside = sorted(self._folder.glob("*.unusable"))[:-1]
        for path in [*self._saved()[self._keep :], *set_aside, *self._folder.glob("*.partial")]:
            path.unlink(missing_ok=True)


class _Hashing:
    """A file that is only written, and hashed on the way, but for its last two bytes: they are to be replaced."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._held = file, b""
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        size = len(data)
        if size < 2:
            data = self._held + bytes(data)
        else:
            self._put(self._held)
        view = memoryview(data)  # storages arrive whole: a slice of bytes would copy the largest tensor
        self._put(view[:-2])
        self._held = bytes(view[-2:])
        return size

    def flush(self) -> None: ...

    def finish(self) -> None:
        """End the archive with a comment that holds the checksum."""
        if self._held != b"\0\0":
            raise CheckpointError("torch.save no longer ends its archive as expected: use the pinned version of torch")
        self._put(_LENGTH)
        self._file.write(_LABEL + self.digest.hexdigest().encode())

    def _put(self, data: bytes | memoryview) -> None:
        self.digest.update(data)
        self._file.write(data)


def _write(document: State, file: BinaryIO) -> str:
    hashing = _Hashing(file)
    torch.save(document, hashing)  # type: ignore[arg-type]  # it needs no more than write and flush
    hashing.finish()
    return hashing.digest.hexdigest()


def _verify(path: Path) -> str:
    """Return the checksum of a whole checkpoint file; raise CheckpointError if it is not the one the file ends with."""
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        if size < _TAIL_BYTES:
            raise CheckpointError(f"only {size} bytes")
        file.seek(0)
        digest, left = hashlib.sha256(), size - _COMMENT_BYTES
        while left > 0 and (block := file.read(min(BLOCK_BYTES, left))):
            digest.update(block)
            left -= len(block)
        comment = file.read(_COMMENT_BYTES)
    if not comment.startswith(_LABEL):
        raise CheckpointError(f"half-written: its {size} bytes do not end with a checksum")
    if comment != _LABEL + digest.hexdigest().encode():
        raise CheckpointError("the content does not match its checksum")
    return digest.hexdigest()


def _opened(path: Path) -> tuple[int, State, State]:
    _verify(path)
    document = _load(path)
    return document["round"], document["node"], document["trainer"]


def _load(path: Path, mmap: bool = False) -> State:
    try:
        document = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError, AttributeError) as error:
        raise CheckpointError(f"torch cannot load it: {type(error).__name__} {str(error)[:200]}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or not document.keys() >= {"round", "node", "trainer"}:
        raise CheckpointError("it is not a checkpoint of this version")
    return document


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power failure; Windows cannot open folders and does not need to."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
