"""Many nodes on one machine, with stand-ins for what learns: killed, stopped, misconfigured."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from rl_swarm.config import load
from rl_swarm.errors import ConfigError
from rl_swarm.node import local
from rl_swarm.node.local import Holder, holder_of, wait_until_free
from rl_swarm.processes import stopping
from rl_swarm.runs.record import stamped
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.tools import demo, launch
from rl_swarm.tools.launch import (
    Launcher,
    NodeFailed,
    NodeProcess,
    launch_environment,
    make_launcher,
    plan,
    run_shown,
    what_starts,
    with_usual_split,
)
from tests.support.processes import ROOT, LocalSwarm

NAMES = {"coordinator_0": "coordinator", "worker_1": "worker", "worker_2": "worker"}


def make(swarm: LocalSwarm, tmp_path: Path, said: list[str], **settings: str) -> Launcher:
    nodes = []
    for node_id, role in NAMES.items():
        environment = swarm.environment | {"NODE_ID": node_id, "NODE_ROLE": role, "PYTHONUNBUFFERED": "1"} | settings
        nodes.append(
            NodeProcess(node_id, [sys.executable, "-m", "tests.support.standin_node"], environment, tmp_path / f"{node_id}.log")
        )
    return Launcher(nodes, say=said.append)


def check_announced(swarm: LocalSwarm, rounds: int) -> None:
    """Up to the last without a gap; a coordinator that starts late begins where the workers are."""
    announced = swarm.announced()
    assert announced == list(range(announced[0], rounds)) and announced[0] < 5


@pytest.fixture
def swarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalSwarm:
    monkeypatch.chdir(ROOT)
    return LocalSwarm(tmp_path, MAX_ROUNDS=10, COORDINATOR_ROUND_INTERVAL=4, NUM_TRAIN_SAMPLES=2, CHECKPOINT_INTERVAL=2)


@pytest.mark.parametrize("victim", [pytest.param("coordinator_0", marks=pytest.mark.slow), "worker_1"])
def test_killing_any_one_node_does_not_stop_the_run(swarm: LocalSwarm, tmp_path: Path, victim: str) -> None:
    said: list[str] = []
    launcher = make(swarm, tmp_path, said)
    killed: list[int] = []

    def tick() -> None:
        node = next(node for node in launcher.nodes if node.node_id == victim)
        if not killed and node.process and (swarm.folder / swarm.layout.reward(3, "worker_2")).exists():
            killed.append(node.process.pid)
            node.process.kill()

    assert launcher.run(tick) == "complete"
    assert killed
    assert any(f"{victim} ended with code -9" in line and "starting it again" in line for line in said)
    check_announced(swarm, 10)
    assert {node_id for number, node_id in swarm.rewards() if number == 9} == {"worker_1", "worker_2"}


def test_ctrl_c_stops_all_and_the_next_start_goes_on(swarm: LocalSwarm, tmp_path: Path) -> None:
    said: list[str] = []

    def interrupt() -> None:
        swarm.wait_for_round(3)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    launcher = make(swarm, tmp_path, said)
    assert launcher.run() == "stopped"
    assert all(node.process and node.process.poll() == 0 for node in launcher.nodes)
    assert any("saves a checkpoint" in line for line in said)
    before = len(swarm.metrics("worker_1"))
    assert 3 <= before < 10
    assert make(swarm, tmp_path, said).run() == "complete"
    assert [row["round"] for row in swarm.metrics("worker_1")][:before] == list(range(before))
    check_announced(swarm, 10)


def interrupt_after_round(swarm: LocalSwarm, number: int, *pauses: float) -> None:
    """Press Ctrl-C when a round is done, and again after each pause."""

    def press() -> None:
        swarm.wait_for_round(number)
        for pause in (0.0, *pauses):
            time.sleep(pause)
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


def test_who_stops_it_is_told_what_is_waited_for(swarm: LocalSwarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "WORD_SECONDS", 0.8)
    said: list[str] = []
    interrupt_after_round(swarm, 1)
    launcher = make(swarm, tmp_path, said, STANDIN_STOP_SECONDS="2", MAX_ROUNDS="1000")
    assert launcher.run() == "stopped"
    assert all(node.process and node.process.poll() == 0 for node in launcher.nodes)
    words = [line for line in said if line.startswith("still waiting")]
    assert words and "for worker_1, which said last: pushing the model, at most 60 s; worker_2" in words[0]
    assert "coordinator_0" not in words[-1], "it has stopped by then"
    assert not any("killed" in line for line in said)


def test_a_second_ctrl_c_ends_it_at_once_and_says_what_was_saved(swarm: LocalSwarm, tmp_path: Path) -> None:
    said: list[str] = []
    interrupt_after_round(swarm, 1, 1.5)
    launcher = make(swarm, tmp_path, said, STANDIN_STOP_SECONDS="50", MAX_ROUNDS="1000")
    began = time.monotonic()
    assert launcher.run() == "stopped"
    assert time.monotonic() - began < 30
    assert said[-1].startswith(
        "ended at once: coordinator_0 had saved and stopped; killed worker_1, worker_2. The next start goes on"
    )
    assert list(launch.what_was_saved(launcher.nodes, None)) == ["worker_1, worker_2: ended early, the last checkpoint counts"]
    assert [node.process.returncode for node in launcher.nodes if node.process] == [0, -9, -9]


@pytest.mark.slow
def test_a_second_ctrl_c_also_ends_a_launcher_whose_view_hangs(swarm: LocalSwarm, tmp_path: Path) -> None:
    interrupt_after_round(swarm, 1, 5.0)
    launcher = make(swarm, tmp_path, [], MAX_ROUNDS="1000")
    began = time.monotonic()
    assert launcher.run(lambda: time.sleep(100) if swarm.rewards() else None) == "stopped"
    assert time.monotonic() - began < 40
    assert {node.process.returncode for node in launcher.nodes if node.process} == {0}, "they were asked when the first one came"


def test_a_node_that_hangs_is_killed_when_its_time_is_over(
    swarm: LocalSwarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "LAUNCHER_SECONDS", 2.0)
    said: list[str] = []
    interrupt_after_round(swarm, 1)
    make(swarm, tmp_path, said, STANDIN_STOP_SECONDS="50", MAX_ROUNDS="1000").run()
    assert said[-1].startswith("not stopped in 2 s: coordinator_0 had saved and stopped; killed worker_1, worker_2")


def test_the_launcher_waits_longer_than_a_node_may_take() -> None:
    phases = (
        stopping.STEP_SECONDS,
        stopping.SAVE_SECONDS,
        stopping.PUSH_SECONDS,
        stopping.PUSH_KILL_SECONDS,
        stopping.DRAIN_SECONDS,
        stopping.MERGE_SECONDS,
    )
    assert sum(phases) < stopping.LAUNCHER_SECONDS


def test_a_node_that_ran_well_for_long_has_all_its_restarts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(launch, "POLL_SECONDS", 0.02)
    said: list[str] = []

    def crashing() -> Launcher:
        return Launcher([NodeProcess("w", ["/bin/sh", "-c", "exit 3"], {}, tmp_path / "w.log")], say=said.append)

    monkeypatch.setattr(launch, "FORGIVEN_SECONDS", 0.0)
    launcher = crashing()

    def tick() -> None:
        launcher.stopping = len(said) > 2 * launch.MOST_RESTARTS

    assert launcher.run(tick) == "stopped"
    monkeypatch.setattr(launch, "FORGIVEN_SECONDS", 600.0)
    with pytest.raises(NodeFailed, match="code 3 after 3 restarts"):
        crashing().run()


# A launcher that is killed


class KilledLauncher:
    """A launcher in a process of its own, killed after a round; the nodes' processes are known from their locks."""

    def __init__(self, swarm: LocalSwarm, **settings: str) -> None:
        self.swarm = swarm
        self.process = self.start(**settings)

    def start(self, **settings: str) -> "subprocess.Popen[str]":
        environment = {**self.swarm.environment, **settings}
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.standin_launcher"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        )

    @property
    def folders(self) -> dict[str, Path]:
        return {path.name: path for path in Path(self.swarm.environment["RL_SWARM_HOME"]).glob("trial-*/*") if path.is_dir()}

    def holders(self) -> dict[str, Holder]:
        return {name: holder for name, path in self.folders.items() if (holder := holder_of(path))}

    def kill(self) -> None:
        if self.process.stdout and not self.process.stdout.closed:
            self.process.kill()
            self.process.communicate()

    def close(self) -> None:
        self.kill()
        wait_for(lambda: not self.holders(), 60)


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.1)


