"""A node without a store: it works, resumes and can be inspected, and nothing leaves this machine."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rl_swarm.config import ALONE
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm.layout import Layout
from tests.support.processes import ROOT
from tests.support.rows import metrics

LAYOUT = Layout(ALONE)


def run(home: Path, *program: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    given = {"PYTHONPATH": str(ROOT), "RL_SWARM_HOME": str(home), "NODE_ID": "me", "STANDIN_SECONDS": "0"}
    environment = given | {name: str(value) for name, value in settings.items()}
    return subprocess.run([sys.executable, "-m", *program], env=environment, capture_output=True, text=True, timeout=120)


def rounds(home: Path) -> list[int]:
    return [row["round"] for row in metrics(FolderStore(home / ALONE), LAYOUT, "me")]


def test_it_works_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    done = run(tmp_path, "tests.support.standin_node", MAX_ROUNDS=3)
    assert done.returncode == 0, done.stderr
    assert f"alone, without a store: everything stays in {tmp_path / ALONE}" in done.stdout
    assert rounds(tmp_path) == [0, 1, 2]
    again = run(tmp_path, "tests.support.standin_node", MAX_ROUNDS=5)
    assert again.returncode == 0 and "round 2" not in again.stdout
    assert rounds(tmp_path) == [0, 1, 2, 3, 4]
    assert {path.name for path in tmp_path.iterdir()} == {ALONE, *(path.name for path in tmp_path.glob(f"{ALONE}-*"))}


def test_it_says_first_that_it_is_alone(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "no-such-architecture"}')
    done = run(tmp_path, "rl_swarm.cli", "work", MODEL_NAME=model, HOME=tmp_path)
    assert done.stdout.splitlines() == [
        f"alone, without a store: everything stays in {tmp_path / ALONE}; set GDRIVE_PATH to join others",
        f"looking for {model}, to check it",
    ]


def test_status_and_validate_read_what_it_wrote(tmp_path: Path) -> None:
    before = run(tmp_path, "rl_swarm.cli", "status")
    assert before.returncode == 2 and before.stderr.startswith("rl-swarm: GDRIVE_PATH is not set")
    assert run(tmp_path, "tests.support.standin_node", MAX_ROUNDS=2).returncode == 0
    status = json.loads(run(tmp_path, "rl_swarm.cli", "status", "--json").stdout)
    assert (status["experiment"], status["round"]) == (ALONE, 1)
    [node] = status["nodes"]
    assert (node["node_id"], node["role"], node["doing"], node["reward"]) == ("me", "worker", "complete", 0.5)


@pytest.mark.slow
def test_nano_can_be_asked_and_exported(tmp_path: Path) -> None:
    nano = {"MODEL_NAME": "nano", "CPU_ONLY": "true", "MAX_ROUNDS": 2, "HOME": tmp_path, "OMP_NUM_THREADS": 1, "EVAL_INTERVAL": 1}
    done = run(tmp_path, "rl_swarm.cli", "work", **nano)
    assert done.returncode == 0, done.stderr
    asked = run(tmp_path, "rl_swarm.cli", "ask", "What is 1 + 1?", **nano)
    assert asked.returncode == 0, asked.stderr
    exported = run(tmp_path, "rl_swarm.cli", "export", str(tmp_path / "model"), **nano)
    assert exported.returncode == 0, exported.stderr
    assert "## Held-out questions" in (tmp_path / "model" / "README.md").read_text()
