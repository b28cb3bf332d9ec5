"""What peers who mean harm put into the store, and what a reader makes of it: bounded work, nothing trained on twice."""

import ast
import io
import json
import math
import os
import random
import sys
import zipfile
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from rl_swarm.clock import SystemClock
from rl_swarm.config import Config
from rl_swarm.document import seal
from rl_swarm.errors import BadRollout, ConfigError
from rl_swarm.node.learner import checkpoint_rounds
from rl_swarm.node.worker import Learner, Worker
from rl_swarm.packing import packed
from rl_swarm.rollout import BUNDLE_BYTES, Bundle, Completion, Rollout, encode
from rl_swarm.runs import progress
from rl_swarm.runs.examples import published
from rl_swarm.runs.following import look_once
from rl_swarm.store.folder import FolderStore
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm import quota
from rl_swarm.swarm.exchange import MOST_LISTED
from rl_swarm.swarm.layout import node_of_file
from rl_swarm.swarm.peers import Registration, newest_heartbeat, read_heartbeat, read_registration, register, registered
from rl_swarm.swarm.quota import BYTES, CHECKING_SECONDS, FILES, ROLLOUTS, UNREADY
from rl_swarm.swarm.read_ahead import ReadAhead
from rl_swarm.swarm.rounds import Announcement, Reward, Rounds, read_reward, submitted
from rl_swarm.tasks import Tasks, parse_tasks
from tests.support.clocks import VirtualClock
from tests.support.members import copy_journals, member_of, worker_of
from tests.support.rows import metrics
from tests.support.standins import StandInCheckpoints, StandInPolicy, StandInTasks, StandInTrainer, made_at, make_question
from tests.swarm.test_exchange import LAYOUT, bundle, ids, make, publish, rollout, verified_by


def lie(node_id: str, number: int) -> bytes:
    """A bundle that looks right and whose prompt is another question's."""
    told = rollout(node_id, number)
    return encode(Bundle("trial", node_id, number, (replace(told, question=replace(told.question, prompt="Say yes.")),)))


def put(store: MemoryStore, number: int, name: str, data: bytes) -> None:
    store.put(f"{LAYOUT.rollouts_of(number)}/{name}.json", data)


# Very many files


