import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rl_swarm.config import SETTINGS
from tests.processes import LocalSwarm


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "rl_swarm.cli", *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_config_prints_every_setting_with_value_source_and_meaning() -> None:
    shown = run("config", "--json", "--num-train-samples", "3", MODEL_NAME="nano", HUGGINGFACE_ACCESS_TOKEN="hf_secret")
    rows = {row["variable"]: row for row in json.loads(shown.stdout)}
    assert rows.keys() == {setting.variable for setting in SETTINGS.values()}
    assert (rows["NUM_TRAIN_SAMPLES"]["value"], rows["NUM_TRAIN_SAMPLES"]["source"]) == (3, "command line")
    assert (rows["TASKS"]["value"], rows["TASKS"]["source"]) == ("easy", "MODEL_NAME=nano")
    assert all(row["meaning"] for row in rows.values())
    table = run("config", HUGGINGFACE_ACCESS_TOKEN="hf_secret", NUM_GENERATION="3", COLUMNS="200")
    assert "NUM_TRANSPLANT_TREES" in table.stdout and "did you mean NUM_GENERATIONS?" in table.stderr
    assert "hf_secret" not in shown.stdout + table.stdout


def test_status_of_a_finished_swarm(local_swarm: Callable[..., LocalSwarm]) -> None:
    swarm = local_swarm(MAX_ROUNDS=3, COORDINATOR_ROUND_INTERVAL=3, NUM_TRAIN_SAMPLES=2)
    for process in (swarm.start("boss", "coordinator"), swarm.start("w1")):
        assert swarm.wait(process) == 0
    environment = {"GDRIVE_PATH": str(swarm.folder), "EXPERIMENT_NAME": "trial"}
    status = json.loads(run("status", "--json", **environment).stdout)
    assert (status["round"], status["status"]) == (2, "complete")
    nodes = {node["node_id"]: node for node in status["nodes"]}
    assert (nodes["boss"]["role"], nodes["boss"]["doing"]) == ("coordinator", "complete")
    assert (nodes["w1"]["role"], nodes["w1"]["doing"], nodes["w1"]["round"], nodes["w1"]["reward"]) == (
        "worker",
        "complete",
        2,
        0.5,
    )
    table = run("status", **environment, COLUMNS="160").stdout
    assert "trial: complete, round 2" in table and "w1" in table


def test_status_of_nothing_is_no_error(tmp_path: Path) -> None:
    shown = run("status", "--json", GDRIVE_PATH=str(tmp_path), EXPERIMENT_NAME="nothing")
    assert json.loads(shown.stdout)["status"] == "empty"


def test_a_node_whose_settings_contradict_the_experiment_is_told_which_and_why(local_swarm: Callable[..., LocalSwarm]) -> None:
    swarm = local_swarm(MAX_ROUNDS=1, NUM_TRAIN_SAMPLES=2, TASKS="easy")
    assert swarm.wait(swarm.start("w1")) == 0
    assert swarm.wait(swarm.start("w2", TASKS="paper")) == 2
    assert "TASKS contradicts the experiment 'trial', which has 'basic_arithmetic:" in swarm.console("w2")
    assert "got 'paper': leave TASKS out" in swarm.console("w2")
    assert swarm.wait(swarm.start("w1", TASKS="easy", MAX_ROUNDS=2)) == 0
    del swarm.environment["TASKS"]
    assert swarm.wait(swarm.start("w3")) == 0


def test_one_name_runs_once_on_a_machine_and_unnamed_nodes_keep_theirs(local_swarm: Callable[..., LocalSwarm]) -> None:
    swarm = local_swarm(MAX_ROUNDS=100, NUM_TRAIN_SAMPLES=2)
    first = swarm.start("w1")
    swarm.wait_for_round(0)
    assert swarm.wait(swarm.start("w1")) == 2
    assert "already running on this machine" in swarm.console("w1")
    first.terminate()
    assert swarm.wait(first) == 0


def test_an_unnamed_node_is_named_once_per_machine_and_experiment(tmp_path: Path) -> None:
    from rl_swarm.config import load
    from rl_swarm.local import claim
    from rl_swarm.swarm.experiment import Experiment

    config = load({"RL_SWARM_HOME": str(tmp_path)})
    experiment = Experiment(1, "trial", "0123456789abcdef", 0.0, "", {}, "", (2, 256))
    first, second = claim(config, experiment), claim(config, experiment)
    assert first.node_id != second.node_id
    first.lock.close()
    again = claim(config, experiment)
    assert again.node_id == first.node_id
    begun_anew = claim(config, Experiment(1, "trial", "ffff456789abcdef", 0.0, "", {}, "", (2, 256)))
    assert begun_anew.path != first.path
    for folder in (second, again, begun_anew):
        folder.lock.close()


def test_a_question_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    asked = subprocess.run(
        [os.fsencode(sys.executable), b"-m", b"rl_swarm.cli", b"ask", b"what is \xff?"],
        env={"GDRIVE_PATH": str(tmp_path), "EXPERIMENT_NAME": "trial", "HOME": str(tmp_path)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert asked.returncode == 2
    assert asked.stderr.decode() == (
        "rl-swarm: the question must be text in UTF-8, got 'what is \\udcff?': write it in the terminal's own encoding\n"
    )
