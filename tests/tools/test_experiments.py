"""Functions for programs, and the commands `experiments` and `report --csv|--json`."""

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import pytest

from rl_swarm.cli import main
from rl_swarm.clock import SystemClock
from rl_swarm.config import load
from rl_swarm.errors import ConfigError
from rl_swarm.runs import progress
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm import experiment as published
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.rounds import Announcement, CurrentState, Rounds
from rl_swarm.tools import experiments
from tests.support.clocks import VirtualClock
from tests.support.processes import ROOT
from tests.support.sample_run import LAYOUT, SampleRun

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_SWARM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path / "home"


@pytest.fixture
def run(tmp_path: Path) -> SampleRun:
    (tmp_path / "store").mkdir()
    return SampleRun(FolderStore(tmp_path / "store", VirtualClock(), local=True), tmp_path).complete()


@pytest.fixture
def place(run: SampleRun) -> str:
    return run.store.url


@pytest.fixture
def typed(place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Typed:
    def call(*arguments: str, answer: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(answer.encode())))
        with pytest.raises(SystemExit) as done:
            main([*arguments, "--gdrive-path", place])
        captured = capsys.readouterr()
        return int(done.value.code or 0), captured.out, captured.err

    return call


def test_metrics_by_node_and_by_round(place: str) -> None:
    rows = experiments.get_experiment_metrics(place, "trial")
    assert len(rows) == 48 and {row["node_id"] for row in rows} == {"w1", "w2", "w3"}
    rounds = experiments.get_experiment_metrics(place, "trial", aggregate_by_round=True)
    assert [row["round"] for row in rounds] == list(range(16)) and {row["nodes"] for row in rounds} == {3}
    for row in rounds:
        rewards = [each["reward"] for each in rows if each["round"] == row["round"]]
        assert row["reward"] == pytest.approx(sum(rewards) / 3)
        assert (row["reward_min"], row["reward_max"]) == (min(rewards), max(rewards))
        assert row["external_used"] == sum(each["external_used"] for each in rows if each["round"] == row["round"])


def test_cumulative_rewards_are_sums_over_rounds(place: str) -> None:
    rows, found = experiments.get_experiment_metrics(place, "trial"), experiments.get_cumulative_rewards(place, "trial")
    for node_id, total in found["nodes"].items():
        assert total == pytest.approx(sum(row["reward"] for row in rows if row["node_id"] == node_id))
    assert found["mean"] == pytest.approx(found["rounds"][-1]["cumulative_reward"]), "all nodes have all rounds"
    compared = experiments.compare_experiments(place, ["trial"])
    assert [row["cumulative_reward"] for row in compared] == [row["cumulative_reward"] for row in found["rounds"]]


def test_progress_is_what_the_documents_viewer_shows(run: SampleRun, place: str) -> None:
    for worker in run.workers.values():
        worker.journal.progress("training_complete", 15)
    run.flush()
    found = experiments.get_experiment_progress(place, "trial")
    assert (found["experiment"], found["status"], found["complete"], found["max_rounds"]) == ("trial", "complete", True, 16)
    worker = found["nodes"]["w1"]
    assert (worker["event"], worker["round"], worker["state"], worker["role"]) == ("training_complete", 15, "complete", "worker")
    assert worker["reward"] is not None and worker["elapsed_seconds"] >= 0 and worker["memory_gb"] > 0 and worker["since"] > 0
    assert found["nodes"]["boss"]["state"].startswith("waiting for") and found["nodes"]["boss"]["event"] is None
    json.dumps(found)


def test_an_experiment_that_exists_is_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    place = str(tmp_path / "new")
    settings = {"MODEL_NAME": "nano", "TASKS": "gcd", "MAX_ROUNDS": 9}
    assert experiments.init_experiment(place, "fresh", settings) == f"{place}/experiments/fresh"
    store, layout = FolderStore(tmp_path / "new"), Layout("fresh")
    Rounds(store, layout).write_current(CurrentState(5, 1.0, "boss", "fresh", "running"))
    before = {path: path.read_bytes() for path in (tmp_path / "new").rglob("*") if path.is_file()}
    experiments.init_experiment(place, "fresh", settings | {"MAX_ROUNDS": 99})
    assert {path: path.read_bytes() for path in (tmp_path / "new").rglob("*") if path.is_file()} == before


