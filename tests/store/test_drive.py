"""Google Drive through its API, on a fake with Drive's habits: the contract, and a defence against each habit.

Of each habit a test shows that the store copes with it, and that it would not without its defence.
"""

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_swarm.config import load
from rl_swarm.errors import ConfigError, LibraryError, NotFound, StoreAway
from rl_swarm.extras import install_command
from rl_swarm.store import Store, open_store
from rl_swarm.store import drive as driving
from rl_swarm.store.drive import DriveStore, Index
from rl_swarm.store.drive_api import CHUNK_BYTES, DriveApi, TokenBucket
from rl_swarm.swarm.experiment import publish
from rl_swarm.swarm.layout import Layout
from tests.store.store_contract import StoreContract
from tests.support.clocks import VirtualClock
from tests.support.drive_fake import ROOT, DriveFake, drive_fake

URL = f"gdrive://{ROOT}"
WRITERS = 32
Patch = pytest.MonkeyPatch


@pytest.fixture
def make(monkeypatch: Patch) -> Iterator[Callable[..., DriveFake]]:
    """Make a fake with habits; stores opened afterwards use it."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def start(**habits: Any) -> DriveFake:
            drive = stack.enter_context(drive_fake(**habits))
            monkeypatch.setenv("DRIVE_EMULATOR_HOST", drive.endpoint)
            return drive

        yield start


@pytest.fixture
def eager(monkeypatch: Patch) -> None:
    """Look at the feed before every operation, which real time would not."""
    monkeypatch.setattr(driving, "READ_SECONDS", 0.0)
    monkeypatch.setattr(driving, "WRITE_SECONDS", 0.0)


class TestDrive(StoreContract):
    removes_folders = False

    @pytest.fixture
    def store(self, make: Callable[..., DriveFake], eager: None, monkeypatch: Patch) -> Store:
        make()
        monkeypatch.setattr(DriveStore, "first_pause_seconds", 0.01)
        return open_store(f"{URL}/swarm")

    def second(self, store: Store) -> Store:
        return open_store(store.url)

    # Drive has no exclusive create: all readers choose the same file, which the test below looks at.
    test_of_many_writers_one_wins_and_readers_see_it_whole = None  # type: ignore[assignment]

    def test_of_32_writers_one_wins(self, store: Store) -> None:
        """Every reader, whenever it reads, finds the same document once the writers are done."""
        told = self.race([self.second(store) for _ in range(WRITERS)], "race/x")
        found = {self.second(store).get("race/x", limit=1 << 24) for _ in range(5)}
        assert len(found) == 1
        assert found <= {bytes([number]) * 5000 for number in told}
        assert store.list("race") == ["x"] and not store.put("race/x", b"late")
        assert store.get("race/x", limit=1 << 24) in found


def undefended(scenario: Callable[[], None]) -> None:
    """Without its defence the same scenario fails."""
    with pytest.raises((AssertionError, StoreAway, NotFound)):
        scenario()


# Names are not unique


def test_duplicates_of_a_name_are_resolved_alike(make: Callable[..., DriveFake], eager: None, monkeypatch: Patch) -> None:
    def scenario() -> None:
        drive = make()
        store = open_store(URL)
        store.put("a/x", b"first")
        folder = next(node.id for node in drive.nodes.values() if node.name == "a")
        for number in range(4):
            time.sleep(0.005)  # Drive's dates have milliseconds
            drive.create({"name": "x", "parents": [folder]}, b"later %d" % number)
        readers = [open_store(URL) for _ in range(3)]
        assert [reader.get("a/x", limit=100) for reader in readers] == [b"first"] * 3
        assert readers[0].list("a") == ["x"]
        assert readers[0].get("a/x", limit=100) == store.get("a/x", limit=100)

    scenario()
    original = Index.named

    def any_of_them(self: Index, parents: Any, name: str, folder: bool) -> Any:
        found = original(self, parents, name, folder)
        return found[::-1] if not folder else found

    monkeypatch.setattr(Index, "named", any_of_them)
    undefended(scenario)


def test_folders_of_one_name_count_as_one(make: Callable[..., DriveFake], eager: None, monkeypatch: Patch) -> None:
    def scenario() -> None:
        drive = make()
        store = open_store(URL)
        store.put("a/x", b"1")
        twin = drive.create({"name": "a", "parents": [ROOT], "mimeType": "application/vnd.google-apps.folder"}, b"")
        drive.create({"name": "y", "parents": [twin.id]}, b"2")
        reader = open_store(URL)
        assert reader.list("a") == ["x", "y"] and reader.get("a/y", limit=10) == b"2"

    scenario()
    original = Index.named
    monkeypatch.setattr(Index, "named", lambda self, parents, name, folder: original(self, parents, name, folder)[:1])
    undefended(scenario)


# Listings and the feed lag


def test_a_file_that_a_listing_concealed_appears_later(make: Callable[..., DriveFake], monkeypatch: Patch) -> None:
    """The file was there before the store was opened, so the feed does not tell of it; and the first listing lags."""

    def scenario() -> None:
        clock = VirtualClock()
        drive = make(clock=clock.monotonic)
        writer = open_store(URL, clock)
        writer.put("a/x", b"1")
        clock.sleep(100)
        drive.lag_seconds = 10.0
        writer.put("a/y", b"2")
        reader = open_store(URL, clock)
        assert reader.list("a") == ["x"]
        clock.sleep(20)
        assert reader.list("a") == ["x", "y"]

    scenario()
    monkeypatch.setattr(driving, "LAG_SECONDS", (1e9,))
    undefended(scenario)


def test_own_files_are_there_at_once_however_long_the_lists_lag(
    make: Callable[..., DriveFake], eager: None, monkeypatch: Patch
) -> None:
    def scenario() -> None:
        make(lag_seconds=60.0)
        store = open_store(URL)
        assert store.put("a/x", b"1")
        assert store.get("a/x", limit=10) == b"1" and store.list("a") == ["x"]
        assert not store.put("a/x", b"2")

    scenario()
    monkeypatch.setattr(DriveStore, "_take_in", lambda self, file: None)  # ids are not remembered
    with pytest.raises((AssertionError, StoreAway, NotFound, IndexError)):
        scenario()


def test_what_others_write_comes_by_the_feed_without_another_listing(make: Callable[..., DriveFake], eager: None) -> None:
    drive = make()
    reader, writer = open_store(URL), open_store(URL)
    reader.put("rounds/0/r", b"")
    writer.put("rounds/0/w", b"0")
    assert reader.list("rounds/0") == ["r", "w"]
    before = drive.meter["list"]
    for number in range(1, 6):
        writer.put(f"rounds/{number}/w", b"%d" % number)
        assert reader.list(f"rounds/{number}") == ["w"]
        assert reader.get(f"rounds/{number}/w", limit=10) == b"%d" % number
        with pytest.raises(NotFound):
            reader.get(f"rounds/{number + 1}/w", limit=10)
    assert drive.meter["list"] == before
    writer.delete("rounds/5/w")
    assert reader.list("rounds/5") == []


class Meanwhile(VirtualClock):
    """Runs something else in its first sleep, before time goes on."""

    def __init__(self, other: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.other = other

    def sleep(self, seconds: float) -> None:
        other, self.other = self.other, lambda: None
        other()
        super().sleep(seconds)


def test_nodes_that_start_together_found_one_experiment(make: Callable[..., DriveFake], eager: None, monkeypatch: Patch) -> None:
    """The second does not see yet what the first has written, and writes its own; after a while both take the first one's."""

    def scenario() -> None:
        clock, found = Meanwhile(), list[str]()
        make(clock=clock.monotonic, lag_seconds=4.0)

        def start() -> None:
            store = open_store(f"{URL}/new", clock)
            found.append(publish(store, Layout("e"), load({"MODEL_NAME": "nano"}), "v", clock).experiment_id)

        clock.other = start
        start()
        assert len(found) == 2 and len(set(found)) == 1

    scenario()
    monkeypatch.setattr(DriveStore, "settle_seconds", 0.0)
    undefended(scenario)


