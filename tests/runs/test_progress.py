"""Reading journals that anybody may have written: bounded, in linear time, and never stopped by a bad row."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_swarm.runs import progress
from rl_swarm.runs.following import Following, Tail, look_once
from rl_swarm.runs.record import Round
from rl_swarm.store.folder import FolderStore
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.layout import Layout
from rl_swarm.tools import experiments
from tests.support.clocks import VirtualClock
from tests.support.sample_run import LAYOUT, SampleRun

KEY = LAYOUT.log("w1", "metrics.jsonl")


def slowly(in_file: list[str], in_segments: list[str]) -> list[str]:
    """Compute the result of `lines` by trying every place."""
    for start in range(len(in_file)):
        shared = min(len(in_file) - start, len(in_segments))
        if in_file[start : start + shared] == in_segments[:shared]:
            return in_file + in_segments[shared:]
    return in_file + in_segments


FEW = st.lists(st.sampled_from("ab"), max_size=12)


@given(FEW, FEW)
def test_lines_that_stand_in_file_and_segments_are_found_as_by_trying_every_place(
    in_file: list[str], in_segments: list[str]
) -> None:
    assert in_file + in_segments[progress._shared(in_file, in_segments) :] == slowly(in_file, in_segments)


def put(store: MemoryStore, number: int, text: str) -> None:
    store.put(Layout.segment(KEY, number), text.encode())


def test_a_journal_made_to_be_slow_to_merge_takes_linear_time() -> None:
    store = MemoryStore(clock=VirtualClock())
    store.put(KEY, b"a\n" * 300_000 + b"c\n")
    put(store, 1, "a\n" * 150_000 + "b\n")
    began = time.monotonic()
    assert len(progress.lines(store, KEY)) == 450_002
    assert time.monotonic() - began < 5


def test_a_limit_that_cuts_file_and_segments_at_other_places_gives_no_line_twice() -> None:
    store, rows = MemoryStore(clock=VirtualClock()), [f"line {number:03d}\n" for number in range(200)]
    store.put(KEY, "".join(rows).encode())
    for number in range(20):
        put(store, number, "".join(rows[10 * number : 10 * number + 10]))
    for limit in range(300, 1200, 7):
        found = progress.lines(store, KEY, limit)
        assert found == [row.rstrip() for row in rows[-len(found) :]], limit
        assert len(found) > limit // len(rows[0]) - 2


def test_a_file_that_grew_after_its_segments_were_merged_is_read_in_order_under_any_limit() -> None:
    store, rows = MemoryStore(clock=VirtualClock()), [f"line {number:04d}" for number in range(2000)]
    store.put(KEY, "".join(f"{row}\n" for row in rows).encode())
    for place in range(0, 1500, 100):
        put(store, 1 + place // 100, "".join(f"{row}\n" for row in rows[place : place + 100]))
    for limit in range(8000, 24_000, 500):
        found = progress.lines(store, KEY, limit)
        assert found == rows[-len(found) :], limit


@pytest.mark.parametrize("line", ['{{"timestamp": {}.0}}', "2026-11-17T08:41:{}.000Z said"])
@pytest.mark.parametrize("file_is_older", [True, False])
def test_a_file_and_segments_that_share_nothing_are_read_by_their_time(line: str, file_is_older: bool) -> None:
    """A folder that was used through a mount later, and one that was copied from a store with segments."""
    store, older, newer = MemoryStore(), [line.format(number) for number in (10, 11)], [line.format(number) for number in (12, 13)]
    in_file, in_segments = (older, newer) if file_is_older else (newer, older)
    store.rewrite(KEY, "".join(f"{each}\n" for each in in_file).encode())
    store.put(f"{LAYOUT.segments(KEY)}/00000000010.jsonl", "".join(f"{each}\n" for each in in_segments).encode())
    assert progress.lines(store, KEY) == older + newer


def test_of_all_segments_together_no_more_is_read_than_of_one_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "JOURNAL_BYTES", 100_000)
    store = MemoryStore(clock=VirtualClock())
    for number in range(50):
        put(store, number, f"{number}\n" + "x" * 9_000 + "\n")
    found = [line for line in progress.lines(store, KEY) if line.isdigit()]
    assert found == [str(number) for number in range(39, 50)], "the newest"
    assert store.counts["bytes_in"] < 110_000


def test_of_a_million_empty_segments_few_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "JOURNAL_BYTES", 1 << 20)
    store = MemoryStore(clock=VirtualClock())
    for number in range(2_000):
        put(store, number, "")
    assert progress.lines(store, KEY) == []
    assert store.counts["get"] <= 1 + (1 << 20) // progress.SEGMENT_BYTES
    before = store.counts["get"]
    assert progress.last_rows(store, KEY) == []
    assert store.counts["get"] - before <= progress.MOST_TAILS + 1
    tail, before = Tail(store, KEY, 1 << 20), store.counts["get"]
    assert tail.look()[1] == []
    for number in range(2_000, 4_000):
        put(store, number, "")
    assert tail.look() == (False, [])
    assert store.counts["get"] - before <= 2 + 2 * (1 << 20) // progress.SEGMENT_BYTES


def test_what_a_node_says_of_itself_is_one_short_line(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    run = SampleRun(store, tmp_path / "local")
    said = {"event_type": "state", "timestamp": 1.0, "data": {"round": 1, "doing": "line\n" * 12_000}}
    mute = {"peer": "a\nb", "reason": "c\nd", "until": 5}
    store.rewrite(LAYOUT.log("w1", "training_events.jsonl"), json.dumps(said).encode() + b"\n")
    store.rewrite(KEY, json.dumps({"timestamp": 1.0, "round": 1, "reward": 0.5, "muted": [mute]}).encode() + b"\n")
    assert run.done == 0
    status = next(node for node in look_once(store, LAYOUT).nodes if node.node_id == "w1")
    assert len(status.doing) <= 200 and "\n" not in status.doing
    assert [(each.peer, each.reason) for each in status.muted] == [("a b", "c d")]


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


ROWS = [
    '{"round":1,"muted":[{"peer":"a","reason":"x","until":1,"\\ud800":1}]}',
    '{"round":1,"timestamp":1.0,"reward":0.5,"muted":[{"peer":"\\ud800","reason":"x","until":1}]}',
    '{"round":1}',
    '{"round":1,"reward":"x","timestamp":1}',
    '{"round":1,"reward":[],"timestamp":{}}',
    '{"round":true,"reward":1e400,"timestamp":NaN,"external_ids":[1]}',
    '{"round":-5,"reward":-Infinity,"timestamp":1,"external_used":1e999}',
    '{"round":1,"reward":%s}' % ("9" * 4_000),
    '{"round":%s,"reward":1}' % ("9" * 400),
    '{"round":1,"reward":1,"timestamp":1,"\\ud800":"\\udfff"}',
    '{"round":1,"reward":1,"timestamp":1,"external_ids":["\\ud800","\\ud800/1/0/0"]}',
    '{"event_type":"state","timestamp":1,"data":{"round":-1e299,"doing":"\\ud800\\u001b[31m"}}',
    '{"event_type":"state","timestamp":-1e299,"data":{"round":1e299,"doing":"x"}}',
    '{"event_type":"\\ud800","timestamp":"\\ud800","data":"\\ud800"}',
    '{"event_type":"evaluation","data":{"round":0,"held_out":0.5,"held_out_style_blind":0.5,"held_out_in_form":0.5,"held_out_by_task":{"\\ud800":0.1}}}',
    '{"event":"\\ud800","round":[],"reward":{}}',
    *(
        '{"round":1,"reward":1,"timestamp":1,"muted":%s,"external_ids":%s,"data":%s}' % ((nested(depth),) * 3)
        for depth in (50, 900, 5_000)
    ),
    *(f'{{"event_type":"state","timestamp":1,"data":{nested(depth)}}}' for depth in (50, 900, 5_000)),
    "[]",
    "null",
    '"\\ud800"',
    "\ufeff{}",
]


@pytest.fixture(scope="module")
def two_rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run of two rounds."""
    folder = tmp_path_factory.mktemp("run")
    SampleRun(FolderStore(folder, VirtualClock(), local=True), tmp_path_factory.mktemp("local")).play(2)
    return folder


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_no_row_of_a_stranger_ends_a_reader(row: str, two_rounds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_SWARM_HOME", str(tmp_path / "home"))
    shutil.copytree(two_rounds, tmp_path / "store")
    store = FolderStore(tmp_path / "store", VirtualClock(), local=True)
    for key in (KEY, LAYOUT.log("w1", "training_events.jsonl"), LAYOUT.progress("w1")):
        with (store.root / key).open("ab") as file:
            file.write(row.encode("utf-8", "backslashreplace") + b"\n")
    json.dumps(look_once(store, LAYOUT).as_dict(0.0)).encode()
    place, name = str(tmp_path / "store"), LAYOUT.experiment_name
    assert experiments.list_experiments(place) and experiments.get_experiment_status(place, name)["nodes"]
    assert json.dumps(experiments.get_experiment_progress(place, name))
    experiments.as_table(place, name).encode()
    rewards = experiments.compare_experiments(place, [name])
    assert {each["round"] for each in rewards} >= {0}
    assert experiments.export_experiment_summary(place, name)["rewards"] == rewards
    assert Following(store, LAYOUT).look().rounds_done >= 2


def test_rounds_that_a_node_lost_with_its_weights_are_left_out() -> None:
    def row(number: int, at: float) -> Round:
        return Round(timestamp=at, round=number, reward=0.0)

    def started(number: int, at: float) -> dict[str, Any]:
        return {"timestamp": at, "event_type": "started", "data": {"round": number, "resumed": number > 0}}

    rows = [row(0, 1.0), row(1, 2.0), row(2, 3.0), row(5, 8.0)]
    assert progress.kept_rounds(rows, [started(0, 0.5)]) == rows
    assert progress.kept_rounds(rows, [started(0, 0.5), started(1, 5.0)]) == [rows[0], rows[3]], "it came back after round 0"
    assert progress.kept_rounds(rows, [{"event_type": "started", "data": None}]) == rows, "no event of ours"
