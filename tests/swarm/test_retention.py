"""Old rollouts are removed or archived, and never what a node still needs."""

import random
from pathlib import Path
from typing import Any

import pytest

from rl_swarm.config import load
from rl_swarm.document import seal
from rl_swarm.errors import StoreAway
from rl_swarm.rollout import BUNDLE_BYTES, decode, encode
from rl_swarm.store import Store
from rl_swarm.store.folder import FolderStore
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm import retention as retention_module
from rl_swarm.swarm.layout import recognised, round_of_folder
from rl_swarm.swarm.peers import Heartbeat, Registration, register
from rl_swarm.swarm.removals import removed_before
from rl_swarm.swarm.retention import SILENT_INTERVALS, Pruned, Retention, policy_of, retention_of
from rl_swarm.swarm.rounds import Announcement, Reward, Rounds
from rl_swarm.swarm.signatures import Signatures
from tests.support.clocks import VirtualClock
from tests.swarm.test_exchange import LAYOUT, bundle, make

NODES = ("w1", "w2")
INTERVAL = 60.0


def played(store: Store, rounds: int, nodes: tuple[str, ...] = NODES) -> None:
    """Rounds that all nodes have played, a minute each."""
    for node_id in nodes:
        register(store, LAYOUT, Registration(node_id, "worker", 0.0, "nano", node_id, "1", "s"))
        for number in range(rounds):
            store.put(LAYOUT.bundle(number, node_id), encode(bundle(node_id, number)))
            store.put(LAYOUT.reward(number, node_id), seal(Reward(node_id, number, 0.5, 4, store.clock.wall() + INTERVAL * number)))


def cleaner(store: Store, by: str = "boss", **settings: Any) -> Retention:
    environment = {"ROLLOUT_CLEANUP_ENABLED": "true", "NODE_ID": by, "NODE_ROLE": "worker" if by in NODES else "coordinator"}
    environment |= {"COORDINATOR_ROUND_INTERVAL": str(INTERVAL)} | {
        f"ROLLOUT_{name}": str(value) for name, value in settings.items()
    }
    return retention_of(load(environment), store, LAYOUT, store.clock, Signatures(), lambda *event, **details: None)


def clean(retention: Retention, newest: int) -> Pruned:
    retention.reached(newest)
    return retention.clean()


def kept(store: Store, node_id: str | None = None) -> list[int]:
    rounds = recognised(round_of_folder, store.list(LAYOUT.rollouts))
    names = {number: store.list(LAYOUT.rollouts_of(number)) for number in rounds}
    return sorted(number for number in rounds if not node_id or f"{node_id}.json" in names[number])


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore(clock=VirtualClock())
    played(store, 10)
    return store


def beat(store: Store, node_id: str, sequence: int, doing: str, number: int, sent_at: float = 0.0) -> None:
    store.put(LAYOUT.heartbeat(node_id, sequence), seal(Heartbeat(node_id, sequence, sent_at, doing, number)))


def test_the_coordinator_keeps_the_last_rounds_of_everyone(store: MemoryStore) -> None:
    found = clean(cleaner(store, KEEP_LAST_N_ROUNDS=5), 9)
    assert kept(store) == [5, 6, 7, 8, 9] and (found.rounds, found.files) == ((0, 1, 2, 3, 4), 10)
    assert len(store.list(LAYOUT.rewards)) == 10, "rewards stay"


def test_a_worker_removes_its_own_only(store: MemoryStore) -> None:
    clean(cleaner(store, "w1", KEEP_LAST_N_ROUNDS=5), 9)
    assert kept(store, "w1") == [5, 6, 7, 8, 9] and kept(store, "w2") == list(range(10))


def test_without_the_setting_nothing_is_removed(store: MemoryStore) -> None:
    assert clean(cleaner(store, CLEANUP_ENABLED="false"), 9) == Pruned() and kept(store) == list(range(10))


