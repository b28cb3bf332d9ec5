import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rl_swarm.packing import METHODS, packed, unpacked
from rl_swarm.randomness import stream_seed
from rl_swarm.rollout import BUNDLE_BYTES, Bundle, Completion, Rollout, encode
from rl_swarm.store import Store
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.exchange import Exchange
from tests.support.clocks import VirtualClock
from tests.support.flaky_store import FlakyStore
from tests.support.members import LAYOUT, exchange_of, member_of
from tests.support.standins import make_question


def rollout(node_id: str, number: int, slot: int = 0, right: Sequence[bool] = (True, False)) -> Rollout:
    question = make_question(seed=stream_seed(node_id, number) >> 32, index=slot)
    group = tuple(Completion(f"<answer>{question.answer if good else 'x'}</answer>", reward=float(good)) for good in right)
    return Rollout(question, group, node_id, number, slot=slot)


def bundle(node_id: str, number: int, count: int = 2, right: Sequence[bool] = (True, False)) -> Bundle:
    return Bundle("trial", node_id, number, tuple(rollout(node_id, number, slot, right) for slot in range(count)))


def publish(store: Store, node_id: str, number: int, count: int = 2, right: Sequence[bool] = (True, False)) -> None:
    store.put(LAYOUT.bundle(number, node_id), encode(bundle(node_id, number, count, right)))


def make(store: Store, tmp_path: Path, node_id: str = "me", **settings: Any) -> Exchange:
    return exchange_of(member_of(store, tmp_path, node_id, store.clock), quarantine=tmp_path / "quarantine", **settings)


def verified_by(exchange: Exchange) -> list[str]:
    """The ids of all rollouts that this exchange finds true, from now on."""
    found, verify = list[str](), exchange.verify

    def verified(rollout: Rollout, seconds: float) -> Rollout:
        result = verify(rollout, seconds)
        found.append(rollout.id)
        return result

    exchange.verify = verified
    return found


def ids(rollouts: list[Rollout]) -> set[str]:
    return {rollout.id for rollout in rollouts}


def files_after_each_step(frequency: str, tmp_path: Path) -> list[list[str]]:
    store = MemoryStore(clock=VirtualClock())
    exchange = make(store, tmp_path, publish_frequency=frequency)
    offers = [partial(exchange.offer, rollout("me", 4, slot), 0) for slot in range(2)]
    files = []
    for step in (*offers, exchange.end_stage, exchange.end_round):
        step()
        files.append(store.list(LAYOUT.rollouts_of(4)))
    return files


def test_frequencies_publish_the_right_files_at_the_right_moments(tmp_path: Path) -> None:
    one, both = ["me.0.json"], ["me.0.json", "me.1.json"]
    assert files_after_each_step("generation", tmp_path) == [one, both, both, both]
    assert files_after_each_step("stage", tmp_path) == [[], [], ["me.json"], ["me.json"]]
    assert files_after_each_step("round", tmp_path) == [[], [], [], ["me.json"]]


def test_peers_read_all_three_frequencies_alike(tmp_path: Path) -> None:
    for frequency in ("generation", "stage", "round"):
        store = MemoryStore(clock=VirtualClock())
        sender = make(store, tmp_path, publish_frequency=frequency)
        for slot in range(2):
            sender.offer(rollout("me", 4, slot), 0)
        sender.end_stage()
        sender.end_round()
        reader = make(store, tmp_path, node_id="other")
        assert ids(reader.gather(4, 0, 2, random.Random(0))) == {"me/4/0/0", "me/4/0/1"}


