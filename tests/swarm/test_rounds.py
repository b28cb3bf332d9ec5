import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_swarm.document import seal
from rl_swarm.errors import BadDocument, StoreAway
from rl_swarm.identity import load_identity
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import Heartbeat, Pulse, Registration, register
from rl_swarm.swarm.rounds import (
    EPOCH_LEAP,
    STRIDE,
    Announcement,
    CurrentState,
    Reward,
    Rounds,
    highest_good,
    read_reward,
    submitted,
)
from rl_swarm.swarm.signatures import Signatures
from tests.support.clocks import VirtualClock
from tests.support.flaky_store import FlakyStore

LAYOUT = Layout("trial")
CHANCE = random.Random(0)


def announcement(number: int, epoch: int = 1, session: str = "s") -> Announcement:
    return Announcement(number, "boss", session, epoch, 0.0, [], [])


def join(store: MemoryStore, *names: str, role: str = "worker") -> None:
    for name in names:
        register(store, LAYOUT, Registration(name, role, 0.0, "m", name, "1", "s"))


def submit(store: MemoryStore, name: str, *numbers: int) -> None:
    for number in numbers:
        store.put(LAYOUT.reward(number, name), seal(Reward(name, number, 0.5, 8, 0.0)))


def rounds_with(*numbers: int) -> Rounds:
    rounds = Rounds(MemoryStore(), LAYOUT)
    for number in numbers:
        rounds.announce(announcement(number))
    return Rounds(rounds.store, LAYOUT)


def test_a_number_is_announced_once() -> None:
    rounds = rounds_with(0)
    assert rounds.announce(announcement(0, epoch=2, session="other")) == announcement(0)


def test_the_highest_valid_round_wins_and_a_corrupt_one_is_not_round_0() -> None:
    rounds = rounds_with(0, 1, 2)
    rounds.store.put(LAYOUT.round(3), b"{}")
    rounds.store.put(LAYOUT.round(4), seal(announcement(9)))
    rounds.store.put(f"{LAYOUT.states}/notes.txt", b"")
    newest = rounds.survey()
    assert newest is not None
    assert newest.round == 2
    with pytest.raises(BadDocument):
        rounds.announce(announcement(3))


def test_the_next_round_is_probed_by_name() -> None:
    rounds = rounds_with(0, 1)
    rounds.survey()
    before = rounds.store.counts["list"]
    assert rounds.advance(1) is None
    for number in (2, 3):
        Rounds(rounds.store, LAYOUT).announce(announcement(number))
    found = rounds.advance(1)
    assert found is not None
    assert found.round == 3
    assert rounds.store.counts["list"] == before


def test_a_node_that_never_heard_of_a_coordinator_takes_the_hint_but_not_its_word() -> None:
    rounds = rounds_with(5)
    assert rounds.advance(20) is None
    assert rounds.newest is None
    rounds.write_current(CurrentState(7, 0.0, "boss", "trial", "running"))
    assert rounds.advance(20) is None
    assert rounds.newest is None, "a hint that no announcement confirms is no round"
    rounds.write_current(CurrentState(5, 0.0, "boss", "trial", "running"))
    rounds.advance(20)
    assert rounds.newest == announcement(5)


def test_rewards() -> None:
    store = MemoryStore()
    reward = Reward("w1", 3, 0.5, 64, 1.0)
    store.put(LAYOUT.reward(3, "w1"), seal(reward))
    store.put(f"{LAYOUT.rewards_of(3)}/junk.tmp", b"")
    assert submitted(store, LAYOUT, 3, 0) == {"w1"}
    assert read_reward(store, LAYOUT, 3, 0, "w1") == reward
    assert read_reward(store, LAYOUT, 3, 0, "w2") is None
    join(store, "w1", "w2")
    assert Rounds(store, LAYOUT, 100).reached_by_others("w1", -1, CHANCE) is None
    assert Rounds(store, LAYOUT, 100).reached_by_others("w2", -1, CHANCE) == 3
    assert Rounds(store, LAYOUT, 100).reached_by_others("w2", 3, CHANCE) is None


