"""Logs: every journal of every node, on any store, in one order of time, once, and as plain text."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rl_swarm.config import load
from rl_swarm.errors import ConfigError, StoreAway
from rl_swarm.node.journal import Journal
from rl_swarm.runs.record import stamped
from rl_swarm.store import Store
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.copies import Copies
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import Registration, register
from rl_swarm.tools.logs import Logs, Printer, show_logs
from rl_swarm.tools.opening import Run
from tests.support.clocks import VirtualClock
from tests.support.processes import LocalSwarm
from tests.support.rows import record

LAYOUT = Layout("trial")


class Scene:
    """An experiment with nodes whose journals are written by hand; `local` says whether its folder is on a disk or on a mount."""

    def __init__(self, folder: Path, local: bool) -> None:
        (folder / "store").mkdir()
        self.folder, self.clock = folder, VirtualClock()
        self.store: Store = FolderStore(folder / "store", self.clock, local=local)
        environment = {"GDRIVE_PATH": str(folder / "store"), "EXPERIMENT_NAME": "trial", "RL_SWARM_HOME": str(folder / "home")}
        config = load(environment | {"MODEL_NAME": "nano"})
        experiment = experiments.publish(self.store, LAYOUT, config, "reasoning-gym", self.clock)
        self.run = Run(environment, {}, config, self.store, LAYOUT, experiment)
        self.nodes: dict[str, tuple[Journal, Copies]] = {}

    def node(self, node_id: str, here: bool = False) -> tuple[Journal, Callable[[], None]]:
        """A node's journal, and a function that brings it to the store; the record is on this machine or elsewhere."""
        if node_id not in self.nodes:
            register(self.store, LAYOUT, Registration(node_id, "worker", 0.0, "nano", node_id, "1", "s"))
            root = self.run.home / node_id / "record" if here else self.folder / "elsewhere" / node_id / "record"
            journal = Journal(root, LAYOUT, node_id, self.clock, console=None)
            root.mkdir(parents=True, exist_ok=True)
            copies = Copies(root, LAYOUT.journals(node_id), self.store, root.parent / "copied", self.clock, print)
            self.nodes[node_id] = journal, copies
        journal, copies = self.nodes[node_id]
        return journal, lambda: copies.bring(all_of_it=True)

    def shown(self, node_id: str | None = None, most: int = 100, detailed: bool = False, as_json: bool = False) -> list[str]:
        console = Console(file=io.StringIO(), width=200)
        show_logs(self.run, node_id, Printer(console, as_json, detailed), most)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue().splitlines()


