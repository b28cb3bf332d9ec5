from pathlib import Path

import pytest

from rl_swarm.document import seal
from rl_swarm.errors import Refused
from rl_swarm.identity import load_identity
from rl_swarm.store.folder import FolderStore
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import (
    TOLD_SECONDS,
    Heartbeat,
    Pulse,
    Registration,
    has_left,
    heartbeat_numbers,
    most_alive,
    newest_heartbeat,
    read_registration,
    register,
    registered,
    silent_since,
)
from rl_swarm.swarm.signatures import Signatures
from tests.support.clocks import VirtualClock

LAYOUT = Layout("trial")


def registration(node_id: str, session: str = "a") -> Registration:
    return Registration(node_id, "worker", 1.0, "nano", node_id, "0.1", session)


def test_a_node_registers_once() -> None:
    store = MemoryStore()
    for session in ("a", "b"):
        register(store, LAYOUT, registration("w1", session))
        found = read_registration(store, LAYOUT, "w1")
        assert found is not None and found.session == "a"
    store.put(f"{LAYOUT.peers}/README.txt", b"")
    assert registered(store, LAYOUT) == {"w1"}


def test_names_that_begin_like_others_are_counted() -> None:
    store = MemoryStore()
    for node_id in ("node_0", "node_01", "node"):
        register(store, LAYOUT, registration(node_id))
    assert registered(store, LAYOUT) == {"node_0", "node_01", "node"}


def test_heartbeats_are_numbered_on_and_old_ones_removed() -> None:
    store, clock = MemoryStore(), VirtualClock()
    for _ in range(2):  # the second life of the node goes on counting
        pulse = Pulse(store, LAYOUT, "w1", clock)
        for _ in range(3):
            pulse.beat("training", 4)
    assert len(store.list(LAYOUT.heartbeats("w1"))) == 2
    beat = newest_heartbeat(store, LAYOUT, "w1")
    assert beat is not None
    assert (beat.sequence, beat.doing, beat.round) == (6, "training", 4)


def test_two_processes_with_one_name_notice_each_other_and_say_so_now_and_then() -> None:
    store, clock = MemoryStore(), VirtualClock()
    said: dict[str, list[str]] = {"a": [], "b": []}
    pulses = [Pulse(store, LAYOUT, "w1", clock, session, lines.append) for session, lines in said.items()]
    for _ in range(3):
        pulses[0].beat("training", 1)
    for _ in range(10):
        clock.sleep(30)
        for pulse in pulses:
            pulse.beat("training", 1)
    assert [len(lines) for lines in said.values()] == [1, 1]
    assert "another process sends heartbeats as w1 (session b)" in said["a"][0] and "NODE_ID" in said["a"][0]
    beat = newest_heartbeat(store, LAYOUT, "w1")
    assert beat is not None and {beat.session, beat.twin} == {"a", "b"}
    clock.sleep(TOLD_SECONDS)
    for pulse in pulses:
        pulse.beat("training", 1)
    assert [len(lines) for lines in said.values()] == [2, 2]


class Beating:
    """A node that signs where everybody does, a stranger, and a reader."""

    def __init__(self, tmp_path: Path) -> None:
        self.store, self.clock, self.said = MemoryStore(clock=VirtualClock()), VirtualClock(), list[str]()
        mine, theirs = (load_identity(str(tmp_path / f"{name}.pem")) for name in ("mine", "theirs"))
        self.signatures, self.thief, self.reader = (Signatures(each, required=True) for each in (mine, theirs, None))
        register(self.store, LAYOUT, registration("w1"), self.signatures)
        assert read_registration(self.store, LAYOUT, "w1", self.reader) is not None
        self.pulse = self.start("a")

    def start(self, session: str) -> Pulse:
        return Pulse(self.store, LAYOUT, "w1", self.clock, session, self.said.append, self.signatures)

    def plant(self, number: int, signed: bool = True) -> None:
        key, beat = LAYOUT.heartbeat("w1", number), seal(Heartbeat("w1", number, 0.0, "x", 0, "other"))
        self.store.rewrite(key, self.thief.sign(key, beat) if signed else beat)

    @property
    def newest(self) -> int | None:
        beat = newest_heartbeat(self.store, LAYOUT, "w1", self.reader)
        return beat.sequence if beat else None


@pytest.mark.parametrize("signed", [True, False])
def test_where_everybody_signs_a_strangers_heartbeats_are_taken_back_and_not_gone_past(tmp_path: Path, signed: bool) -> None:
    node = Beating(tmp_path)
    for _ in range(3):
        node.pulse.beat("training", 1)
    for number in (4, 5, 6, 7, 500, 998_999_999, *range(999_999_990, 1_000_000_000)):
        node.plant(number, signed)
    for expected in range(4, 9):
        node.pulse.beat("training", 1)
        assert node.newest == expected
    node.plant(998_999_999, signed)
    again = node.start("b")
    again.beat("training", 1)
    assert node.newest == 9 and node.said == []
    assert node.store.list(LAYOUT.heartbeats("w1")) == ["000008.json", "000009.json"]


