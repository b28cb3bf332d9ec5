"""What a stranger plants in the shared folder leads nowhere: links, pipes, folders and second names, on a disk and on a mount."""

import contextlib
import fcntl
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rl_swarm.errors import ConfigError, NotFound, Refused, StoreAway
from rl_swarm.store import Store, open_store
from rl_swarm.store.folder import FolderStore
from rl_swarm.store.guard import Folder
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.publisher import Publisher
from tests.support.clocks import VirtualClock

SECRET = b"private\n"
LIMIT = 1 << 20


class Place:
    """A shared folder, and a private file beside it that must stay as it is."""

    def __init__(self, folder: Path, local: bool) -> None:
        self.root = folder / "shared"
        self.private = folder / "private"
        (self.root / "a").mkdir(parents=True)
        self.private.write_bytes(SECRET)
        self.store = FolderStore(self.root, VirtualClock(), local=local)


@pytest.fixture(params=[True, False], ids=["disk", "mount"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path, request.param)
    yield place
    assert place.private.read_bytes() == SECRET


def plant_link(place: Place) -> None:
    (place.root / "a/x").symlink_to(place.private)


def plant_pipe(place: Place) -> None:
    os.mkfifo(place.root / "a/x")


def plant_folder(place: Place) -> None:
    (place.root / "a/x").mkdir()


PLANTED = [plant_link, plant_pipe, plant_folder]


@pytest.mark.parametrize("plant", PLANTED)
def test_what_is_no_file_is_refused_at_once_with_a_remedy(place: Place, plant: Callable[[Place], None], tmp_path: Path) -> None:
    plant(place)
    with pytest.raises(Refused, match="remove it"):
        place.store.get("a/x", limit=LIMIT)
    with pytest.raises(Refused, match="remove it"):
        place.store.get("a/x", limit=LIMIT, listed=True)
    with pytest.raises(Refused, match="remove it"):
        place.store.get_file("a/x", tmp_path / "copy", limit=LIMIT)
    assert not place.store.put("a/x", b"mine"), "the name is taken"
    if place.store.appendable:
        with pytest.raises(Refused, match="remove it"):
            place.store.append("a/x", b"line\n")
    assert "retries" not in place.store.counts


@pytest.mark.parametrize("plant", [plant_link, plant_pipe])
def test_a_rewrite_never_follows(place: Place, plant: Callable[[Place], None]) -> None:
    plant(place)
    if place.store.local:
        place.store.rewrite("a/x", b"mine")  # the name itself is replaced
        assert place.store.get("a/x", limit=LIMIT) == b"mine"
    else:
        with pytest.raises(Refused, match="remove it"):
            place.store.rewrite("a/x", b"mine")


def test_deleting_a_link_takes_away_the_link(place: Place) -> None:
    plant_link(place)
    place.store.delete("a/x")
    assert place.store.list("a") == []


def test_links_in_the_place_of_folders_are_refused(place: Place, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (place.root / "b").symlink_to(tmp_path / "elsewhere")
    for operation in (lambda: place.store.put("b/x", b"1"), lambda: place.store.rewrite("b/x", b"1")):
        with pytest.raises(Refused, match="where a folder should be"):
            operation()
    with pytest.raises(NotFound):
        place.store.get("b/x", limit=LIMIT)
    assert place.store.list("b") == []
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert place.store.list("a/..x".removesuffix("/..x")) == [], "what else is there works"


def test_a_second_name_of_a_private_file_is_not_written_to(place: Place) -> None:
    os.link(place.private, place.root / "a/x")
    if place.store.appendable:
        with pytest.raises(Refused, match="second name"):
            place.store.append("a/x", b"line\n")
    else:
        with pytest.raises(Refused, match="second name"):
            place.store.rewrite("a/x", b"mine")


def test_removing_a_second_name_leaves_the_private_file_as_it_was(place: Place) -> None:
    os.link(place.private, place.root / "a/x")
    place.store.delete("a/x")
    assert place.store.list("a") == []


def test_removing_what_is_not_there_makes_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Folder, "creating", lambda *_: pytest.fail("it made a file"))
    place.store.delete("a/x")


def test_a_second_name_that_is_taken_away_at_the_right_moment_is_found_out(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a link to a private file that is gone when the number of names is looked at, the private name alone is left."""
    os.link(place.private, place.root / "a/x")
    opened = Folder._open

    def open_and_lose(folder: Folder, name: str, flags: int) -> int:
        handle = opened(folder, name, flags)
        (place.root / "a/x").unlink()
        return handle

    monkeypatch.setattr(Folder, "_open", open_and_lose)
    with contextlib.suppress(NotFound, StoreAway, FileNotFoundError):  # the fixture looks at the private file
        place.store.append("a/x", b"line\n") if place.store.appendable else place.store.rewrite("a/x", b"line\n")


LEASE = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
for path in sys.argv[1:]:
    fcntl.fcntl(os.open(path, os.O_RDWR | os.O_CREAT), fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def leased(*paths: Path) -> Iterator[None]:
    """Another process holds a lease on each of these files, so that nobody else can open them at once."""
    if not hasattr(fcntl, "F_SETLEASE"):
        pytest.skip("this system has no leases")
    command = [sys.executable, "-c", LEASE, *map(str, paths)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout and holder.stdin
        if holder.stdout.readline() != "held\n":
            pytest.skip("this file system has no leases")
        yield
        holder.stdin.close()


def test_a_file_that_another_process_holds_is_refused_and_the_store_is_not_away(tmp_path: Path) -> None:
    place = Place(tmp_path, local=True)
    for name in ("held", "free"):
        place.store.put(f"a/{name}", b"1")
    with leased(place.root / "a/held"):
        began = time.monotonic()
        for operation in (
            lambda: place.store.get("a/held", limit=LIMIT),
            lambda: place.store.get("a/held", limit=LIMIT, listed=True),
            lambda: place.store.append("a/held", b"line\n"),
        ):
            with pytest.raises(Refused, match=r"another process holds it \(a lease\): remove it"):
                operation()
        assert place.store.get("a/free", limit=LIMIT) == b"1"
        place.store.rewrite("a/held", b"2")  # takes the name away from it
        assert place.store.get("a/held", limit=LIMIT) == b"2"
        assert time.monotonic() - began < 5 and "retries" not in place.store.counts


def test_a_lease_on_a_name_that_a_node_will_publish_costs_nothing_else(tmp_path: Path) -> None:
    place = Place(tmp_path, local=True)
    (tmp_path / "spool").mkdir()
    with leased(place.root / "a/1"):
        (tmp_path / "spool" / "000000000000").write_bytes(b"a/1\nof a node that does not sign")
        said = list[str]()
        publisher = Publisher(place.store, tmp_path / "spool", VirtualClock(), background=False, tell=said.append)
        publisher.put("a/2", b"next")
        assert publisher.pending == 0 and not publisher.away
        assert place.store.get("a/2", limit=LIMIT) == b"next"
        [news] = said
        assert "a/1 cannot be used, another process holds it" in news


@pytest.mark.parametrize("plant", [plant_link, plant_pipe, plant_folder, None])
def test_a_node_that_signs_takes_the_names_of_its_documents_back(plant: Callable[[Place], None] | None, tmp_path: Path) -> None:
    place = Place(tmp_path, local=True)
    spool, said = tmp_path / "spool", list[str]()
    publisher = Publisher(
        place.store, spool, VirtualClock(), background=False, mine=lambda key, data: data == b"mine", tell=said.append
    )
    with contextlib.ExitStack() as held:
        if plant:
            plant(place)
        else:
            held.enter_context(leased(place.root / "a/x"))
        publisher.put("a/x", b"mine")
        assert publisher.pending == 0 and len(said) == 1
        if plant is plant_folder:
            assert publisher.counters["refused"] == 1
        else:
            assert place.store.get("a/x", limit=LIMIT) == b"mine" and publisher.counters["reclaimed"] == 1
    assert place.private.read_bytes() == SECRET


def test_a_file_as_large_as_files_can_be_is_refused_and_the_store_is_not_away(tmp_path: Path) -> None:
    place = Place(tmp_path, local=True)
    with (place.root / "a/log").open("wb") as file:
        try:
            file.truncate((1 << 63) - 1)
        except OSError:
            limit = 1 << 43
            with contextlib.suppress(OSError):
                while True:
                    file.truncate(limit)
                    limit += 1 << 43
            file.truncate((16 << 40) - 4096)
    with pytest.raises(Refused, match="as large as a file can be: remove it"):
        place.store.append("a/log", b"x" * 8192)
    assert "retries" not in place.store.counts


def test_links_in_the_path_that_the_user_typed_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "typed").symlink_to(tmp_path / "real")
    store = open_store(str(tmp_path / "typed"))
    assert store.put("a/x", b"1")
    assert (tmp_path / "real/a/x").read_bytes() == b"1"


def test_folders_take_the_mode_of_the_root_whatever_the_umask(place: Place) -> None:
    place.root.chmod(0o2775)
    before = os.umask(0o077)
    try:
        place.store.put("experiments/e/rewards/x.json", b"1")
        place.store.rewrite("experiments/e/state.json", b"1")
    finally:
        os.umask(before)
    for folder in ("experiments", "experiments/e", "experiments/e/rewards"):
        assert stat.S_IMODE((place.root / folder).stat().st_mode) == 0o2775
    for file in ("experiments/e/rewards/x.json", "experiments/e/state.json"):
        assert stat.S_IMODE((place.root / file).stat().st_mode) == 0o644


def test_a_file_larger_than_allowed_is_not_copied(place: Place, tmp_path: Path) -> None:
    place.store.put("a/big", b"x" * 1000)
    with pytest.raises(Refused, match="1000 bytes"):
        place.store.get_file("a/big", tmp_path / "copy", limit=999)
    assert not (tmp_path / "copy").exists()
    memory = MemoryStore()
    memory.put("a/big", b"x" * 1000)
    with pytest.raises(Refused, match="larger than 999"):
        memory.get_file("a/big", tmp_path / "copy", limit=999)


def test_an_empty_folder_in_the_place_of_the_store_is_not_written_into(place: Place) -> None:
    place.store.put("experiments/e/experiment.json", b"{}")
    place.store.expect("experiments/e/experiment.json")
    assert place.store.put("experiments/e/rewards/round_0/x.json", b"1")
    place.root.rename(place.root.with_name("moved"))
    place.root.mkdir()
    with pytest.raises(StoreAway, match="taken the place"):
        place.store.put("experiments/e/rewards/round_1/x.json", b"1")
    assert list(place.root.iterdir()) == []
    place.root.rmdir()
    place.root.with_name("moved").rename(place.root)
    assert place.store.put("experiments/e/rewards/round_1/x.json", b"1")


def test_lines_are_appended_whole(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, VirtualClock(), local=True)
    store.append("logs/x", b"one\n")
    (tmp_path / "logs/x").write_bytes(b"one\nhalf a li")
    store.append("logs/x", b"two\n")
    assert store.get("logs/x", limit=LIMIT) == b"one\nhalf a li\ntwo\n"
    assert store.get("logs/x", limit=LIMIT, offset=4) == b"half a li\ntwo\n"
    assert store.get("logs/x", limit=LIMIT, offset=-4) == b"two\n"
    assert store.get("logs/x", limit=LIMIT, offset=-400) == b"one\nhalf a li\ntwo\n"


def test_a_store_that_only_is_looked_at_is_not_written_to(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    with pytest.raises(ConfigError, match="does not exist"):
        open_store(str(root), writable=False)
    root.mkdir()
    before = root.stat().st_mtime_ns
    open_store(str(root), writable=False).list("experiments")
    assert root.stat().st_mtime_ns == before


class Hanging(MemoryStore):
    """A mount on which reading hangs until it is let go."""

    hang_seconds = 0.2

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def _get(self, key: str, limit: int, offset: int) -> bytes:
        self.let_go.wait(30)
        return super()._get(key, limit, offset)


def test_a_read_that_hangs_holds_nobody() -> None:
    store: Store = Hanging()
    store.put("a/x", b"1")
    began = time.monotonic()
    for _ in range(10):
        with pytest.raises(StoreAway, match="hangs"):
            store.get("a/x", limit=LIMIT)
    assert time.monotonic() - began < 5
    assert threading.active_count() < 20, "those left behind are few"
    assert isinstance(store, Hanging)
    store.let_go.set()
    time.sleep(0.2)
    assert store.get("a/x", limit=LIMIT) == b"1"