def test_each_stage_has_its_own_rewards() -> None:
    store = MemoryStore()
    first, second = Reward("w1", 3, 0.5, 64, 1.0), Reward("w1", 3, 0.75, 64, 2.0, stage=1)
    store.put("experiments/trial/rewards/round_3/stage_0/w1.json", seal(first))
    store.put("experiments/trial/rewards/round_3/stage_1/w1.json", seal(second))
    store.put(LAYOUT.reward(3, "w2", stage=1), seal(Reward("w2", 3, 0.5, 64, 1.0)))
    assert [submitted(store, LAYOUT, 3, stage) for stage in range(3)] == [{"w1"}, {"w1", "w2"}, set()]
    assert [read_reward(store, LAYOUT, 3, stage, "w1") for stage in range(3)] == [first, second, None]
    assert read_reward(store, LAYOUT, 3, 1, "w2") is None, "it says that it belongs to stage 0"


def test_only_a_valid_reward_of_a_registered_worker_counts_as_reached() -> None:
    store = MemoryStore()
    join(store, "w1", "me")
    join(store, "boss", role="coordinator")
    submit(store, "w1", 2)
    store.put(f"{LAYOUT.rewards_of(777_777)}/notes.txt", b"")
    submit(store, "stranger", 50)  # nobody registered so
    submit(store, "boss", 51)  # no worker
    store.put(LAYOUT.reward(52, "w1"), b"")
    store.put(LAYOUT.reward(53, "w1"), store.get(LAYOUT.reward(2, "w1"), limit=1 << 20))  # of another round
    store.put(LAYOUT.reward(54, "w1"), seal(Reward("me", 54, 0.5, 8, 0.0)))  # of another node
    submit(store, "me", 55)  # by whoever asks
    submit(store, "w1", 100)  # beyond the last round
    assert Rounds(store, LAYOUT, 100).reached_by_others("me", -1, CHANCE) == 2


@pytest.mark.parametrize("honest", [0, 7, 150])
def test_honest_progress_is_found_among_thousands_of_made_up_rounds(honest: int) -> None:
    store = MemoryStore()
    join(store, "w1", "me")
    submit(store, "w1", *range(honest + 1))
    for number in range(3_000):
        store.put(f"{LAYOUT.rewards_of(number)}/junk.json", b"")
    before = store.counts.copy()
    assert Rounds(store, LAYOUT, 10**6).reached_by_others("me", -1, CHANCE) == honest
    looked = store.counts - before
    assert looked["list"] + looked["get"] < 4 * STRIDE + honest


def test_of_very_many_names_in_one_round_few_are_read() -> None:
    store = MemoryStore()
    join(store, *(f"w{number}" for number in range(500)))
    for number in range(500):
        store.put(LAYOUT.reward(3, f"w{number}"), b"junk")
    before = store.counts["get"]
    assert Rounds(store, LAYOUT, 100).reached_by_others("me", -1, CHANCE) is None
    assert store.counts["get"] - before <= 20


@given(good=st.sets(st.integers(0, 200), max_size=60), bad=st.sets(st.integers(0, 300), max_size=100))
def test_the_highest_good_number_is_good_and_at_the_top_nothing_is_missed(good: set[int], bad: set[int]) -> None:
    found = highest_good(good | bad, lambda number: number in good)
    assert found is None or found in good
    numbers = sorted(good | bad)
    if good and max(good) in numbers[-STRIDE:]:
        assert found == max(good)


def test_rounds_at_or_beyond_the_last_are_ignored() -> None:
    store = rounds_with(0, 1, 5, 6).store
    rounds = Rounds(store, LAYOUT, limit=5)
    assert rounds.survey() == announcement(1)
    assert rounds.look_up(5) is None and rounds.look_up(-1) is None
    rounds = Rounds(store, LAYOUT, limit=6)
    rounds.write_current(CurrentState(6, 0.0, "stranger", "trial", "running"))
    assert rounds.advance(-1) is None and rounds.newest is None
    assert rounds.survey() == announcement(5)


def test_made_up_announcements_cost_few_reads() -> None:
    rounds = rounds_with(*range(50))
    for number in range(50, 3_000):
        rounds.store.put(LAYOUT.round(number), b"junk")
    before = rounds.store.counts["get"]
    newest = rounds.survey()
    assert newest is not None and newest.round == 49
    assert rounds.store.counts["get"] - before < 6 * STRIDE