# Quotas


def test_a_poll_costs_little(make: Callable[..., DriveFake]) -> None:
    """A thousand looks in some seconds are a few requests."""
    drive = make()
    store = open_store(URL)
    store.put("a/x", b"")
    before = sum(drive.meter.values())
    for _ in range(500):
        store.list("a")
        with pytest.raises(NotFound):
            store.get("a/next", limit=10)
    assert sum(drive.meter.values()) - before <= 5


def test_the_token_bucket_keeps_to_its_rate_and_slows_down_when_refused() -> None:
    clock = VirtualClock()
    bucket = TokenBucket(rate=100.0, clock=clock)
    began = clock.now
    for _ in range(100):
        bucket.take(100)
    assert 78 <= clock.now - began <= 82, "20 s of units were saved up, and 10,000 were used"
    bucket.refused()
    bucket.refused()
    began = clock.now
    bucket.take(100)
    assert clock.now - began > 3, "a quarter of the rate"
    for _ in range(30):
        bucket.take(100)
    began = clock.now
    bucket.take(100)
    assert 0.9 < clock.now - began < 1.1, "and after a while all of it again"


def test_a_process_stays_within_the_documented_quota(make: Callable[..., DriveFake], monkeypatch: Patch) -> None:
    """Nothing is refused, however fast the caller is; and without the bucket much is."""

    def scenario() -> None:
        clock = VirtualClock()
        drive = make(clock=clock.monotonic, unit_limit=2_000 * 4 // 3)  # a third more, for what was saved up
        store = open_store(URL, clock)
        for _ in range(80):  # twice the quota of a minute
            store.rewrite("a/x", b"1")
        assert not drive.refused, drive.refused

    monkeypatch.setattr("rl_swarm.store.drive_api.SHARE", 2_000 / 325_000)
    scenario()
    monkeypatch.setattr(DriveStore, "attempts", 1)
    monkeypatch.setattr("rl_swarm.store.drive_api.CALL_ATTEMPTS", 1)
    monkeypatch.setattr(TokenBucket, "take", lambda self, units: None)
    undefended(scenario)


def test_refusals_are_waited_for(make: Callable[..., DriveFake], eager: None, monkeypatch: Patch) -> None:
    def scenario() -> None:
        clock = VirtualClock()
        drive = make(clock=clock.monotonic, writes_limit=4)
        store = open_store(URL, clock)
        for number in range(8):
            assert store.put(f"a/{number}", b"1")
        assert drive.refused[429] and len(store.list("a")) == 8
        assert len(drive.paths()) == 8

    scenario()
    monkeypatch.setattr(DriveStore, "attempts", 1)
    monkeypatch.setattr("rl_swarm.store.drive_api.CALL_ATTEMPTS", 1)
    undefended(scenario)


# Uploads and downloads


def test_a_lost_answer_leaves_no_second_file(make: Callable[..., DriveFake], eager: None, monkeypatch: Patch) -> None:
    def scenario() -> None:
        drive = make()
        store = open_store(URL)
        store.put("a/w", b"")
        drive.lost_answers = 1
        assert store.put("a/x", b"1")
        assert drive.paths() == ["a/w", "a/x"]

    scenario()
    monkeypatch.setattr(DriveApi, "_next_id", lambda self: None)  # Drive gives the id, another one each time
    undefended(scenario)


def test_a_session_goes_on_where_it_was_interrupted(make: Callable[..., DriveFake], eager: None, tmp_path: Path) -> None:
    drive = make(session_cuts=2)
    store = open_store(URL)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(hashlib.sha256(b"x").digest() * (3 * CHUNK_BYTES // 32))
    assert store.put_file("c/large.pt", source)
    assert drive.session_cuts == 0 and drive.refused[503] == 2
    assert len(drive.sessions) == 1, "no second session was begun"
    open_store(URL).get_file("c/large.pt", target, limit=1 << 30)
    assert target.read_bytes() == source.read_bytes()


def test_a_session_that_does_not_go_on_is_an_error(
    make: Callable[..., DriveFake], eager: None, monkeypatch: Patch, tmp_path: Path
) -> None:
    """The defence of the test above is needed."""
    drive = make(session_cuts=20)
    monkeypatch.setattr(DriveStore, "attempts", 1)
    monkeypatch.setattr("rl_swarm.store.drive_api.CALL_ATTEMPTS", 1)
    source = tmp_path / "source"
    source.write_bytes(bytes(2 * CHUNK_BYTES))
    with pytest.raises(StoreAway):
        open_store(URL, VirtualClock()).put_file("c/large.pt", source)
    assert drive.paths() == []


@pytest.mark.parametrize("large", [False, True])
def test_a_download_that_was_cut_is_noticed_by_its_checksum(
    large: bool, make: Callable[..., DriveFake], eager: None, monkeypatch: Patch, tmp_path: Path
) -> None:
    def scenario() -> None:
        drive = make()
        store = open_store(URL)
        store.put("a/x", b"0123456789")
        drive.cut_downloads = 1
        if large:
            store.get_file("a/x", tmp_path / "x", limit=100)
            assert (tmp_path / "x").read_bytes() == b"0123456789"
        else:
            assert store.get("a/x", limit=100) == b"0123456789"
        assert store.counts["retries"] or large

    scenario()
    if not large:  # of a large one the library notices that it is short
        monkeypatch.setattr(driving, "_md5_of", lambda data: hashlib.md5(b"0123456789").hexdigest())
        monkeypatch.setattr(DriveStore, "_get", lambda self, key, limit, offset: self.api.read(self._entry(key).id, 0, limit))
        undefended(scenario)


def test_a_file_that_was_rewritten_since_is_read_as_it_is(make: Callable[..., DriveFake]) -> None:
    make()
    writer, reader = open_store(URL), open_store(URL)
    writer.rewrite("a/x", b"first")
    reader._look = lambda since: None  # type: ignore[attr-defined]  # the feed is silent
    assert reader.get("a/x", limit=100) == b"first"
    writer.rewrite("a/x", b"second, longer")
    assert reader.get("a/x", limit=100) == b"second, longer"


# The trash


def test_the_trash_is_not_filled(make: Callable[..., DriveFake], eager: None, monkeypatch: Patch) -> None:
    def scenario() -> None:
        drive = make(may_delete=False)
        store = open_store(URL)
        store.put("a/x", b"x" * 10_000)
        store.delete("a/x")
        assert store.list("a") == [] and open_store(URL).list("a") == []
        assert drive.stored_bytes == 0

    scenario()
    monkeypatch.setattr(
        DriveApi,
        "update",
        lambda self, file_id, data, trashed=False: self._service.files().update(fileId=file_id, body={"trashed": True}).execute(),
    )
    undefended(scenario)


def test_deleting_is_for_good_where_that_is_allowed(make: Callable[..., DriveFake], eager: None) -> None:
    drive = make()
    store = open_store(URL)
    store.put("a/x", b"x" * 10_000)
    folder = next(node.id for node in drive.nodes.values() if node.name == "a")
    drive.create({"name": "x", "parents": [folder]}, b"twin")
    store.list("a")
    store.delete("a/x")
    assert drive.paths() == [] and drive.stored_bytes == 0


def test_a_folder_that_somebody_deletes_is_made_again(make: Callable[..., DriveFake], eager: None) -> None:
    drive = make()
    store = open_store(URL)
    store.put("a/b/x", b"1")
    drive.delete(next(node.id for node in drive.nodes.values() if node.name == "a"))
    assert store.list("a") == [] and store.put("a/b/x", b"2")
    assert open_store(URL).get("a/b/x", limit=10) == b"2"


# Opening


def test_pages(make: Callable[..., DriveFake], eager: None) -> None:
    make(page_limit=7)
    writer, reader = open_store(URL), open_store(URL)
    names = [f"{number:02d}" for number in range(20)]
    for name in names:
        writer.put(f"a/{name}", b"")
    assert reader.list("a") == names == open_store(URL).list("a")


def test_wrong_folders_and_missing_credentials_are_one_line(make: Callable[..., DriveFake], monkeypatch: Patch) -> None:
    make()
    open_store(URL).put("a", b"no folder")
    for url, what in (("gdrive://", "names no folder"), ("gdrive://none", "a folder that this user cannot see")):
        with pytest.raises(ConfigError, match=what):
            open_store(url)
    monkeypatch.delenv("DRIVE_EMULATOR_HOST")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/nonexistent")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(ConfigError, match="needs credentials for Google Drive, none were found"):
        open_store(URL)


def test_a_missing_extra_is_answered_with_the_command_that_installs_it(monkeypatch: Patch) -> None:
    import sys

    for name in ("rl_swarm.store.drive", "rl_swarm.store.drive_api"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "googleapiclient", None)
    with pytest.raises(
        LibraryError, match=f"gdrive:// needs the package googleapiclient.*: {re.escape(install_command('gdrive'))}$"
    ):
        open_store(URL)


def test_names_that_no_key_can_have_are_not_listed(make: Callable[..., DriveFake], eager: None) -> None:
    drive = make()
    store = open_store(URL)
    store.put("a/x", b"1")
    folder = next(node.id for node in drive.nodes.values() if node.name == "a")
    for name in ("folder/", "b/c", "/etc/passwd"):
        drive.create({"name": name, "parents": [folder]}, b"planted")
    assert open_store(URL).list("a") == ["x"]


def test_two_threads_make_a_folder_once(make: Callable[..., DriveFake], eager: None) -> None:
    drive = make()
    store = open_store(URL)
    threads = [threading.Thread(target=store.put, args=(f"a/b/{number}", b"1")) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [node.name for node in drive.nodes.values() if node.name in "ab"] == ["a", "b"]
    assert len(drive.paths()) == 8