@pytest.mark.parametrize("limit", [{"KEEP_LAST_N_ROUNDS": 1}, {"KEEP_DAYS": 0.000001}, {"KEEP_MB": 0.000001}])
@pytest.mark.parametrize("window", [1, 3, 6])
def test_the_window_and_a_round_more_stay_whatever_the_limit(store: MemoryStore, limit: dict[str, Any], window: int) -> None:
    store.clock.sleep(1e6)
    clean(cleaner(store, **limit, WINDOW_ROUNDS=window), 9)
    assert kept(store) == list(range(9 - window, 10))


def test_rounds_go_by_age(store: MemoryStore) -> None:
    store.clock.sleep(9 * INTERVAL)
    clean(cleaner(store, KEEP_DAYS=5.5 * INTERVAL / 86_400), 9)
    assert kept(store) == [4, 5, 6, 7, 8, 9], "the default number of rounds does not count beside another limit"
    clean(cleaner(store, KEEP_DAYS=100, KEEP_LAST_N_ROUNDS=5), 9)
    assert kept(store) == [5, 6, 7, 8, 9], "of two limits the narrower one"


def test_the_age_of_a_round_is_that_of_its_announcement_or_of_most_nodes(store: MemoryStore) -> None:
    """The clock of one node, or a stranger's word, neither removes everything nor keeps it."""
    store.clock.sleep(9 * INTERVAL)
    began, days = store.clock.wall() - 9 * INTERVAL, 5.5 * INTERVAL / 86_400
    for number in range(10):
        for name, moment in (("a-past", 0.0), ("b-future", 1e11), ("c", began + INTERVAL * number)):
            store.put(LAYOUT.reward(number, name), seal(Reward(name, number, 0.5, 4, moment)))
    assert cleaner(store, KEEP_DAYS=days).plan(9).rounds == (0, 1, 2, 3), "the median of five"
    for number in range(10):
        opened = Announcement(number, "boss", "s", 1, began + INTERVAL * (number - 2), [], [])
        Rounds(store, LAYOUT).announce(opened)
    assert cleaner(store, KEEP_DAYS=days).plan(9).rounds == (0, 1, 2, 3, 4, 5)
    assert cleaner(store, "w1", KEEP_DAYS=days).plan(9).rounds == (0, 1, 2, 3), "a worker goes by its own rewards"


def test_rounds_go_by_size(store: MemoryStore) -> None:
    sizes = [sum(store.size(LAYOUT.bundle(number, node_id)) for node_id in NODES) for number in range(10)]
    clean(cleaner(store, KEEP_MB=(sum(sizes[5:]) + 1) / 1e6), 9)
    assert kept(store) == [5, 6, 7, 8, 9]
    clean(cleaner(store, "w1", KEEP_MB=(sum(sizes[5:]) + 1) / 1e6), 9)
    assert kept(store, "w1") == [5, 6, 7, 8, 9], "a worker counts its own files"


def test_a_limit_has_a_default_unless_another_is_set() -> None:
    assert policy_of(load({})).rounds == 10
    assert policy_of(load({"ROLLOUT_KEEP_MB": "5"})).rounds is None
    assert policy_of(load({"ROLLOUT_KEEP_MB": "5", "ROLLOUT_KEEP_LAST_N_ROUNDS": "7"})).rounds == 7


def test_archived_rounds_are_readable_and_nothing_is_lost(store: MemoryStore) -> None:
    before = {key: data for key, data in store._data.items() if "/rollouts/" in key}
    found = clean(cleaner(store, KEEP_LAST_N_ROUNDS=5, ARCHIVE_OLD="true"), 9)
    assert found.archived == 10 and store.list("archives/trial/rollouts") == [f"round_{number}/" for number in range(5)]
    for number in range(5):
        for node_id in NODES:
            place = f"archives/trial/rollouts/round_{number}/stage_0/{node_id}.json"
            assert decode(store.get(place, limit=BUNDLE_BYTES)).round == number
            assert store.get(place, limit=BUNDLE_BYTES) == before[LAYOUT.bundle(number, node_id)]


