import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_swarm.document import seal
from rl_swarm.errors import BadDocument, StoreAway
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.rounds import Announcement, CurrentState, Reward, Rounds, newest_of_others, read_reward, submitted
from tests.clocks import VirtualClock
from tests.flaky_store import FlakyStore

LAYOUT = Layout("trial")


def announcement(number: int, epoch: int = 1, session: str = "s") -> Announcement:
    return Announcement(number, "boss", session, epoch, 0.0, [], [])


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
    assert submitted(store, LAYOUT, 3) == {"w1"}
    assert read_reward(store, LAYOUT, 3, "w1") == reward
    assert newest_of_others(store, LAYOUT, "w1", depth=3) is None
    assert newest_of_others(store, LAYOUT, "w2", depth=3) == 3


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
