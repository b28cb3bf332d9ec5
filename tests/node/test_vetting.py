"""Nothing wrong is published: tasks and model are checked before experiment.json is written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl_swarm.config import load
from rl_swarm.errors import ConfigError, ModelError
from rl_swarm.node.vetting import vet
from rl_swarm.tasks import helper
from rl_swarm.tools.experiments import init_experiment
from tests.support.hub_stub import point_at
from tests.support.processes import ROOT


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Task files and models, none of which can be used."""
    (tmp_path / "broken.py").write_text("def question(seed, index)\n")
    (tmp_path / "empty.py").write_text("")
    for model in ("bare", "strange", "my model"):
        (tmp_path / model).mkdir()
    for model in ("strange", "my model"):
        (tmp_path / model / "config.json").write_text('{"model_type": "no-such-architecture"}')
    return tmp_path


WRONG = [
    ("TASKS", "gdc", "names 'gdc', which is no task of reasoning-gym: did you mean 'gcd'?"),
    ("TASKS", "gcd:max_valu=3", "gcd has no parameter 'max_valu'"),
    ("TASKS", "{files}/missing.py", "names the file"),
    ("TASKS", "{files}/broken.py", "which cannot be loaded (SyntaxError"),
    ("TASKS", "{files}/empty.py", "which has no function question(seed, index)"),
    ("MODEL_NAME", "two words", "neither nano, auto, a folder nor a valid Hugging Face id"),
    ("MODEL_NAME", "nanno", "did you mean 'nano'?"),
    ("MODEL_NAME", "Auto", "did you mean 'auto'?"),
    ("MODEL_NAME", "a/b/c", "is not a folder"),
    ("MODEL_NAME", "{files}/missing", "is not a folder"),
    ("MODEL_NAME", "{files}/bare", "no config.json in"),
]


@pytest.mark.parametrize(("variable", "value", "says"), WRONG, ids=[f"{variable} {value}" for variable, value, _ in WRONG])
def test_a_wrong_setting_is_refused_in_one_line(variable: str, value: str, says: str, files: Path) -> None:
    config = load({"MODEL_NAME": "nano", variable: value.format(files=files)})
    with pytest.raises(ConfigError) as refused:
        vet(config, lambda line: None)
    assert says in str(refused.value) and "\n" not in str(refused.value)


def test_a_worker_reads_the_config_of_its_model_and_no_weights(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with pytest.raises(ModelError, match=r"the config of .*strange cannot be read"):
        vet(load({"MODEL_NAME": str(files / "strange"), "TASKS": "easy"}), said.append)
    assert said == [f"looking for {files / 'strange'}, to check it"], "a node alone publishes nothing"
    with pytest.raises(ModelError):
        vet(load({"MODEL_NAME": str(files / "strange"), "TASKS": "easy", "GDRIVE_PATH": str(files)}), said.append)
    assert said[1:] == [f"looking for {files / 'strange'}, to check it before the experiment is published"]
    (files / "strange" / "config.json").write_text('{"model_type": "gpt2"}')
    vet(load({"MODEL_NAME": str(files / "strange"), "TASKS": "easy"}), said.append)
    point_at("http://127.0.0.1:9", monkeypatch)
    with pytest.raises(ModelError, match="cannot reach the Hugging Face hub for tester/typo"):
        vet(load({"MODEL_NAME": "tester/typo", "TASKS": "easy"}), said.append)


def test_a_coordinator_asks_no_hub_and_ends_the_processes_that_checked_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    point_at("http://127.0.0.1:9", monkeypatch)
    for model in ("tester/nano", "gpt2"):
        vet(load({"MODEL_NAME": model, "TASKS": "gcd", "NODE_ROLE": "coordinator"}), lambda line: None)
    assert helper._loader is None


NODES = ("coordinate", "work", "swarm")


def run(tmp_path: Path, *arguments: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "GDRIVE_PATH": str(tmp_path / "store"),
        "EXPERIMENT_NAME": "e",
        "OMP_NUM_THREADS": "1",
        **settings,
    }
    return subprocess.run(
        [sys.executable, "-m", "rl_swarm.cli", *arguments], env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        ("coordinate", {"MODEL_NAME": "./none"}),
        ("work", {"MODEL_NAME": "./none"}),
        ("swarm", {"RL_SWARM_HOME": "{tmp}/store/home", "MODEL_NAME": "nano"}),
        *(pytest.param(command, {"TASKS": "gdc", "MODEL_NAME": "nano"}, marks=pytest.mark.slow) for command in NODES),
    ],
)
def test_a_command_publishes_nothing_that_is_wrong(command: str, settings: dict[str, str], tmp_path: Path) -> None:
    done = run(tmp_path, command, **{name: value.format(tmp=tmp_path) for name, value in settings.items()})
    assert done.returncode == 2 and next(iter(settings)) in done.stderr and done.stderr.count("\n") == 1
    assert list((tmp_path / "store").rglob("*")) == []


def test_neither_a_coordinator_nor_its_helper_imports_torch(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    for name in ("torch", "transformers"):
        (tmp_path / "first" / f"{name}.py").write_text(f"raise RuntimeError('{name} was imported')\n")
    settings = {"TASKS": "gcd", "MODEL_NAME": "tester/model", "MAX_ROUNDS": "1", "COORDINATOR_ROUND_INTERVAL": "0.1"}
    path = os.pathsep.join((str(tmp_path / "first"), str(ROOT)))
    done = run(tmp_path, "coordinate", "--round-advance", "timer", PYTHONPATH=path, **settings)
    assert done.returncode == 0, done.stderr
    assert "loading the tasks, to check them before the experiment is published" in done.stdout


def test_a_notebook_publishes_no_override_that_is_no_setting(files: Path) -> None:
    for overrides, says in (
        ({"NUM_GENERATION": 4}, "NUM_GENERATION is not a setting of RL Swarm: did you mean 'NUM_GENERATIONS'"),
        ({"num_train_samples": 4}, "num_train_samples is not a setting of RL Swarm: did you mean 'NUM_TRAIN_SAMPLES'"),
        ({"fetch_max_peers": 5}, "fetch_max_peers has no effect: set ROLLOUT_FETCH_MAX_PEERS instead"),
        ({"MODEL_NAME": "two words"}, "neither nano"),
        ({"MODEL_NAME": str(files / "my model")}, "cannot be published, its MODEL_NAME is neither on the hub nor a name"),
    ):
        with pytest.raises(ConfigError) as refused:
            init_experiment(str(files / "store"), "e", overrides)
        assert says in str(refused.value)
        assert not list((files / "store").rglob("*.json"))
    init_experiment(str(files / "store"), "e", {"MODEL_NAME": "nano", "ROLLOUT_PUBLISH_FREQUENCY": "stage"})
