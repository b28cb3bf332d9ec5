"""The notebooks are what their source says, and run top to bottom with nano, also after a killed kernel."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import venv
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import DeadKernelError

from checks.notebooks import (
    FOLDER,
    Notebook,
    as_file,
    client_of,
    code_cells,
    execute,
    groups,
    make_all,
    run_all,
    run_group,
    with_outputs,
)
from rl_swarm.clock import SystemClock
from rl_swarm.config import load
from rl_swarm.runs import progress
from rl_swarm.runs.progress import data_of
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


def saved(experiment: Path) -> dict[str, int]:
    """The round of each worker's newest checkpoint in the shared folder."""
    found: dict[str, int] = {}
    for path in experiment.glob("checkpoints/round_*/worker_*.pt"):
        found[path.stem] = max(found.get(path.stem, 0), int(path.parent.name.removeprefix("round_")))
    return found


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


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_holds_the_outputs_of_a_run(path: Path) -> None:
    made = nbformat.read(path, as_version=4)
    cells = code_cells(made)
    outputs = [output for cell in cells for output in cell.outputs]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run: make notebooks"
    assert all(output.output_type != "error" and output.get("name") != "stderr" for output in outputs)
    assert "TEST_MODE" in path.name or any("image/png" in output.get("data", {}) for output in outputs)
    assert path.stat().st_size < 200_000, "too large to be shown on a repository's page"


def test_outputs_stay_where_only_the_text_changes(tmp_path: Path) -> None:
    old, path = as_file(ALL["TEST_MODE"]), tmp_path / "old.ipynb"
    code_cells(old)[0].outputs = [nbformat.v4.new_output("stream", text="said")]
    old.cells[0].source = "another title"
    nbformat.write(old, path)
    kept = with_outputs(as_file(ALL["TEST_MODE"]), path)
    assert shown(kept) == "said" and kept.cells[0].source == as_file(ALL["TEST_MODE"]).cells[0].source
    assert not shown(with_outputs(as_file(ALL["00_start_here"]), path)), "other code"
    assert not shown(with_outputs(as_file(ALL["TEST_MODE"]), tmp_path / "none.ipynb"))


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
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("informative")
def test_every_notebook_runs_top_to_bottom(tmp_path: Path) -> None:
    """In the order of a user: the worker joins the coordinator, the monitoring and the analysis find the runs of those before."""
    for group in groups():
        long_enough_to_meet = {"ROUNDS": {"CPU": 200}} if len(group) > 1 else {}
        for made in run_group(group, tmp_path, **{**small(group[0]), **long_enough_to_meet}):
            assert "Traceback" not in shown(made), group[0].names[0]


def colabs_python(folder: Path) -> Path:
    """Make a Python with the libraries of this one, torch among them, as Colab has its own; but without this package."""
    venv.create(folder, with_pip=True)
    [site] = folder.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin" / "python"


def local_wheel(folder: Path) -> str:
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    return wheel.as_uri()


@pytest.mark.slow
@pytest.mark.usefixtures("informative")
def test_in_colab_everything_is_on_the_drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package comes from a wheel, the Drive refuses to rename and uploads at a flush, and no cell shows a secret."""
    drive, downloads, python = tmp_path / "uploaded", tmp_path / "downloads", colabs_python(tmp_path / "colab")
    downloads.mkdir()
    kernel = tmp_path / "jupyter" / "kernels" / "python3" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    started = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.write_text(json.dumps({"argv": started, "display_name": "Colab", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    environment = {
        "PYTHONPATH": str(ROOT / "tests" / "support" / "fake_colab"),
        "FAKE_DRIVE": str(drive),
        "FAKE_RUNTIME": str(tmp_path / "runtime"),
        "FAKE_DOWNLOADS": str(downloads),
        "FAKE_SECRETS": json.dumps({"HF_TOKEN": "hf_a_secret"}),
        "RL_SWARM_HOME": str(tmp_path / "home"),
        "OMP_NUM_THREADS": "1",
    }
    constants = {"SOURCE": local_wheel(tmp_path / "dist"), "DRIVE_FOLDER": str(tmp_path / "mount" / "MyDrive" / "rl-swarm")}
    texts = []
    try:
        for name in ("00_start_here", "EX12.12.SAPO_Experiment_4loc4ext"):
            made = as_file(ALL[name])
            execute(made, tmp_path, environment, **constants, **small(ALL[name]))
            texts.append(shown(made))
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path / "mount")], check=False)
    assert "waiting until the Drive has uploaded everything" in texts[1] and "all 2 announced" in texts[1]
    assert "HF_TOKEN is set" in texts[1] and "hf_a_secret" not in "".join(texts)
    assert {path.name for path in (drive / "MyDrive" / "rl-swarm" / "experiments").iterdir()} == {
        *("start_here", "ex12_12_4loc4ext")
    }
    assert (downloads / "model.zip").stat().st_size > 1000 and not (tmp_path / "rl-swarm-data").exists()
    installed = {path.name for path in python.parents[1].glob("lib/python*/site-packages/*")}
    assert "rl_swarm" in installed and not installed & {"torch", "numpy"}, "Colab's own torch was replaced"


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["kernel", "runtime"])
def test_run_all_goes_on_where_every_node_was_saved(lost: str, tmp_path: Path) -> None:
    """The kernel dies in mid-run and the nodes save; or all dies at once with the runtime's disk, and the shared folder is left."""
    notebook, experiment = ALL["00_start_here"], tmp_path / "rl-swarm-data" / "experiments" / "start_here"
    constants = {"ROUNDS": 40, "WORKERS": 2, "EVALUATED_EVERY": 0}
    environment = {"RL_SWARM_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1", "CHECKPOINT_INTERVAL": "3"}
    client = client_of(as_file(notebook), **constants)
    failed = list[BaseException]()

    def execute_until_killed() -> None:
        try:
            run_all(client, tmp_path, environment)
        except DeadKernelError as dead:
            failed.append(dead)

    running = threading.Thread(target=execute_until_killed)
    running.start()
    eventually(lambda: len(saved(experiment)) == 2, 240)
    kernel = client.km.provisioner.pid
    nodes = descendants(kernel) - {kernel}
    for process in (kernel, *(nodes if lost == "runtime" else ())):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    running.join(60)
    assert failed and len(nodes) > 3
    eventually(lambda: not any(Path(f"/proc/{node}/cmdline").exists() for node in nodes), 120)
    if lost == "runtime":
        shutil.rmtree(tmp_path / "home")
    checkpoints = saved(experiment)
    assert len(checkpoints) == 2 and all(0 < number < 40 for number in checkpoints.values())
    made = as_file(notebook)
    execute(made, tmp_path, environment, **constants)
    assert "start_here: complete, 40 of 40 rounds" in shown(made)
    store, layout = FolderStore(tmp_path / "rl-swarm-data", local=True), Layout("start_here")
    starts = {node: data_of(progress.events(store, layout, node), "started") for node in checkpoints}
    assert {node: (each[-1]["resumed"], each[-1]["round"]) for node, each in starts.items()} == {
        node: (True, number) for node, number in checkpoints.items()
    }
