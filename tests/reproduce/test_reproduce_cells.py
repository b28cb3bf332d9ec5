"""Cells with the real model: the same rows twice, a frozen policy that shows nothing, the command that is stopped and goes on."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pvariance

import pytest
import torch
from rich.console import Console

from rl_swarm.errors import ConfigError
from rl_swarm.reproduce import command
from rl_swarm.reproduce.analysis import analyse
from rl_swarm.reproduce.cell import quantise, run_cell
from rl_swarm.reproduce.command import Wanted
from rl_swarm.reproduce.plan import Arm, Cell, arms_of, find_preset, parse_split
from rl_swarm.reproduce.results import SAVED, CellResult, authors, code_digest, mixed_reward, save
from rl_swarm.reproduce.schedule import Schedule
from rl_swarm.reproduce.table import write_csv

NANO = find_preset("nano")
SETTINGS = {**NANO.settings, "TASKS": "easy", "EVAL_INTERVAL": "0"}
FEW_QUESTIONS = {"TASKS": "basic_arithmetic:allow_parentheses=false:max_digits=1:max_terms=2"}  # 90 are held out of so small a task


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def run(split: str, rounds: int, nodes: int, seed: int = 201, arm: Arm | None = None, **settings: str) -> CellResult:
    arm = arm or Arm(split, parse_split(split), nodes)
    return run_cell(Cell(arm, seed, rounds, {**SETTINGS, **settings}, {}))


def table(path: Path) -> list[dict[str, str]]:
    """A CSV file without what depends on the clock: times, and operations, among them heartbeats."""
    rows = csv.DictReader(path.read_text().splitlines())
    return [{name: value for name, value in row.items() if not name.startswith(("seconds", "operations"))} for row in rows]


def test_the_same_seed_gives_the_same_csv_twice_times_aside(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        cells = [run(split, rounds=2, nodes=2, EVAL_INTERVAL="2", **FEW_QUESTIONS) for split in ("2/0", "4/4")]
        write_csv(analyse(cells, "4/4"), tmp_path / name)
    for file in ("rounds.csv", "cells.csv"):
        first, second = (table(tmp_path / name / file) for name in ("first", "second"))
        assert first == second
    other = run("4/4", rounds=2, nodes=2, seed=202)
    assert [row.tokens for row in other.rows] != [row.tokens for row in cells[1].rows[: len(other.rows)]]
    assert len({row.tokens for row in other.rows}) > 1


@pytest.mark.parametrize("split", ["4/0", "2/2"])
def test_an_interrupted_cell_goes_on_from_what_was_saved(split: str, tmp_path: Path) -> None:
    cell = Cell(Arm(split, parse_split(split), 2), 201, 6, {**SETTINGS, **FEW_QUESTIONS, "EVAL_INTERVAL": "3"}, {})
    whole = run_cell(cell)

    def cut(number: int) -> None:
        if number == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cell(cell, cut, tmp_path, save_seconds=0.0)
    for late in tmp_path.glob("*/*/checkpoints/round_000003.pt"):  # as if it was cut off while it saved
        shutil.copy(late, late.with_name("round_000004.pt"))
    done: list[int] = []
    resumed = run_cell(cell, done.append, tmp_path, save_seconds=1e9)
    assert done == [4, 5, 6], "the round that was under way is played again"
    assert resumed.right_before == whole.right_before and resumed.prompt_tokens == whole.prompt_tokens > 5
    assert resumed.measures["operations"] > whole.measures["operations"] / 2, "those before the cut count too"
    assert [fmean(map(int, each["held_out"])) for each in whole.right] == [row.held_out for row in whole.rows[-2:]]
    assert resumed.before == whole.before and len(resumed.rows) == len(whole.rows)
    assert [each.before for each in resumed.answers] == [each.before for each in whole.answers] and len(whole.answers) == 8
    if split == "4/0":
        assert resumed.answers == whole.answers and resumed.right == whole.right
        same = ("round", "node_id", "reward", "tokens", "loss", "held_out", "policy_version", "learning_rate")
        assert [[getattr(row, name) for name in same] for row in resumed.rows] == [
            [getattr(row, name) for name in same] for row in whole.rows
        ]
    assert (resumed.measures["external_used"] > 0) == (split == "2/2")


def test_a_cell_that_other_code_began_begins_anew(tmp_path: Path) -> None:
    cell = Cell(Arm("1/0", parse_split("1/0"), 1), 201, 3, SETTINGS, {})

    def cut(number: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cell(cell, cut, tmp_path, save_seconds=0.0)
    saved = json.loads((tmp_path / SAVED).read_text())
    (tmp_path / SAVED).write_text(json.dumps(saved | {"code": "other"}))
    done: list[int] = []
    assert run_cell(cell, done.append, tmp_path, save_seconds=1e9).code == code_digest() == saved["code"]
    assert done == [1, 2, 3]


def test_a_cell_that_a_study_beside_this_one_has_run_is_taken_from_there(tmp_path: Path) -> None:
    cell = Cell(Arm("here", parse_split("1/0"), 1), 201, 1, SETTINGS, {})
    save(tmp_path / "beside" / "cells", run_cell(replace(cell, arm=replace(cell.arm, name="there"))))
    [found] = Schedule([cell], tmp_path / "mine" / "cells", 1, lambda done, line: None).run()
    assert found.cell.arm.name == "here" and not list((tmp_path / "mine" / "cells").iterdir())


def frozen(split: str) -> tuple[CellResult, list[float], float]:
    """A cell whose policy never changes, its own rewards and its mixed reward."""
    found = run(split, rounds=16, nodes=4, LEARNING_RATE="0")
    return found, [row.reward for row in found.rows], fmean(map(mixed_reward, found.rows))


@pytest.mark.parametrize(("sharing", "alone"), [("4/4", "4/0"), pytest.param("2/6", "2/0", marks=pytest.mark.slow)])
def test_a_frozen_policy_shows_nothing_in_our_measure_and_a_rise_in_the_mixed_one(sharing: str, alone: str) -> None:
    _, baseline, baseline_mixed = frozen("8/0")
    found, own, mixed = frozen(sharing)
    assert own == frozen(alone)[1], "what peers wrote has no part in our measure, to the last digit"
    assert sum(row.external_used for row in found.rows) > 0
    # Another I is another sample of the same policy: three standard errors, which the mixed measure exceeds by far.
    error = sum(pvariance(each) / len(each) for each in (baseline, own)) ** 0.5
    assert abs(fmean(own) - fmean(baseline)) < 3 * error
    assert mixed - baseline_mixed > 4 * error and mixed > 1.8 * baseline_mixed
    assert baseline_mixed == pytest.approx(fmean(baseline))


def test_an_adaptive_swarm_changes_i_and_j_together() -> None:
    arm = Arm("adaptive", parse_split("4/4"), 4, adaptive=True)
    found = run("4/4", rounds=6, nodes=4, arm=arm, COMPLETION_PREFIX="answer", LEARNING_RATE="0")
    assert all(row.own_wanted + row.external_wanted == 8 and 2 <= row.own_wanted <= 4 for row in found.rows)
    assert {row.own_wanted for row in found.rows if row.round == 0} == {4} and min(row.own_wanted for row in found.rows) < 4


@pytest.mark.slow
def test_a_mixed_swarm_has_two_kinds_of_model_that_learn_from_each_other() -> None:
    mixed = next(arm for arm in arms_of(NANO, ["models"]) if arm.models and arm.split.external)
    found = run("4/4", rounds=8, nodes=2, arm=replace(mixed, nodes=2), NUM_GENERATIONS="16")
    assert {author for row in found.rows for author in authors(row)} == {"node_01", "node_02"}


def test_a_quantised_model_is_another_model_with_few_levels() -> None:
    layer = torch.nn.Linear(8, 8)
    before = layer.weight.detach().clone()
    quantise(layer)
    assert 2 < len(layer.weight.unique()) <= 15
    assert 0 < (layer.weight - before).abs().max() <= before.abs().max() / 14 + 1e-6


def reproduce(folder: Path, *more: str) -> "subprocess.Popen[str]":
    arguments = [sys.executable, "-m", "rl_swarm.cli", "reproduce", "--quick", "--output", str(folder), *more]
    environment = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_the_quick_command_is_stopped_by_ctrl_c_and_goes_on_where_it_was(tmp_path: Path) -> None:
    cells, few = tmp_path / "cells", ("--tasks", FEW_QUESTIONS["TASKS"], "--eval-interval", "5")
    small = ("--seeds", "1", "--rounds", "5", "--nodes", "2", *few)
    first = reproduce(tmp_path, "--parallel", "1", *small)
    while first.poll() is None and not list(cells.glob("*.json.zst")):
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=120)
    done = {path.name: path.stat().st_mtime_ns for path in cells.glob("*.json.zst")}
    assert first.returncode == 130 and f"stopped: {len(done)} of 2 cells done" in said, said
    assert not (tmp_path / "report.html").exists()
    assert {path.suffix for path in cells.iterdir()} <= {".zst", ".log"}, "nothing half-done is left"
    second = reproduce(tmp_path, *small)
    said, _ = second.communicate(timeout=600)
    assert second.returncode == 0, said
    after = {path.name: path.stat().st_mtime_ns for path in cells.glob("*.json.zst")}
    assert len(after) == 2 and done.items() <= after.items(), "a finished cell was run again"
    written = json.loads((tmp_path / "results.json").read_text())
    assert [arm["seeds"] for arm in written["arms"]] == [[201], [201]]
    assert written["sentences"][0] in said and "that is no proof" in said
    assert re.search(r"^1 of 2 cells: \S+ seed 201 0/5$", said, re.MULTILINE) and "2 of 2 cells, 0 s left\n" in said, said
    assert all(arm["held_out"] is not None for arm in written["arms"])


@pytest.mark.parametrize(
    ("flag", "value", "told"), [("seed", "3", "--seeds"), ("tasks", "gcd,,", "TASKS"), ("learning_rate", "-1", "LEARNING_RATE")]
)
def test_a_wrong_setting_is_refused_before_anything_runs(tmp_path: Path, flag: str, value: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        command.reproduce(Wanted(output=tmp_path / "never"), {}, {flag: value}, "", Console())
    assert not (tmp_path / "never").exists()


def test_a_cell_that_fails_ends_the_command_with_its_last_line(tmp_path: Path) -> None:
    done = reproduce(
        tmp_path, "--parallel", "1", "--rounds", "1", "--nodes", "1", "--seeds", "1", "--model-name", "./no-such-model"
    )
    said, _ = done.communicate(timeout=120)
    assert done.returncode == 1 and "no-such-model" in said and "Traceback" not in said, said
