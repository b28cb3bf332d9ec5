import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from rl_swarm.errors import ConfigError, StoreAway
from rl_swarm.store import Store, folder_of, open_store
from rl_swarm.store.aside import aside
from rl_swarm.store.folder import FolderStore, on_local_disk
from rl_swarm.store.memory import MemoryStore
from tests.store.store_contract import StoreContract
from tests.support.clocks import VirtualClock


class TestMemory(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore(clock=VirtualClock())

    def second(self, store: Store) -> Store:
        return store


class TestFolder(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return FolderStore(tmp_path, VirtualClock(), local=True)

    def second(self, store: Store) -> Store:
        assert isinstance(store, FolderStore)
        return FolderStore(store.root, VirtualClock(), local=store.local)


class TestFolderOnAMount(TestFolder):
    """The way of writing that a FUSE or network mount gets: exclusive create, in place, neither link nor rename."""

    @pytest.fixture
    def store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
        for name in ("link", "rename", "replace"):
            monkeypatch.setattr(os, name, _refuse)
        return FolderStore(tmp_path, VirtualClock(), local=False)


class TestFolderWithoutHardLinks(TestFolder):
    @pytest.fixture
    def store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
        monkeypatch.setattr(os, "link", _refuse)
        return FolderStore(tmp_path, VirtualClock(), local=True)

    # Rename cannot tell two simultaneous writers apart; every document has one writer (docs/store.md).
    test_of_many_writers_one_wins_and_readers_see_it_whole = None  # type: ignore[assignment]
    test_of_32_writers_one_wins = None  # type: ignore[assignment]


def _refuse(*_: Any, **__: Any) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOTCONN, errno.ESTALE, errno.ENOENT])
def test_passing_errors_are_retried_with_growing_pauses(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    store = FolderStore(tmp_path, clock)
    _fail(monkeypatch, store, number, times=store.attempts - 1)
    began = clock.now
    assert store.put("a/x", b"1")
    assert store.counts["retries"] == store.attempts - 1
    assert clock.now - began > store.first_pause_seconds * 2 ** (store.attempts - 2) / 2


def test_errors_that_stay_mean_that_the_store_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderStore(tmp_path, VirtualClock())
    _fail(monkeypatch, store, errno.ENOTCONN, times=100)
    with pytest.raises(StoreAway, match="Errno 107"):
        store.put("a/x", b"1")
    assert store.counts["failures"] == 1


def _fail(monkeypatch: pytest.MonkeyPatch, store: FolderStore, number: int, times: int) -> None:
    left = [times]
    real = os.fsync

    def failing(handle: int) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number))
        real(handle)

    monkeypatch.setattr(os, "fsync", failing)


