"""The commands and imports of the reference documents, in real processes with a real model."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_swarm.cli import main
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.rounds import CurrentState, Rounds
from tests.support.rows import metrics
from tests.support.tiny_models import gpt2, plain_tokenizer

ROOT = Path(__file__).parents[1]
LAYOUT = Layout("test_validation")


class Terminals:
    """Five terminals on one folder, each with the documents' variables and command."""

    def __init__(self, tmp_path: Path, model: str, **settings: Any) -> None:
        self.folder = tmp_path / "gdrive"
        self.folder.mkdir()
        self.tmp_path = tmp_path
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "OMP_NUM_THREADS": "1",
            "TEST_MODE": "True",
            "GDRIVE_PATH": str(self.folder),
            "EXPERIMENT_NAME": "test_validation",
            "MODEL_NAME": model,
            "ROLLOUT_CLEANUP_ENABLED": "False",
            **{name: str(value) for name, value in settings.items()},
        }
        self.anywhere = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}  # a script imports from its own folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, node_id: str, role: str) -> None:
        command = [sys.executable, "-m", "rgym_exp.runner.swarm_launcher"]
        environment = self.environment | {"NODE_ID": node_id, "NODE_ROLE": role}
        with (self.tmp_path / f"{node_id}.console").open("wb") as console:
            self.processes.append(subprocess.Popen(command, env=environment, cwd=ROOT, stdout=console, stderr=console))

    def run(self) -> float:
        began = time.monotonic()
        self.start("coordinator_0", "coordinator")
        for number in range(1, 5):
            self.start(f"worker_{number}", "worker")
        for process in self.processes:
            assert process.wait(120) == 0, self.consoles()
        return time.monotonic() - began

    def consoles(self) -> str:
        return "\n".join(path.read_text() for path in self.tmp_path.glob("*.console"))

    def validate(self, *more: str) -> tuple[int, dict[str, Any]]:
        results = self.folder / LAYOUT.report("test_results.json")
        results.unlink(missing_ok=True)
        arguments = ["--gdrive-path", str(self.folder), "--experiment", "test_validation", "--rounds", "3", "--nodes", "5", *more]
        if more:
            command = [sys.executable, "rgym_exp/test/validate_test_run.py", *arguments]
            code = subprocess.run(command, cwd=ROOT, env=self.anywhere, capture_output=True, timeout=60).returncode
        else:  # the same without the time that a process takes to start
            with pytest.raises(SystemExit) as done:
                main(["validate", *arguments])
            code = int(done.value.code or 0)
        return code, json.loads(results.read_text())

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminals]:
    """TEST_MODE with nano and J = 2, done. More questions than TEST_MODE has, so that nano surely finds something to share."""
    folder = tmp_path_factory.mktemp("terminals")
    terminals = Terminals(
        folder,
        "nano",
        NUM_TRANSPLANT_TREES=2,
        NUM_TRAIN_SAMPLES=16,
        NUM_GENERATIONS=8,
        COORDINATOR_ROUND_INTERVAL=20,
        EVAL_INTERVAL=0,
    )
    try:
        assert terminals.run() < 120
        yield terminals
    finally:
        terminals.close()


def failed(results: dict[str, Any]) -> dict[str, str]:
    return {finding["check"]: finding["detail"] for finding in results["findings"] if finding["status"] == "failed"}


def test_five_terminals_with_nano_pass_the_validator_and_damage_fails_it_for_the_right_reason(finished: Terminals) -> None:
    code, results = finished.validate("--transplants", "2")
    assert (code, failed(results)) == (0, {})
    garbage = finished.folder / LAYOUT.rollouts_of(0) / "stranger.json"
    garbage.write_text("hello")
    code, results = finished.validate()
    assert code == 0
    garbage.unlink()
    assert any(finding["check"] == "strangers" and finding["status"] == "warning" for finding in results["findings"])

    reward = finished.folder / LAYOUT.reward(1, "worker_3")
    kept = reward.read_bytes()
    reward.unlink()
    code, results = finished.validate()
    assert (code, failed(results)) == (1, {"rewards": "missing: worker_3 round 1"})
    reward.write_bytes(kept)

    log = finished.folder / LAYOUT.log("worker_1", "stderr.log")
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
    code, results = finished.validate()
    assert code == 1
    assert "out of memory" in failed(results)["logs"]
    log.unlink()

    rollouts = finished.folder / LAYOUT.bundle(2, "worker_2")
    kept = rollouts.read_bytes()
    rollouts.unlink()
    code, results = finished.validate()
    assert code == 1
    assert failed(results)["rollouts"] == "worker_2 round 2: no rollout file"
    rollouts.write_bytes(kept)