@pytest.fixture(params=["disk", "mount"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return Scene(tmp_path, request.param == "disk")


def test_all_nodes_are_interleaved_by_time_also_while_their_journals_are_segments(scene: Scene) -> None:
    for number in range(4):
        for node_id in ("w1", "w2"):
            journal, bring = scene.node(node_id)
            journal.say(f"line {number}")
            scene.clock.sleep(Store.journal_seconds)
            bring()
    lines = [line.partition(" w")[2] for line in scene.shown()]
    assert lines == [f"{node} line {number}" for number in range(4) for node in (1, 2)]
    assert [line.rpartition(" ")[2] for line in scene.shown("w1", most=2)] == ["2", "3"]
    if not scene.store.appendable:
        assert not (Path(scene.store.root) / LAYOUT.log("w1", "stdout.log")).exists(), "only segments"  # type: ignore[attr-defined]


def test_a_record_on_this_machine_and_its_copy_in_the_store_are_shown_once(scene: Scene) -> None:
    journal, bring = scene.node("w1", here=True)
    journal.say("first")
    bring()
    journal.say("not in the store yet")
    lines = scene.shown()
    assert [line.rpartition(" w1 ")[2] for line in lines] == ["first", "not in the store yet"]


def test_events_are_lines_unless_the_console_has_them_and_all_shows_states_and_figures(scene: Scene) -> None:
    journal, bring = scene.node("w1")
    journal.note("started", "begins a run of 5 rounds", round=0)
    scene.clock.sleep(1)
    journal.event("went_on_alone", round=1, waited_seconds=90.0)
    journal.state("generating", 1)
    journal.round_done(record(1, 0.25))
    scene.clock.sleep(1)
    journal.error(ZeroDivisionError("of weights"))
    bring()
    few = [line.rpartition(" w1 ")[2] for line in scene.shown()]
    assert few[:2] == ["begins a run of 5 rounds", "went on alone: round 1, waited seconds 90.0"]
    assert few[-1] == "ZeroDivisionError: of weights" and not any("generating" in line for line in few)
    all_of_it = [line.rpartition(" w1 ")[2] for line in scene.shown(detailed=True)]
    assert "now generating" in all_of_it and any("figures of round 1: reward 0.25" in line for line in all_of_it)


@pytest.mark.parametrize(
    ("event", "details", "line"),
    [
        ("started", {"round": -1, "epoch": 2}, "started as coordinator, epoch 2"),
        ("adopted", {"round": 7}, "workers are ahead: opening round 7 for them"),
        ("model_loaded", {"model": "nano", "device": "cpu"}, "loaded nano on cpu"),
        ("store_away", {"round": 3, "error": "a_b {x}"}, "the store is away: a_b {x}"),
        ("model_loaded", {"model": "{0.__class__}"}, "model loaded: model {0.__class__}"),
    ],
)
def test_events_are_told_in_plain_words(event: str, details: dict[str, Any], line: str, scene: Scene) -> None:
    journal, bring = scene.node("w1")
    journal.event(event, **details)
    bring()
    assert [shown.rpartition(" w1 ")[2] for shown in scene.shown()] == [line]


def test_json_gives_the_rows_as_they_were_written(scene: Scene) -> None:
    journal, bring = scene.node("w1")
    journal.note("started", "new", round=0)
    journal.round_done(record(1, 0.25))
    bring()
    rows = [json.loads(line) for line in scene.shown(as_json=True)]
    kinds = [row.get("event_type") or row.get("line") or row.get("round") for row in rows]
    assert sorted(map(str, kinds)) == ["1", "new", "started"]


def test_consoles_of_a_launcher_on_this_machine_are_found_and_say_nothing_twice(scene: Scene) -> None:
    consoles = scene.folder / "home" / "consoles" / "trial"
    consoles.mkdir(parents=True, exist_ok=True)
    journal, bring = scene.node("worker_1", here=True)
    with (consoles / "worker_1.log").open("w") as console:
        print(stamped(5.0, "of an earlier run"), file=console)
        journal.console, journal.stamps = partial(print, file=console), True
        journal.say("worker_1: loading libraries")
        print("Killed by \x1b[2J the system", file=console)
        scene.clock.sleep(1)
        journal.show("shown only")
        journal.error(ZeroDivisionError("of weights"))
        print("ZeroDivisionError: of weights\nhalf a li", end="", file=console)
    bring()
    (consoles / "worker_2.log").write_text("rl-swarm: a wrong setting\n")
    lines = [line.partition(" worker_")[2] for line in scene.shown()]
    assert lines == [
        "1 of an earlier run",
        "1 loading libraries",
        "1 Killed by \\x1b[2J the system",
        "1 ZeroDivisionError: of weights",
        "1 shown only",
        "2 rl-swarm: a wrong setting",
    ]


def test_following_shows_each_new_line_once_also_when_journals_are_merged(scene: Scene) -> None:
    logs = Logs(scene.run, None, 1 << 20)
    seen: list[str] = []
    for number in range(3):
        for node_id in ("w1", "w2"):
            journal, bring = scene.node(node_id)
            journal.say(f"{node_id} {number}")
            bring()
        seen += [entry.text for entry in logs.look(bool)]
        assert logs.look(bool) == []
    for _, copies in scene.nodes.values():
        copies.merge(scene.clock.monotonic() + 60)
    assert logs.look(bool) == []
    assert seen == [f"{node_id} {number}" for number in range(3) for node_id in ("w1", "w2")]


def test_following_goes_on_while_the_store_is_away(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, bring = scene.node("w1")
    journal.say("before")
    bring()
    console, looks, look = Console(file=io.StringIO(), width=200), 0, Logs.look

    def away(self: Logs, *wanted: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks in (2, 3):
            raise StoreAway("the store is away")
        if looks == 4:
            journal.say("after")
            bring()
        if looks == 5:
            raise KeyboardInterrupt
        return look(self, *wanted)

    monkeypatch.setattr(Logs, "look", away)
    with pytest.raises(KeyboardInterrupt):
        show_logs(scene.run, None, Printer(console, False, False), 10, scene.clock)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 3 and lines[0].endswith("before") and lines[1] == "the store is away" and lines[2].endswith("after")


HOSTILE = [
    "\x1b[2J\x07 [red]markup[/]",
    '{"timestamp": 1e300, "event_type": "x\\u001b[2J", "data": {"a": "\\u001b"}}',
    '{"timestamp": "now", "event_type": ["a"], "data": {"a": 1}}',
    '{"timestamp": -5, "data": 3, "round": 10}',
    '{"timestamp": true, "data": {}, "node_id": "\\ud800"}',
    "[" * 10_000,
    "9" * 100_000,
    '{"a": ' * 5_000,
]


@pytest.mark.parametrize("name", ["stdout.log", "stderr.log", "training_events.jsonl", "metrics.jsonl"])
@pytest.mark.parametrize("as_json", [False, True])
def test_what_strangers_write_into_journals_takes_no_effect(name: str, as_json: bool, tmp_path: Path) -> None:
    scene = Scene(tmp_path, True)
    journal, bring = scene.node("w1")
    journal.say("mine")
    bring()
    path = tmp_path / "store" / LAYOUT.log("w1", name)
    path.write_bytes(path.read_bytes() if path.exists() else b"")
    with path.open("ab") as file:
        file.write("\n".join(HOSTILE).encode() + b"\n\xff\xfe\x00\n")
    lines = scene.shown(detailed=True, as_json=as_json)
    assert any("mine" in line for line in lines)
    assert all(line.isprintable() and len(line) < 200_000 for line in lines)


def test_memory_is_bounded_by_the_end_of_long_journals(tmp_path: Path) -> None:
    scene = Scene(tmp_path, True)
    journal, bring = scene.node("w1")
    path = tmp_path / "elsewhere" / "w1" / "record" / LAYOUT.log("w1", "stdout.log")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(stamped(number, f"line {number}") + "\n" for number in range(20_000)))
    bring()
    assert [line.rpartition(" ")[2] for line in scene.shown(most=2)] == ["19998", "19999"]
    logs = Logs(scene.run, None, 128 << 10)
    assert 1_000 < len(logs.look(bool)) < 5_000
    journal.say("one more")
    bring()
    assert [entry.text for entry in logs.look(bool)] == ["one more"]


def test_an_unknown_node_is_one_line_with_the_names(scene: Scene) -> None:
    scene.node("w1")
    with pytest.raises(ConfigError, match="there is no node 'w9' in 'trial', which has w1: check the name"):
        scene.shown("w9")


@pytest.mark.slow
def test_logs_of_real_nodes_while_they_run(local_swarm: Callable[..., LocalSwarm]) -> None:
    swarm = local_swarm(MAX_ROUNDS=50, COORDINATOR_ROUND_INTERVAL=2, NUM_TRAIN_SAMPLES=2, STANDIN_SECONDS=0.3)
    swarm.start("boss", "coordinator")
    swarm.start("w1")
    swarm.wait_for_reward(1)
    command = [sys.executable, "-m", "rl_swarm.cli", "logs", "-f"]
    follower = subprocess.Popen(command, env=swarm.environment | {"PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, text=True)
    swarm.processes.append(follower)  # type: ignore[arg-type]
    assert follower.stdout
    deadline, seen = time.monotonic() + 30, ""
    with follower.stdout as lines:
        while not ("w1 round 4:" in seen and "boss round 4 is open" in seen):
            assert time.monotonic() < deadline, seen
            seen += lines.readline()
        os.kill(follower.pid, signal.SIGINT)
        assert follower.wait(10) == 0
