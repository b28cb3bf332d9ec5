"""Save and resume the whole state of a node: one file per checkpoint, on the local disk first.

The file is what `torch.save` writes, so `torch.load(path, weights_only=True)` reads it without us. It ends with the SHA-256 of
everything before it, stored as the comment of the zip archive. So half a file or a flipped byte is never taken for a checkpoint,
wherever it was stored. Nothing is unpacked, and only tensors and plain values are unpickled. Knows neither the meaning of the
values nor how a store keeps files.
"""

import hashlib
import io
import itertools
import os
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from rl_swarm.errors import CheckpointError, OtherModel, StoreError
from rl_swarm.learning.archive import check_archive

SCHEMA = 2
KEPT = 2  # checkpoints of a node, on its disk and in the store
BLOCK_BYTES = 1 << 20
MARGIN_BYTES = 64 << 20  # the node's own state is below 1 MB, the names and places of ten thousand tensors below 30

_NAME = re.compile(r"round_(\d{6,15})\.pt", re.ASCII)
_LABEL = b"sha256:"
_COMMENT_BYTES = len(_LABEL) + 64
_LENGTH = _COMMENT_BYTES.to_bytes(2, "little")  # the last two bytes of a zip archive without a comment are its length, zero

State = dict[str, Any]
Apply = Callable[[int, State, State], None]


def most_bytes(trained_bytes: int) -> int:
    """The largest checkpoint of a model: the trained weights, both of Adam's averages, and a margin for everything else."""
    return 3 * trained_bytes + MARGIN_BYTES


def saved_in(folder: Path) -> list[tuple[int, Path]]:
    """List the checkpoints in a folder by round, newest first."""
    matches = ((_NAME.fullmatch(path.name), path) for path in folder.glob("round_*.pt"))
    return sorted(((int(match[1]), path) for match, path in matches if match), reverse=True)


def read(path: Path, number: int, limit: int | None = None) -> tuple[State, State]:
    """Read the states of node and trainer at a round. Raise CheckpointError for a file that is no checkpoint or exceeds `limit`.

    The values are not judged yet. The tensors lie in the file, which must not change until they are copied; it may be unlinked.
    """
    if limit is not None and (size := path.stat().st_size) > limit:
        raise CheckpointError(f"it has {size} bytes, and a checkpoint of this model at most {limit}")
    checksum(path)
    return _open(path, number)


def _open(path: Path, number: int) -> tuple[State, State]:
    with path.open("rb") as file:
        check_archive(file, _COMMENT_BYTES)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Mapped, so that tensors are slices of the file: in memory, torch believes a tensor's size and not its member's.
            document = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch documents no exceptions; any of them means that it cannot load this file
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"torch cannot load it: {type(error).__name__} {reason}") from error
    if not isinstance(document, dict) or not document.keys() >= {"schema", "round", "node", "trainer"}:
        raise CheckpointError("it is not a checkpoint of this version")
    if type(document["schema"]) is not int or document["schema"] != SCHEMA:
        raise CheckpointError("it is not a checkpoint of this version")
    if type(document["round"]) is not int or document["round"] != number:
        raise CheckpointError(f"its name says round {number}, its content does not")
    return document["node"], document["trainer"]


@dataclass(frozen=True)
class Elsewhere:
    """Checkpoints of this node in a store.

    `rounds` lists them, newest first. `fetch(round, path)` brings one to the disk, unless it is there already. It raises StoreError
    if the store has no such file, CheckpointError for a file that this node has not written. Fetched files stay in `folder` until
    a newer checkpoint is saved; refused ones are deleted.
    """

    place: str
    folder: Path
    rounds: Iterable[int]
    fetch: Callable[[int, Path], None]


@dataclass(frozen=True)
class _Candidate:
    """A checkpoint on this disk, or one of a `place` elsewhere."""

    round: int
    path: Path
    place: str = ""

    @property
    def shown(self) -> str:
        return f"{self.path.name} of {self.place}" if self.place else self.path.name