def test_half_a_file_is_not_archived_and_not_removed(store: MemoryStore) -> None:
    """Its author writes it anew at its next start."""
    key = LAYOUT.bundle(2, "w1")
    store.rewrite(key, store.get(key, limit=BUNDLE_BYTES)[:-9])
    assert clean(cleaner(store, KEEP_LAST_N_ROUNDS=5, ARCHIVE_OLD="true"), 9).files == 9
    assert kept(store) == [2, 5, 6, 7, 8, 9]


def test_an_empty_file_goes_only_if_it_is_archived(store: MemoryStore) -> None:
    """Another cleaner has archived and emptied it, and was killed before it could delete it; or a mount shows it as empty."""
    for number in (2, 3):
        store.rewrite(LAYOUT.bundle(number, "w1"), b"")
    store.put("archives/trial/rollouts/round_2/stage_0/w1.json", encode(bundle("w1", 2)))
    clean(cleaner(store, KEEP_LAST_N_ROUNDS=5, ARCHIVE_OLD="true"), 9)
    assert kept(store) == [3, 5, 6, 7, 8, 9] and store.list(LAYOUT.rollouts_of(3)) == ["w1.json"]


# Nodes that are behind


def behind(store: MemoryStore) -> None:
    """A worker that is in round 3 while the others have done round 9."""
    played(store, 3, ("slow",))
    beat(store, "slow", 1, "training", 3)


def test_rounds_that_a_slower_node_reads_stay_until_it_has_read_them(store: MemoryStore) -> None:
    behind(store)
    retention = cleaner(store, KEEP_LAST_N_ROUNDS=5)
    clean(retention, 9)
    assert kept(store) == list(range(1, 10)), "its window is rounds 1 to 3"
    for number in range(3, 7):
        store.put(LAYOUT.reward(number, "slow"), seal(Reward("slow", number, 0.5, 4, 0.0)))
    clean(retention, 10)
    assert kept(store) == [5, 6, 7, 8, 9]


def test_nobody_waits_for_a_node_that_left_or_is_silent(store: MemoryStore) -> None:
    behind(store)
    retention = cleaner(store, KEEP_LAST_N_ROUNDS=5)
    clean(retention, 9)
    store.clock.sleep(SILENT_INTERVALS * INTERVAL - 1)
    beat(store, "slow", 2, "training", 3)
    clean(retention, 10)
    store.clock.sleep(SILENT_INTERVALS * INTERVAL - 1)
    clean(retention, 11)
    assert kept(store) == list(range(1, 10)), "it has given a sign"
    store.clock.sleep(2)
    clean(retention, 12)
    assert kept(store) == [8, 9]
    behind_again = MemoryStore(clock=VirtualClock())
    played(behind_again, 10)
    played(behind_again, 3, ("slow",))
    beat(behind_again, "slow", 1, "stopped", 3)
    clean(cleaner(behind_again, KEEP_LAST_N_ROUNDS=5), 9)
    assert kept(behind_again) == [5, 6, 7, 8, 9]


def test_a_node_that_plays_counts_before_its_first_heartbeat_is_listed(store: MemoryStore) -> None:
    """A listing may lag behind by minutes; a name that has never played may be made up."""
    played(store, 4, nodes=("slow",))
    retention = cleaner(store, KEEP_LAST_N_ROUNDS=5)
    clean(retention, 9)
    assert kept(store) == [2, 3, 4, 5, 6, 7, 8, 9], "it has played round 3, and the window of 4 begins with 2"
    store.clock.sleep(SILENT_INTERVALS * INTERVAL + 1)
    clean(retention, 10)
    assert kept(store) == [6, 7, 8, 9], "it is silent"


