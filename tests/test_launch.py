"""Many nodes on one machine, with stand-ins for what learns: killed, stopped, misconfigured."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from rl_swarm import launch
from rl_swarm.config import load
from rl_swarm.launch import Launcher, NodeFailed, NodeProcess, consoles_of, launch_environment, plan
from tests.processes import ROOT, LocalSwarm

NAMES = {"coordinator_0": "coordinator", "worker_1": "worker", "worker_2": "worker"}


def make(swarm: LocalSwarm, tmp_path: Path, said: list[str], **settings: str) -> Launcher:
    nodes = []
    for node_id, role in NAMES.items():
        environment = swarm.environment | {"NODE_ID": node_id, "NODE_ROLE": role} | settings
        nodes.append(NodeProcess(node_id, [sys.executable, "-m", "tests.standin_node"], environment, tmp_path / f"{node_id}.log"))
    return Launcher(nodes, say=said.append)


@pytest.fixture
def swarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalSwarm:
    monkeypatch.chdir(ROOT)
    return LocalSwarm(tmp_path, MAX_ROUNDS=10, COORDINATOR_ROUND_INTERVAL=4, NUM_TRAIN_SAMPLES=2, CHECKPOINT_INTERVAL=2)


@pytest.mark.parametrize("victim", ["coordinator_0", "worker_1"])
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
    assert swarm.announced() == list(range(10))
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
    assert swarm.announced() == list(range(10))


def test_a_wrong_setting_ends_it_at_once_with_the_nodes_own_line(swarm: LocalSwarm, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(NodeFailed, match="NUM_GENERATIONS must be at least 2"):
        make(swarm, tmp_path, [], NUM_GENERATIONS="1").run()
    assert time.monotonic() - began < 30


def test_a_node_that_crashes_again_and_again_is_a_clear_failure(
    swarm: LocalSwarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "FIRST_PAUSE_SECONDS", 0.01)
    launcher = make(swarm, tmp_path, [], STANDIN_SECONDS="-1")
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
    assert consoles_of(load(environment)).name == "swarm"