def test_a_read_only_mount_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderStore(tmp_path, VirtualClock(), local=True)
    store.put("a/b", b"1")
    unchanged = os.open

    def read_only(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system")
        return unchanged(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(StoreAway, match="is mounted read-only: mount it for writing"):
        store.put("a/c", b"1")
    assert store.counts["retries"] == 0 and store.get("a/b", limit=1) == b"1"


@pytest.mark.parametrize("local", [True, False])
def test_on_a_local_disk_no_empty_folder_is_left_behind(local: bool, tmp_path: Path) -> None:
    store = FolderStore(tmp_path, VirtualClock(), local=local)
    for key in ("experiments/e/checkpoints/round_1/w1.pt", "experiments/e/checkpoints/round_2/w1.pt", "experiments/e/a.json"):
        store.put(key, b"1")
    store.delete("experiments/e/checkpoints/round_1/w1.pt")
    assert store.list("experiments/e/checkpoints") == (["round_2/"] if local else ["round_1/", "round_2/"])
    store.delete("experiments/e/checkpoints/round_2/w1.pt")
    assert store.list("experiments/e") == ["a.json", *([] if local else ["checkpoints/"])]
    store.delete("experiments/e/a.json")
    assert (tmp_path / "experiments").is_dir() and store.list("experiments") == ([] if local else ["e/"])
    assert store.put("experiments/e/checkpoints/round_1/w1.pt", b"2")


def test_a_folder_that_vanished_is_away_and_never_made_again(tmp_path: Path) -> None:
    root = tmp_path / "drive"
    root.mkdir()
    store = FolderStore(root, VirtualClock())
    store.put("a/x", b"1")
    root.rename(tmp_path / "elsewhere")
    for operation in (
        lambda: store.get("a/x", limit=1 << 24),
        lambda: store.list("a"),
        lambda: store.put("b/y", b"2"),
        lambda: store.rewrite("b/y", b""),
    ):
        with pytest.raises(StoreAway):
            operation()
    assert not root.exists()
    (tmp_path / "elsewhere").rename(root)
    assert store.get("a/x", limit=1 << 24) == b"1"


def test_no_part_of_a_write_is_ever_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderStore(tmp_path, VirtualClock(), local=True)

    def fail(descriptor: int) -> None:
        assert store.list("a") == []
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreAway, match="No space left"):
        store.put("a/x", b"1")
    assert list((tmp_path / "a").iterdir()) == []


def test_open_store(tmp_path: Path) -> None:
    assert isinstance(open_store(str(tmp_path / "new")), FolderStore)
    assert isinstance(open_store(f"file://{tmp_path}"), FolderStore)
    open_store("memory://shared").put("a", b"1")
    assert open_store("memory://shared").get("a", limit=1 << 24) == b"1"
    with pytest.raises(ConfigError, match="unknown scheme 'ftp'"):
        open_store("ftp://host/x")
    with pytest.raises(ConfigError, match="mount the drive"):
        open_store(str(tmp_path / "missing" / "folder"))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="must be a folder"):
        open_store(str(tmp_path / "file"))


def test_the_folder_of_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert folder_of("/a/b") == folder_of("file:///a/b") == Path("/a/b")
    assert folder_of("~/b") == folder_of("file://~/b") == Path("/home/me/b")
    assert folder_of("b") == Path("b")
    assert folder_of("memory://b") is folder_of("ftp://host/b") is None


def test_mounts_are_told_from_local_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_local_disk(tmp_path)
    mounts = "/dev/sda / ext4 rw 0 0\ndrive /content/drive fuse.drive rw 0 0\nhost:/x /mnt/my\\040nfs nfs4 rw 0 0\n"
    mounts += "drive /mnt/größe fuse.drive rw 0 0\n"
    monkeypatch.setattr(Path, "read_bytes", lambda self: mounts.encode())
    assert not on_local_disk(Path("/content/drive/MyDrive/rl-swarm"))
    assert not on_local_disk(Path("/mnt/my nfs/data"))
    assert not on_local_disk(Path("/mnt/größe/data"))
    assert on_local_disk(Path("/content/drivers"))


def test_what_a_dying_mount_left_half_written_is_written_whole_when_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by thinking about the simulation's torn writes: the half file was taken for a document that is there already."""
    store = FolderStore(tmp_path, VirtualClock(), local=False)

    def dead(*_: object, **__: object) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    with monkeypatch.context() as dying:
        dying.setattr(os, "fsync", dead)
        dying.setattr(os, "unlink", dead)
        with pytest.raises(StoreAway):
            store.put("a/x", b"all of it")
    assert (tmp_path / "a/x").exists()
    assert store.put("a/x", b"all of it")
    assert FolderStore(tmp_path, local=False).get("a/x", limit=1 << 24) == b"all of it"
    assert not store.put("a/x", b"another")


def test_a_call_that_does_not_come_back_is_left_behind() -> None:
    over = threading.Event()
    call = aside(lambda: over.wait(60))
    with pytest.raises(TimeoutError):
        call.result(0.1)
    assert not call.done()
    over.set()
    assert call.result(5) is True
    with pytest.raises(ZeroDivisionError):
        aside(lambda: 1 // 0).result(5)
