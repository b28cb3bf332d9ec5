import errno
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rl_swarm.clock import SystemClock
from rl_swarm.errors import NotFound, Refused, StoreAway
from rl_swarm.store.base import Transient
from rl_swarm.store.folder import FolderStore
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm import publisher as module
from rl_swarm.swarm.publisher import BUSY_BEATS, Publisher
from tests.support.clocks import VirtualClock


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


def test_journals_are_copied_before_the_checkpoint_that_they_lead_to(tmp_path: Path) -> None:
    store, path = MemoryStore(), tmp_path / "c.pt"
    path.write_bytes(b"weights")
    copied = list[tuple[bool, bool]]()

    def copy(all_of_it: bool) -> None:
        copied.append((all_of_it, "1.pt" in store.list("c")))

    publisher = Publisher(store, tmp_path / "spool", VirtualClock(), background=False, copy=copy)
    publisher.pump()
    publisher.upload("c/1.pt", path)
    publisher.pump()
    assert copied == [(False, False), (False, False), (True, False)] and store.list("c") == ["1.pt"]


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
    assert store.get("a/seven", limit=1 << 24) == b"\x00\n\xff"
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
    assert store.get("a/x", limit=1 << 24) == b"half and the rest"
    assert store.get("a/y", limit=1 << 24) == b"mine already"


def test_the_spool_is_bounded_and_rewards_outlive_rollouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SPOOLED", 10)
    store = AwayStore(clock=VirtualClock())
    publisher = Publisher(store, tmp_path, VirtualClock(), background=False)
    for number in range(20):
        publisher.put(f"experiments/rollouts/rollouts/{number:02d}", b"r")
        publisher.put(f"experiments/rollouts/rewards/{number:02d}", b"r")
    store.away = False
    assert publisher.pump()
    assert len(store.list("experiments/rollouts/rewards")) == 20
    assert publisher.counters["spool_dropped"] + len(store.list("experiments/rollouts/rollouts")) == 20


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


def test_a_busy_node_beats_now_and_then(tmp_path: Path) -> None:
    clock, beats = VirtualClock(), []
    publisher = Publisher(MemoryStore(), tmp_path, clock, beat=lambda: beats.append(clock.now), beat_seconds=30, background=False)
    for number in range(BUSY_BEATS * 3):
        clock.sleep(15)
        publisher.put(f"a/x{number}", b"1")
        clock.sleep(15)
        publisher.put(f"a/y{number}", b"1")
    assert len(beats) == 3


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
    assert publisher.counters["refused"] == 1


def test_what_cannot_be_replaced_in_the_place_of_a_checkpoint_costs_none_of_the_older_ones(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store", VirtualClock(), local=True)
    (tmp_path / "store" / "c" / "10.pt").mkdir(parents=True)
    store.put("c/8.pt", b"old")
    said = list[str]()
    publisher = Publisher(store, tmp_path / "spool", VirtualClock(), background=False, tell=said.append)
    path = tmp_path / "file"
    path.write_bytes(b"weights")
    publisher.upload("c/10.pt", path, ("c/8.pt",), ("c/10.json", b"mine"))
    assert publisher.pump() and publisher.pending == 0
    assert store.list("c") == ["10.pt/", "8.pt"] and publisher.counters["uploaded"] == 0
    [news] = said
    assert "a checkpoint was not copied to the store: c/10.pt is taken by something that cannot be replaced: remove it" in news


def test_a_document_that_exists_and_is_not_found_is_tried_again(tmp_path: Path) -> None:
    class Forgetful(MemoryStore):
        found = False

        def _get(self, key: str, limit: int, offset: int) -> bytes:
            if not self.found:
                raise NotFound(key)
            return super()._get(key, limit, offset)

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
    assert (store.get("a/1", limit=1 << 24), store.get("a/2", limit=1 << 24)) == (b"one", b"two")
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
    assert store.get("a/1", limit=1 << 24) == b"one"


def test_a_document_whose_name_is_refused_is_set_aside_and_everything_else_goes_on(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, VirtualClock(), local=True)
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "round_1").touch()  # a stranger's file where a folder should be
    said = list[str]()
    publisher = Publisher(store, tmp_path / "spool", VirtualClock(), background=False, tell=said.append)
    for number in range(3):
        publisher.put(f"rollouts/round_{number}/x.json", b"x")
    assert store.list("rollouts") == ["round_0/", "round_1", "round_2/"]
    [news] = said
    assert "rollouts/round_1/x.json cannot be used" in news and "remove it" in news and "next start" in news
    assert publisher.pending == 0 and publisher.counters["refused"] == 1
    Publisher(store, tmp_path / "spool", VirtualClock(), background=False, tell=said.append).pump()
    assert len(said) == 2, "set aside once more, while the rest goes on"
    (tmp_path / "rollouts" / "round_1").unlink()
    Publisher(store, tmp_path / "spool", VirtualClock(), background=False).pump()
    assert store.get("rollouts/round_1/x.json", limit=10) == b"x"
    assert list((tmp_path / "spool").iterdir()) == []


