"""Reading ahead, with real threads."""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rl_swarm.clock import SystemClock
from rl_swarm.errors import BadDocument, NotFound, StoreAway
from rl_swarm.rollout import Completion, Question
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.quota import BYTES, UNREADY
from rl_swarm.swarm.read_ahead import ReadAhead
from tests.node.test_worker import make as make_worker
from tests.support.standins import StandInPolicy
from tests.swarm.test_exchange import LAYOUT, ids, make, publish

SECONDS = 20.0  # that a test waits for a thread before it fails


def fetch_all(ahead: ReadAhead, keys: Sequence[str], fetch: Any, most: int = 3) -> None:
    """Fetch until nothing is left to do, or the thread gave up."""
    ahead.begin(lambda ended: keys, most, fetch)
    assert ahead._thread is not None
    ahead._thread.join(SECONDS)
    assert not ahead._thread.is_alive()


def test_what_was_named_is_there_once_and_what_is_named_no_more_is_forgotten() -> None:
    ahead, asked = ReadAhead(background=True), list[str]()

    def fetch(key: str) -> bytes:
        asked.append(key)
        return key.encode()

    fetch_all(ahead, ["a", "b", "c"], fetch)
    fetch_all(ahead, ["c", "d", "a", "e"], fetch, most=2)
    ahead.end()
    assert asked == ["a", "b", "c", "d"], "what is here already is not fetched again, and no more than asked for"
    assert [ahead.take(key) for key in "abcdde"] == [b"a", None, b"c", b"d", None, None]


def test_where_the_store_likes_it_several_files_are_fetched_at_once() -> None:
    ahead, together = ReadAhead(background=True, parallel=3), threading.Barrier(3)

    def fetch(key: str) -> bytes:
        together.wait(SECONDS)  # fails unless three are under way
        return key.encode()

    fetch_all(ahead, ["a", "b", "c", "d", "e", "f", "g"], fetch, most=6)
    ahead.end()
    assert [ahead.take(key) for key in "abcdefg"] == [b"a", b"b", b"c", b"d", b"e", b"f", None]


@pytest.mark.parametrize("trouble", [NotFound("b"), BadDocument("damaged")])
def test_a_file_that_is_not_all_there_is_left_to_whoever_wants_it(trouble: Exception) -> None:
    ahead = ReadAhead(background=True)

    def fetch(key: str) -> bytes:
        if key == "b":
            raise trouble
        return b"whole"

    fetch_all(ahead, ["a", "b", "c"], fetch)
    ahead.end()
    assert [ahead.take(key) for key in "abc"] == [b"whole", None, b"whole"]


