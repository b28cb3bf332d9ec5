"""Commands from a cell: their output, their exit code, and interrupts."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from rl_swarm import notebook
from rl_swarm.errors import ConfigError
from rl_swarm.notebook import commands
from rl_swarm.notebook.commands import CommandFailed


def interrupt_when(path: Path) -> None:
    """Interrupt this process, as a notebook's stop button does, once a file is there.

    A shell that runs the tests in the background lets them ignore interrupts; a notebook's kernel does not.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def wait() -> None:
        while not path.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()


def test_settings_become_variables_the_later_ones_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("MODEL_NAME", "MAX_ROUNDS"):
        monkeypatch.setenv(name, "")
    notebook.configure({"MODEL_NAME": "auto", "MAX_ROUNDS": 3}, {"MODEL_NAME": "nano"})
    assert (os.environ["MODEL_NAME"], os.environ["MAX_ROUNDS"]) == ("nano", "3")
    first, second = capsys.readouterr().out.splitlines()
    assert second.startswith("MAX_ROUNDS = 3     the run ends") and first.index("nano, auto") == second.index("the run ends")


def test_output_is_shown_as_it_comes_and_the_pipe_never_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    program = "import os; print('x' * 200_000); print(os.environ.get('FORCE_COLOR'), os.environ['COLUMNS']); raise SystemExit(3)"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORCE_COLOR", "1")
        assert notebook.run_with_live_output([sys.executable, "-c", program]) == 3
    out = capsys.readouterr().out
    assert out.count("x") == 200_000 and out.endswith("None 100\n")


def test_an_interrupt_stops_the_command_and_waits_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = f"""
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("saved"), sys.exit(0)))
pathlib.Path({str(tmp_path / "ready")!r}).touch()
time.sleep(60)
"""
    interrupt_when(tmp_path / "ready")
    assert notebook.run_with_live_output([sys.executable, "-c", program]) == 0
    shown = capsys.readouterr()
    assert "saved" in shown.out and "stopping" in shown.err


def test_a_command_that_fails_raises_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GDRIVE_PATH", str(tmp_path / "none" / "here"))
    monkeypatch.setenv("EXPERIMENT_NAME", "x")
    with pytest.raises(CommandFailed, match="rl-swarm status ended with code 2"):
        notebook.run("status")
    assert "GDRIVE_PATH" in capsys.readouterr().out
    (tmp_path / "store").mkdir()
    monkeypatch.setenv("GDRIVE_PATH", str(tmp_path / "store"))
    with pytest.raises(CommandFailed, match=r"rl-swarm export ended with code 2:\n.*experiment 'x'"):
        notebook.run_shown("export", str(tmp_path / "model"))
    monkeypatch.setenv("NUM_GENERATIONS", "1")
    with pytest.raises(ConfigError, match="NUM_GENERATIONS must be at least 2"):
        notebook.run_shown("swarm")


def test_the_last_words_of_a_swarm_are_without_its_progress() -> None:
    said = ["4 workers on x", "3 of 9 rounds, reward 0.1", "swarm stopped", "reading the run", "RL Swarm x: 4 nodes", "go on with:"]
    assert commands._closing(said) == ["swarm stopped", "", "RL Swarm x: 4 nodes", "go on with:"]
    assert commands._closing(["swarm complete", "no report: why"]) == ["swarm complete", "no report: why"]
    assert list(commands._closing(["a"] * 30)) == ["a"] * 12
