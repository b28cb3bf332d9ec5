"""Talking to a trained model: which model answers, what may be typed, and that nothing typed ends the talk."""

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rl_swarm.node.learner import load_policy
from rl_swarm.rollout import Question
from rl_swarm.tools import chat as talking
from rl_swarm.tools.chat import LONGEST, Talk, chat, introduction
from tests.support.processes import ROOT
from tests.support.terminal import Terminal, needs_tmux
from tests.tools.test_ask import Trial

QUESTION = "What is 1 + 1?"


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    made = Trial(tmp_path)
    made.save("w1", 10, made.policy(3))
    return made


def talked(talk: Talk, *lines: str, terminal: bool = False, as_json: bool = False) -> tuple[str, list[str]]:
    """Return what was printed, and what was said beside it."""
    console, said = Console(file=io.StringIO(), force_terminal=terminal, width=80), list[str]()
    chat(talk, iter(lines), console, said.append, as_json)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue(), said


def test_the_trained_model_answers_and_the_base_model_beside_it_on_request(trial: Trial) -> None:
    trained = trial.policy(3).greedy([Question(QUESTION)])[0]
    base = load_policy(trial.find().config).greedy([Question(QUESTION)])[0]
    talk = Talk(trial.find())
    printed, said = talked(talk, QUESTION, "/base", QUESTION, "/base", QUESTION)
    assert said == ["the base model answers too", "the base model answers no more"]
    alone, both = f"{talking.visible(trained)}\n", talking.visible(base)
    assert printed.startswith(alone) and printed.endswith(alone) and both in printed[len(alone) :]
    assert talk.answer(QUESTION).base is None and Talk(trial.find(), with_base=True).answer(QUESTION).base == base


def test_the_model_is_loaded_once(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    talk, loaded = Talk(trial.find(), with_base=True), list[Any]()

    def load(config: Any) -> Any:
        loaded.append(config)
        return load_policy(config)

    monkeypatch.setattr(talking, "load_policy", load)
    talked(talk, *[QUESTION] * 3)
    assert len(loaded) == 1, "the base model, when it is first asked"


def test_empty_lines_long_questions_and_unknown_commands_end_nothing(trial: Trial) -> None:
    printed, said = talked(
        Talk(trial.find()), "", "   \t", "word " * LONGEST, "many words " * 500, "/what", QUESTION, "/quit", QUESTION
    )
    assert printed.count("\n") == 1
    assert said[0].startswith(f"the question has {5 * LONGEST - 1} characters, {LONGEST} are the most: ask")
    assert "exceed" in said[1] and "\n" not in said[1] and said[2] == talking.COMMANDS and len(said) == 3


def test_a_script_gets_an_object_for_each_answer(trial: Trial, capsys: pytest.CaptureFixture[str]) -> None:
    talked(Talk(trial.find()), QUESTION, "", "2?", as_json=True)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["question"] for row in rows] == [QUESTION, "2?"]
    assert all(row["node_id"] == "w1" and row["round"] == 10 and row["base"] is None for row in rows)


def test_ctrl_c_leaves_an_answer_and_not_the_talk(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    talk, answer = Talk(trial.find()), Talk.answer

    def interrupted(self: Talk, question: str) -> Any:
        if question == "long":
            raise KeyboardInterrupt
        return answer(self, question)

    monkeypatch.setattr(Talk, "answer", interrupted)
    printed, said = talked(talk, "long", QUESTION)
    assert len(said) == 1 and "left" in said[0] and printed.count("\n") == 1


@pytest.mark.parametrize("terminal", [False, True])
def test_what_a_model_says_takes_no_effect(trial: Trial, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(trial.find())
    monkeypatch.setattr(talk.trained.policy, "greedy", lambda questions: ["\x1b[2J\x07[bold]7[/]"])
    printed, _ = talked(talk, QUESTION, terminal=terminal)
    assert "\\x1b[2J\\x07[bold]7[/]" in printed and "\x1b[2J" not in printed


def test_it_says_who_answers_what_it_is_and_how_to_leave(trial: Trial) -> None:
    text = introduction(trial.find())
    assert "w1 answers, as it was before round 10 of trial" in text and "not a chat bot" in text
    assert "/base" in text and "Ctrl-D" in text and "basic_arithmetic" in text
    assert all(len(line) < 200 for line in text.splitlines())


@pytest.fixture
def finished(tmp_path: Path) -> dict[str, str]:
    """The environment of a node that has trained nano for a round, alone."""
    environment = {
        "PATH": os.environ["PATH"],
        "MODEL_NAME": "nano",
        "MAX_ROUNDS": "1",
        "CPU_ONLY": "1",
        "RL_SWARM_HOME": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        "EVAL_INTERVAL": "0",
        "TERM": "xterm",
    }
    subprocess.run([sys.executable, "-m", "rl_swarm.cli", "work"], env=environment, check=True, capture_output=True)
    return environment


@pytest.mark.slow
def test_a_script_talks_to_nano(finished: dict[str, str]) -> None:
    command = [sys.executable, "-m", "rl_swarm.cli", "chat", "--base", "--json"]
    given = b"What is 3 + 4?\n\n\xff\xfe?\n/base\nWhat is 2 + 2?"
    done = subprocess.run(command, env=finished, input=given, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["question"] for row in rows] == ["What is 3 + 4?", "\ufffd\ufffd?", "What is 2 + 2?"]
    assert [row["base"] is None for row in rows] == [False, False, True]
    assert done.stderr.decode().startswith("loading libraries\nloading nano\n")


def answered(terminal: Terminal, text: str) -> str:
    """Wait until a question is on the screen and the next is awaited."""
    deadline = time.monotonic() + 60
    while not ((screen := terminal.screen()).endswith("\n>") and text in screen):
        assert time.monotonic() < deadline and "[ended with" not in screen, screen
        time.sleep(0.1)
    return screen


@pytest.mark.slow
@needs_tmux
@pytest.mark.parametrize("leaving", [("C-c",), ("C-d",), ("/quit", "Enter")], ids=" ".join)
def test_a_talk_at_a_terminal(finished: dict[str, str], tmp_path: Path, leaving: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "rl_swarm.cli", "chat"]
    with Terminal(command, finished | {"PYTHONPATH": str(ROOT)}, tmp_path, 80, 24) as terminal:
        assert "not a chat bot" in answered(terminal, "Ctrl-D")
        terminal.paste("What is 3 + 4?")
        terminal.press("Enter")
        answered(terminal, "> What is 3 + 4?")
        terminal.paste("What is\n5 + 6?")
        terminal.press("Enter")
        assert answered(terminal, "> What is\n5 + 6?").count("\n>") == 3, "one question of two lines"
        terminal.paste("x" * 9_000)
        terminal.press("Enter")
        answered(terminal, "MAX_NEW_TOKENS")
        for key in leaving:
            terminal.press(key)
        text = terminal.wait_for_end(60)
        assert "[ended with 0]" in text and "Traceback" not in text