def test_documents_that_the_store_will_not_take_are_kept_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REFUSED", 5)

    class Taken(MemoryStore):
        def _put(self, key: str, data: bytes) -> bool:
            raise Refused(f"{key} cannot be used")

    store = Taken()
    for life in range(3):
        publisher = Publisher(store, tmp_path, VirtualClock(), background=False)
        publisher.pump()
        for number in range(20):
            publisher.put(f"rewards/{life}-{number}", b"x")
        kept = sorted(path.read_bytes().partition(b"\n")[0].decode() for path in tmp_path.iterdir())
        assert kept == sorted(f"rewards/{life}-{number}" for number in range(15, 20)), "the newest"
        assert publisher.counters["refused_dropped"] == publisher.counters["refused"] - 5


def test_dropping_the_oldest_rollouts_never_touches_the_one_on_its_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread sends one document while the loop hands over more than the spool may hold."""
    monkeypatch.setattr(module, "MOST_SPOOLED", 3)
    handed_over: list[str] = []

    class Slow(MemoryStore):
        def _put(self, key: str, data: bytes) -> bool:
            if not handed_over:  # while the first is on its way, and before the next is looked at
                handed_over.extend(f"experiments/e/rollouts/{number}" for number in range(1, 9))
                for each in handed_over:
                    publisher.put(each, b"x")
            return super()._put(key, data)

    store = Slow()
    publisher = Publisher(store, tmp_path, VirtualClock(), background=False)
    monkeypatch.setattr(publisher, "_thread", object())  # so that putting does not send by itself
    publisher._queue.append(publisher._spooled(b"experiments/e/rollouts/0\nx"))
    assert publisher.pump()
    publisher.check()
    sent = set(store.list("experiments/e/rollouts"))
    assert "0" in sent and sent | {"1", "2", "3", "4", "5", "6"} == {str(number) for number in range(9)}
    assert publisher.counters["spool_dropped"] == 9 - len(sent)


def test_what_a_stranger_put_under_the_name_of_a_signed_document_is_replaced(tmp_path: Path) -> None:
    store = MemoryStore()
    store.put("rewards/me.json", b"a stranger's")
    store.put("rewards/mine.json", b"signed by me, before I was killed")
    said = list[str]()
    publisher = Publisher(
        store,
        tmp_path,
        VirtualClock(),
        background=False,
        mine=lambda key, data: data.startswith(b"signed by me"),
        tell=said.append,
    )
    publisher.put("rewards/me.json", b"signed by me")
    publisher.put("rewards/mine.json", b"signed by me, done again")
    assert store.get("rewards/me.json", limit=100) == b"signed by me"
    assert store.get("rewards/mine.json", limit=100) == b"signed by me, before I was killed"
    [news] = said
    assert "rewards/me.json" in news and publisher.counters["reclaimed"] == 1


@pytest.mark.parametrize("persist", [False, True])
def test_a_node_that_is_complete_waits_for_a_store_that_comes_back(tmp_path: Path, persist: bool) -> None:
    class Away(MemoryStore):
        gone = True

        def _put(self, key: str, data: bytes) -> bool:
            if self.gone:
                raise StoreAway("gone")
            return super()._put(key, data)

    store = Away()
    publisher = Publisher(store, tmp_path / "spool", SystemClock())
    publisher.put("a/b.json", b"x")
    timer = threading.Timer(1.0, lambda: setattr(store, "gone", False))
    timer.start()
    publisher.close(20.0, persist)
    timer.join()
    assert publisher.pending == (0 if persist else 1), "one that is asked to stop does not wait"
