"""`rl-swarm prune`: what is removed by hand, and what only counted."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rl_swarm.cli import main
from rl_swarm.clock import SystemClock
from rl_swarm.config import load
from rl_swarm.errors import ConfigError
from rl_swarm.identity import load_identity
from rl_swarm.runs.summary import summarise
from rl_swarm.runs.validate import Expected, validate
from rl_swarm.show.card import Places, sections
from rl_swarm.show.report import run_page
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout, recognised, round_of_folder
from rl_swarm.tools.opening import open_run
from rl_swarm.tools.prune import prune
from tests.support.clocks import VirtualClock
from tests.support.sample_run import LAYOUT, SampleRun

Prune = Callable[..., tuple[str, str]]


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    (tmp_path / "store").mkdir()
    store = FolderStore(tmp_path / "store", VirtualClock(), local=True)
    SampleRun(store, tmp_path).complete()
    return store


@pytest.fixture
def typed(store: FolderStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Prune:
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[str, str]:
        with pytest.raises(SystemExit) as done:
            main(["prune", "--gdrive-path", str(store.root), "--experiment", "trial", *arguments])
        assert done.value.code == 0
        captured = capsys.readouterr()
        return captured.out, captured.err

    return run


def rounds(store: FolderStore) -> list[int]:
    return sorted(recognised(round_of_folder, store.list(LAYOUT.rollouts)))


def test_a_dry_run_writes_nothing(store: FolderStore, typed: Prune) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in store.root.rglob("*"))
    said, _ = typed("--dry-run")
    assert said.startswith("trial: 18 files of 6 rounds, 0 to 5, 0.0 MB, would be removed")
    found = json.loads(typed("--dry-run", "--json", "--rollout-archive-old", "true")[0])
    assert (found["rounds"], found["files"], found["archived"]) == ([0, 1, 2, 3, 4, 5], 18, 18)
    assert sorted((path, path.stat().st_mtime_ns) for path in store.root.rglob("*")) == before


def test_by_hand_it_does_what_nodes_do_and_the_run_stays_true(store: FolderStore, typed: Prune) -> None:
    before = summarise(store, LAYOUT)
    said, warned = typed("--rollout-keep-last-n-rounds", "2", "--rollout-archive-old", "true")
    assert said.startswith("trial: 36 files of 12 rounds, 0 to 11, 0.1 MB, are archived in archives/")
    assert "ROLLOUT_KEEP_LAST_N_ROUNDS is 2, and 4 rounds are kept" in warned
    assert rounds(store) == [12, 13, 14, 15] and len(store.list("archives/trial/rollouts")) == 12
    assert typed()[0] == "trial: there is nothing to remove\n"
    after = summarise(store, LAYOUT)
    assert after == replace(before, removed_before=12), "who learnt from whom is in the journals"
    gone = "questions and completions of rounds before 12 were removed or archived on purpose"
    assert f"In this run, {gone}." in run_page(after, [], []) and "In this run" not in run_page(before, [], [])
    [folder] = [
        line for each in sections(after, [], Places("s", "f", "p", "h")) for line in each.lines if line.startswith("folder")
    ]
    assert folder.endswith(f"f: every reward and metric of the run, as text; {gone}")
    found = validate(store, LAYOUT, Expected())
    assert all(finding.check == "rounds" or finding.status != "failed" for finding in found), found


def test_folders_of_rounds_that_nobody_played_do_not_make_all_others_old(store: FolderStore, typed: Prune) -> None:
    for number in (500, 900_000):
        store.put(LAYOUT.reward(number, "w1"), b"no reward")
        store.put(LAYOUT.bundle(number, "w1"), b"no bundle")
    typed("--rollout-keep-last-n-rounds", "5")
    assert rounds(store)[:5] == [11, 12, 13, 14, 15]


def test_in_a_signed_experiment_only_the_founder_prunes(tmp_path: Path, store: FolderStore) -> None:
    config, layout = load({"MODEL_NAME": "nano", "TASKS": "gcd"}), Layout("signed")
    founder = load_identity(str(tmp_path / "founder.pem"))
    experiments.publish(store, layout, config, "stand-in 1", SystemClock(), founder)
    flags = {"store": str(store.root), "experiment": "signed"}
    for settings in ({}, {"SWARM_IDENTITY": str(tmp_path / "stranger.pem")}):
        with pytest.raises(ConfigError, match="only its founder may remove rollouts of others"):
            prune(open_run(settings, flags), True, print)
    assert prune(open_run({"SWARM_IDENTITY": str(tmp_path / "founder.pem")}, flags), True, print).files == 0
