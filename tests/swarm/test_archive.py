"""Archives: copies are whole and read back, and no place is taken where a copy would be the file itself."""

from pathlib import Path

import pytest

from rl_swarm.config import Config
from rl_swarm.errors import ConfigError, Refused
from rl_swarm.packing import METHODS, packed
from rl_swarm.rollout import BUNDLE_BYTES, encode
from rl_swarm.store.folder import FolderStore
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.archive import Archive, open_archive
from tests.support.clocks import VirtualClock
from tests.swarm.test_exchange import LAYOUT, bundle

KEY, PLACE = LAYOUT.bundle(3, "w1"), "archives/trial/rollouts/round_3/stage_0/w1.json"
DATA = encode(bundle("w1", 3))


@pytest.fixture
def archive() -> Archive:
    return Archive(MemoryStore(clock=VirtualClock()), "archives")


@pytest.mark.parametrize("method", METHODS)
def test_a_whole_document_is_kept_in_its_place_as_it_is(archive: Archive, method: str) -> None:
    data = packed(DATA, method)
    assert archive.keep(KEY, data) and archive.keep(KEY, data), "a second cleaner finds it there"
    assert archive.store.get(PLACE, limit=BUNDLE_BYTES) == data


@pytest.mark.parametrize("data", [b"", DATA[:-1], DATA[: len(DATA) // 2], b"junk", DATA.replace(b"trial", b"trail")])
def test_what_is_not_whole_is_not_taken(archive: Archive, data: bytes) -> None:
    assert not archive.keep(KEY, data) and archive.store.list("archives") == []


def test_half_a_copy_of_a_killed_process_is_not_taken_for_the_whole(archive: Archive) -> None:
    archive.store.put(PLACE, DATA[:100])
    assert archive.keep(KEY, DATA) and archive.keep(KEY, DATA)
    half, whole = archive.store.list(PLACE.rpartition("/")[0])
    assert archive.store.get(f"{PLACE.rpartition('/')[0]}/{half}", limit=BUNDLE_BYTES) == DATA
    assert whole == "w1.json" and archive.store.get(PLACE, limit=BUNDLE_BYTES) == DATA[:100], "nothing is replaced"


def test_of_two_documents_of_one_name_both_are_kept(archive: Archive) -> None:
    other = encode(bundle("w1", 3, count=1))
    assert archive.keep(KEY, DATA) and archive.keep(KEY, other)
    folder = PLACE.rpartition("/")[0]
    assert {archive.store.get(f"{folder}/{name}", limit=BUNDLE_BYTES) for name in archive.store.list(folder)} == {DATA, other}


def test_a_copy_that_cannot_be_read_back_does_not_count() -> None:
    class Forgetful(MemoryStore):
        def _put(self, key: str, data: bytes) -> bool:
            return True

    assert not Archive(Forgetful(clock=VirtualClock()), "archives").keep(KEY, DATA)


@pytest.mark.parametrize(
    "place", ["experiments", "experiments/", "./experiments/old", "Experiments", "../x", "a b", "archives/../x"]
)
def test_a_folder_of_the_experiments_is_no_archive(tmp_path: Path, place: str) -> None:
    with pytest.raises(ConfigError, match=r"^ROLLOUT_ARCHIVE_PATH must "):
        open_archive(Config(archive_path=place), FolderStore(tmp_path))


def test_nor_is_a_path_that_leads_there(tmp_path: Path) -> None:
    (tmp_path / "store" / "experiments" / "trial").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "store" / "experiments")
    store = FolderStore(tmp_path / "store")
    for place in (tmp_path / "store" / "experiments", tmp_path / "link", tmp_path / "link" / "trial"):
        with pytest.raises(ConfigError, match="must not lie in experiments/ of the shared folder"):
            open_archive(Config(archive_path=str(place)), store)


def test_a_path_below_the_shared_folder_is_used_by_keys(tmp_path: Path) -> None:
    """So a link that somebody puts there leads nowhere."""
    (tmp_path / "store").mkdir()
    (tmp_path / "private").mkdir()
    (tmp_path / "store" / "old").symlink_to(tmp_path / "private")
    store = FolderStore(tmp_path / "store", VirtualClock(), local=True)
    archive = open_archive(Config(archive_path=str(tmp_path / "store" / "old")), store)
    assert archive.folder == "old" and archive.store is store
    with pytest.raises(Refused):
        archive.keep(KEY, DATA)
    assert not list((tmp_path / "private").iterdir())


def test_a_path_elsewhere_is_made(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    elsewhere = tmp_path / "far" / "away"
    archive = open_archive(Config(archive_path=str(elsewhere)), FolderStore(tmp_path / "store"))
    assert archive.keep(KEY, DATA)
    assert (elsewhere / "trial" / "rollouts" / "round_3" / "stage_0" / "w1.json").read_bytes() == DATA