def test_a_summary_is_written_where_it_is_wanted(place: str, tmp_path: Path) -> None:
    summary = experiments.export_experiment_summary(place, "trial", str(tmp_path / "out.json"))
    assert json.loads((tmp_path / "out.json").read_text()) == json.loads(json.dumps(summary))
    assert summary["cumulative_rewards"]["nodes"].keys() == {"w1", "w2", "w3"} and len(summary["rewards"]) == 16


def files(place: str) -> list[str]:
    return sorted(path.relative_to(place).as_posix() for path in Path(place).rglob("*"))


def test_cleaning_up_leaves_nothing_or_what_is_to_be_kept(run: SampleRun, place: str, home: Path) -> None:
    run.store.put(LAYOUT.checkpoint(10, "w1"), b"weights")
    experiments.get_experiment_metrics(place, "trial")
    assert list((home / "index").iterdir())
    assert experiments.cleanup_experiment(place, "trial", keep_checkpoints=True) > 90
    assert files(place) == [
        "experiments",
        "experiments/trial",
        "experiments/trial/checkpoints",
        "experiments/trial/checkpoints/round_10",
        "experiments/trial/checkpoints/round_10/w1.pt",
        "experiments/trial/experiment.json",
    ]
    assert not list((home / "index").iterdir())
    assert experiments.cleanup_experiment(place, "trial") == 2 and files(place) == ["experiments"]
    with pytest.raises(ConfigError, match="there is no experiment 'trial'"):
        experiments.cleanup_experiment(place, "trial")


def test_other_experiments_and_files_outside_stay(run: SampleRun, place: str, tmp_path: Path) -> None:
    config = load({"MODEL_NAME": "nano", "TASKS": "gcd"})
    published.publish(run.store, Layout("trial2"), config, "stand-in 1", SystemClock())
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "mine").write_text("mine")
    (Path(place) / LAYOUT.logs / "link").symlink_to(tmp_path / "private")
    experiments.cleanup_experiment(place, "trial")
    assert (tmp_path / "private" / "mine").read_text() == "mine"
    assert files(place) == ["experiments", "experiments/trial2", "experiments/trial2/experiment.json"]


# Commands


def test_a_shelf_is_listed(typed: Typed, run: SampleRun) -> None:
    Rounds(run.store, LAYOUT).announce(Announcement(7, "boss", "s", 1, 1.0, [], []))  # the workers went on without it
    code, shown, _ = typed("experiments")
    assert code == 0 and "rounds workers reward" in " ".join(shown.split())
    assert "trial complete nano 16 of 16 3 " in " ".join(shown.split())
    [row] = json.loads(typed("experiments", "list", "--json")[1])
    assert (row["name"], row["status"], row["round"], row["num_peers"]) == ("trial", "complete", 7, 4)
    assert (row["rounds_done"], row["workers"]) == (16, 3)


def test_one_experiment_is_shown(typed: Typed) -> None:
    _, shown, _ = typed("experiments", "show", "trial")
    assert "complete, 16 of 16 rounds" in shown and "w2" in shown and "NUM_TRAIN_SAMPLES" in shown
    assert json.loads(typed("experiments", "show", "trial", "--json")[1])["settings"]["MAX_ROUNDS"] == "16"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show",), "there is nothing to show: name an experiment"),
        (("clean",), "there is nothing to clean: name an experiment"),
        (("show", "trail"), "there is no experiment 'trail' in"),
        (("clean", "trail", "--yes"), "there is no experiment 'trail' in"),
        (("drop", "trial"), "is not known, got 'drop': use list or show or clean"),
        (("show", "../trial"), "is not a valid name"),
    ],
)
def test_a_wrong_word_is_one_line(typed: Typed, place: str, arguments: tuple[str, ...], says: str) -> None:
    before = files(place)
    code, shown, error = typed("experiments", *arguments)
    assert (code, shown, error.count("\n")) == (2, "", 1) and says in error and files(place) == before


def test_cleaning_asks_first(typed: Typed, place: str) -> None:
    before = files(place)
    for answer in ("n\n", "\n", ""):
        code, _, asked = typed("experiments", "clean", "trial", answer=answer)
        assert code == 1 and f"trial in {place} is complete: remove all of it? [y/N]" in asked and files(place) == before
    code, shown, said = typed("experiments", "clean", "trial", answer="y\n")
    assert code == 0 and shown.startswith("trial: ") and files(place) == ["experiments"] and "archived" not in said


