"""The notebooks are what their source says, and run top to bottom with nano, also after a killed kernel."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import DeadKernelError

from checks.notebooks import FOLDER, Notebook, as_file, client_of, execute, groups, make_all, run_group
from rl_swarm.clock import SystemClock
from rl_swarm.config import load
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import Registration, register
from tests.support.processes import descendants

ROOT = Path(__file__).parents[1]
ALL = {notebook.names[0]: notebook for notebook in make_all()}
FAST = ("00_start_here", "TEST_MODE", "EX12.20.SAPO_Results_Analysis")
SMALL = {"ROUNDS": {"CPU": 2}, "WORKERS": {"CPU": 2}, "PROBE_SECONDS": 1}
PLAIN_SMALL = {"ROUNDS": 2, "WORKERS": 2, "EVALUATED_EVERY": 0}


def run(notebook: Notebook, folder: Path, **constants: object) -> nbformat.NotebookNode:
    made = as_file(notebook)
    execute(made, folder, {"RL_SWARM_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}, **constants)
    return made


def shown(made: nbformat.NotebookNode) -> str:
    """Everything that the cells showed, as plain text."""
    outputs = [output for cell in made.cells for output in cell.get("outputs", [])]
    return "\n".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs)


def small(notebook: Notebook) -> dict[str, object]:
    return dict(SMALL if "settings" in notebook.parts else PLAIN_SMALL)


def write_run(folder: Path, name: str, split: str, rewards: Sequence[float]) -> None:
    """A finished run of two workers, with rewards of our choice."""
    own, external = split.split("/")
    store, layout = FolderStore(folder, local=True), Layout(name)
    config = load({"MODEL_NAME": "nano", "NUM_TRAIN_SAMPLES": own, "NUM_TRANSPLANT_TREES": external})
    experiments.publish(store, layout, config, "stand-in 1", SystemClock())
    for node in ("w1", "w2"):
        register(store, layout, Registration(node, "worker", 0.0, "nano", node, "1", "s"))
        row = {"timestamp": 1.0, "node_id": node, "own_wanted": int(own), "external_wanted": int(external), "tokens": 9}
        lines = [json.dumps(row | {"round": number, "reward": reward}) for number, reward in enumerate(rewards)]
        store.put(layout.log(node, "metrics.jsonl"), "\n".join(lines).encode())


def played(experiment: Path) -> int:
    """Rounds of all nodes, each once."""
    rows = {
        (path.parent.name, json.loads(line)["round"])
        for path in experiment.glob("logs/*/metrics.jsonl")
        for line in path.read_text().splitlines()
        if line.endswith("}")
    }
    return len(rows)


def eventually(is_so: Callable[[], bool], seconds: float) -> None:
    ends = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < ends, f"not within {seconds} s"
        time.sleep(0.2)


@pytest.mark.parametrize("name", sorted(name for notebook in make_all() for name in notebook.names))
def test_a_notebook_is_what_its_source_says(name: str) -> None:
    made = as_file(next(notebook for notebook in make_all() if name in notebook.names))
    written = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    assert [cell.source for cell in written.cells] == [cell.source for cell in made.cells], "run: python -m checks.notebooks write"
    nbformat.validate(written)


def test_every_notebook_that_the_documents_name_is_there() -> None:
    splits = (
        "10.SAPO_Experiment_8loc0ext",
        "11.SAPO_Experiment_6loc2ext",
        "12.SAPO_Experiment_4loc4ext",
        "13.SAPO_Experiment_2loc6ext",
    )
    five = ("Baseline_4loc0ext", "Config1_3loc1ext", "Config2_2loc2ext", "Config3_1loc3ext")
    names = {
        *("00_start_here", "colab_coordinator", "colab_worker", "TEST_MODE"),
        *(f"EX12.{name}" for name in ("00.RL_Swarm_Coordinator", "01.RL_Swarm_Worker", "02.RL_Swarm_Monitoring", *splits)),
        *(f"EX12.14{letter}.SAPO_gpt2_{name}" for letter, name in zip("abcd", five, strict=True)),
        *("EX12.14.SAPO_8Node_SingleGPU_gpt2", "EX12.20.SAPO_Results_Analysis"),
    }
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == names


@pytest.mark.parametrize("kind", ["t4", "a100"])
def test_the_settings_for_gpus_are_settings(kind: str) -> None:
    for notebook in make_all():
        if kind in notebook.words:
            settings = {name: str(value) for name, value in eval(str(notebook.words[kind])).items()}
            assert load(settings).dtype != "bfloat16" or kind == "a100", "a T4 does not compute in bfloat16"


def test_five_minutes_from_nothing_to_a_curve_and_a_chat(tmp_path: Path) -> None:
    made = run(ALL["00_start_here"], tmp_path, ROUNDS=3, WORKERS=2, EVALUATED_EVERY=0)
    text = shown(made)
    assert "start_here: complete, 3 of 3 rounds" in text and "swarm complete" in text
    assert any("image/png" in output.get("data", {}) for cell in made.cells for output in cell.get("outputs", []))
    assert "after" in text and (tmp_path / "model.zip").stat().st_size > 1000


def test_test_mode_checks_what_it_left(tmp_path: Path) -> None:
    text = shown(run(ALL["TEST_MODE"], tmp_path))
    assert "all 3 announced" in text and "failed" not in text


def test_the_analysis_shows_four_runs_beside_the_papers_figures(tmp_path: Path) -> None:
    (tmp_path / "rl-swarm-data").mkdir()
    names = []
    for place, (split, rewards) in enumerate({"8/0": 0.2, "6/2": 0.3, "4/4": 0.4, "2/6": 0.3}.items()):
        names.append(f"run_{place}")
        write_run(tmp_path / "rl-swarm-data", names[-1], split, [rewards] * 6)
    made = run(ALL["EX12.20.SAPO_Results_Analysis"], tmp_path, EXPERIMENTS=names)
    text = shown(made)
    assert "4/4 against 8/0: +100 % cumulative own reward" in text and "1093.31" in text and "the paper's gain" in text
    assert (tmp_path / "analysis" / "report.html").exists()


@pytest.fixture
def informative(monkeypatch: pytest.MonkeyPatch) -> None:
    """Already in two rounds there is something to share."""
    monkeypatch.setenv("COMPLETION_PREFIX", "answer")


@pytest.mark.slow
@pytest.mark.usefixtures("informative")
def test_every_notebook_runs_top_to_bottom(tmp_path: Path) -> None:
    """In the order of a user: the worker joins the coordinator, the monitoring and the analysis find the runs of those before."""
    for group in groups():
        for made in run_group(group, tmp_path, **small(group[0])):
            assert "Traceback" not in shown(made), group[0].names[0]


@pytest.mark.slow
@pytest.mark.usefixtures("informative")
def test_in_colab_everything_is_on_the_drive(tmp_path: Path) -> None:
    """A FUSE mount that refuses to rename, which is flushed, unmounted and mounted again; and a secret that no cell shows."""
    drive, downloads = tmp_path / "uploaded", tmp_path / "downloads"
    downloads.mkdir()
    environment = {
        "PYTHONPATH": f"{ROOT / 'tests' / 'support' / 'fake_colab'}{os.pathsep}{ROOT}",
        "FAKE_DRIVE": str(drive),
        "FAKE_DOWNLOADS": str(downloads),
        "FAKE_SECRETS": json.dumps({"HF_TOKEN": "hf_a_secret"}),
        "RL_SWARM_HOME": str(tmp_path / "home"),
        "OMP_NUM_THREADS": "1",
    }
    constants = {"DRIVE_FOLDER": str(tmp_path / "mount" / "MyDrive" / "rl-swarm"), "WORKERS": 2, "EVALUATED_EVERY": 0}
    texts = []
    try:
        for name, rounds in (("TEST_MODE", 3), ("00_start_here", 2), ("EX12.12.SAPO_Experiment_4loc4ext", {"CPU": 2})):
            made = as_file(ALL[name])
            workers = {"WORKERS": {"CPU": 2}, "PROBE_SECONDS": 1} if "settings" in ALL[name].parts else {}
            execute(made, tmp_path, environment, **{**constants, "ROUNDS": rounds, **workers})
            texts.append(shown(made))
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path / "mount")], check=False)
    assert "waiting until the Drive has uploaded everything" in texts[0] and "all 3 announced" in texts[0]
    assert "HF_TOKEN is set" in texts[2] and "hf_a_secret" not in "".join(texts)
    assert {path.name for path in (drive / "MyDrive" / "rl-swarm" / "experiments").iterdir()} == {
        *("test_mode", "start_here", "ex12_12_4loc4ext")
    }
    assert (downloads / "model.zip").stat().st_size > 1000 and not (tmp_path / "rl-swarm-data").exists()


@pytest.mark.slow
def test_a_killed_kernel_takes_no_work_with_it(tmp_path: Path) -> None:
    """The kernel dies in mid-run; run all again, and every node goes on from its checkpoint."""
    notebook, experiment = ALL["00_start_here"], tmp_path / "rl-swarm-data" / "experiments" / "start_here"
    constants = {"ROUNDS": 40}
    environment = {"RL_SWARM_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    client = client_of(as_file(notebook), **constants)
    failed = list[BaseException]()

    def execute_until_killed() -> None:
        try:
            client.execute(env={**os.environ, **environment}, cwd=str(tmp_path))
        except DeadKernelError as dead:
            failed.append(dead)

    running = threading.Thread(target=execute_until_killed)
    running.start()
    eventually(lambda: played(experiment) >= 3 * 4, 240)
    kernel = client.km.provisioner.pid
    nodes = descendants(kernel) - {kernel}
    os.kill(kernel, signal.SIGKILL)
    running.join(60)
    assert failed and len(nodes) > 4
    eventually(lambda: not any(Path(f"/proc/{node}/cmdline").exists() for node in nodes), 120)
    saved = played(experiment)
    assert 0 < saved < 4 * 40
    text = shown(run(notebook, tmp_path, **constants))
    assert "start_here: complete, 40 of 40 rounds" in text and played(experiment) == 4 * 40