@pytest.mark.parametrize("epoch", [10**15 - 1, 10**6, EPOCH_LEAP + 2])
def test_an_epoch_far_above_all_others_is_a_bad_document(epoch: int) -> None:
    rounds = rounds_with(0, 1)
    rounds.store.put(LAYOUT.round(2), seal(announcement(2, epoch=epoch)))
    rounds.store.put(LAYOUT.round(3), seal(announcement(3, epoch=epoch)))
    assert Rounds(rounds.store, LAYOUT).survey() == announcement(1)
    with pytest.raises(BadDocument):
        rounds.announce(announcement(2))


def test_epochs_may_grow_over_many_restarts() -> None:
    store = MemoryStore()
    for number in range(60):
        store.put(LAYOUT.round(number), seal(announcement(number, epoch=100 * number)))
    newest = Rounds(store, LAYOUT).survey()
    assert newest is not None and newest.round == 59 and newest.epoch == 5_900


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**9), steps=st.lists(st.sampled_from(["announce", "advance", "survey"]), max_size=40))
def test_under_any_listing_rounds_only_grow_and_are_real(seed: int, steps: list[str]) -> None:
    """Whatever lags, repeats or fails: the newest round known never falls, and was announced."""
    data: dict[str, bytes] = {}
    writer = Rounds(MemoryStore(data=data), LAYOUT)
    reader = Rounds(FlakyStore(data, seed, VirtualClock()), LAYOUT)
    announced, known = -1, -1
    for step in steps:
        try:
            if step == "announce":
                announced += 1
                writer.announce(announcement(announced))
            elif step == "advance":
                reader.advance(known)
            else:
                reader.survey()
        except StoreAway:
            pass
        now = reader.newest.round if reader.newest else -1
        assert known <= now <= announced
        known = now
    reader.store.trouble = 0.0  # type: ignore[attr-defined]
    reader.survey()
    assert (reader.newest.round if reader.newest else -1) == announced


def beat(store: MemoryStore, doing: str, session: str = "s", name: str = "boss") -> None:
    Pulse(store, LAYOUT, name, VirtualClock(), session).beat(doing, 3)


@pytest.mark.parametrize(
    ("doing", "session", "left"),
    [
        ("stopped", "s", True),
        ("complete", "s", True),
        ("failed: OSError: disk", "s", True),
        ("waiting for 2 workers", "s", False),
        ("stood down", "s", False),
        ("stopped", "another", False),
    ],
)
def test_a_coordinator_has_left_if_the_session_that_announced_last_says_so(doing: str, session: str, left: bool) -> None:
    rounds = rounds_with(0, 1)
    assert not rounds.coordinator_left(), "nobody has announced anything yet"
    rounds.survey()
    assert not rounds.coordinator_left(), "it has sent no heartbeat"
    beat(rounds.store, doing, session)
    assert rounds.coordinator_left() == left


@pytest.mark.parametrize("name", ["../boss", "a/b", "", ".", "boss.1", "\u0661", "a b"])
def test_the_name_of_a_coordinator_that_is_none_is_never_looked_up(name: str) -> None:
    store = MemoryStore()
    store.put(LAYOUT.round(0), seal(Announcement(0, name, "s", 1, 0.0, [], [])))
    rounds = Rounds(store, LAYOUT)
    rounds.survey()
    assert rounds.newest and not rounds.coordinator_left()


def test_where_rounds_are_signed_only_an_announcer_can_say_that_the_coordinator_left(tmp_path: Path) -> None:
    founder, stranger = (load_identity(str(tmp_path / f"{name}.pem")) for name in ("founder", "stranger"))
    store, announcers = MemoryStore(), frozenset([founder.public])
    signed = {each: Signatures(each, experiment_id="0123456789abcdef", announcers=announcers) for each in (founder, stranger)}
    Rounds(store, LAYOUT, signatures=signed[founder]).announce(announcement(0))
    rounds = Rounds(store, LAYOUT, signatures=Signatures(experiment_id="0123456789abcdef", announcers=announcers))
    rounds.survey()
    for number, signatures, left in ((1, Signatures(), False), (2, signed[stranger], False), (3, signed[founder], True)):
        key = LAYOUT.heartbeat("boss", number)
        store.put(key, signatures.sign(key, seal(Heartbeat("boss", number, 0.0, "stopped", 0, "s"))))
        assert rounds.coordinator_left() == left