def test_an_archive_stays_and_is_said(run: SampleRun, typed: Typed, place: str) -> None:
    run.store.put(f"{LAYOUT.archived_of(0)}/w1.json", b"a bundle")
    code, _, said = typed("experiments", "clean", "trial", "--yes")
    assert code == 0 and "archives/trial/rollouts/round_0/stage_0/w1.json" in files(place)
    assert said.startswith(
        "archived rollouts stay in archives/trial/rollouts: remove them before another experiment is called trial"
    )


def test_cleaning_can_go_without_asking(typed: Typed, place: str) -> None:
    assert json.loads(typed("experiments", "clean", "trial", "--yes", "--keep-checkpoints", "--json")[1])["removed"] > 90
    assert "experiments/trial/experiment.json" in files(place)


def test_figures_are_exported(typed: Typed, place: str) -> None:
    rows = list(csv.DictReader(io.StringIO(typed("report", "trial", "--csv")[1])))
    records: list[dict[str, Any]] = experiments.get_experiment_metrics(place, "trial")
    assert [(row["node_id"], int(row["round"]), float(row["reward"])) for row in rows] == [
        (row["node_id"], row["round"], row["reward"]) for row in records
    ]
    assert json.loads(typed("report", "trial", "--json")[1])["rewards"] == experiments.compare_experiments(place, ["trial"])
    assert "experiments/trial/report.html" not in files(place), "nothing is written"


SECONDS = 2.0
CALLS: dict[str, list[Any]] = {  # functions, and what each is given after the store
    "get_experiment_metrics": ["trial"],
    "get_experiment_metrics by round": ["trial", True],
    "compare_experiments": [["trial"]],
    "get_experiment_status": ["trial"],
    "get_cumulative_rewards": ["trial"],
    "export_experiment_summary": ["trial"],
    "get_experiment_progress": ["trial"],
    "list_experiments": [],
}
QUICK = """
import json, sys, time
from rl_swarm.tools import experiments
took = {}
for call, given in json.loads(sys.argv[2]).items():
    began = time.perf_counter()
    getattr(experiments, call.split()[0])(sys.argv[1], *given)
    took[call] = time.perf_counter() - began
assert "torch" not in sys.modules
print(json.dumps(took))
"""


def look(place: str, home: Path) -> dict[str, float]:
    """The seconds of each function in a new process."""
    command = [sys.executable, "-c", QUICK, place, json.dumps(CALLS)]
    environment = os.environ | {"RL_SWARM_HOME": str(home)}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    took: dict[str, float] = json.loads(done.stdout)
    return took


def fastest_looks(place: str, home: Path) -> dict[str, float]:
    """The fastest of five looks after the first one, since other programs may disturb some of them."""
    looks = [look(place, home) for _ in range(6)]
    return {name: min(each[name] for each in looks[1:]) for name in CALLS}


def check_figures(place: str, rounds: int, nodes: int) -> None:
    """Compare what the functions return with the journals, read without an index."""
    store = FolderStore(Path(place), local=True)
    records = {f"w{number}": progress.records(store, LAYOUT, f"w{number}") for number in range(nodes)}
    rows = [msgspec.to_builtins(row) for found in records.values() for row in found]
    assert len(rows) == rounds * nodes and experiments.get_experiment_metrics(place, "trial") == rows
    means = [fmean(row.reward for row in each) for each in zip(*records.values(), strict=True)]
    by_round = experiments.get_experiment_metrics(place, "trial", aggregate_by_round=True)
    assert [row["reward"] for row in by_round] == pytest.approx(means) and len(means) == rounds
    assert experiments.get_cumulative_rewards(place, "trial")["mean"] == pytest.approx(sum(means))
    assert experiments.compare_experiments(place, ["trial"])[-1]["cumulative_reward"] == pytest.approx(sum(means))
    seen = experiments.get_experiment_progress(place, "trial")["nodes"]
    assert {node_id: seen[node_id]["round"] for node_id in records} == dict.fromkeys(records, rounds - 1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_thousand_rounds_of_eight_nodes_are_read_in_two_seconds_by_a_new_process(tmp_path: Path) -> None:
    from checks.tidy import Run

    run = Run(tmp_path, 2000, 8, 10)
    for number in range(2000):
        run.play(number)
    run.close()
    fastest = fastest_looks(str(run.root), tmp_path / "home")
    print("fastest of five after the first:", *(f"{name} {seconds:.2f} s" for name, seconds in fastest.items()), sep="\n")
    assert max(fastest.values()) < SECONDS
    check_figures(str(run.root), 2000, 8)
