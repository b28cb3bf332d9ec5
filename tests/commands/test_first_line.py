"""Commands that load libraries say so first, and check settings before: measured with libraries that say when they are imported."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rl_swarm.config import load
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout

MARK = "torch is imported"
COMMANDS = {
    "ask What?": "loading libraries",
    "chat": "loading libraries",
    "export {folder}/model": "loading libraries",
    "probe": "loading nano, then asking it for 120 s",
    "memory nano": "loading libraries, then estimating",
    "work": "w1: loading libraries",
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An experiment, and a torch that says when it is imported and then ends the program."""
    (tmp_path / "libraries" / "torch").mkdir(parents=True)
    (tmp_path / "libraries" / "torch" / "__init__.py").write_text(
        f"import sys, os; print({MARK!r}, file=sys.stderr, flush=True); os._exit(7)\n"
    )
    settings = {
        "GDRIVE_PATH": str(tmp_path / "store"),
        "EXPERIMENT_NAME": "trial",
        "RL_SWARM_HOME": str(tmp_path / "home"),
        "MODEL_NAME": "nano",
        "NODE_ID": "w1",
    }
    (tmp_path / "store").mkdir()
    store = FolderStore(tmp_path / "store")
    experiments.publish(store, Layout("trial"), load(settings), "reasoning-gym 0.1.25", store.clock)
    return settings | {"PYTHONPATH": str(tmp_path / "libraries"), "PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"}


def run(command: str, environment: dict[str, str], folder: Path) -> "subprocess.CompletedProcess[str]":
    arguments = [word.format(folder=folder) for word in command.split()]
    return subprocess.run(
        [sys.executable, "-m", "rl_swarm.cli", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_the_first_line_comes_before_torch_is_imported(command: str, environment: dict[str, str], tmp_path: Path) -> None:
    done = run(command, environment, tmp_path)
    lines = done.stdout.splitlines()
    assert lines[0] == COMMANDS[command] and MARK in lines[1:], done.stdout
    assert done.returncode == 7


@pytest.mark.parametrize("command", ["ask What?", "export {folder}/model", "memory nano", "doctor"])
def test_a_wrong_setting_is_reported_before_any_library_is_loaded(
    command: str, environment: dict[str, str], tmp_path: Path
) -> None:
    done = run(command, environment | {"NUM_GENERATIONS": "1"}, tmp_path)
    assert done.returncode == 2
    assert done.stdout.count("\n") == 1 and done.stdout.startswith("rl-swarm: NUM_GENERATIONS must be at least 2, got '1'")


def test_the_doctor_says_at_once_that_it_has_begun(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "rl_swarm.cli", "doctor"]
    doctor = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    assert doctor.stderr
    with doctor.stderr as said:
        assert said.readline() == b"checking this machine, its libraries and the store\n"
        assert doctor.poll() is None
        os.killpg(doctor.pid, signal.SIGKILL)
    doctor.wait()