@pytest.mark.parametrize("method", METHODS)
def test_peers_read_compressed_files_whatever_they_use_themselves(method: str, tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    sender = make(store, tmp_path, compression=method)
    for slot in range(4):
        sender.offer(rollout("me", 4, slot), 0)
    sender.end_stage()
    data = store.get(LAYOUT.bundle(4, "me"), limit=BUNDLE_BYTES)
    assert data.startswith(b"{") == (method == "none") and (method == "none" or len(data) < len(unpacked(data, BUNDLE_BYTES)) / 2)
    for reader in (make(store, tmp_path, node_id=f"reads-{other}", compression=other) for other in METHODS):
        assert len(reader.gather(4, 0, 4, random.Random(0))) == 4 and not reader.rejected


@pytest.mark.parametrize("method", METHODS[1:])
def test_half_a_compressed_file_is_looked_at_again(method: str, tmp_path: Path) -> None:
    store, whole = MemoryStore(clock=VirtualClock()), packed(encode(bundle("peer", 4)), method)
    store.put(LAYOUT.bundle(4, "peer"), whole[: len(whole) // 2])
    reader = make(store, tmp_path)
    assert reader.gather(4, 0, 2, random.Random(0)) == [] and not reader.rejected
    store.rewrite(LAYOUT.bundle(4, "peer"), whole)
    assert len(reader.gather(4, 0, 2, random.Random(0))) == 2


@pytest.mark.parametrize("frequency", ["generation", "stage", "round"])
def test_each_stage_has_its_own_files(frequency: str, tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    sender, reader = make(store, tmp_path, publish_frequency=frequency), make(store, tmp_path, node_id="other")
    for stage in range(2):
        for slot in range(2):
            sender.offer(replace(rollout("me", 4, 2 * stage + slot), stage=stage), 0)
        sender.end_stage()
    sender.end_round()
    assert ids(reader.gather(4, 1, 4, random.Random(0))) == {"me/4/1/2", "me/4/1/3"}
    assert ids(reader.gather(4, 0, 4, random.Random(0))) == {
        f"me/4/{stage}/{2 * stage + slot}" for stage in (0, 1) for slot in (0, 1)
    }
    assert not reader.rejected


def test_only_the_window_is_read_and_never_own_files(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    for number in range(10):
        publish(store, "peer", number, count=1)
        publish(store, "me", number, count=1)
    exchange = make(store, tmp_path, window=3)
    assert ids(exchange.gather(7, 0, 10, random.Random(0))) == {"peer/5/0/0", "peer/6/0/0", "peer/7/0/0"}


def test_a_used_rollout_is_never_offered_again_even_after_a_restart(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    publish(store, "peer", 0)
    exchange = make(store, tmp_path)
    first = exchange.gather(0, 0, 4, random.Random(0))
    exchange.mark_used(first[:1])
    assert ids(exchange.gather(1, 0, 4, random.Random(0))) == ids(first[1:])
    again = make(store, tmp_path)
    again.restore(exchange.state())
    assert ids(again.gather(1, 0, 4, random.Random(0))) == ids(first[1:])


def test_a_file_is_read_once_and_memory_is_bounded(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    exchange = make(store, tmp_path)
    for number in range(50):
        publish(store, "peer", number)
        exchange.mark_used(exchange.gather(number, 0, 1, random.Random(number))[:1])
    assert store.counts["get"] == 50
    assert max(len(exchange._done), len(exchange._pool), len(exchange.used)) <= 6


def test_without_the_cache_files_are_read_again(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    publish(store, "peer", 0)
    exchange = make(store, tmp_path, fetch_cache=False)
    assert ids(exchange.gather(0, 0, 2, random.Random(0))) == ids(exchange.gather(1, 0, 2, random.Random(0)))
    assert store.counts["get"] == 2


def test_cost_follows_j_and_not_the_number_of_peers(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    for number in range(200):
        publish(store, f"peer{number}", 0, count=8)
    exchange = make(store, tmp_path)
    found = exchange.gather(0, 0, 4, random.Random(1))
    assert store.counts["get"] == 4
    assert len({rollout.node_id for rollout in found}) == 4, "a batch is not all of one peer"


def test_budgets_of_peers_and_seconds(tmp_path: Path) -> None:
    clock = VirtualClock()

    class Slow(MemoryStore):
        def _get(self, key: str, limit: int, offset: int) -> bytes:
            clock.sleep(10)
            return super()._get(key, limit, offset)

    store = Slow(clock=clock)
    for number in range(20):
        publish(store, f"peer{number}", 0, right=(True, True))
    make(store, tmp_path, fetch_seconds=35).gather(0, 0, 5, random.Random(0))
    assert store.counts["get"] == 4
    make(store, tmp_path, fetch_peers=2, fetch_seconds=1000).gather(0, 0, 5, random.Random(0))
    assert store.counts["get"] == 6


def test_uninformative_rollouts_are_not_gathered(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    publish(store, "dull", 0, right=(False, False))
    exchange = make(store, tmp_path)
    verified = verified_by(exchange)
    assert exchange.gather(0, 0, 2, random.Random(0)) == []
    assert len(verified) == 2


def test_claims_are_not_believed(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    liar = rollout("liar", 0, right=(True, False))
    flattered = replace(liar, completions=tuple(replace(done, reward=1.0 - done.reward) for done in liar.completions))
    store.put(LAYOUT.bundle(0, "liar"), encode(Bundle("trial", "liar", 0, (flattered,))))
    assert make(store, tmp_path).gather(0, 0, 1, random.Random(0))[0].rewards == [1.0, 0.0]


def test_a_group_much_larger_than_the_own_is_refused(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    store.put(LAYOUT.bundle(0, "small"), encode(bundle("small", 0, right=(True, False) * 16)))
    store.put(LAYOUT.bundle(0, "large"), encode(bundle("large", 0, right=(True, False) * 17)))
    exchange = make(store, tmp_path, group_size=16)
    assert {rollout.node_id for rollout in exchange.gather(0, 0, 100, random.Random(0))} == {"small"}
    assert exchange.rejected == {"group_size": 2}


def test_bad_files_are_counted_set_aside_and_skipped(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    good = encode(bundle("good", 0))
    flipped = bytearray(encode(bundle("flipped", 0)))
    flipped[40] ^= 1
    plain = b'{"peer_id": "plain", "round": 0, "stage": 0, "timestamp": 1.0, "rollouts": '
    plain += b'{"0": [{"prompt": "p", "response": "r", "reward": 1}]}}'
    other = replace(rollout("other_task", 0), question=replace(make_question(1, 1), task="unknown"))
    for name, data in {
        "good": good,
        "flipped": bytes(flipped),
        "thief": good,
        "moved": encode(bundle("moved", 3)),
        "foreign": encode(replace(bundle("foreign", 0), experiment="else")),
        "plain": plain,
        "half": good[:100],
        "single": encode(bundle("single", 0, right=(True,))),
        "other_task": encode(Bundle("trial", "other_task", 0, (other,))),
    }.items():
        store.put(f"{LAYOUT.rollouts_of(0)}/{name}.json", data)
    exchange = make(store, tmp_path)
    assert ids(exchange.gather(0, 0, 100, random.Random(0))) == {"good/0/0/0", "good/0/0/1"}
    assert exchange.rejected == {"checksum": 1, "misplaced": 3, "unverifiable": 1, "group_size": 2, "task_not_allowed": 1}
    aside = {path.name for path in (tmp_path / "quarantine").iterdir()}
    assert aside == {"0.flipped.checksum", "0.thief.misplaced", "0.moved.misplaced", "0.foreign.misplaced", "0.plain.unverifiable"}
    reads = store.counts["get"]
    exchange.gather(1, 0, 100, random.Random(0))
    assert store.counts["get"] == reads + 1, "only the half file is looked at again"
    exchange.gather(3, 0, 100, random.Random(0))
    assert exchange.rejected["incomplete"] == 1


def test_a_file_short_of_its_last_byte_is_looked_at_again(tmp_path: Path) -> None:
    """Without the closing newline a bundle is valid JSON, and still not all there."""
    store = MemoryStore(clock=VirtualClock())
    data, key = encode(bundle("peer", 0)), LAYOUT.bundle(0, "peer")
    store.put(key, data[:-1])
    exchange = make(store, tmp_path)
    assert exchange.gather(0, 0, 2, random.Random(0)) == []
    store.rewrite(key, data)
    assert len(exchange.gather(1, 0, 2, random.Random(0))) == 2
    assert not exchange.rejected


def test_a_store_that_is_away_costs_nothing_but_the_wait(tmp_path: Path) -> None:
    store = FlakyStore({}, 0, VirtualClock(), trouble=0.0)
    publish(store, "peer", 0)
    exchange = make(store, tmp_path)
    store.trouble = 1e9
    assert exchange.gather(0, 0, 2, random.Random(0)) == []
    assert store.counts["failures"] == 1
    store.trouble = 0.0
    assert len(exchange.gather(0, 0, 2, random.Random(0))) == 2


@pytest.mark.parametrize("trouble", [0.1, 0.4])
@settings(max_examples=60, deadline=None)
@example(seed=17549339)
@given(seed=st.integers(0, 10**9))
def test_under_any_listing_nothing_is_used_twice_and_everything_published_is_found(
    tmp_path_factory: pytest.TempPathFactory, trouble: float, seed: int
) -> None:
    data: dict[str, bytes] = {}
    clock = VirtualClock()
    store = FlakyStore(data, seed, clock, trouble)
    exchange = make(store, tmp_path_factory.mktemp("flaky"), window=10, fetch_seconds=1e9)
    used: list[str] = []
    for number in range(6):
        for peer in ("a", "b"):
            publish(MemoryStore(data=data), peer, number)
        batch = exchange.gather(number, 0, 3, random.Random(number))[:3]
        exchange.mark_used(batch)
        used += [rollout.id for rollout in batch]
    store.trouble = 0.0
    rest = exchange.gather(6, 0, 1000, random.Random(9))
    assert len(used) == len(set(used))
    assert sorted(used + [rollout.id for rollout in rest]) == sorted(
        f"{peer}/{n}/0/{s}" for peer in "ab" for n in range(6) for s in range(2)
    )
    assert not exchange.rejected