def test_without_keys_no_number_near_the_limit_is_gone_past(tmp_path: Path) -> None:
    store, clock = MemoryStore(), VirtualClock()
    pulse = Pulse(store, LAYOUT, "w1", clock, "a")
    pulse.beat("training", 1)
    for number in (2, 999_999_999):
        store.put(LAYOUT.heartbeat("w1", number), seal(Heartbeat("w1", number, 0.0, "x", 0, "other")))
    for _ in range(5):
        pulse.beat("training", 1)
    assert 5 < max(heartbeat_numbers(store, LAYOUT, "w1") - {999_999_999}) < 10


def test_of_two_processes_with_one_key_each_is_told_of_the_other(tmp_path: Path) -> None:
    node = Beating(tmp_path)
    other = node.start("b")
    for _ in range(10):
        node.clock.sleep(30)
        node.pulse.beat("training", 1)
        other.beat("training", 1)
    assert len(node.said) == 2


def test_a_number_that_can_never_be_used_is_passed_over(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, VirtualClock(), local=True)
    signatures = Signatures(load_identity(str(tmp_path / "keys" / "mine.pem")), required=True)
    pulse = Pulse(store, LAYOUT, "w1", VirtualClock(), "a", signatures=signatures)
    (tmp_path / LAYOUT.heartbeat("w1", 1)).mkdir(parents=True)
    with pytest.raises(Refused):
        pulse.beat("training", 1)
    pulse.beat("training", 1)
    assert heartbeat_numbers(store, LAYOUT, "w1") >= {2}


def test_the_other_process_is_forgotten_when_it_has_ended() -> None:
    store, clock = MemoryStore(), VirtualClock()
    pulses = [Pulse(store, LAYOUT, "w1", clock, session) for session in "ab"]
    for _ in range(10):
        for pulse in pulses:
            pulse.beat("training", 1)
    pulses[0].beat("training", 1)
    clock.sleep(TOLD_SECONDS)
    pulses[0].beat("training", 1)
    beat = newest_heartbeat(store, LAYOUT, "w1")
    assert beat is not None and (beat.session, beat.twin) == ("a", "")


def test_the_heartbeats_of_its_own_last_life_alarm_nobody() -> None:
    """Also where a listing conceals them at first, so that their numbers are tried again."""

    class Concealing(MemoryStore):
        concealed = False

        def _list(self, folder: str) -> list[str]:
            return [] if self.concealed else super()._list(folder)

    store, clock, said = Concealing(), VirtualClock(), list[str]()
    for life in range(20):
        store.concealed = life % 2 == 1
        pulse = Pulse(store, LAYOUT, "w1", clock, f"life {life}", said.append)
        for _ in range(life):
            pulse.beat("training", 1)
    assert said == []


def test_of_very_many_registered_names_those_with_signs_of_life_are_looked_at() -> None:
    store = MemoryStore()
    for number in range(1_000):
        store.put(LAYOUT.peer(f"made-up{number}"), b"{")
    for node_id in ("worker", "zoe"):
        register(store, LAYOUT, registration(node_id))
    Pulse(store, LAYOUT, "worker", VirtualClock()).beat("training", 1)
    store.put(LAYOUT.log("zoe", "metrics.jsonl"), b"")
    chosen, left_out = most_alive(store, LAYOUT, most=2)
    assert (chosen, left_out) == (["worker", "zoe"], 1_000)
    chosen, left_out = most_alive(store, LAYOUT, known={"made-up7"}, most=2)
    assert "made-up7" in chosen
    assert most_alive(store, LAYOUT, most=2_000)[1] == 0


def test_a_node_is_silent_when_it_is_later_than_its_own_pace_allows() -> None:
    fast, slow = [1.0 * number for number in range(10)], [100.0 * number for number in range(10)]
    assert silent_since(fast, 9.0, 9.0 + 32, interval=60) is None, "it may be in a long step: a heartbeat comes every 30 s"
    assert silent_since(fast, 9.0, 9.0 + 34, interval=60) == 9.0
    assert silent_since(slow, 900.0, 900.0 + 199, interval=60) is None
    assert silent_since(slow, 900.0, 900.0 + 201, interval=60) == 900.0
    assert silent_since([], 0.0, 59, interval=60) is None, "it loads its model"
    assert silent_since([], 0.0, 61, interval=60) == 0.0
    assert silent_since([*slow, 5_000.0], 5_000.0, 5_000 + 199, interval=60) is None, "one long round changes no pace"


def test_a_node_that_has_ended_says_so() -> None:
    assert all(map(has_left, ("stopped", "complete", "failed: OSError: no", "stood down")))
    assert not any(map(has_left, ("starting", "generating", "saving a checkpoint", "registered")))