def test_a_store_that_is_away_ends_it_and_a_bug_is_raised_in_the_loop() -> None:
    ahead = ReadAhead(background=True)

    def away(key: str) -> bytes:
        raise StoreAway("gone")

    fetch_all(ahead, ["a"], away)
    ahead.end()
    assert ahead.take("a") is None
    fetch_all(ahead, ["a"], lambda key: bytes(1 // 0))
    with pytest.raises(RuntimeError, match="reads ahead failed") as raised:
        ahead.end()
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def wait_for_the_end(ahead: ReadAhead) -> None:
    gives_up = time.monotonic() + SECONDS
    while not ahead._ending:
        assert time.monotonic() < gives_up
        time.sleep(0.001)


def test_the_end_waits_for_no_more_than_the_file_in_hand() -> None:
    ahead, asked, reading = ReadAhead(background=True), list[str](), threading.Event()

    def fetch(key: str) -> bytes:
        asked.append(key)
        reading.set()
        wait_for_the_end(ahead)
        return b"whole"

    ahead.begin(lambda ended: ["a", "b", "c"], 3, fetch)
    assert reading.wait(SECONDS)
    ahead.end()
    assert asked == ["a"]


def test_the_end_waits_for_no_more_than_the_listing_in_hand(tmp_path: Path) -> None:
    class Slow(MemoryStore):
        def _list(self, folder: str) -> list[str]:
            listing.set()
            wait_for_the_end(exchange._ahead)
            return super()._list(folder)

    listing, store = threading.Event(), Slow(clock=SystemClock())
    exchange = make(store, tmp_path)
    exchange._ahead = ReadAhead(background=True)
    exchange.look_ahead(5, 0, 4, random.Random(0))
    assert listing.wait(SECONDS)
    exchange._ahead.end()
    assert store.counts["list"] == 1


def test_no_more_is_held_than_one_peer_may_cost_and_few_bad_files_are_tried() -> None:
    ahead, asked = ReadAhead(background=True), list[str]()

    def large(key: str) -> bytes:
        asked.append(key)
        return bytes(BYTES // 2)

    fetch_all(ahead, "abcdef", large, most=6)
    ahead.end()
    assert asked == ["a", "b"]

    def bad(key: str) -> bytes:
        asked.append(key)
        raise NotFound(key)

    fetch_all(ahead, "ghijklmn", bad, most=8)
    ahead.end()
    assert asked[2:] == list("ghijklmn"[:UNREADY])


def test_reading_ahead_changes_what_is_gathered_in_nothing(tmp_path: Path) -> None:
    found, reads = [], []
    for background in (False, True):
        store = MemoryStore(clock=SystemClock())
        exchange = make(store, tmp_path / str(background))
        exchange._ahead = ReadAhead(background)
        for number in range(4):
            for peer in range(9):
                publish(store, f"peer{peer}", number)
        exchange.look_ahead(3, 0, 4, random.Random(1))
        if exchange._ahead._thread:
            exchange._ahead._thread.join(SECONDS)
        before = store.counts["get"]
        for number in (2, 3):  # arrived meanwhile
            publish(store, "late", number)
        found.append([rollout.id for rollout in exchange.gather(3, 0, 4, random.Random(1))])
        reads.append((before, store.counts["get"]))
    assert found[0] == found[1] != []
    assert reads[0] == (0, 4), "without it, all is read when it is wanted"
    assert reads[1] == (4, 4), "with it, what is wanted is here already"


def test_a_file_that_was_half_there_is_read_again(tmp_path: Path) -> None:
    store = MemoryStore(clock=SystemClock())
    publish(store, "peer", 0)
    key = LAYOUT.bundle(0, "peer")
    whole = store.get(key, limit=1 << 24)
    exchange = make(store, tmp_path)
    exchange._ahead = ReadAhead(background=True)
    store.rewrite(key, whole[:-7])
    exchange.look_ahead(1, 0, 4, random.Random(0))
    assert exchange._ahead._thread is not None
    exchange._ahead._thread.join(SECONDS)
    store.rewrite(key, whole)
    assert ids(exchange.gather(1, 0, 4, random.Random(0))) == {"peer/0/0/0", "peer/0/0/1"}
    assert not exchange.rejected


def test_the_loop_reads_peers_while_it_generates(tmp_path: Path) -> None:
    """The policy refuses to go on until a peer's file was read: that can only happen meanwhile."""
    read = threading.Event()

    class Watched(MemoryStore):
        def _get(self, key: str, limit: int, offset: int) -> bytes:
            if "/rollouts/" in key:
                read.set()
            return super()._get(key, limit, offset)

    class Patient(StandInPolicy):
        def answer(self, questions: Sequence[Question], group_size: int, seed: int) -> Iterator[tuple[Completion, ...]]:
            assert read.wait(SECONDS), "nothing was read ahead"
            return super().answer(questions, group_size, seed)

    store, clock = Watched(clock=SystemClock()), SystemClock()
    for peer in range(20):
        publish(store, f"peer{peer}", 0)
    worker = make_worker(store, tmp_path, clock, policy=Patient(), external_count=2)
    worker.swarm.exchange._ahead = ReadAhead(background=True)
    worker.play(1)
    assert store.counts["get"] == 2, "what was read ahead is what was wanted"
