"""Checkpoints: what is saved is what is restored, and nothing broken is ever taken for one."""

import errno
import hashlib
import os
import re
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_swarm.errors import CheckpointError, NotFound, OtherModel, Refused
from rl_swarm.learning import archive
from rl_swarm.learning.checkpoint import SCHEMA, Checkpoints, Elsewhere, State, _Hashing, _write, checksum, most_bytes, read
from rl_swarm.learning.trainer import Trainer
from tests.learning.test_trainer import PEER, scored
from tests.support.tiny_models import policy


def save(checkpoints: Checkpoints, number: int) -> Path:
    return checkpoints.save(number, {"cursor": number, "used": ["a/1/0/0"]}, {"weights": torch.full((1000,), float(number))})


def restored(folder: Path, **options: Any) -> tuple[int | None, list[str]]:
    """The round that a fresh start finds, checked against its content, and what it skipped."""

    def check(number: int, node: State, trainer: State) -> None:
        assert node == {"cursor": number, "used": ["a/1/0/0"]}
        assert torch.equal(trainer["weights"], torch.full((1000,), float(number)))

    said: list[str] = []
    apply = options.pop("apply", check)
    number = Checkpoints(folder, say=said.append, **options).restore(apply)
    return number, [line.removeprefix("a checkpoint was not used: ") for line in said]


def newest(folder: Path) -> tuple[int, State, State]:
    found: list[tuple[int, State, State]] = []
    Checkpoints(folder).restore(lambda *state: found.append(state))
    return found[0]


def sealed(data: bytes) -> bytes:
    """A file with the right checksum, which anybody who can write to a store can make."""
    return data[:-64] + hashlib.sha256(data[:-71]).hexdigest().encode()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_is_restored_and_the_last_two_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "on demand"
    assert restored(folder) == (None, [])
    for number in (8, 9, 10, 100):
        assert save(Checkpoints(folder), number) == folder / f"round_{number:06d}.pt"
    assert names(folder) == ["round_000010.pt", "round_000100.pt"]
    assert restored(folder) == (100, [])


def test_a_round_saved_again_replaces_the_first(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1)
    assert Checkpoints(tmp_path).save(1, {"cursor": 2}, {}) == tmp_path / "round_000001.pt"
    assert newest(tmp_path) == (1, {"cursor": 2}, {})


def test_the_file_is_a_plain_torch_file(tmp_path: Path) -> None:
    document = torch.load(save(Checkpoints(tmp_path), 4), weights_only=True)
    assert (document["schema"], document["round"], document["node"]["cursor"]) == (SCHEMA, 4, 4)


