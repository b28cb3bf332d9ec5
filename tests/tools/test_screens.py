"""The live view of real swarms on real terminals of two sizes, looked at as a user sees it (slow)."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tests.support.terminal import Terminal, needs_tmux

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), needs_tmux]

NAMES = ["coordinator_0", "worker_1", "worker_2"]
COMMAND = [sys.executable, "-c", "from rl_swarm.cli import main; main()"]


def environment(tmp_path: Path, **settings: str) -> dict[str, str]:
    ours = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
    return ours | {"GDRIVE_PATH": str(tmp_path / "store"), "RL_SWARM_HOME": str(tmp_path / "home")} | settings


def check_fits(screen: str, width: int, height: int) -> None:
    lines = screen.splitlines()
    assert len(lines) <= height and max(map(len, lines)) <= width
    assert len([line for line in lines if line.startswith("RL Swarm ")]) == 1, (
        f"one frame, and nothing is left of others:\n{screen}"
    )


def rounds_shown(screen: str) -> int:
    found = re.search(r"(\d+) of 500 rounds", screen)
    return int(found[1]) if found else 0


@pytest.mark.parametrize(("command", "width", "height"), [("swarm", 80, 24), ("demo", 120, 40)])
def test_a_swarm_from_its_start_to_ctrl_c_and_on(tmp_path: Path, command: str, width: int, height: int) -> None:
    settings = environment(tmp_path, EXPERIMENT_NAME="first", MODEL_NAME="nano", MAX_ROUNDS="500", COORDINATOR_ROUND_INTERVAL="20")
    settings["NUM_TRAIN_SAMPLES"] = "32"  # a first round that lasts long enough to be seen
    typed = [*COMMAND, command, "--workers", "2"]
    with Terminal(typed, settings, tmp_path, width, height) as terminal:
        screen = terminal.wait_for("worker_2 ", 20)
        assert "starting" in screen, "before they have said a word"
        terminal.wait_for("loading libraries", 30)
        # nano itself may be loaded between two frames
        terminal.wait_for(", first round", 60)
        screen = terminal.wait_for("tokens/s", 60)
        screen = terminal.wait_for("4 of 500 rounds", 120)
        check_fits(screen, width, height)
        for name in NAMES:
            assert re.search(rf"^{name} +\S", screen, re.MULTILINE), screen
        for word in ("s a round", "left", "external", "reward, mean of the nodes' own completions", "2 workers: "):
            assert word in screen, screen
        terminal.press("C-c")
        text = terminal.wait_for_end(120)
        assert "Traceback" not in text
        after = text[text.index("stopping: each node saves a checkpoint") :]
        rounds = re.findall(r"worker_[12].*: saved at round (\d+)", after)
        assert rounds and all(int(number) >= 3 for number in rounds), after
        assert re.search(rf"go on with:\n  .*{command} --workers 2", after), after
        assert len(re.findall("^RL Swarm first: ", text, re.MULTILINE)) == 1, (
            f"one last frame, and nothing is left of others:\n{text}"
        )
    with Terminal(typed, settings, tmp_path, width, height) as terminal:
        screen = terminal.wait_for("of 500 rounds", 60)
        assert "silent" not in screen and "stopped" not in screen, "its nodes are those of this start"
        last = max(map(int, rounds))
        terminal.wait_until(lambda screen: rounds_shown(screen) > last, f"a round after {last}", 120)
        terminal.press("C-c")
        terminal.wait_for_end(120)


def test_watching_shows_the_same_view_and_ends_cleanly(tmp_path: Path) -> None:
    width, height = 80, 24
    settings = environment(tmp_path, EXPERIMENT_NAME="first", MODEL_NAME="nano", MAX_ROUNDS="3", COORDINATOR_ROUND_INTERVAL="20")
    with Terminal([*COMMAND, "swarm", "--workers", "2"], settings, tmp_path, width, height) as terminal:
        assert "3 of 3 rounds" in terminal.wait_for_end(180)
    with Terminal([*COMMAND, "status", "--watch"], settings, tmp_path, width, height) as terminal:
        screen = terminal.wait_for("RL Swarm first: complete, 3 of 3 rounds", 20)
        check_fits(screen, width, height)
        assert "reward, mean of the nodes' own completions" in screen and "worker_2" in screen
        terminal.press("C-c")
        text = terminal.wait_for_end(10)
        assert "Traceback" not in text and "[ended with 0]" in text