def test_who_looks_only_once_judges_by_the_time_in_the_heartbeat(store: MemoryStore) -> None:
    behind(store)
    beat(store, "slow", 2, "training", 3, store.clock.wall())
    hasty = cleaner(store, KEEP_LAST_N_ROUNDS=5)
    hasty.patient = False
    assert hasty.plan(9).rounds == (0,)
    store.clock.sleep(SILENT_INTERVALS * INTERVAL)
    assert hasty.plan(9).rounds == (0, 1, 2, 3, 4) and kept(store) == list(range(10)), "a plan removes nothing"


# Work in small pieces, faults, strangers


def test_many_rounds_are_measured_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_module, "MOST_LISTED", 3)
    store = MemoryStore(clock=VirtualClock())
    played(store, 30)
    retention = cleaner(store, KEEP_MB=store.size(LAYOUT.bundle(0, "w1")) * 21 / 1e6)
    planned = cleaner(store, KEEP_MB=store.size(LAYOUT.bundle(0, "w1")) * 21 / 1e6).plan(29)
    retention.reached(29)
    removed = 0
    while retention.due:
        removed += retention.clean().files
    assert removed == planned.files > 30 and len(planned.rounds) == 30 - len(kept(store))


def test_a_flood_of_made_up_nodes_costs_little_and_holds_up_nobody(store: MemoryStore) -> None:
    for number in range(500):
        name = f"a{number}"
        store._data[LAYOUT.peer(name)] = seal(Registration(name, "worker", 0.0, "nano", name, "1", "s"))
    before = store.counts["get"] + store.counts["list"]
    clean(cleaner(store, KEEP_LAST_N_ROUNDS=5), 9)
    assert kept(store) == [5, 6, 7, 8, 9] and store.counts["get"] + store.counts["list"] - before < 400


def test_a_link_in_the_place_of_a_file_stays(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "mine").write_text("mine")
    store = FolderStore(tmp_path / "store", VirtualClock(), local=True)
    played(store, 10)
    (store.root / LAYOUT.bundle(0, "w1")).unlink()
    (store.root / LAYOUT.bundle(0, "w1")).symlink_to(tmp_path / "mine")
    clean(cleaner(store, KEEP_LAST_N_ROUNDS=5), 9)
    assert kept(store) == [0, 5, 6, 7, 8, 9] and (tmp_path / "mine").read_text() == "mine"


def test_many_files_are_removed_some_at_a_time(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_module, "MOST_FILES", 3)
    retention = cleaner(store, KEEP_LAST_N_ROUNDS=5)
    retention.reached(9)
    counts = []
    while retention.due:
        counts.append(retention.clean().files)
    assert counts == [4, 4, 2] and kept(store) == [5, 6, 7, 8, 9]


def test_rounds_in_which_something_stays_hold_up_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_module, "MOST_LISTED", 3)
    store = MemoryStore(clock=VirtualClock())
    played(store, 20)
    for number in range(6):
        store.rewrite(LAYOUT.bundle(number, "w1"), b"half a document")
    retention = cleaner(store, KEEP_LAST_N_ROUNDS=5, ARCHIVE_OLD="true")
    retention.reached(19)
    assert retention.clean(all_of_it=True).files == 24 and not retention.due
    assert kept(store) == [0, 1, 2, 3, 4, 5, 15, 16, 17, 18, 19]
    for number in range(6):
        store.rewrite(LAYOUT.bundle(number, "w1"), encode(bundle("w1", number)))
    retention.reached(20)
    assert retention.clean(all_of_it=True).files == 8 and kept(store) == [16, 17, 18, 19], "the next round looks again"


