"""The folder store on a real FUSE mount that refuses to rename, as a Drive mount in effect does (needs Debian's bindfs)."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_swarm.errors import StoreAway
from rl_swarm.store import Store, open_store
from rl_swarm.store.folder import FolderStore
from tests.store.store_contract import StoreContract
from tests.support.clocks import VirtualClock

pytestmark = pytest.mark.slow


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    source, point = tmp_path / "source", tmp_path / "mount"
    source.mkdir()
    point.mkdir()
    subprocess.run(["bindfs", "--no-allow-other", "--rename-deny", str(source), str(point)], check=True)
    yield point
    subprocess.run(["umount", "--lazy", str(point)], check=False)


class TestFolderOnFuse(StoreContract):
    @pytest.fixture
    def store(self, mount: Path) -> Store:
        store = open_store(str(mount), VirtualClock())
        assert isinstance(store, FolderStore)
        assert not store.local
        return store

    def second(self, store: Store) -> Store:
        return open_store(store.url, VirtualClock())


def test_a_mount_that_dies_is_away_and_back_when_it_returns(tmp_path: Path, mount: Path) -> None:
    (mount / "drive").mkdir()
    store = open_store(str(mount / "drive"), VirtualClock())
    store.put("a/x", b"1")
    subprocess.run(["umount", str(mount)], check=True)
    for operation in (lambda: store.get("a/x", limit=1 << 24), lambda: store.list("a"), lambda: store.put("a/y", b"2")):
        with pytest.raises(StoreAway):
            operation()
    assert list(mount.iterdir()) == [], "nothing was written below the mount point while the mount was gone"
    subprocess.run(["bindfs", "--no-allow-other", "--rename-deny", str(tmp_path / "source"), str(mount)], check=True)
    assert store.get("a/x", limit=1 << 24) == b"1"
    assert store.put("a/y", b"2")