BREAKAGES = {
    "empty": lambda data: b"",
    "a few bytes": lambda data: data[:20],
    "half": lambda data: data[: len(data) // 2],
    "without its last byte": lambda data: data[:-1],
    "without its checksum": lambda data: data[:-71],
    "a flipped bit in a tensor": lambda data: (
        data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
    ),
    "a flipped bit in the checksum": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "zeros": lambda data: bytes(len(data)),
    "more after the end": lambda data: data + b"x",
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_broken_file_falls_back_to_the_one_before(breakage: str, tmp_path: Path) -> None:
    for number in (1, 2):
        path = save(Checkpoints(tmp_path), number)
    path.write_bytes(BREAKAGES[breakage](path.read_bytes()))
    number, skipped = restored(tmp_path)
    assert number == 1
    assert len(skipped) == 1
    assert skipped[0].startswith("round_000002.pt: ")
    assert restored(tmp_path) == (1, []), "it was set aside"
    for number in (3, 4):
        save(Checkpoints(tmp_path), number)
    assert names(tmp_path) == ["round_000002.unusable", "round_000003.pt", "round_000004.pt"]


def test_a_missing_file_falls_back_to_the_one_before(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1)
    save(Checkpoints(tmp_path), 2).unlink()
    assert restored(tmp_path) == (1, [])


def test_a_file_that_vanishes_or_cannot_be_read_is_skipped_and_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(Checkpoints(tmp_path), 1)
    ghost = tmp_path / "round_000002.pt"
    ghost.symlink_to(tmp_path / "nowhere")
    number, skipped = restored(tmp_path)
    assert (number, skipped) == (1, ["round_000002.pt: cannot be read (No such file or directory)"])
    assert ghost.is_symlink()


def test_all_broken_is_none_and_says_so(tmp_path: Path) -> None:
    for number in (1, 2):
        save(Checkpoints(tmp_path), number).write_bytes(b"")
    number, skipped = restored(tmp_path)
    assert (number, len(skipped)) == (None, 2)


def test_a_write_that_was_cut_short_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the process is killed between writing and renaming."""
    save(Checkpoints(tmp_path), 1)

    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            save(Checkpoints(tmp_path), 2)
    assert names(tmp_path) == ["round_000001.pt", "round_000002.partial"]
    assert restored(tmp_path) == (1, [])
    save(Checkpoints(tmp_path), 3)
    assert names(tmp_path) == ["round_000001.pt", "round_000003.pt"]


def test_a_full_disk_costs_the_checkpoint_and_not_the_ones_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(Checkpoints(tmp_path), 1)

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for place in ("rl_swarm.learning.checkpoint._Hashing._put", "os.fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(place, full)
            with pytest.raises(CheckpointError, match=r"round 2.*No space left"):
                save(Checkpoints(tmp_path), 2)
    assert names(tmp_path) == ["round_000001.pt"]


def test_ctrl_c_while_torch_writes_is_no_failure_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(Checkpoints(tmp_path), 1)
    put, calls = _Hashing._put, count()

    def pressed(self: _Hashing, data: bytes) -> None:
        if next(calls) == 5:  # half of the file is written
            raise KeyboardInterrupt
        put(self, data)

    monkeypatch.setattr(_Hashing, "_put", pressed)
    with pytest.raises(KeyboardInterrupt):
        save(Checkpoints(tmp_path), 2)
    assert names(tmp_path) == ["round_000001.pt"]


def test_a_disk_that_returns_something_else_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_swarm.learning.checkpoint.checksum", lambda path: "another checksum")
    with pytest.raises(CheckpointError, match="does not read back"):
        save(Checkpoints(tmp_path), 1)
    assert names(tmp_path) == []


def test_what_could_not_be_restored_is_refused_when_saving(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="round 1"):
        Checkpoints(tmp_path).save(1, {"where": Path("/")}, {})
    assert names(tmp_path) == []


def test_nothing_is_executed_on_restoring(tmp_path: Path) -> None:
    """Not even with a valid checksum, which anybody who can write to a store can make."""

    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "owned"),)

    with open(tmp_path / "round_000001.pt", "wb") as file:
        _write({"schema": SCHEMA, "round": 1, "node": Hostile(), "trainer": {}}, file)
    number, skipped = restored(tmp_path)
    assert number is None
    assert "its pickle names 'posix mkdir'" in skipped[0]
    assert not (tmp_path / "owned").exists()


def test_another_schema_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(Checkpoints(tmp_path), 1)
    monkeypatch.setattr("rl_swarm.learning.checkpoint.SCHEMA", SCHEMA + 1)
    assert restored(tmp_path) == (None, ["round_000001.pt: it is not a checkpoint of this version"])
    with open(tmp_path / "round_000002.pt", "wb") as file:
        _write({"schema": 2, "round": 2}, file)
    assert restored(tmp_path) == (None, ["round_000002.pt: it is not a checkpoint of this version"])


def test_a_verified_file_is_handed_to_the_store(tmp_path: Path) -> None:
    handed = []
    checkpoints = Checkpoints(tmp_path, upload=lambda number, path: handed.append((number, path, path.read_bytes())))
    path = save(checkpoints, 5)
    assert handed == [(5, path, path.read_bytes())]


def test_one_that_cannot_be_used_is_set_aside_like_a_broken_one(tmp_path: Path) -> None:
    for number in (1, 2):
        save(Checkpoints(tmp_path), number)
    tried = []

    def apply(number: int, node: State, trainer: State) -> None:
        tried.append(number)
        if number == 2:
            raise CheckpointError("its weights are not finite")

    said: list[str] = []
    assert Checkpoints(tmp_path, say=said.append).restore(apply) == 1
    assert tried == [2, 1] and said == ["a checkpoint was not used: round_000002.pt: its weights are not finite"]
    assert names(tmp_path) == ["round_000001.pt", "round_000002.unusable"]


def test_a_checkpoint_of_another_model_on_this_disk_ends_the_start_and_stays(tmp_path: Path) -> None:
    """Somebody has set another MODEL_NAME: to start anew would push the old ones out."""
    save(Checkpoints(tmp_path), 1)

    def apply(*state: Any) -> None:
        raise OtherModel("use the MODEL_NAME that it was made with")

    with pytest.raises(OtherModel, match=r"round_000001.pt: use the MODEL_NAME"):
        Checkpoints(tmp_path).restore(apply)
    assert names(tmp_path) == ["round_000001.pt"]


def test_a_name_that_says_another_round_is_refused(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1).rename(tmp_path / "round_000900.pt")
    assert restored(tmp_path) == (None, ["round_000900.pt: its name says round 900, its content does not"])
    for wrong in (True, 1.0, "1", None, [1]):
        with open(tmp_path / "round_000001.pt", "wb") as file:
            _write({"schema": SCHEMA, "round": wrong, "node": {}, "trainer": {}}, file)
        assert restored(tmp_path)[0] is None


def test_more_bytes_than_the_model_needs_are_not_read(tmp_path: Path) -> None:
    size = save(Checkpoints(tmp_path), 1).stat().st_size
    assert restored(tmp_path, limit=size) == (1, [])
    assert restored(tmp_path, limit=size - 1) == (
        None,
        [f"round_000001.pt: it has {size} bytes, and a checkpoint of this model at most {size - 1}"],
    )
    assert most_bytes(1_000_000) == 3_000_000 + (64 << 20)


# Files that were made to harm whoever opens them


def patched(data: bytes, name: str, offset: int, value: bytes) -> bytes:
    """A file whose directory says something else about one of its members."""
    entry = data.rindex(name.encode()) - 46
    assert data[entry : entry + 4] == b"PK\1\2"
    return sealed(data[: entry + offset] + value + data[entry + offset + len(value) :])


def place(data: bytes, name: str) -> bytes:
    entry = data.rindex(name.encode()) - 46
    return data[entry + 42 : entry + 46]


def renamed(data: bytes, name: str, other: str) -> bytes:
    assert len(name) == len(other) and data.count(name.encode()) == 2
    return sealed(data.replace(name.encode(), other.encode()))


LARGE = struct.pack("<L", 1 << 31)
TRICKS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a packed tensor": (lambda data: patched(data, "archive/data/0", 10, b"\x08\0"), "is packed"),
    "a packed pickle": (lambda data: patched(data, "archive/data.pkl", 10, b"\x08\0"), "is packed"),
    "longer unpacked": (lambda data: patched(data, "archive/data/0", 24, LARGE), "longer unpacked"),
    "longer than the file": (lambda data: patched(data, "archive/data/0", 20, LARGE + LARGE), "longer than the file"),
    "beyond 32 bits": (lambda data: patched(data, "archive/data/0", 20, b"\xff" * 8), "longer than the file"),
    "one place for two": (lambda data: patched(data, "archive/data/0", 42, place(data, "archive/data.pkl")), "overlap"),
    "a place without a member": (lambda data: patched(data, "archive/data/0", 42, b"\x01\0\0\0"), "overlap|contradicts itself"),
    "another name inside": (lambda data: sealed(data.replace(b"archive/data/0", b"archive/data/1", 1)), "contradicts itself"),
    "a name for torch.jit": (lambda data: renamed(data, "archive/byteorder", "archive/constants"), "writes no such member"),
    "a name that is no text": (lambda data: sealed(data.replace(b"archive/version", b"archive/versi\xff\xfe")), "Unicode"),
    "members that are not counted": (lambda data: sealed(data[:-145] + b"\0" * 16 + data[-129:]), "and says 0"),
    "a directory elsewhere": (lambda data: sealed(data[:-129] + b"\0" * 16 + data[-113:]), "should be"),
    "no end": (lambda data: sealed(data[:-93] + b"\0" * 22 + data[-71:]), "does not end"),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_an_archive_that_torch_would_not_write_is_never_opened(trick: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(Checkpoints(tmp_path), 1)
    change, reason = TRICKS[trick]
    path.write_bytes(change(path.read_bytes()))
    checksum(path)
    monkeypatch.setattr(torch, "load", lambda *parts, **more: pytest.fail("torch opened it"))
    with pytest.raises(CheckpointError, match=reason):
        read(path, 1)


def test_two_megabytes_never_become_two_gigabytes(tmp_path: Path) -> None:
    """The records of a real checkpoint, deflated; torch would unpack them."""
    path = Checkpoints(tmp_path).save(1, {}, {"weights": torch.zeros(8 << 20, dtype=torch.uint8)})
    bomb = tmp_path / "bomb"
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.comment = b"sha256:" + b"0" * 64
        for name in whole.namelist():
            packed.writestr(name, whole.read(name))
    path.write_bytes(sealed(bomb.read_bytes()))
    assert path.stat().st_size < 1 << 20
    assert torch.load(path, weights_only=True)["trainer"]["weights"].nbytes == 8 << 20, "as torch sees it"
    number, [skipped] = restored(tmp_path)
    assert number is None and "does not end like one of torch.save" in skipped


class Calling:
    """Pickled as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def copies() -> list[Any]:
    """Each a copy of the last with all its entries, though the pickle says so in a few bytes."""
    first = OrderedDict((str(number), number) for number in range(1000))
    return [Calling(OrderedDict, first) for _ in range(1000)]


BOMBS: dict[str, tuple[Callable[[], Any], str]] = {
    "memory": (lambda: Calling(bytearray, 1 << 44), "names '__builtin__ bytearray'"),
    "a tensor from nothing": (lambda: Calling(torch.Tensor, 1 << 40), "names 'torch Tensor'"),
    "copies of copies": (copies, "copies dictionaries"),
    "an object that is built": (lambda: torch.nn.Parameter(torch.zeros(2)), "names 'torch._utils _rebuild_parameter'"),
    "a set": (lambda: {1, 2}, "names '__builtin__ set'"),
    "a sparse tensor": (lambda: torch.zeros(3).to_sparse(), "names 'torch._utils _rebuild_sparse_tensor'"),
    "very many steps": (lambda: list(range(20_000)), "20000 steps"),
    "a very long text": (lambda: "x" * (archive.MOST_STRUCTURE_BYTES + 1), "member 'archive/data.pkl' of 335"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_pickle_with_calls_that_no_checkpoint_needs_is_never_executed(
    bomb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, reason = BOMBS[bomb]
    monkeypatch.setattr(archive, "MOST_PICKLE_STEPS", 20_000)  # a hundredth, to be quick
    with open(tmp_path / "round_000001.pt", "wb") as file:
        _write({"schema": SCHEMA, "round": 1, "node": make(), "trainer": {}}, file)
    monkeypatch.setattr(torch, "load", lambda *parts, **more: pytest.fail("torch opened it"))
    with pytest.raises(CheckpointError, match=re.escape(reason)):
        read(tmp_path / "round_000001.pt", 1)


def integer(value: int) -> bytes:
    return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)


SIZE, STRIDE = b"M\x2c\x01M\xf4\x01\x86", b"M\xf4\x01K\x01\x86"  # 300 × 500, and how far rows and columns are apart
LIES: dict[str, tuple[bytes, bytes]] = {
    "a larger storage": (b"J\xf0\x49\x02\x00", integer(1 << 28)),
    "more rows": (SIZE, integer(1 << 20) + b"M\xf4\x01\x86"),
    "rows before the storage": (STRIDE, integer(-500) + b"K\x01\x86"),
    "columns before the storage": (STRIDE, b"M\xf4\x01" + integer(-1) + b"\x86"),
    "rows far beyond it": (STRIDE, integer(1 << 62) + b"K\x01\x86"),
    "a place before the storage": (b"QK\x00" + SIZE, b"Q" + integer(-4096) + SIZE),
    "a place beyond it": (b"QK\x00" + SIZE, b"Q" + integer(4096) + SIZE),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_a_pickle_says_of_a_tensor_beyond_its_record_is_not_believed(lie: str, tmp_path: Path) -> None:
    """Loaded into memory, torch takes the pickle's word for the size of a storage, and reads what lies behind it."""
    path = tmp_path / "round_000001.pt"
    with open(path, "wb") as file:
        _write({"schema": SCHEMA, "round": 1, "node": {}, "trainer": torch.zeros(300, 500)}, file)
    with zipfile.ZipFile(path) as whole:
        members = {name.removeprefix("archive/"): whole.read(name) for name in whole.namelist()}
    true, false = LIES[lie]
    assert members["data.pkl"].count(true) == 1
    with open(path, "wb") as file:
        write_archive(file, members | {"data.pkl": members["data.pkl"].replace(true, false)})
    if lie == "a larger storage":
        assert read(path, 1)[1].untyped_storage().nbytes() <= path.stat().st_size, "it ends with the file"
        return
    with pytest.raises(CheckpointError, match="torch cannot load it") as refused:
        read(path, 1)
    assert "\n" not in str(refused.value)


def write_archive(file: Any, members: dict[str, bytes]) -> None:
    """As torch.save does it, with members of one's own."""
    hashing = _Hashing(file)
    with torch.serialization._open_zipfile_writer(hashing) as writer:
        for name, content in members.items():
            if name not in ("version", ".data/serialization_id"):  # written by itself
                writer.write_record(name, content, len(content))
    hashing.finish()


# Checkpoints that lie elsewhere


class Shelf:
    """A store with whole checkpoints of some rounds, and what was asked of it."""

    def __init__(self, folder: Path, *numbers: int) -> None:
        self.folder = folder
        self.contents = {number: save(Checkpoints(folder / "made"), number).read_bytes() for number in numbers}
        self.fetched: list[int] = []
        self.away = False

    def fetch(self, number: int, path: Path) -> None:
        if path.exists():
            return
        self.fetched.append(number)
        if self.away or number not in self.contents:
            raise NotFound(str(number))
        path.write_bytes(self.contents[number])

    def elsewhere(self) -> Elsewhere:
        return Elsewhere("the shelf", self.folder / "fetched", sorted(self.contents, reverse=True), self.fetch)


def test_a_fresh_disk_goes_on_from_elsewhere_and_says_so(tmp_path: Path) -> None:
    shelf, here = Shelf(tmp_path, 1, 2, 3), tmp_path / "checkpoints"
    shelf.contents[3] = shelf.contents[3][:-5]
    assert restored(here, elsewhere=shelf.elsewhere()) == (
        2,
        [
            f"round_000003.pt of the shelf: half-written: its {len(shelf.contents[3])} bytes do not end with a checksum",
            "resuming at round 2 from the checkpoint of the shelf: this disk has none",
        ],
    )
    assert shelf.fetched == [3, 2], "one after the other, and none too many"
    assert names(tmp_path / "fetched") == ["round_000002.pt"] and not here.exists()
    shelf.away = True
    assert restored(here, elsewhere=shelf.elsewhere())[0] == 2, "what was fetched stays until there is a newer one"
    save(Checkpoints(here, elsewhere=shelf.elsewhere()), 4)
    assert (names(here), names(tmp_path / "fetched")) == (["round_000004.pt"], [])


def test_of_the_same_round_this_disks_own_is_taken_and_nothing_is_fetched(tmp_path: Path) -> None:
    shelf, here = Shelf(tmp_path, 1, 2), tmp_path / "checkpoints"
    save(Checkpoints(here), 2)
    assert restored(here, elsewhere=shelf.elsewhere()) == (2, [])
    assert shelf.fetched == []


def test_a_newer_one_from_elsewhere_moves_this_disks_own_aside_and_they_are_never_pruned(tmp_path: Path) -> None:
    shelf, here = Shelf(tmp_path, 7), tmp_path / "checkpoints"
    for number in (1, 2):
        save(Checkpoints(here), number)
    before = {path.name: path.read_bytes() for path in here.iterdir()}
    number, [said] = restored(here, elsewhere=shelf.elsewhere())
    aside = tmp_path / "checkpoints-before-7"
    assert number == 7
    assert said.startswith("resuming at round 7 from the checkpoint of the shelf, since this disk's own end at round 2")
    assert str(aside) in said and str(here) in said
    for later in (8, 9, 10):
        save(Checkpoints(here, elsewhere=shelf.elsewhere()), later)
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == before
    shelf.contents = {7: shelf.contents[7], 20: Shelf(tmp_path / "more", 20).contents[20]}
    (tmp_path / "checkpoints-before-20").mkdir()
    restored(here, elsewhere=shelf.elsewhere())
    assert names(tmp_path / "checkpoints-before-20-2") == ["round_000009.pt", "round_000010.pt"], "nothing is overwritten"


def test_a_newer_one_from_elsewhere_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    shelf, here = Shelf(tmp_path, 5, 6, 7, 8), tmp_path / "checkpoints"
    for number in (1, 2):
        save(Checkpoints(here), number)
    shelf.contents[8] = b"PK"
    shelf.contents[7] = shelf.contents[5]

    def apply(number: int, node: State, trainer: State) -> None:
        if number == 6:
            raise CheckpointError("its weights are not finite")
        if number == 5:
            raise OtherModel("it is of another model")

    number, said = restored(here, elsewhere=shelf.elsewhere(), apply=apply)
    assert number == 2 and shelf.fetched == [8, 7, 6, 5]
    assert [line.partition(": ")[0] for line in said] == [f"round_00000{number}.pt of the shelf" for number in (8, 7, 6, 5)]
    assert (names(here), names(tmp_path / "fetched")) == (["round_000001.pt", "round_000002.pt"], [])


def test_where_all_are_of_another_model_nothing_begins_anew(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, 5, 6)

    def apply(*state: Any) -> None:
        raise OtherModel("use the MODEL_NAME that it was made with")

    with pytest.raises(OtherModel, match=r"round_000006.pt of the shelf: use the MODEL_NAME"):
        restored(tmp_path / "checkpoints", elsewhere=shelf.elsewhere(), apply=apply)


def test_the_origin_of_what_is_fetched_is_checked_and_of_nothing_else(tmp_path: Path) -> None:
    shelf, here, asked = Shelf(tmp_path, 2, 5, 6), tmp_path / "checkpoints", list[tuple[int, str]]()
    save(Checkpoints(here), 1)

    def fetch(number: int, path: Path) -> None:
        shelf.fetch(number, path)
        asked.append((number, checksum(path)))
        if number == 6:
            raise CheckpointError("it is not signed by this node")

    elsewhere = replace(shelf.elsewhere(), fetch=fetch)
    number, said = restored(here, elsewhere=elsewhere)
    assert number == 5 and said[0] == "round_000006.pt of the shelf: it is not signed by this node"
    assert asked == [(number, shelf.contents[number][-64:].decode()) for number in (6, 5)]
    asked.clear()
    assert restored(here, elsewhere=elsewhere)[0] == 5
    assert [number for number, _ in asked] == [6, 5] and shelf.fetched == [6, 5, 6], "also of one that was fetched before"
    save(Checkpoints(here, elsewhere=elsewhere), 7)
    asked.clear()
    assert restored(here, elsewhere=elsewhere)[0] == 7
    assert asked == []


def test_a_refusal_of_the_store_is_said_and_the_next_is_tried(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, 1, 2)
    elsewhere = shelf.elsewhere()

    def fetch(number: int, path: Path) -> None:
        if number == 2:
            raise Refused("checkpoints/round_2/me.pt is larger than 10 bytes")
        shelf.fetch(number, path)

    number, said = restored(tmp_path / "here", elsewhere=replace(elsewhere, fetch=fetch))
    assert number == 1 and said[0] == "round_000002.pt of the shelf: checkpoints/round_2/me.pt is larger than 10 bytes"


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gpt2"])
def test_a_node_that_resumes_goes_on_to_the_bit(architecture: str, tmp_path: Path) -> None:
    made = policy(architecture)
    trainer = Trainer(made, 1e-3)
    for number in range(2):
        trainer.update([*scored(made, seed=number), PEER])
    Checkpoints(tmp_path).save(2, {}, trainer.state())
    trainer.update([*scored(made, seed=2), PEER])
    resumed = policy(architecture, seed=99)
    again = Trainer(resumed, 1e-3)
    number, _, state = newest(tmp_path)
    again.restore(state)
    assert (number, again.policy_version) == (2, 2)
    again.update([*scored(resumed, seed=2), PEER])
    for left, right in zip(made.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(left, right)
    moments = [t.state()["optimizer"]["state"][0] for t in (trainer, again)]
    assert all(torch.equal(moments[0][name], moments[1][name]) for name in ("step", "exp_avg", "exp_avg_sq"))