def test_nodes_whose_launcher_was_killed_stop_by_themselves_and_save(swarm: LocalSwarm) -> None:
    launcher = KilledLauncher(swarm, MAX_ROUNDS="1000", CHECKPOINT_INTERVAL="1000")
    try:
        swarm.wait_for_round(3)
        wait_for(lambda: launcher.holders().keys() == NAMES.keys())
        launcher.kill()
        wait_for(lambda: not launcher.holders())
        for name in ("worker_1", "worker_2"):
            rows = swarm.metrics(name)
            saved = json.loads((launcher.folders[name] / "checkpoints" / "checkpoint.json").read_text())
            assert saved[0] == rows[-1]["round"] + 1, "the last round is saved, though no checkpoint was due"
            assert "is gone: stopping" in (swarm.folder / swarm.layout.log(name, "stdout.log")).read_text()
    finally:
        launcher.close()


def test_the_next_start_waits_for_nodes_that_are_still_stopping(swarm: LocalSwarm) -> None:
    launcher = KilledLauncher(swarm, MAX_ROUNDS="1000", STANDIN_STOP_SECONDS="3")
    try:
        swarm.wait_for_round(1)
        wait_for(lambda: launcher.holders().keys() == NAMES.keys())
        before = launcher.holders()
        launcher.kill()
        out, _ = launcher.start(MAX_ROUNDS="8").communicate(timeout=60)
        assert "swarm complete" in out, out
        for name in ("worker_1", "worker_2"):
            assert f"{name} is still stopping as process {before[name].pid}: waiting for it" in out
        check_announced(swarm, 8)
    finally:
        launcher.close()