def test_a_store_that_goes_away_is_gone_on_with(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    retention, delete, turns = cleaner(store, KEEP_LAST_N_ROUNDS=5), store.delete, iter(range(100))

    def shaky(key: str) -> None:
        if next(turns) % 3 == 2:
            raise StoreAway("gone")
        delete(key)

    monkeypatch.setattr(store, "delete", shaky)
    retention.reached(9)
    while retention.due:
        try:
            retention.clean()
        except StoreAway:
            continue
    assert kept(store) == [5, 6, 7, 8, 9]


def test_files_that_no_node_writes_stay(store: MemoryStore) -> None:
    for name in ("notes.txt", "w1 (1).json"):
        store._data[f"{LAYOUT.rollouts_of(0)}/{name}"] = b"mine"
    store._data[f"{LAYOUT.rollouts_of_round(0)}/other/x.json"] = b"mine"
    clean(cleaner(store, KEEP_LAST_N_ROUNDS=5), 9)
    assert kept(store) == [0, 5, 6, 7, 8, 9] and len(store.list(LAYOUT.rollouts_of(0))) == 2


def test_a_late_file_of_an_old_round_is_removed_later(store: MemoryStore) -> None:
    retention = cleaner(store, KEEP_LAST_N_ROUNDS=5)
    clean(retention, 9)
    clean(retention, 10)
    store.put(LAYOUT.bundle(1, "w2"), encode(bundle("w2", 1)))
    clean(retention, 11)
    assert 1 not in kept(store)


def test_what_may_not_be_removed_is_said_once(tmp_path: Path) -> None:
    class Sticky(MemoryStore):
        def _delete(self, key: str) -> None:
            from rl_swarm.errors import Refused

            raise Refused(f"{key} cannot be used, not permitted: let its owner remove it")

    store, said = Sticky(clock=VirtualClock()), list[str]()
    played(store, 10)
    retention = cleaner(store, KEEP_LAST_N_ROUNDS=8)
    retention.tell = lambda event, line, **details: said.append(line)
    clean(retention, 9)
    clean(retention, 10)
    assert len([line for line in said if line.endswith("old rollouts there stay")]) == 6 == len(set(said))


def test_a_document_says_which_rounds_may_be_gone_and_old_ones_go(store: MemoryStore) -> None:
    retention = cleaner(store, KEEP_LAST_N_ROUNDS=5)
    for newest in range(5, 10):
        clean(retention, newest)
    assert store.list(LAYOUT.removals_of("boss")) == ["round_000004.json", "round_000005.json"]
    assert removed_before(store, LAYOUT, ["boss", "w1", "w2"], Signatures()) == {"boss": 5, "w1": 5, "w2": 5}
    own = MemoryStore(clock=VirtualClock())
    played(own, 10)
    clean(cleaner(own, "w1", KEEP_LAST_N_ROUNDS=5), 9)
    assert removed_before(own, LAYOUT, ["w1", "w2"], Signatures()) == {"w1": 5, "w2": 0}


def test_an_empty_file_counts_against_nobody(tmp_path: Path, store: MemoryStore) -> None:
    """A mount shows it between truncating and deleting."""
    for number in range(8, 10):
        for slot in range(10):
            store.put(LAYOUT.bundle(number, "w1", slot), b"")
    exchange = make(store, tmp_path)
    assert {rollout.round for rollout in exchange.gather(9, 0, 20, random.Random(0)) if rollout.node_id == "w1"} == {7, 8, 9}
    exchange.gather(20, 0, 4, random.Random(0))
    assert not exchange.rejected and not exchange.standings.mutes(20)


@pytest.mark.parametrize("local", [True, False])
def test_folders_of_removed_rounds_go(tmp_path: Path, local: bool) -> None:
    store = FolderStore(tmp_path, VirtualClock(), local=local)
    played(store, 10)
    retention = cleaner(store, KEEP_LAST_N_ROUNDS=5)
    clean(retention, 9)
    folders = (tmp_path / LAYOUT.rollouts).iterdir
    assert len(list(folders())) == (5 if local else 10), "on a mount a later look decides, since listings lag"
    clean(retention, 10)
    assert sorted(path.name for path in folders()) == [f"round_{number}" for number in range(6 if local else 5, 10)]
    assert kept(store, "w1") == [6, 7, 8, 9]
