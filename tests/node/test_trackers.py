"""Trackers: they get the numbers of the journal, and one that fails ends neither the run nor the others."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rl_swarm.clock import SystemClock
from rl_swarm.errors import ConfigError
from rl_swarm.node import trackers
from rl_swarm.node.journal import Journal
from rl_swarm.node.trackers import Trackers, figures, require_trackers
from rl_swarm.swarm.layout import Layout
from tests.support.long_run import row_of
from tests.support.processes import ROOT

ROWS = [row_of("w1", number, 0, ["w1", "w2"]) for number in range(5)]
READERS = {
    "tensorboard": """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(f"{folder}/tensorboard/trial/w1"); found.Reload()
answer = {name: [[each.step, each.value] for each in found.Scalars(name)] for name in found.Tags()["scalars"]}
""",
    "trackio": """
import os; os.environ["TRACKIO_DIR"] = f"{folder}/trackio"
from trackio.sqlite_storage import SQLiteStorage
rows = SQLiteStorage.get_logs("trial", "w1")
answer = {name: [[row["step"], row[name]] for row in rows if name in row] for name in rows[0] if name not in ("step", "timestamp")}
""",
    "wandb": """
import struct
from glob import glob
from wandb.proto import wandb_internal_pb2
data, answer, parts, place = open(glob(f"{folder}/wandb/wandb/offline-run-*/*.wandb")[0], "rb").read(), {}, b"", 7
while place + 7 <= len(data):  # the log format of LevelDB: blocks of 32 KB, of parts with a checksum, a length and a kind
    left = 32768 - place % 32768
    if left < 7:
        place += left
        continue
    _, length, kind = struct.unpack("<IHB", data[place : place + 7])
    parts, place = parts + data[place + 7 : place + 7 + length], place + 7 + length
    if kind not in (1, 4):
        continue
    record, parts = wandb_internal_pb2.Record.FromString(parts), b""
    if record.WhichOneof("record_type") == "history":
        items = {(each.key or "/".join(each.nested_key)): json.loads(each.value_json) for each in record.history.item}
        for name, value in items.items():
            if not name.startswith("_"):
                answer.setdefault(name, []).append([items["_step"], value])
""",
}


class Recorder:
    def __init__(self, folder: Path, experiment: str, node_id: str) -> None:
        self.seen: list[tuple[int, float]] = []

    def record(self, step: int, figures: Any) -> None:
        self.seen.append((step, figures["reward"]))

    def close(self) -> None:
        self.seen.append((-1, 0.0))


class Broken(Recorder):
    def record(self, step: int, figures: Any) -> None:
        raise RuntimeError("disk is full")


def test_every_number_of_a_record_has_a_name() -> None:
    found = figures(ROWS[3])
    assert found["reward"] == ROWS[3].reward and found["seconds/train"] == 0.6 and found["rejected_total/stale"] == 0.0
    assert not {"timestamp", "round", "node_id", "external_ids", "held_out"} & found.keys()


def test_a_tracker_that_fails_is_reported_once_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Recorder(tmp_path, "", "")
    monkeypatch.setitem(trackers.KINDS, "wandb", Broken)
    monkeypatch.setitem(trackers.KINDS, "trackio", lambda *_: kept)
    said: list[str] = []
    journal = Journal(tmp_path, Layout("trial"), "w1", SystemClock(), console=None)
    journal.trackers = Trackers(["wandb", "trackio"], tmp_path / "trackers", "trial", "w1", said.append)
    for row in ROWS:
        journal.round_done(row)
    journal.trackers.close()
    assert kept.seen == [*((row.round, row.reward) for row in ROWS), (-1, 0.0)]
    assert [line for line in said if "no more figures" in line] == [
        "wandb gets no more figures (RuntimeError: disk is full): the journals have them"
    ]


def test_a_missing_library_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"TRACK asks for wandb.*pip install 'rl-swarm\[wandb\]'"):
        require_trackers(["wandb"])


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_what_a_tracker_wrote_is_what_the_journal_has(name: str, tmp_path: Path) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed: make test-slow installs it")
    write = (
        "import sys; from pathlib import Path; import msgspec\n"
        "from rl_swarm.node.trackers import Trackers; from rl_swarm.runs.record import Round\n"
        f"kept = Trackers([{name!r}], Path({str(tmp_path)!r}), 'trial', 'w1', print)\n"
        "for line in sys.stdin: kept.record(msgspec.json.decode(line, type=Round))\n"
        "kept.close()\n"
    )
    read = f"import json, sys; folder = {str(tmp_path)!r}\n{READERS[name]}\nprint('found ' + json.dumps(answer))\n"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    lines = b"\n".join(msgspec.json.encode(row) for row in ROWS)
    for code, given in ((write, lines), (read, b"")):
        done = subprocess.run([sys.executable, "-c", code], input=given, env=environment, capture_output=True, timeout=200)
        assert done.returncode == 0 and b"no more figures" not in done.stdout, (done.stdout + done.stderr).decode()[-3000:]
    found = json.loads(done.stdout.decode().partition("found ")[2])
    expected = {each: [[row.round, figures(row)[each]] for row in ROWS if each in figures(row)] for each in figures(ROWS[-1])}
    assert expected.keys() <= found.keys()
    for each, points in expected.items():
        assert found[each] == [[step, pytest.approx(value)] for step, value in points], each