def test_a_second_launcher_is_told_how_to_watch_the_first(swarm: LocalSwarm) -> None:
    launcher = KilledLauncher(swarm, MAX_ROUNDS="1000")
    try:
        wait_for(lambda: launcher.holders().keys() == NAMES.keys())
        running = launcher.holders()["coordinator_0"].pid
        other = launcher.start()
        out, _ = other.communicate(timeout=60)
        assert other.returncode == 1
        assert out == (
            f"the experiment 'trial' is already running on this machine (coordinator_0 is process {running}): "
            f"watch it with: rl-swarm status --gdrive-path {swarm.folder} --experiment trial --watch\n"
        )
        assert launcher.process.poll() is None and launcher.holders().keys() == NAMES.keys()
    finally:
        launcher.close()


def test_a_second_demo_refuses_before_it_shows_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "NOTICE_SECONDS", 0.0)
    given, console = {"RL_SWARM_HOME": str(tmp_path / "home")}, Console(file=io.StringIO(), force_terminal=True)
    environment = launch.found(launch_environment(demo.SETTINGS | given, {}))
    config = load(environment, {"node_id": "coordinator_0"})
    experiment = experiments.existing(FolderStore(Path(config.store_url)), Layout("demo"))
    with local.claim(config, experiment).lock, pytest.raises(ConfigError) as refused:
        demo.run_demo(given, {}, 2, "rl-swarm", console, "")
    assert str(refused.value) == (
        f"the experiment 'demo' is already running on this machine (coordinator_0 is process {os.getpid()}): "
        "watch it with: rl-swarm status --experiment demo --watch"
    )
    assert isinstance(console.file, io.StringIO) and console.file.getvalue() == ""


def test_a_node_that_does_not_stop_is_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "LAUNCHER_SECONDS", 0.5)
    monkeypatch.setattr(local, "holder_of", lambda folder: Holder("w1", 123, stopping=True))
    with pytest.raises(ConfigError, match=r"has not stopped in \d s as process 123: end it with 'kill -9 123'"):
        wait_until_free([tmp_path], lambda line: None)


