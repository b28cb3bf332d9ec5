"""Save and resume everything that a node is: one file a checkpoint, on the local disk first.

The file is what `torch.save` writes, so `torch.load(path, weights_only=True)` reads it without us. It ends with the SHA-256 of
all that comes before, in the comment that a zip archive may have: half a file, or a flipped byte, is never taken for a checkpoint,
wherever it was stored. Nothing is unpacked, and nothing unpickled but tensors and plain values. Their meaning, and how a store
keeps them, is known elsewhere.
"""

import contextlib
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

SCHEMA = 1
BLOCK_BYTES = 1 << 20
MARGIN_BYTES = 64 << 20  # the node's own state is below 1 MB, the names and places of ten thousand tensors below 30

_NAME = re.compile(r"round_(\d{6,15})\.pt", re.ASCII)
_LABEL = b"sha256:"
_COMMENT_BYTES = len(_LABEL) + 64
_LENGTH = _COMMENT_BYTES.to_bytes(2, "little")  # the last two bytes of a zip archive without a comment are its length, zero
_TAIL_BYTES = len(_LENGTH) + _COMMENT_BYTES

State = dict[str, Any]
Apply = Callable[[int, State, State], None]
CheckOrigin = Callable[[int, Path], None]


def most_bytes(trained_bytes: int) -> int:
    """The largest checkpoint of a model: the trained weights, both of Adam's averages, and a margin for everything else."""
    return 3 * trained_bytes + MARGIN_BYTES


def round_of(path: Path) -> int | None:
    """The round that a file's name says, or None for a file that is no checkpoint."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class Saved:
    round: int
    node: State
    trainer: State


def read(path: Path, number: int, limit: int | None = None) -> Saved:
    """The checkpoint of a round; raise CheckpointError for a file that is none, or has more than `limit` bytes.

    The tensors lie in the file, which must stay as it is until they are copied; it may be unlinked. They are not judged yet.
    """
    if limit is not None and (size := path.stat().st_size) > limit:
        raise CheckpointError(f"{size} bytes, and a checkpoint of this model has at most {limit}")
    checksum(path)
    return _open(path, number)


def _open(path: Path, number: int) -> Saved:
    with path.open("rb") as file:
        check_archive(file, _COMMENT_BYTES)
    document = _load(path)
    found = document["round"]
    if type(found) is not int or found != number:
        raise CheckpointError(f"its name says round {number}, its content does not")
    return Saved(number, document["node"], document["trainer"])


def no_check(number: int, path: Path) -> None:
    """Take any file for one of this node's own."""


@dataclass(frozen=True)
class Elsewhere:
    """Checkpoints of this node that lie in a store.

    `rounds` are theirs, newest first. `fetch(round, path)` brings one to the disk or raises StoreError, and
    `check_origin(round, path)` raises CheckpointError for a file that this node has not written. What was fetched stays in
    `folder`, until a newer checkpoint is saved; what was refused does not.
    """

    place: str
    folder: Path
    rounds: Iterable[int]
    fetch: Callable[[int, Path], None]
    check_origin: CheckOrigin = no_check


@dataclass(frozen=True)
class _Candidate:
    round: int
    path: Path
    own: bool = True
    fetched: bool = False

    @property
    def order(self) -> tuple[int, bool, bool]:
        """Newest first; of one round first what is on this disk."""
        return (-self.round, not self.own, not self.fetched)