def test_a_newcomer_joins_with_one_string(finished: Terminals) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(finished.tmp_path), "OMP_NUM_THREADS": "1", "NODE_ID": "newcomer"}
    command = [sys.executable, "-m", "rl_swarm.cli", "join", f"{finished.folder}/test_validation"]
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 2 and "is complete, after 3 rounds" in refused.stderr
    state = finished.folder / LAYOUT.current_state
    complete = state.read_bytes()
    Rounds(FolderStore(finished.folder), LAYOUT).write_current(CurrentState(2, 0.0, "boss", "test_validation", "running"))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    state.write_bytes(complete)
    assert done.returncode == 0, done.stderr
    rows = metrics(FolderStore(finished.folder), LAYOUT, "newcomer")
    assert [(row["round"], row["own_wanted"], row["group_size"], row["external_wanted"]) for row in rows] == [(2, 16, 8, 2)]
    registration = json.loads((finished.folder / LAYOUT.peer("newcomer")).read_text())
    assert registration["model"] == "nano"


@pytest.mark.parametrize(
    ("address", "says"), [("nowhere", "must be STORE/EXPERIMENT"), (".", "must be"), ("{}/none", "no experiment 'none'")]
)
def test_a_wrong_address_is_one_line(address: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["join", address.format(tmp_path)])
    assert done.value.code == 2
    shown = capsys.readouterr().err
    assert says in shown and shown.count("\n") == 1


def test_the_documents_imports(finished: Terminals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_SWARM_HOME", str(tmp_path / "home"))
    from rgym_exp.utils.experiment_manager import (
        compare_experiments,
        export_experiment_summary,
        get_experiment_metrics,
        get_experiment_status,
        init_experiment,
        list_experiments,
    )
    from rgym_exp.utils.notebook_utils import run_with_live_output
    from rgym_exp.utils.progress_tracker import get_experiment_progress

    folder = str(finished.folder)
    newest = get_experiment_progress(folder, "test_validation")
    assert newest["complete"] and {newest["nodes"][f"worker_{number}"]["event"] for number in range(1, 5)} == {"training_complete"}
    assert len([row for row in get_experiment_metrics(folder, "test_validation") if row["node_id"] != "newcomer"]) == 12
    assert get_experiment_status(folder, "test_validation")["status"] == "complete"
    compared = compare_experiments(folder, ["test_validation"])
    assert [row["round"] for row in compared] == [0, 1, 2]
    summary = export_experiment_summary(folder, "test_validation")
    assert summary["rewards"] == compared
    assert json.loads((finished.folder / LAYOUT.summary).read_text()) == json.loads(json.dumps(summary))
    before = (finished.folder / LAYOUT.current_state).read_bytes()
    assert init_experiment(folder, "test_validation") == str(finished.folder / LAYOUT.root)
    assert (finished.folder / LAYOUT.current_state).read_bytes() == before, "a live experiment must not be rewound"
    init_experiment(folder, "another", {"MODEL_NAME": "nano", "NUM_TRAIN_SAMPLES": 2})
    assert [(row["name"], row["status"], row["round"]) for row in list_experiments(folder)] == [
        ("another", "new", None),
        ("test_validation", "complete", 2),
    ]
    assert run_with_live_output([sys.executable, "-c", "print('x' * 100000); raise SystemExit(3)"]) == 3


def test_the_launcher_takes_flags_and_answers_the_name_of_a_configuration(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rgym_exp.runner.swarm_launcher", "--config-name", "colab-gdrive"]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "GDRIVE_PATH": str(tmp_path / "gdrive"),
        "EXPERIMENT_NAME": "e",
        "NODE_ROLE": "coordinator",
        "ROUND_ADVANCE": "timer",
        "COORDINATOR_ROUND_INTERVAL": "0.1",
    }
    done = subprocess.run([*command, "--max-rounds", "2"], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "coordinator complete at round 1" in done.stdout
    assert done.stderr == (
        "warning: --config-name colab-gdrive has no effect: there are no configuration files, "
        "'rl-swarm config' shows all settings\n"
    )


@pytest.mark.slow
def test_j_asked_for_and_never_reached_fails(tmp_path: Path) -> None:
    """A model with random weights answers nothing right, so no rollout is informative."""
    folder = tmp_path / "random-gpt2"
    tokenizer = plain_tokenizer()
    gpt2(len(tokenizer), seed=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    terminals = Terminals(
        tmp_path, str(folder), NUM_TRANSPLANT_TREES=1, TASKS="easy", MAX_NEW_TOKENS=8, COORDINATOR_ROUND_INTERVAL=20
    )
    try:
        assert terminals.run() < 120
        code, results = terminals.validate("--transplants", "1")
        assert code == 1
        assert set(failed(results)) == {"sharing"}
        assert failed(results)["sharing"] == "J = 1, but no external rollout was ever used"
        code, results = terminals.validate("--transplants", "0")
        assert (code, failed(results)) == (0, {})
    finally:
        terminals.close()