def test_a_wrong_setting_ends_it_at_once_with_the_nodes_own_line(swarm: LocalSwarm, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(NodeFailed, match="NUM_GENERATIONS must be at least 2"):
        make(swarm, tmp_path, [], NUM_GENERATIONS="1").run()
    assert time.monotonic() - began < 30


def test_a_node_that_crashes_again_and_again_is_a_clear_failure(
    swarm: LocalSwarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "FIRST_PAUSE_SECONDS", 0.01)
    launcher = make(swarm, tmp_path, [])
    for node in launcher.nodes[1:]:
        node.command = ["/bin/sh", "-c", "echo ValueError: no; exit 1"]
    with pytest.raises(NodeFailed, match=r"worker_\d ended with code 1 after 3 restarts: ValueError"):
        launcher.run()
    assert all(node.process is None or node.process.poll() is not None for node in launcher.nodes), "a node was left running"


def test_output_can_be_followed_with_names_before_lines(swarm: LocalSwarm, tmp_path: Path) -> None:
    said: list[str] = []
    launcher = make(swarm, tmp_path, said, MAX_ROUNDS="2")
    launcher.follow = True
    launcher.run()
    assert any(line.startswith("[worker_1] round 0: reward") for line in said)
    assert any(line.startswith("[coordinator_0] coordinator complete") for line in said)


def shown_run(swarm: LocalSwarm, tmp_path: Path, terminal: bool, **settings: str) -> tuple[str, str]:
    """Run stand-ins as `swarm` does; return the outcome and what was written to the terminal."""
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=terminal)
    launcher = make(swarm, tmp_path, [], **settings)
    outcome = run_shown(
        launcher, load(swarm.environment), console, "rl-swarm swarm --workers 2", lambda outcome: console.print("a report")
    )
    assert isinstance(console.file, io.StringIO)
    return outcome, console.file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_ctrl_c_says_what_each_worker_has_saved_and_how_to_go_on(swarm: LocalSwarm, tmp_path: Path, terminal: bool) -> None:
    interrupt_after_round(swarm, 3)
    outcome, text = shown_run(swarm, tmp_path, terminal, MAX_ROUNDS="1000")
    assert outcome == "stopped"
    lines = text.splitlines()
    assert lines[-2:] == ["go on with:", "  rl-swarm swarm --workers 2"] and lines.index("a report") < len(lines) - 3
    said = "\n".join(line for line in lines if "saved at round" in line)
    for name in ("worker_1", "worker_2"):
        done = swarm.metrics(name)[-1]["round"] + 1
        assert re.search(rf"{name}.*: saved at round {done}\b", said), said
    assert "coordinator" not in said, "it has nothing to save"
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == terminal, "the cursor is visible again"
    if terminal:
        assert "trial: stopped, " in re.sub(r"\x1b\[[0-9;]*m", "", text[text.rindex("RL Swarm") :]), "the last frame is of the end"


def test_without_a_terminal_the_swarm_is_plain_lines(swarm: LocalSwarm, tmp_path: Path) -> None:
    outcome, text = shown_run(swarm, tmp_path, terminal=False)
    assert outcome == "complete" and "\x1b" not in text
    lines = text.splitlines()
    assert lines[0] in (  # the coordinator may have published the number of rounds by then
        *("0 rounds, 2 workers: 2 starting, starting", "0 of 10 rounds, 2 workers: 2 starting, starting"),
    )
    assert lines[-3].startswith("10 of 10 rounds, reward 0.500 (mean of the last 5 rounds)") and lines[-3].endswith("complete")
    assert lines[-2:] == ["swarm complete", "a report"]


def test_output_that_is_followed_takes_the_place_of_the_view(swarm: LocalSwarm, tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)
    launcher = make(swarm, tmp_path, [], MAX_ROUNDS="2")
    launcher.follow = True
    assert run_shown(launcher, load(swarm.environment), console, "", lambda outcome: None) == "complete"
    assert isinstance(console.file, io.StringIO)
    assert "[worker_1] round 0: reward" in console.file.getvalue() and "RL Swarm" not in console.file.getvalue()


def test_nodes_get_the_whole_path_of_a_folder_and_any_other_url_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for typed in ("swarm", "file://swarm", str(tmp_path / "swarm"), f"file://{tmp_path}/swarm"):
        assert launch_environment({"GDRIVE_PATH": typed}, {})["GDRIVE_PATH"] == str(tmp_path / "swarm")
    assert launch_environment({"GDRIVE_PATH": "memory://swarm"}, {})["GDRIVE_PATH"] == "memory://swarm"