class Checkpoints:
    """The checkpoints of one node.

    `upload(round, path)` is given each file once it is verified, and must not fail for want of a store; the file stays until
    `keep` newer ones exist. No file with more than `limit` bytes is read. `say` is told which checkpoints could not be used, and
    why, and when one from elsewhere is used.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int = 2,
        limit: int | None = None,
        upload: Callable[[int, Path], None] | None = None,
        elsewhere: Elsewhere | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.resumed: int | None = None
        self._folder, self._keep, self._limit = Path(folder), keep, limit
        self._upload, self._elsewhere, self._say = upload, elsewhere, say

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
            if checksum(unproven) != written:
                raise CheckpointError(f"{unproven} does not read back as it was written: the disk is failing")
            _open(unproven, round)  # a value whose type would be refused on restoring is refused now
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

    def restore(self, apply: Apply) -> int | None:
        """Give the newest usable checkpoint to `apply`, and return its round, or None where there is none at all.

        `apply(round, node_state, trainer_state)` raises CheckpointError, with nothing changed, for one that it cannot use. Then the
        one before it is tried: a local file is set aside under another name, a fetched one is deleted. Raises OtherModel if there
        are checkpoints and none is of this model: to start anew would be to lose them.
        """
        of_other_model: OtherModel | None = None
        for each in self._candidates():
            try:
                self._use(each, apply)
            except OtherModel as error:
                if each.own:
                    raise OtherModel(f"{each.path}: {error}") from error
                of_other_model = of_other_model or OtherModel(f"{each.path.name} of {self._place}: {error}")
                self._refuse(each, str(error))
            except OSError as error:
                self._say(f"a checkpoint was not used: {each.path.name}: cannot be read ({error.strerror})")
            except (CheckpointError, StoreError) as error:
                self._refuse(each, str(error))
            else:
                self.resumed = each.round
                if not each.own:
                    self._announce(each)
                return each.round
        if of_other_model:
            raise of_other_model
        return None

    @staticmethod
    def name(round: int) -> str:
        return f"round_{round:06d}.pt"

    @property
    def _place(self) -> str:
        return self._elsewhere.place if self._elsewhere else ""

    def _candidates(self) -> list[_Candidate]:
        found = [_Candidate(number, path) for number, path in _saved(self._folder)]
        if self._elsewhere:
            folder = self._elsewhere.folder
            folder.mkdir(parents=True, exist_ok=True)
            kept = dict(_saved(folder))
            found += [_Candidate(number, path, own=False, fetched=True) for number, path in kept.items()]
            missing = [number for number in self._elsewhere.rounds if number not in kept]
            found += [_Candidate(number, folder / self.name(number), own=False) for number in missing]
        return sorted(found, key=lambda each: each.order)

    def _use(self, each: _Candidate, apply: Apply) -> None:
        if not each.own:
            assert self._elsewhere is not None
            if not each.fetched:
                self._elsewhere.fetch(each.round, each.path)
            self._elsewhere.check_origin(each.round, each.path)
        saved = read(each.path, each.round, self._limit)
        apply(saved.round, saved.node, saved.trainer)

    def _refuse(self, each: _Candidate, reason: str) -> None:
        if each.own:
            each.path.replace(each.path.with_suffix(".unusable"))
            self._say(f"a checkpoint was not used: {each.path.name}: {reason}")
        else:
            each.path.unlink(missing_ok=True)
            self._say(f"a checkpoint was not used: {each.path.name} of {self._place}: {reason}")

    def _announce(self, each: _Candidate) -> None:
        """Say that a checkpoint from elsewhere was taken; keep this disk's own where no newer one ever pushes them out."""
        local = _saved(self._folder)
        if not local:
            self._say(f"going on from round {each.round} with the checkpoint of {self._place}: this disk has none")
            return
        aside = self._make_aside(each.round)
        for _, path in local:
            path.replace(aside / path.name)
        self._say(
            f"going on from round {each.round} with the checkpoint of {self._place}, since this disk's own ends at round "
            f"{local[0][0]}: the disk's own were moved to {aside} and stay there. To go back to them, stop this node, delete its "
            f"newer checkpoints in the store, and move these files back to {self._folder}"
        )

    def _make_aside(self, number: int) -> Path:
        """A new folder for what a checkpoint of this round takes the place of."""
        for copy in itertools.count(1):
            aside = self._folder.with_name(f"{self._folder.name}-before-{number}" + (f"-{copy}" if copy > 1 else ""))
            with contextlib.suppress(FileExistsError):
                aside.mkdir()
                return aside
        raise AssertionError("unreachable")

    def _prune(self) -> None:
        """Of what was set aside the newest stays, for whoever wants to know what happened to it."""
        saved = _saved(self._folder)
        outdated = [path for _, path in saved[self._keep :]]
        if self._elsewhere:
            outdated += [path for number, path in _saved(self._elsewhere.folder) if number <= saved[0][0]]
        set_aside = sorted(self._folder.glob("*.unusable"))[:-1]
        for path in [*outdated, *set_aside, *self._folder.glob("*.partial")]:
            path.unlink(missing_ok=True)


def _saved(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints in a folder, newest first."""
    found = ((round_of(path), path) for path in folder.glob("round_*.pt"))
    return sorted(((number, path) for number, path in found if number is not None), reverse=True)


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


def checksum(path: Path) -> str:
    """The SHA-256 that a whole checkpoint file ends with; raise CheckpointError if it is not that of what comes before."""
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


def _load(path: Path) -> State:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Mapped, so that tensors are slices of the file: read into memory, torch believes a tensor's size and not its member's.
            document = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # it documents none, and whatever it is, torch cannot load this file
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"torch cannot load it: {type(error).__name__} {reason}") from error
    if not isinstance(document, dict) or not document.keys() >= {"schema", "round", "node", "trainer"}:
        raise CheckpointError("it is not a checkpoint of this version")
    if type(document["schema"]) is not int or document["schema"] != SCHEMA:
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
