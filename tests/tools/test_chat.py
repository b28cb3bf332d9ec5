"""Talking to a trained model: which model answers, what may be typed, and that nothing typed ends the talk."""

import fcntl
import io
import json
import os
import pty
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rl_swarm.node.learner import load_policy
from rl_swarm.rollout import Question
from rl_swarm.tools import chat as talking
from rl_swarm.tools.chat import LONGEST, Talk, chat, introduction
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
    assert done.stderr.decode().startswith("loading libraries, then the model\n")


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.handle, other = pty.openpty()
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal
        )
        os.close(other)
        self.shown = ""

    def type(self, keys: str) -> None:
        os.write(self.handle, keys.encode())

    def wait_for(self, text: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            try:
                self.shown += os.read(self.handle, 65536).decode(errors="replace")
            except OSError:  # the other end is closed
                assert text in self.shown, self.shown
        self.shown = self.shown.partition(text)[2]


@pytest.fixture
def terminal(finished: dict[str, str]) -> Iterator[Terminal]:
    made = Terminal([sys.executable, "-m", "rl_swarm.cli", "chat"], finished)
    yield made
    made.process.kill()
    made.process.wait()
    os.close(made.handle)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["\x03", "\x04", "/quit\r"], ids=["Ctrl-C", "Ctrl-D", "/quit"])
def test_a_talk_at_a_terminal(terminal: Terminal, key: str) -> None:
    terminal.wait_for("not a chat bot")
    terminal.wait_for("> ")
    terminal.type("What is 3 + 4?\r")
    terminal.wait_for("\n")
    terminal.wait_for("> ")
    terminal.type("\x1b[200~What is\n3 + 4?\x1b[201~\r")  # as a terminal sends a pasted text
    terminal.wait_for("\n")
    terminal.wait_for("> ")
    terminal.type("x" * 9000 + "\r")
    terminal.wait_for("MAX_NEW_TOKENS")
    terminal.wait_for("> ")
    terminal.type(key)
    assert terminal.process.wait(20) == 0