@pytest.mark.parametrize(
    ("workers", "given", "expected"),
    [
        (4, {}, ("4", "12")),
        (2, {}, ("4", "4")),
        (16, {}, ("4", "28")),
        (1, {}, None),
        (4, {"NUM_TRAIN_SAMPLES": "8"}, None),
        (4, {"NUM_TRANSPLANT_TREES": "0"}, None),
        (4, {"TEST_MODE": "true"}, None),
    ],
)
def test_workers_of_a_new_experiment_read_each_other(
    workers: int, given: dict[str, str], expected: tuple[str, str] | None, tmp_path: Path
) -> None:
    named = {"GDRIVE_PATH": str(tmp_path / "store"), "EXPERIMENT_NAME": "first", "MODEL_NAME": "nano"} | given
    environment, lines = with_usual_split(named, workers)
    if expected is None:
        assert (environment, lines) == (named, [])
        return
    assert (environment["NUM_TRAIN_SAMPLES"], environment["NUM_TRANSPLANT_TREES"]) == expected
    own, external = expected
    assert lines == [
        f"each worker trains on {own} rollouts of its own and {external} of its peers a round: "
        f"NUM_TRAIN_SAMPLES={own} NUM_TRANSPLANT_TREES={external}"
    ]


def test_an_experiment_that_exists_keeps_its_split_and_what_starts_is_said(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    experiments.publish(store, Layout("swarm"), load({"MODEL_NAME": "nano", "MAX_ROUNDS": "40"}), "reasoning-gym", store.clock)
    environment = launch_environment({"GDRIVE_PATH": str(tmp_path)}, {})
    assert with_usual_split(environment, 4) == (environment, [])
    [line, choose] = what_starts(environment, 4, named=False)
    assert line == f"4 workers on {tmp_path}, experiment swarm: 40 rounds with nano, tasks easy; Ctrl-C stops them"
    assert choose.startswith("choose with --experiment NAME, --model-name, --tasks and --max-rounds")
    [line] = what_starts(environment, 1, named=True)
    assert line.startswith("1 worker on ")


def test_the_plan_shares_out_the_cores_and_keeps_secrets_off_the_command_line(tmp_path: Path) -> None:
    environment = launch_environment(
        {"HUGGINGFACE_ACCESS_TOKEN": "hf_secret"}, {"own_count": "3", "store": str(tmp_path), "seed": None}
    )
    nodes = plan(environment, 4, tmp_path, cores=8)
    assert [node.node_id for node in nodes] == ["coordinator_0", "worker_1", "worker_2", "worker_3", "worker_4"]
    assert {node.environment["OMP_NUM_THREADS"] for node in nodes} == {"2"}
    assert {node.environment["NUM_TRAIN_SAMPLES"] for node in nodes} == {"3"}
    assert not any("hf_secret" in word for node in nodes for word in node.command)
    assert plan(environment, 4, tmp_path, cores=2)[1].environment["OMP_NUM_THREADS"] == "1"
    chosen = plan(environment | {"OMP_NUM_THREADS": "3"}, 4, tmp_path, cores=8)[1].environment
    assert chosen["OMP_NUM_THREADS"] == "3" and "MKL_NUM_THREADS" not in chosen, "a number that the user has chosen wins"
    launcher = make_launcher(environment | {"RL_SWARM_HOME": str(tmp_path)}, 4)
    assert launcher.nodes[1].console == tmp_path / "consoles" / "swarm" / "worker_1.log"


def test_the_lines_of_a_console_are_shown_once_and_without_their_times(tmp_path: Path) -> None:
    console = tmp_path / "w1.log"
    console.write_text(stamped(5.0, "of an earlier run") + "\n")
    node = NodeProcess("w1", [], {}, console)
    assert node.last_line() == "of an earlier run"
    with console.open("a") as file:
        file.write(stamped(6.0, "round 0") + "\nTraceback\nhalf")
        file.flush()
        assert node.new_lines() == ["round 0", "Traceback"]
        file.write(" a line\n")
    assert node.new_lines() == ["half a line"] and node.new_lines() == []