class Checkpoints:
    """The checkpoints of one node.

    `upload(round, path)` is given each verified file and must not fail if the store is away. The file stays until two newer ones
    exist. No file with more than `limit` bytes is read. `say` is told which checkpoints were not used and why, and when one from
    elsewhere is used.
    """

    def __init__(
        self,
        folder: Path,
        *,
        limit: int | None = None,
        upload: Callable[[int, Path], None] | None = None,
        elsewhere: Elsewhere | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.resumed: int | None = None
        self._folder, self._limit, self._upload, self._elsewhere, self._say = Path(folder), limit, upload, elsewhere, say

    def save(self, round: int, node_state: State, trainer_state: State) -> Path:
        """Write a checkpoint, and name it only after it was read back. Raise CheckpointError if that fails."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / self.name(round)
        unproven = path.with_suffix(".partial")
        document = {"schema": SCHEMA, "round": round, "node": node_state, "trainer": trainer_state}
        try:
            with open(unproven, "wb") as file:
                written = _write(document, file)
                file.flush()
                os.fsync(file.fileno())
            if checksum(unproven) != written:
                raise CheckpointError(f"{unproven} does not read back as it was written: the disk is failing")
            _open(unproven, round)  # refuses a value whose type could not be restored
        except (OSError, RuntimeError, CheckpointError) as error:
            unproven.unlink(missing_ok=True)
            if isinstance(error.__context__, KeyboardInterrupt):  # torch hides it behind an error about the file that is not whole
                raise error.__context__ from None
            # torch wraps the error of a full disk in one of its own.
            reason = error.__context__ if isinstance(error.__context__, OSError) else error
            raise CheckpointError(f"no checkpoint of round {round} could be written to {self._folder}: {reason}") from error
        os.replace(unproven, path)
        handle = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(handle)  # so that the new name survives a power failure
        finally:
            os.close(handle)
        self._prune()
        if self._upload:
            self._upload(round, path)
        return path

    def restore(self, apply: Apply) -> int | None:
        """Give the newest usable checkpoint to `apply` and return its round; None if there is none.

        `apply(round, node_state, trainer_state)` raises CheckpointError, with nothing changed, for one that it cannot use. Then the
        one before it is tried: a local file is renamed, a fetched one deleted. Raise OtherModel if there are checkpoints and
        none is of this model, since a fresh start would push them out.
        """
        of_other_model: OtherModel | None = None
        for each in self._candidates():
            try:
                if each.place and self._elsewhere:
                    self._elsewhere.fetch(each.round, each.path)
                apply(each.round, *read(each.path, each.round, self._limit))
            except OSError as error:
                self._say(f"a checkpoint was not used: {each.shown}: cannot be read ({error.strerror})")
            except (CheckpointError, StoreError) as error:
                if isinstance(error, OtherModel):
                    if not each.place:
                        raise OtherModel(f"{each.path}: {error}") from error
                    of_other_model = of_other_model or OtherModel(f"{each.shown}: {error}")
                if each.place:
                    each.path.unlink(missing_ok=True)
                else:
                    each.path.replace(each.path.with_suffix(".unusable"))
                self._say(f"a checkpoint was not used: {each.shown}: {error}")
            else:
                self.resumed = each.round
                if each.place:
                    self._move_aside(each)
                return each.round
        if of_other_model:
            raise of_other_model
        return None

    @staticmethod
    def name(round: int) -> str:
        return f"round_{round:06d}.pt"

    def _candidates(self) -> list[_Candidate]:
        """List checkpoints, newest first; of one round, this disk's own first."""
        found = [_Candidate(number, path) for number, path in saved_in(self._folder)]
        if self._elsewhere:
            place, folder = self._elsewhere.place, self._elsewhere.folder
            folder.mkdir(parents=True, exist_ok=True)
            rounds = {number for number, _ in saved_in(folder)} | set(self._elsewhere.rounds)
            found += [_Candidate(number, folder / self.name(number), place) for number in rounds]
        return sorted(found, key=lambda each: (-each.round, bool(each.place)))

    def _move_aside(self, used: _Candidate) -> None:
        """Say that a checkpoint from elsewhere was used; move this disk's own to a new folder, where they are never pruned."""
        resuming = f"resuming at round {used.round} from the checkpoint of {used.place}"
        own = saved_in(self._folder)
        if not own:
            self._say(f"{resuming}: this disk has none")
            return
        name = f"{self._folder.name}-before-{used.round}"
        names = itertools.chain([name], (f"{name}-{copy}" for copy in itertools.count(2)))
        aside = next(path for path in map(self._folder.with_name, names) if not path.exists())
        aside.mkdir()
        for _, path in own:
            path.replace(aside / path.name)
        self._say(
            f"{resuming}, since this disk's own end at round {own[0][0]}. They were moved to {aside} and stay there. To go back to "
            f"them, stop this node, delete its newer checkpoints in the store, and move these files back to {self._folder}"
        )

    def _prune(self) -> None:
        """Delete outdated files. Of the unusable ones the newest stays, so that its damage can be examined."""
        saved = saved_in(self._folder)
        outdated = [path for _, path in saved[KEPT:]]
        if self._elsewhere:
            outdated += [path for number, path in saved_in(self._elsewhere.folder) if number <= saved[0][0]]
        unusable = sorted(self._folder.glob("*.unusable"))[:-1]
        for path in [*outdated, *unusable, *self._folder.glob("*.partial")]:
            path.unlink(missing_ok=True)


class _Hashing:
    """Hash what is written to a file. Holds back the last two bytes, which are replaced in the end."""

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


def checksum(path: Path) -> str:
    """The SHA-256 at the end of a checkpoint file. Raise CheckpointError unless it is that of everything before it."""
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
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
