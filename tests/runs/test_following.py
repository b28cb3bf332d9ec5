"""Following a run: new rows are read once, foreign rows are skipped, and looking again costs nothing."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rl_swarm.clock import Clock
from rl_swarm.config import load
from rl_swarm.runs import progress
from rl_swarm.runs.examples import published
from rl_swarm.runs.following import REMEMBERED_BYTES, Following, Moment, Tail, all_experiments, look_once, mean_curve
from rl_swarm.runs.record import Round, valid
from rl_swarm.store import Store
from rl_swarm.store.folder import FolderStore
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import Pulse, Registration, register
from rl_swarm.swarm.publisher import Publisher
from tests.node.test_journal import make as make_journal
from tests.support.clocks import VirtualClock
from tests.support.rows import record
from tests.support.sample_run import HOSTILE, LAYOUT, ROUND_SECONDS, SampleRun

KEY = LAYOUT.log("me", "metrics.jsonl")


@pytest.fixture(params=["disk", "mount", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    (tmp_path / "store").mkdir()
    if request.param == "memory":
        return MemoryStore(clock=VirtualClock())
    return FolderStore(tmp_path / "store", VirtualClock(), local=request.param == "disk")


def disk(tmp_path: Path) -> FolderStore:
    (tmp_path / "store").mkdir()
    return FolderStore(tmp_path / "store", VirtualClock(), local=True)


def rounds(rows: list[dict[str, Any]]) -> list[int]:
    return [row["round"] for row in rows]


def test_each_row_is_read_once_however_journals_are_kept(store: Store, tmp_path: Path) -> None:
    clock: Clock = VirtualClock()
    tail, seen = Tail(store, KEY, 1 << 20), []
    for life in range(2):
        journal = make_journal(store, tmp_path, clock)
        for number in range(3):
            journal.round_done(record(3 * life + number))
            journal.flush()
            clock.sleep(5)
            anew, rows = tail.look()
            seen = rounds(rows) if anew else seen + rounds(rows)
            assert seen == list(range(3 * life + number + 1))
            assert tail.look() == (False, [])
        journal.merge(60.0)
        anew, rows = tail.look()
        assert (rounds(rows) if anew else seen + rounds(rows)) == seen, "merged segments are the same rows"


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    store = disk(tmp_path)
    path = store.root / KEY
    path.parent.mkdir(parents=True)
    tail = Tail(store, KEY, 1 << 20)
    assert tail.look() == (False, [])
    path.write_text('{"round": 0}\n{"rou')
    assert rounds(tail.look()[1]) == [0]
    with path.open("a") as file:
        file.write('nd": 1}\n')
    assert tail.look() == (False, [{"round": 1}])


def test_a_journal_that_somebody_replaced_is_read_anew(tmp_path: Path) -> None:
    store, clock = disk(tmp_path), VirtualClock()
    journal, tail = make_journal(store, tmp_path, clock), Tail(store, KEY, 1 << 20)
    for number in range(5):
        journal.round_done(record(number))
    journal.flush()
    tail.look()
    store.rewrite(KEY, b"".join(b'{"round":%d}\n' % number for number in range(8)))
    anew, rows = tail.look()
    assert anew
    assert rounds(rows) == list(range(8))


def test_a_run_is_followed_round_by_round(store: Store, tmp_path: Path) -> None:
    run = SampleRun(store, tmp_path)
    following = Following(store, LAYOUT)
    assert following.look().rounds_done == 0
    for done in range(1, 6):
        run.play(1)
        moment = following.look()
        assert moment.rounds_done == done
        rows = [[json.loads(line) for line in text.splitlines()] for text in metrics_texts(store)]
        means = [sum(node[number]["reward"] for node in rows) / 3 for number in range(done)]
        assert [reward for _, reward in moment.curve] == pytest.approx(means)
        for node, own in zip(moment.nodes[1:], rows, strict=True):
            assert node.last is not None
            assert node.reward == pytest.approx(sum(row["reward"] for row in own[-5:]) / len(own[-5:]))
            assert (node.last.own_used, node.last.external_used) == (own[-1]["own_used"], own[-1]["external_used"])
    assert [(node.node_id, node.role) for node in moment.nodes] == [
        ("boss", "coordinator"),
        *((f"w{n}", "worker") for n in (1, 2, 3)),
    ]
    assert moment.nodes[0].doing == "waiting for 3 workers"
    assert moment.pace == pytest.approx(ROUND_SECONDS)


def metrics_texts(store: Store) -> list[str]:
    """Read apart from the package: the documented file, or the segments in order."""
    texts = []
    for node_id in ("w1", "w2", "w3"):
        key = LAYOUT.log(node_id, "metrics.jsonl")
        folder = key.removesuffix(".jsonl")
        keys = [f"{folder}/{name}" for name in store.list(folder)] or [key]
        texts.append("".join(store.get(key, limit=1 << 24).decode() for key in keys))
    return texts


def test_looking_again_reads_no_document_and_a_new_round_one_bundle(tmp_path: Path) -> None:
    store = disk(tmp_path)
    run = SampleRun(store, tmp_path).play(4)
    reader = FolderStore(store.root, VirtualClock(), local=True)
    following = Following(reader, LAYOUT)
    following.look()
    before, files = dict(reader.counts), 2 * len(store.list(LAYOUT.peers))
    for _ in range(10):
        following.look()
    assert reader.counts["get"] <= before["get"] + 10 * files
    assert reader.counts["bytes_in"] <= before["bytes_in"] + 10 * files * REMEMBERED_BYTES, "what it saw last, and nothing else"
    run.play(1)
    gets = reader.counts["get"]
    following.look()
    assert reader.counts["get"] == gets + files + 1


def test_rows_that_no_node_would_write_are_left_out() -> None:
    good = {"timestamp": 1.0, "round": 3, "reward": 0.5}
    wrong: list[Any] = [
        {**good, "round": "3"},
        {**good, "round": -1},
        {**good, "round": 10**15},
        {**good, "reward": float("nan")},
        {**good, "reward": float("inf")},
        {**good, "reward": None},
        {**good, "external_ids": "w1/0/0/0"},
        {**good, "external_ids": [["w1"]]},
        {"round": 3},
        [],
        None,
        "text",
    ]
    assert valid([*wrong, good], Round) == [Round(timestamp=1.0, round=3, reward=0.5)]
    assert valid([good | {"store_total": {"bytes_in": 2 * 10**12}}], Round), "a long run moves terabytes"


def test_a_hostile_journal_changes_nothing_but_its_own_row(tmp_path: Path) -> None:
    store = disk(tmp_path)
    run = SampleRun(store, tmp_path).play(2)
    for name in ("metrics.jsonl", "training_events.jsonl"):
        with (store.root / LAYOUT.log("w3", name)).open("ab") as file:
            file.write(
                b'\xff\xfe\n[1]\nnull\n{"round":{}}\n{"event_type":"state","data":"x"}\n{"event_type":"state","data":{"doing":7}}\n'
            )
    assert Following(store, LAYOUT).look().rounds_done == run.done


def test_bundles_that_cannot_be_read_are_as_if_they_were_not_there(tmp_path: Path) -> None:
    store = disk(tmp_path)
    SampleRun(store, tmp_path).play(1)
    assert len(published(store, LAYOUT, 0, 0, "w1")) == 2
    path = store.root / LAYOUT.bundle(0, "w1")
    path.write_bytes(path.read_bytes()[:-9])
    assert published(store, LAYOUT, 0, 0, "w1") == []
    assert published(store, LAYOUT, 7, 0, "w1") == []


def test_a_row_of_another_stage_is_shown_with_the_completions_of_that_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore(clock=VirtualClock())
    monkeypatch.setattr("rl_swarm.node.worker.STAGE", 1)
    SampleRun(store, tmp_path).play(1)
    assert published(store, LAYOUT, 0, 0, "w1") == []
    assert [each.id for each in published(store, LAYOUT, 0, 1, "w1")] == ["w1/0/1/0", "w1/0/1/1"]
    assert Following(store, LAYOUT).look().other is not None


def test_completions_of_the_moment_are_those_of_the_newest_round(tmp_path: Path) -> None:
    store = disk(tmp_path)
    run = SampleRun(store, tmp_path)
    following = Following(store, LAYOUT)
    run.play(1)
    first = following.look()
    assert first.good is None, "nothing was right yet"
    assert first.other is not None and first.other.text == HOSTILE
    run.play(9)
    last = following.look()
    assert last.good is not None and (last.good.by, last.good.reward) == ("w3, round 9", 1.0)
    assert last.other is not None and last.other.prompt == last.good.prompt


def test_the_newest_round_joins_the_curve_when_as_many_have_done_it_as_the_one_before() -> None:
    first, second = {0: 0.2, 1: 0.4, 2: 0.9}, {0: 0.4, 1: 0.6}
    assert mean_curve([first, second]) == ((0, pytest.approx(0.3)), (1, pytest.approx(0.5)))
    assert mean_curve([first, second | {2: 0.1}])[-1] == (2, pytest.approx(0.5))
    assert mean_curve([]) == ()


def test_time_left_follows_the_pace_of_the_last_rounds() -> None:
    moment = Moment("e", max_rounds=20, rounds_done=10, pace=3.0, last_round_at=100.0)
    assert moment.seconds_left(100.0) == pytest.approx(30)
    assert moment.seconds_left(102.0) == pytest.approx(28)
    assert moment.seconds_left(1e9) == pytest.approx(27), "a round that takes long says nothing about the others"
    assert moment.seconds_left(0.0) == pytest.approx(30), "clocks may disagree"
    assert Moment("e", max_rounds=20).seconds_left(0.0) is None


def test_a_pause_between_two_lives_does_not_spoil_the_pace(tmp_path: Path) -> None:
    store = disk(tmp_path)
    run = SampleRun(store, tmp_path).play(4)
    run.clock.sleep(80_000)
    run.play(4)
    assert Following(store, LAYOUT).look().pace == pytest.approx(ROUND_SECONDS)


def test_foreign_files_among_the_registrations_are_no_nodes(tmp_path: Path) -> None:
    store = disk(tmp_path)
    SampleRun(store, tmp_path)
    Publisher(store, tmp_path / "other", VirtualClock(), background=False).put(f"{LAYOUT.peers}/stranger.json", b"{}")
    assert "stranger" not in {node.node_id for node in Following(store, LAYOUT).look().nodes}


def long_run(folder: Path, rounds: int) -> FolderStore:
    """One node that has played very many rounds."""
    folder.mkdir()
    store = FolderStore(folder, VirtualClock(), local=True)
    register(store, LAYOUT, Registration("me", "worker", 0.0, "nano", "me", "1", "s"))
    metrics, events = list[bytes](), list[bytes]()
    for number in range(rounds):
        metrics.append(msgspec.json.encode(record(number, number / rounds)))
        state = {"timestamp": float(number), "event_type": "state", "data": {"doing": "training", "round": number}}
        events.append(json.dumps(state).encode())
    for name, rows in (("metrics.jsonl", metrics), ("training_events.jsonl", events)):
        store.rewrite(LAYOUT.log("me", name), b"\n".join(rows) + b"\n")
    return store


def test_one_look_costs_the_same_however_long_the_run_is(tmp_path: Path) -> None:
    costs = []
    for rounds in (1_500, 4_500):
        store = long_run(tmp_path / str(rounds), rounds)
        before = Counter(store.counts)
        [node] = look_once(store, LAYOUT).nodes
        assert node.last is not None and (node.last.round, node.doing, node.round) == (rounds - 1, "training", rounds - 1)
        assert node.reward == pytest.approx((rounds - 3) / rounds), "the mean of five rounds, though only the end was read"
        costs.append({name: store.counts[name] - before[name] for name in ("get", "list", "bytes_in")})
    assert costs[0] == costs[1]
    assert costs[0]["bytes_in"] <= 2 * (progress.TAIL_BYTES + 1) + 1000, "the ends of two journals, and a registration"


def test_one_look_and_many_see_the_same(store: Store, tmp_path: Path) -> None:
    run = SampleRun(store, tmp_path).play(7)
    following = Following(store, LAYOUT)
    following.look()
    run.play(2)
    once, many = look_once(store, LAYOUT), following.look()
    assert once == replace(many, good=once.good, other=once.other)
    assert (many.max_rounds, many.status, many.left_out) == (16, "running", 0), "from the experiment"


def test_a_journal_longer_than_the_limit_is_still_followed_and_each_row_counts_once(tmp_path: Path) -> None:
    store = long_run(tmp_path / "store", 3_000)
    following = Following(store, LAYOUT, history_bytes=0)
    assert following.look().rounds_done == 3_000
    row = msgspec.json.encode(record(3_000, 0.75))
    store.append(LAYOUT.log("me", "metrics.jsonl"), row + b"\n")
    reads = store.counts["list"]
    moment = following.look()
    assert moment.rounds_done == 3_001 and moment.nodes[0].last is not None and moment.nodes[0].last.reward == 0.75
    with_bundles = store.counts["list"] - reads
    following.look()
    assert store.counts["list"] - reads - with_bundles < with_bundles, "rows that are known are not taken for new ones"


def test_a_heartbeat_says_what_a_node_does_where_its_journal_is_late(tmp_path: Path) -> None:
    store = disk(tmp_path)
    SampleRun(store, tmp_path)
    Pulse(store, LAYOUT, "w1", store.clock).beat("loading nano", -1)
    node = next(node for node in look_once(store, LAYOUT).nodes if node.node_id == "w1")
    assert (node.doing, node.round, node.since) == ("loading nano", None, store.clock.wall())


@pytest.mark.parametrize(
    ("states", "status"),
    [
        (("training", "complete"), "running"),
        (("complete", "complete"), "complete"),
        (("stopped", "complete"), "stopped"),
        (("failed: OSError: disk", "stopped"), "failed"),
    ],
)
def test_the_run_as_a_whole_is_what_its_nodes_are(tmp_path: Path, states: tuple[str, str], status: str) -> None:
    store = disk(tmp_path)
    run = SampleRun(store, tmp_path, workers=("w1", "w2"))
    run.boss.state("stopped", 0)
    for worker, doing in zip(run.workers.values(), states, strict=True):
        worker.journal.state(doing, 3)
    run.flush()
    assert look_once(store, LAYOUT).status == status


def test_an_experiment_in_which_nobody_has_played_is_there_and_an_empty_folder_is_not(tmp_path: Path) -> None:
    store = disk(tmp_path)
    experiments.publish(store, LAYOUT, load({"MAX_ROUNDS": "7"}), "stand-in 1", store.clock)
    (store.root / "experiments" / "empty").mkdir()
    [moment] = all_experiments(store)
    assert (moment.experiment, moment.status, moment.max_rounds, moment.nodes) == ("trial", "new", 7, ())
    assert look_once(store, Layout("empty")).status == "empty"
