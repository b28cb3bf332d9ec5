import errno
import time
from pathlib import Path
from typing import Any

import pytest

from rl_swarm.clock import SystemClock
from rl_swarm.errors import NotFound, Refused
from rl_swarm.store.base import Transient
from rl_swarm.store.folder import FolderStore
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm import publisher as module
from rl_swarm.swarm.publisher import Publisher
from tests.clocks import VirtualClock


class AwayStore(MemoryStore):
    away = True

    def _put(self, key: str, data: bytes) -> bool:
        if self.away:
            raise Transient("Errno 107")
        return super()._put(key, data)


def test_documents_arrive_in_the_background_and_in_order(tmp_path: Path) -> None:
    store = MemoryStore()
    publisher = Publisher(store, tmp_path, SystemClock())
    for number in range(20):
        publisher.put(f"a/{number:02d}", bytes([number]))
    publisher.close(10)
    assert store.list("a") == [f"{number:02d}" for number in range(20)]
    assert list(tmp_path.iterdir()) == []
    assert publisher.counters["published"] == 20


def test_nothing_waits_for_a_store_that_is_away_and_nothing_is_lost(tmp_path: Path) -> None:
    store = AwayStore(clock=VirtualClock())
    publisher = Publisher(store, tmp_path, SystemClock())
    began = time.monotonic()
    for number in range(5):
        publisher.put(f"a/{number}", b"x")
    assert time.monotonic() - began < 1
    publisher.close(10)
    assert publisher.pending == 5

    store.away = False
    Publisher(store, tmp_path, SystemClock()).close(10)
    assert len(store.list("a")) == 5
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_document_is_kept_for_people_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "000000000001").write_bytes(b"\xff no key\nx")
    (tmp_path / "000000000002").write_bytes(b"a/two\nx")
    store = MemoryStore()
    publisher = Publisher(store, tmp_path, SystemClock())
    publisher.close(10)
    assert store.list("a") == ["two"]
    assert publisher.counters["spool_damaged"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["000000000001.damaged"]


def test_a_killed_nodes_spool_is_published_at_the_next_start(tmp_path: Path) -> None:
    store = MemoryStore()
    (tmp_path / "000000000007").write_bytes(b"a/seven\n\x00\n\xff")
    (tmp_path / "000000000008.part").write_bytes(b"a/half")
    publisher = Publisher(store, tmp_path, VirtualClock(), background=False)
    publisher.put("a/new", b"1")
    assert store.get("a/seven") == b"\x00\n\xff"
    assert store.list("a") == ["new", "seven"]


def test_a_document_half_written_by_a_killed_process_is_finished(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, VirtualClock(), local=False)
    store.put("a/x", b"half")
    store.put("a/y", b"mine already")
    spool = tmp_path / ".spool"
    spool.mkdir()
    (spool / "000000000000").write_bytes(b"a/x\nhalf and the rest")
    (spool / "000000000001").write_bytes(b"a/y\nanother text of the same document")
    Publisher(store, spool, VirtualClock(), background=False).close(1)
    assert store.get("a/x") == b"half and the rest"
    assert store.get("a/y") == b"mine already"


def test_the_spool_is_bounded_and_rewards_outlive_rollouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SPOOLED", 10)
    store = AwayStore(clock=VirtualClock())
    publisher = Publisher(store, tmp_path, VirtualClock(), background=False)
    for number in range(20):
        publisher.put(f"e/rollouts/{number:02d}", b"r")
        publisher.put(f"e/rewards/{number:02d}", b"r")
    store.away = False
    assert publisher.pump()
    assert len(store.list("e/rewards")) == 20
    assert publisher.counters["spool_dropped"] + len(store.list("e/rollouts")) == 20


def test_a_silent_node_beats(tmp_path: Path) -> None:
    clock, beats = VirtualClock(), []
    publisher = Publisher(MemoryStore(), tmp_path, clock, beat=lambda: beats.append(clock.now), beat_seconds=30, background=False)
    for _ in range(4):
        clock.sleep(20)
        publisher.pump()
    assert len(beats) == 2
    clock.sleep(20)
    publisher.put("a/x", b"1")
    clock.sleep(20)
    publisher.pump()
    assert len(beats) == 2, "publishing is a sign of life, too"


def test_a_bug_in_the_thread_is_raised_in_the_loop(tmp_path: Path) -> None:
    class Broken(MemoryStore):
        def _put(self, key: str, data: bytes) -> bool:
            raise ZeroDivisionError

    publisher = Publisher(Broken(), tmp_path, SystemClock())
    publisher.put("a/x", b"1")
    with pytest.raises(RuntimeError, match="publishing thread"):
        publisher.close(10)


def test_large_files_come_after_small_ones_and_the_newest_wins(tmp_path: Path) -> None:
    sent: list[str] = []

    class Recording(MemoryStore):
        def _put(self, key: str, data: bytes) -> bool:
            sent.append(key)
            return super()._put(key, data)

    publisher = Publisher(Recording(), tmp_path / "spool", VirtualClock(), background=False)
    files: dict[str, Any] = {name: tmp_path / name for name in ("old", "new")}
    for name, path in files.items():
        path.write_bytes(b"weights")
        publisher.upload(f"c/{name}", path)
    publisher.put("a/small", b"1")
    assert sent == ["a/small", "c/new"]
    assert publisher.pending == 0


def test_a_large_file_replaces_what_has_its_name_and_its_document_follows(tmp_path: Path) -> None:
    """Half a file of a process that was killed, or somebody's who came first."""
    store = MemoryStore(data={"c/10.pt": b"planted", "c/10.json": b"planted", "c/8.pt": b"old"})
    publisher = Publisher(store, tmp_path / "spool", VirtualClock(), background=False)
    path = tmp_path / "file"
    path.write_bytes(b"weights")
    publisher.upload("c/10.pt", path, ("c/8.pt",), ("c/10.json", b"mine"))
    assert publisher.pump()
    assert store._data == {"c/10.pt": b"weights", "c/10.json": b"mine"}


def test_a_name_that_cannot_be_used_does_not_hold_up_the_next(tmp_path: Path) -> None:
    class Folder(MemoryStore):
        def _put(self, key: str, data: bytes) -> bool:
            if key == "c/1.pt":
                raise Refused("c/1.pt is a folder")
            return super()._put(key, data)

    publisher = Publisher(Folder(), tmp_path / "spool", VirtualClock(), background=False)
    path = tmp_path / "file"
    path.write_bytes(b"weights")
    publisher.upload("c/1.pt", path)
    assert publisher.pump() and publisher.pending == 0
    assert publisher.counters["upload_refused"] == 1


def test_a_document_that_exists_and_is_not_found_is_tried_again(tmp_path: Path) -> None:
    class Forgetful(MemoryStore):
        found = False

        def _get(self, key: str, limit: int | None) -> bytes:
            if not self.found:
                raise NotFound(key)
            return super()._get(key, limit)

    store = Forgetful(clock=VirtualClock())
    store.put("a/x", b"whole")
    (tmp_path / "000000000000").write_bytes(b"a/x\nwhole")
    publisher = Publisher(store, tmp_path, VirtualClock(), background=False)
    assert not publisher.pump()
    store.found = True
    assert publisher.pump()
    assert publisher.pending == 0


def test_while_the_local_disk_is_full_documents_wait_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = AwayStore(clock=VirtualClock())
    publisher = Publisher(store, tmp_path, VirtualClock(), background=False)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        publisher.put("a/1", b"one")
    publisher.put("a/2", b"two")
    assert (publisher.pending, publisher.counters["spool_full"]) == (2, 1)
    store.away = False
    assert publisher.pump()
    assert (store.get("a/1"), store.get("a/2")) == (b"one", b"two")
    assert list(tmp_path.iterdir()) == []


def test_what_waits_in_memory_goes_to_disk_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = AwayStore(clock=VirtualClock())
    publisher = Publisher(store, tmp_path, SystemClock())
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        publisher.put("a/1", b"one")
    publisher.close(10)
    store.away = False
    Publisher(store, tmp_path, SystemClock()).close(10)
    assert store.get("a/1") == b"one"