def test_thousands_of_files_of_one_peer_do_not_crowd_out_the_others(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    for slot in range(5_000):
        put(store, 0, f"crowd.{slot}", encode(bundle("crowd", 0, count=1, right=(True, True))))  # true, and teaches nothing
    for peer in ("a", "b", "c"):
        publish(store, peer, 0)
    exchange = make(store, tmp_path)
    assert {found.node_id for found in exchange.gather(0, 0, 4, random.Random(0))} == {"a", "b", "c"}
    assert store.counts["get"] <= 3 + FILES and store.counts["list"] == 1
    for number in range(1, 3):
        exchange.gather(number, 0, 100, random.Random(number))
    assert store.counts["get"] <= 3 + FILES + 2 * 100, "in each round a peer has no more files read than its quota"


def test_thousands_of_made_up_peers_cost_at_most_half_the_turns(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    friends = [f"friend{number}" for number in range(5)]
    exchange = make(store, tmp_path, window=1)
    for number in range(5):
        for peer in friends:
            publish(store, peer, number, count=1)
        if number:
            for name in range(3_000):
                put(store, number, f"made-up{number}x{name}", lie(f"made-up{number}x{name}", number))
        before = store.counts["get"]
        found = exchange.gather(number, 0, 5, random.Random(number))
        assert {each.node_id for each in found} == set(friends), f"round {number}"
        assert store.counts["get"] - before <= 10
        exchange.mark_used(found)
    assert exchange.rejected["prompt_mismatch"] <= 4 * 5


@pytest.mark.parametrize("names", ["a-made-up", "z-made-up"])
def test_made_up_names_beyond_a_page_hide_no_trusted_peer(names: str, tmp_path: Path) -> None:
    """Whether they stand before or behind the others: names are listed in order."""
    store = MemoryStore(clock=VirtualClock())
    friends = [f"friend{number}" for number in range(5)]
    exchange = make(store, tmp_path, window=2)
    reached = list[set[str]]()
    for number in range(6):
        for peer in friends:
            publish(store, peer, number, count=1)
        for name in range(3 * MOST_LISTED if number else 0):
            put(store, number, f"{names}{number}x{name:04d}", lie(f"{names}{number}x{name:04d}", number))
        before = Counter(store.counts)
        found = exchange.gather(number, 0, 5, random.Random(number))
        reached.append({each.node_id for each in found})
        assert store.counts["get"] - before["get"] <= 10 and store.counts["list"] - before["list"] <= 4
        exchange.mark_used(found)
    assert all(each == set(friends) for each in (reached[0], *reached[2:])), "the first crowded round shows that there are many"


def test_a_node_that_trusts_nobody_yet_meets_others_in_a_crowd(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    exchange = make(store, tmp_path, window=1)
    for number in range(3):
        for name in range(2 * MOST_LISTED):
            put(store, number, f"n{name:04d}", encode(bundle(f"n{name:04d}", number, count=1)))
        found = exchange.gather(number, 0, 4, random.Random(number))
        assert len({each.node_id for each in found}) >= 4
        exchange.mark_used(found)
        assert store.counts["list"] == number + 1 and store.counts["get"] <= 10 * (number + 1)


def test_the_order_of_reading_depends_on_a_secret(tmp_path: Path) -> None:
    """Otherwise, with the same SEED as everybody, anyone could try out names until those come first."""
    store = MemoryStore(clock=VirtualClock())
    for number in range(50):
        publish(store, f"peer{number}", 0)
    orders = []
    for secret in ("", "one", "another", "one"):
        files = make(store, tmp_path / secret, secret=secret)._plan(0, 0, 4, random.Random(0)).files
        orders.append([file.node_id for file in files])
    assert orders[1] == orders[3]
    assert len({tuple(order) for order in orders}) == 3


def test_reading_ahead_stays_within_the_quotas(tmp_path: Path) -> None:
    store = MemoryStore(clock=SystemClock())
    for slot in range(200):
        put(store, 0, f"slow.{slot}", encode(bundle("slow", 0))[:50])
    exchange = make(store, tmp_path)
    exchange._ahead = ReadAhead(background=True)
    exchange.look_ahead(0, 0, 100, random.Random(0))
    assert exchange._ahead._thread is not None
    exchange._ahead._thread.join(20.0)
    assert store.counts["get"] == UNREADY
    assert exchange.gather(0, 0, 100, random.Random(0)) == []
    assert store.counts["get"] == 2 * UNREADY


def test_half_files_and_names_without_files_are_not_waited_for_without_end(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    for slot in range(1_000):
        put(store, 0, f"slow.{slot}", encode(bundle("slow", 0))[:50])
    publish(store, "good", 0)
    exchange = make(store, tmp_path)
    assert {found.node_id for found in exchange.gather(0, 0, 4, random.Random(0))} == {"good"}
    assert store.counts["get"] <= 1 + UNREADY


def test_a_peer_may_send_so_many_bytes_a_round(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    for slot in range(20):
        put(store, 0, f"heavy.{slot}", b" " * (9 << 20))
    exchange = make(store, tmp_path)
    exchange.gather(0, 0, 4, random.Random(0))
    assert store.counts["bytes_in"] <= (16 + 9) << 20
    assert exchange.rejected == {"too_large": 2}


class Weighing(MemoryStore):
    """Every document in it is endless: it hands out as much as is asked for."""

    def _get(self, key: str, limit: int, offset: int) -> bytes:
        assert limit is not None and limit <= BUNDLE_BYTES, f"{key} is read without a limit"
        return b" " * (limit + 1)


def test_no_document_of_a_peer_is_read_without_a_limit(tmp_path: Path) -> None:
    store = Weighing(clock=VirtualClock(), data={LAYOUT.bundle(0, "evil"): b"", LAYOUT.round(0): b""})
    assert read_registration(store, LAYOUT, "evil") is None
    assert read_heartbeat(store, LAYOUT, "evil", 1) is None
    assert read_reward(store, LAYOUT, 0, 0, "evil") is None
    assert Rounds(store, LAYOUT).survey() is None
    assert Rounds(store, LAYOUT).read_current() is None
    assert published(store, LAYOUT, 0, 0, "evil") == []
    assert make(store, tmp_path).gather(0, 0, 1, random.Random(0)) == []
    with pytest.raises(ConfigError, match="too_large"):
        experiments.read(store, LAYOUT)


def test_of_a_giant_bundle_no_more_is_checked_than_the_quota(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    publish(store, "bulk", 0, count=1_000, right=(True, True))
    exchange = make(store, tmp_path)
    verified = verified_by(exchange)
    assert exchange.gather(0, 0, 4, random.Random(0)) == []
    assert exchange.rejected == {"over_quota": 1_000 - ROLLOUTS}
    assert len(verified) == ROLLOUTS


@pytest.mark.parametrize(("own", "wanted", "places"), [(2, 4, 4), (8, 4, 8), (4, 28, 28)])
def test_one_peer_has_no_more_places_in_a_round_than_it_could_have_made(tmp_path: Path, own: int, wanted: int, places: int) -> None:
    store = MemoryStore(clock=VirtualClock())
    for slot in range(3):
        each = [rollout("bulk", 0, 100 * slot + number) for number in range(100)]
        put(store, 0, f"bulk.{slot}", encode(Bundle("trial", "bulk", 0, tuple(each))))
    publish(store, "bulk", 1, count=100)
    publish(store, "small", 1, count=2)
    exchange = make(store, tmp_path, own_count=own)
    for number in range(2):
        exchange.gather(number, 0, wanted, random.Random(0))
    count = Counter((each.node_id, each.round) for each in exchange._pool.values())
    assert count == {("bulk", 0): places, ("bulk", 1): places, ("small", 1): 2}
    assert exchange.rejected.keys() == {"over_quota"} and not exchange.standings.mutes(1), "nobody's fault"
    exchange.mark_used(exchange.gather(1, 0, wanted, random.Random(0))[:places])
    again = make(store, tmp_path, own_count=own)
    again.restore(exchange.state())
    again.gather(2, 0, wanted, random.Random(0))
    count = Counter((each.node_id, each.round) for each in again._pool.values())
    count.update((name.split("/")[0], number) for name, number in again.used.items())
    assert count["bulk", 0] <= places and count["bulk", 1] <= places, "also after a restart"


def test_of_very_long_texts_no_more_is_kept_than_a_limit_and_short_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_swarm.swarm.exchange.POOL_BYTES", 4_000_000)
    store = MemoryStore(clock=VirtualClock())
    publish(store, "small", 0, count=2)
    for number in range(2):
        told = [rollout("fat", number, slot) for slot in range(8)]
        pad = "\U0001f600" + f"{number}" + "x" * 99_000  # one such character makes every other take four bytes
        fat = [replace(each, completions=tuple(replace(done, text=pad + done.text) for done in each.completions)) for each in told]
        put(store, number, "fat", encode(Bundle("trial", "fat", number, tuple(fat))))
    exchange = make(store, tmp_path)
    exchange.verify = lambda checked, seconds: checked
    verified = verified_by(exchange)
    for number in range(2):
        exchange.gather(number, 0, 8, random.Random(number))
    kept = Counter((each.node_id, each.round) for each in exchange._pool.values())
    assert kept == {("small", 0): 2, ("fat", 1): 5} and len(verified) == 7 + 11
    assert sum(sys.getsizeof(done.text) for each in exchange._pool.values() for done in each.completions) <= 4_000_000


def test_rollouts_that_take_long_to_check_end_at_the_quota_and_count_against_their_peer(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = MemoryStore(clock=clock)
    for number in range(3):
        publish(store, "hangs", number, count=100)

    def verify(checked: Rollout, seconds: float) -> Rollout:
        clock.sleep(CHECKING_SECONDS / 4)
        raise BadRollout("unverifiable")

    exchange = make(store, tmp_path, fetch_seconds=1_000)
    exchange.verify = verify
    for number in range(3):
        exchange.gather(number, 0, 4, random.Random(0))
        assert exchange.take_verify_seconds() <= CHECKING_SECONDS
    assert exchange.rejected == {"unverifiable": 12, "over_quota": 288}
    assert exchange.standings.muted("hangs", 3)


class Slow(StandInTasks):
    """Takes some seconds for each completion, as far as it may."""

    def __init__(self, clock: VirtualClock, seconds: float) -> None:
        super().__init__("me")
        self.clock, self.seconds, self.scored = clock, seconds, 0

    def verify(self, rollout: Rollout, seconds: float = math.inf) -> Rollout:
        for _ in rollout.completions:
            self.clock.sleep(min(seconds, self.seconds))
            seconds -= self.seconds
            if seconds < 0:
                raise BadRollout("slow_to_check")
            self.scored += 1
        return super().verify(rollout)


def test_a_rollout_of_many_slow_completions_ends_at_the_quota_and_counts_against_its_peer(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = MemoryStore(clock=clock)
    for number in range(3):
        publish(store, "hangs", number, count=2, right=(True, False) * 12)
        publish(store, "quick", number, count=1)
    exchange = make(store, tmp_path, fetch_seconds=1_000)
    tasks = Slow(clock, 2.8)
    exchange.verify = tasks.verify
    for number in range(3):
        began = clock.monotonic()
        found = exchange.gather(number, 0, 4, random.Random(0))
        assert {each.node_id for each in found} <= {"quick"}
        assert clock.monotonic() - began < CHECKING_SECONDS + 2 * 2.8 + 0.01
        exchange.mark_used(found)
    assert tasks.scored == 3 * (3 + 2), "a third of a group was scored, for nothing"
    assert exchange.rejected == {"slow_to_check": 3, "over_quota": 3}
    assert exchange.standings.muted("hangs", 3)
    assert not exchange.standings.muted("quick", 3)


@pytest.mark.parametrize("generating", [0.0, 6.0])
def test_checking_takes_no_longer_than_generating_or_a_short_while_and_the_rest_waits(tmp_path: Path, generating: float) -> None:
    """Six names with true, uninformative rollouts that are slow to check, and an honest peer among them."""
    clock = VirtualClock()
    store = MemoryStore(clock=clock)
    exchange = make(store, tmp_path)
    slow = Slow(clock, 0.05)

    def verify(checked: Rollout, seconds: float) -> Rollout:
        return slow.verify(checked, seconds) if checked.node_id != "honest" else StandInTasks("me").verify(checked)

    exchange.verify = verify
    verified = verified_by(exchange)
    limit, used = max(generating, 30.0 / 15), 0
    for number in range(10):
        for name in range(6):
            publish(store, f"friend{name}", number, count=60, right=(True, True))
        publish(store, "honest", number, count=4)
        exchange.look_ahead(number, 0, 4, random.Random(number))
        clock.sleep(generating)
        found = exchange.gather(number, 0, 4, random.Random(number))
        assert 0 < exchange.take_verify_seconds() <= limit + 0.1 + 1e-6, "one rollout more at most"
        assert {each.node_id for each in found} <= {"honest"}
        exchange.mark_used(found)
        used += len(found)
    assert used >= 30, "in their shares there is time for those who are quick to check"
    assert exchange.rejected == {} and exchange.standings.mutes(9) == []
    assert sum(name.startswith("friend") for name in verified) == slow.scored // 2, "none was checked twice"


def test_a_rollout_that_ends_with_the_round_s_time_waits_and_is_no_fault(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = MemoryStore(clock=clock)
    publish(store, "slow", 0, count=3)
    exchange = make(store, tmp_path)
    exchange.verify = Slow(clock, 0.8).verify  # 1.6 s a rollout, and 2 s a round
    verified = verified_by(exchange)
    for number, known in enumerate([1, 2, 3]):
        assert len(exchange.gather(number, 0, 4, random.Random(0))) == known
        assert exchange.take_verify_seconds() <= 2.0 + 1e-6
    assert exchange.rejected == {} and len(verified) == 3
    assert exchange.standings.trusted("slow")
    store = MemoryStore(clock=clock)
    publish(store, "endless", 0, count=3)
    exchange = make(store, tmp_path)
    exchange.verify = Slow(clock, 5.0).verify
    for number in range(6):
        assert exchange.gather(number, 0, 4, random.Random(0)) == []
        assert exchange.take_verify_seconds() <= 2.0 + 1e-6
    assert exchange.rejected == {} and not exchange._begun, "forgotten with its round"


def test_a_thousand_files_under_a_nodes_name_do_not_hide_its_own(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    publish(store, "honest", 0)
    for slot in range(2):
        put(store, 1, f"often.{slot}", encode(Bundle("trial", "often", 1, (rollout("often", 1, slot),))))
    for slot in range(2, 1_000):
        put(store, 0, f"honest.{slot}", b"x\n")
        put(store, 1, f"often.{slot}", b"x\n")
    exchange = make(store, tmp_path)
    assert ids(exchange.gather(0, 0, 2, random.Random(0))) == {"honest/0/0/0", "honest/0/0/1"}
    assert ids(exchange.gather(1, 0, 4, random.Random(0))) >= {"often/1/0/0", "often/1/0/1"}


def test_a_group_of_giant_numbers_for_coin_flip_costs_nothing(tmp_path: Path) -> None:
    tasks = Tasks(parse_tasks("coin_flip"), seed=1, node_id="me", held_out=0)
    theirs = Tasks(parse_tasks("coin_flip"), seed=1, node_id="evil", held_out=0).draw(1)[0]
    group = tuple(Completion(f"<answer>1e32{number:05}</answer>") for number in range(24))
    store = MemoryStore(clock=SystemClock())
    put(store, 0, "evil", encode(Bundle("trial", "evil", 0, (Rollout(theirs, group, "evil", 0),))))
    exchange = make(store, tmp_path)
    exchange.verify = tasks.verify
    exchange.gather(0, 0, 4, random.Random(0))
    assert exchange.take_verify_seconds() < 1.0


def test_a_group_of_slow_answers_ends_at_the_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "Allowance", partial(quota.Allowance, seconds=1.0))
    (tmp_path / "slow.py").write_text(
        "import time\n"
        "def question(seed, index):\n    return f'{seed} {index}', 'a'\n"
        "def score(question, text):\n    time.sleep(0.3)\n    return 1.0\n"
    )
    tasks = Tasks(parse_tasks(str(tmp_path / "slow.py")), seed=1, node_id="me", held_out=0)
    theirs = Tasks(tasks.specs, seed=1, node_id="evil", held_out=0).draw(1)[0]
    group = tuple(Completion(f"<answer>{number}</answer>") for number in range(24))
    store = MemoryStore(clock=SystemClock())
    put(store, 0, "evil", encode(Bundle("trial", "evil", 0, (Rollout(theirs, group, "evil", 0),))))
    exchange = make(store, tmp_path)
    exchange.verify = tasks.verify
    assert exchange.gather(0, 0, 4, random.Random(0)) == []
    assert exchange.take_verify_seconds() < 2.0
    assert exchange.rejected == {"slow_to_check": 1}
    assert exchange.standings.state()["evil"]["faults"]


# Muting


def worker(store: MemoryStore, tmp_path: Path) -> tuple[Worker, list[str]]:
    said: list[str] = []
    settings = Config(node_id="me", max_rounds=8, own_count=1, external_count=2, group_size=2)
    learner = Learner(StandInTasks("me"), StandInPolicy(), StandInTrainer())
    made = worker_of(member_of(store, tmp_path, "me", store.clock), tmp_path, settings, learner, StandInCheckpoints())
    made.journal.console = said.append
    return made, said


def test_who_keeps_sending_bad_files_is_muted_said_once_and_listed_in_status(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    for number in range(8):
        put(store, number, "evil", lie("evil", number))
        publish(store, "good", number)
    run, said = worker(store, tmp_path)
    for number in range(8):
        run.play(number)
    assert [line for line in said if "evil" in line] == [
        "evil is muted until round 11: it keeps sending bad files, the last was refused as prompt_mismatch"
    ]
    assert run.swarm.exchange.rejected == {"prompt_mismatch": 3}, "a muted peer's files are not read"
    assert run.swarm.exchange.standings.trusted("good")
    register(store, LAYOUT, Registration("me", "worker", 0.0, "nano", "me", "1", "s"))
    copy_journals(run)
    [status] = look_once(store, LAYOUT).nodes
    assert [(mute.peer, mute.reason, mute.until) for mute in status.muted] == [("evil", "prompt_mismatch", 11)]
    muted = [row["data"] for row in progress.events(store, LAYOUT, "me") if row["event_type"] == "muted"]
    [event] = muted
    assert (event["peer"], event["reason"], event["until"]) == ("evil", "prompt_mismatch", 11)


@pytest.mark.parametrize("cache", [True, False])
def test_one_bad_file_is_one_fault_however_often_the_window_is_read(tmp_path: Path, cache: bool) -> None:
    store = MemoryStore(clock=VirtualClock())
    put(store, 0, "liar", lie("liar", 0))
    put(store, 0, "thief", encode(bundle("other", 0)))
    exchange = make(store, tmp_path, fetch_cache=cache, window=10)
    for number in range(10):
        exchange.gather(number, 0, 2, random.Random(0))
    assert exchange.rejected == {"prompt_mismatch": 1, "misplaced": 1} and store.counts["get"] == 2
    assert exchange.standings.mutes(10) == []


def test_a_mute_ends_by_itself_and_outlives_a_restart(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    exchange = make(store, tmp_path)
    for number in range(3):
        put(store, number, "evil", lie("evil", number))
        exchange.gather(number, 0, 2, random.Random(0))
    again = make(store, tmp_path)
    again.restore(json.loads(json.dumps(exchange.state())))
    for number in (10, 11):
        publish(store, "evil", number)
    assert again.gather(10, 0, 2, random.Random(0)) == []
    assert ids(again.gather(11, 0, 2, random.Random(0))) >= {"evil/11/0/0"}


# Replays


def replay(original: Rollout, node_id: str, number: int, **question: int) -> bytes:
    copy = replace(original, node_id=node_id, round=number, slot=7, question=replace(original.question, **question))
    return encode(Bundle("trial", node_id, number, (replace(copy, completions=copy.completions[::-1]),)))


@pytest.fixture
def same_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in reasoning-gym, (seed 7, index 4) and (seed 8, index 3) are the same question."""
    monkeypatch.setattr(
        "tests.support.standins.make_question", lambda seed, index: replace(make_question(seed + index, 0), seed=seed)
    )


@pytest.mark.usefixtures("same_text")
@pytest.mark.parametrize("trained", [True, False])
def test_text_that_was_taken_once_is_not_taken_again_whoever_sends_it(tmp_path: Path, trained: bool) -> None:
    question = make_question(11, 0)
    group = (Completion(f"<answer>{question.answer}</answer>"), Completion("<answer>no</answer>"))
    original = Rollout(replace(question, seed=11), group, "author", 0)
    store = MemoryStore(clock=VirtualClock())
    put(store, 0, "author", encode(Bundle("trial", "author", 0, (original,))))
    exchange = make(store, tmp_path)
    exchange.verify = StandInTasks("me").verify
    first = exchange.gather(0, 0, 4, random.Random(0))
    assert ids(first) == {"author/0/0/0"}
    if trained:
        exchange.mark_used(first)
    put(store, 1, "author", replay(original, "author", 1))  # another round
    put(store, 1, "thief", replay(original, "thief", 1))  # another node
    put(store, 1, "clever", replay(original, "clever", 1, seed=8, index=3))  # another seed and index of the same text
    verified = verified_by(exchange)
    assert ids(exchange.gather(1, 0, 4, random.Random(0))) == (set() if trained else {"author/0/0/0"})
    assert exchange.rejected == {"replayed": 3}
    assert not verified, "skipped before anything is made again or scored"
    assert not any(exchange.standings.state()[peer]["faults"] for peer in exchange.standings.state()), "who copied cannot be told"


def test_the_same_question_under_another_seed_of_reasoning_gym_is_no_other(tmp_path: Path) -> None:
    tasks = Tasks(parse_tasks("gcd"), seed=1, node_id="me", held_out=0)
    one, twin = made_at(tasks, 7, 4), made_at(tasks, 8, 3)
    assert one.prompt == twin.prompt and (one.seed, one.index) != (twin.seed, twin.index)
    group = (Completion(f"<answer>{one.answer}</answer>"), Completion("<answer>no</answer>"))
    store = MemoryStore(clock=VirtualClock())
    for node_id, question in (("author", one), ("clever", twin)):
        put(store, 0, node_id, encode(Bundle("trial", node_id, 0, (Rollout(question, group, node_id, 0),))))
    exchange = make(store, tmp_path)
    exchange.verify = tasks.verify
    assert len(exchange.gather(0, 0, 4, random.Random(0))) == 1
    assert exchange.rejected == {"replayed": 1}


def test_what_was_trained_on_long_ago_is_still_known_after_a_restart(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    publish(store, "author", 0, count=1)
    exchange = make(store, tmp_path)
    exchange.mark_used(exchange.gather(0, 0, 1, random.Random(0)))
    again = make(store, tmp_path)
    again.restore(json.loads(json.dumps(exchange.state())))
    put(store, 500, "author", replay(rollout("author", 0), "author", 500))
    assert again.gather(500, 0, 1, random.Random(0)) == []
    assert again.rejected == {"replayed": 1}


def test_own_rollouts_that_come_back_under_another_name_are_not_trained_on_again(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    exchange = make(store, tmp_path)
    own = rollout("me", 0)
    exchange.offer(own, 0)
    put(store, 0, "mirror", replay(own, "mirror", 0))
    assert exchange.gather(0, 0, 1, random.Random(0)) == []
    assert exchange.rejected == {"replayed": 1}


def test_one_id_with_two_contents_is_taken_once(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    put(store, 0, "twice", encode(bundle("twice", 0, count=1)))
    other = replace(rollout("twice", 0), question=make_question(1, 1))
    right = Completion(f"<answer>{other.question.answer}</answer>")
    put(store, 0, "twice.0", encode(Bundle("trial", "twice", 0, (replace(other, completions=(right, Completion("no"))),))))
    exchange = make(store, tmp_path)
    found = exchange.gather(0, 0, 4, random.Random(0))
    assert [each.id for each in found] == ["twice/0/0/0"]
    exchange.mark_used(found)
    assert exchange.gather(1, 0, 4, random.Random(0)) == []


# Names and compression


@pytest.mark.parametrize(
    "name",
    [
        "../../me.json",
        "..json",
        ".json",
        "a/b.json",
        "a\\b.json",
        "w1.json/",
        "w1.json\n",
        "a\x00b.json",
        "%2e%2e.json",
        "x" * 70 + ".json",
        "mallory.\u0663.json",
        "\u0663.json",
    ],
)
def test_names_that_are_no_names_of_nodes_are_never_read(name: str) -> None:
    assert node_of_file(name) is None


@pytest.mark.parametrize("digit", ["\u0663", "\uff13", "\u096a", "\u00b2"])
def test_digits_of_other_scripts_make_no_key_and_stop_no_reader(tmp_path: Path, digit: str) -> None:
    """`\\d` matches them, and `int` reads most of them; a store takes no such key."""
    (tmp_path / "store").mkdir()
    store = FolderStore(tmp_path / "store", VirtualClock())
    publish(store, "good", 0)
    register(store, LAYOUT, Registration("good", "worker", 0.0, "nano", "good", "1", "s"))
    rounds = Rounds(store, LAYOUT)
    rounds.announce(Announcement(0, "boss", "s", 1, 0.0, [], []))
    store.put(LAYOUT.reward(0, "good"), seal(Reward("good", 0, 0.5, 2, 0.0)))
    for name in (
        f"{LAYOUT.rollouts_of(0)}/mallory.{digit}.json",
        f"{LAYOUT.rollouts}/round_{digit}/x.json",
        f"{LAYOUT.peers}/mallory.{digit}.json",
        f"{LAYOUT.heartbeats('good')}/{digit}.json",
        f"{LAYOUT.states}/round_{digit}.json",
        f"{LAYOUT.log('good', 'metrics')}/{digit}.jsonl",
        f"{LAYOUT.rewards_of(0)}/mallory.{digit}.json",
        f"{LAYOUT.rewards}/round_{digit}/stage_0/good.json",
        f"{LAYOUT.checkpoints}/round_{digit}/good.pt",
    ):
        path = tmp_path / "store" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    found = make(store, tmp_path, window=1).gather(0, 0, 4, random.Random(0))
    assert {each.node_id for each in found} == {"good"}
    assert registered(store, LAYOUT) == {"good"} and submitted(store, LAYOUT, 0, 0) == {"good"}
    survey = Rounds(store, LAYOUT).survey()
    assert survey is not None and survey.round == 0
    assert rounds.reached(-1, lambda node: True, random.Random(0)) == 0
    assert newest_heartbeat(store, LAYOUT, "good") is None
    assert checkpoint_rounds(store, LAYOUT, 10) == []
    assert metrics(store, LAYOUT, "good") == []
    assert [node.node_id for node in look_once(store, LAYOUT).nodes] == ["good"]


@pytest.mark.timeout(60)
def test_a_name_in_a_shared_folder_that_is_no_file_costs_little(tmp_path: Path) -> None:
    clock = VirtualClock()
    (tmp_path / "store").mkdir()
    store = FolderStore(tmp_path / "store", clock)
    publish(store, "good", 0)
    folder = tmp_path / "store" / LAYOUT.rollouts_of(0)
    os.mkfifo(folder / "pipe.json")  # opening it would wait for a writer for ever
    (folder / "loop.json").symlink_to("loop.json")
    (folder / "endless.json").symlink_to("/dev/zero")
    (folder / "gone.json").symlink_to("nowhere")
    (folder / "folder.json").mkdir()
    exchange = make(store, tmp_path, window=1)
    assert {found.node_id for found in exchange.gather(0, 0, 4, random.Random(0))} == {"good"}


def test_compression_bombs_stop_at_the_limit_and_count_against_their_sender(tmp_path: Path) -> None:
    room = b" " * (64 << 20)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as stored:
        stored.writestr("bomb.json", room)
    store = MemoryStore(clock=VirtualClock())
    bombs = {method: packed(encode(bundle(method, 0)) + room, method) for method in ("gzip", "zstd")}
    for name in ("bomb.json.gz", "bomb.zip", "bomb.json.zst"):
        store.put(f"{LAYOUT.rollouts_of(0)}/{name}", bombs["gzip"])
    for number in range(3):
        for method in bombs:
            put(store, number, method, packed(encode(bundle(method, number)) + room, method))
    put(store, 0, "zip", archive.getvalue())
    publish(store, "good", 2)
    exchange = make(store, tmp_path)
    found = exchange.gather(2, 0, 4, random.Random(0))
    assert {rollout.node_id for rollout in found} == {"good"}
    assert store.counts["get"] == 6, "of what is named as a document, and two bombs spend the quota of their sender"
    exchange.gather(2, 0, 4, random.Random(0))
    assert exchange.rejected == {"too_large": 6}
    assert exchange.standings.muted("gzip", 3) and exchange.standings.muted("zstd", 3)


def test_a_bomb_costs_its_sender_as_much_as_a_large_file(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    for slot in range(10):
        store.put(LAYOUT.bundle(0, "bomb", slot), packed(bytes(BUNDLE_BYTES + 1), "zstd"))
    exchange = make(store, tmp_path, publish_frequency="generation")
    exchange.standings.bad = lambda *fault: None  # type: ignore[method-assign]  # as where its name belongs to a key
    exchange.gather(0, 0, 10, random.Random(0))
    assert store.counts["get"] == BYTES // BUNDLE_BYTES


def test_one_module_of_the_package_unpacks() -> None:
    package = Path(__file__).parents[2] / "rl_swarm"
    packers = {"gzip", "zlib", "bz2", "lzma", "zipfile", "tarfile", "zstandard"}
    for path in set(package.rglob("*.py")) - {package / "packing.py"}:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not packers & {name.partition(".")[0] for name in names}, path
