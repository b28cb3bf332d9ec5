"""The base model and the trained one on the held-out questions of a run."""

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from rl_swarm.config import load
from rl_swarm.errors import ConfigError
from rl_swarm.learning import evaluation
from rl_swarm.learning.checkpoint import Checkpoints
from rl_swarm.learning.trainer import Trainer
from rl_swarm.node.learner import load_policy
from rl_swarm.node.local import MODEL_FILE, LocalFolder, experiment_folder
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.tasks import Tasks, tasks_of
from rl_swarm.tools.evaluate import evaluate
from rl_swarm.tools.opening import open_run


def test_both_are_measured_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held_out = Tasks.held_out
    monkeypatch.setattr(Tasks, "held_out", lambda tasks: held_out(tasks)[::4])  # a quarter is enough here
    (tmp_path / "store").mkdir()
    store, layout = FolderStore(tmp_path / "store"), Layout("trial")
    environment = {"GDRIVE_PATH": str(tmp_path / "store"), "EXPERIMENT_NAME": "trial", "RL_SWARM_HOME": str(tmp_path / "home")}
    environment |= {"MODEL_NAME": "nano", "CPU_ONLY": "1"}
    config = load(environment)
    folder = experiment_folder(config, experiments.publish(store, layout, config, "reasoning-gym", store.clock)) / "w1"
    spoilt = load_policy(config)
    for parameter in spoilt.model.parameters():
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    Checkpoints(folder / "checkpoints").save(3, {}, Trainer(spoilt, 1e-3).state())
    (folder / MODEL_FILE).write_text("nano")

    measured = evaluate(open_run(environment, {}))
    assert (measured.model, measured.node_id, measured.round) == ("nano", "w1", 3)
    base, trained = measured.base, measured.trained
    assert base.held_out_in_form == pytest.approx(0.7, abs=0.15) and base.held_out_style_blind == pytest.approx(0.8, abs=0.15)
    assert base.held_out < 0.1 and trained.held_out_in_form < base.held_out_in_form
    assert base.held_out_questions == trained.held_out_questions >= 95
    expected = evaluation.HeldOut(Tasks(tasks_of(config), seed=1, node_id="x"), spoilt)()
    assert trained.held_out_style_blind == expected["held_out_style_blind"], "the questions are the same for everybody"
    console = Console(width=100, file=io.StringIO())
    console.print(measured.view)
    text = console.file.getvalue()
    assert f"all {base.held_out_questions}, in the form" in text and "gcd" in text and " to " in text
    assert json.loads(json.dumps(measured.as_dict()))["trained"]["round"] == 3


OWN = """
def question(seed, index):
    return {"prompt": f"Calculate {index % 9} + 1.", "answer": str(index % 9 + 1)}
"""


def test_task_files_that_this_disk_remembers_are_used_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "own.py").write_text(OWN)
    store, layout = FolderStore(tmp_path / "store"), Layout("trial")
    environment = {"GDRIVE_PATH": str(tmp_path / "store"), "EXPERIMENT_NAME": "trial", "RL_SWARM_HOME": str(tmp_path / "home")}
    environment |= {"CPU_ONLY": "1"}
    config = load(environment | {"TASKS": str(tmp_path / "own.py"), "MODEL_NAME": "nano"})
    folder = experiment_folder(config, experiments.publish(store, layout, config, "reasoning-gym", store.clock)) / "w1"
    Checkpoints(folder / "checkpoints").save(3, {}, Trainer(load_policy(config), 1e-3).state())
    with pytest.raises(ConfigError, match=r"the task file 'own\.py' with hash \w+, which TASK_FILES does not name"):
        evaluate(open_run(environment, {}))
    with (folder / "lock").open("w") as lock:
        LocalFolder("w1", folder, lock).remember_task_files([str(tmp_path / "own.py")])
    assert evaluate(open_run(environment, {})).base.held_out_questions >= 2
    (tmp_path / "own.py").write_text(OWN + "\nopen('ran', 'w')\n")
    with pytest.raises(ConfigError, match="which TASK_FILES does not name"):
        evaluate(open_run(environment, {}))
