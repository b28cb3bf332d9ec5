"""Talk to a trained model: one question after the other, from a terminal or from a script. The model is loaded once."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict

import click
from rich.console import Console
from rich.text import Text

from rl_swarm.config import Config
from rl_swarm.errors import ConfigError, ModelError
from rl_swarm.learning.policy import Policy
from rl_swarm.node.learner import load_policy
from rl_swarm.rollout import Question
from rl_swarm.tasks import tasks_of
from rl_swarm.text import one_line, visible
from rl_swarm.tools.ask import Answers, Trained, side_by_side

LONGEST = 20_000  # characters of a question
MOST_NAMED = 6  # tasks in the introduction
COMMANDS = "/base shows the base model's answers beside it, or hides them; /quit, Ctrl-D or Ctrl-C leaves"


class Talk:
    """A trained model, and its base model from when that is first asked for."""

    def __init__(self, trained: Trained, with_base: bool = False) -> None:
        trained.apply()
        self.trained = trained
        self.with_base = with_base
        self._base: Policy | None = None

    def answer(self, question: str) -> Answers:
        """Answer greedily; raise ModelError for a question that is too long."""
        trained, asked = self.trained, [Question(question)]
        if len(question) > LONGEST:
            raise ModelError(f"the question has {len(question)} characters, {LONGEST} are the most: ask a shorter one")
        trained.policy.check_fits(asked)
        base = None
        if self.with_base:
            self._base = self._base or load_policy(trained.config)
            [base] = self._base.greedy(asked)
        [text] = trained.policy.greedy(asked)
        return Answers(question, trained.policy.name, trained.node_id, trained.round, base, text)


def introduction(trained: Trained) -> str:
    """Say who answers, and what to expect of it."""
    tasks = _tasks(trained.config)
    named = ", ".join(tasks[:MOST_NAMED]) + (", …" if len(tasks) > MOST_NAMED else "")
    return visible(
        f"{trained.node_id} answers, as it was before round {trained.round} of {trained.config.experiment_name}, trained from "
        f"{one_line(trained.policy.name)}\nIt is a small task solver, not a chat bot, and sees each question alone. It was "
        f"trained on {one_line(named) or 'tasks of its own'}\n{COMMANDS}"
    )


def _tasks(config: Config) -> list[str]:
    """The names of the tasks; none if a task file is missing here, which talking does not need."""
    try:
        return list(dict.fromkeys(spec.name for spec in tasks_of(config)))
    except ConfigError:
        return []


def chat(talk: Talk, questions: Iterator[str], console: Console, say: Callable[[str], None], as_json: bool = False) -> None:
    """Answer questions until there are no more, or until /quit. Ctrl-C ends an answer; while a question is awaited, the chat."""
    for line in questions:
        question = line.strip()
        if question in {"/quit", "/exit"}:
            return
        if question == "/base":
            talk.with_base = not talk.with_base
            say(f"the base model answers {'too' if talk.with_base else 'no more'}")
        elif question.startswith("/"):
            say(COMMANDS)
        elif question:
            try:
                answers = talk.answer(question)
            except ModelError as error:
                say(str(error))
            except KeyboardInterrupt:
                say("this answer was left; Ctrl-C again leaves the chat")
            else:
                _print(answers, console, as_json)


def _print(answers: Answers, console: Console, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(answers)))
    elif answers.base is None:
        console.print(Text(visible(answers.trained), style="green"), soft_wrap=True)
    else:
        side_by_side(answers, console)


def typed_questions() -> Iterator[str]:
    """Questions typed at a terminal, with history and editing. A pasted text of several lines is one question."""
    try:
        import readline

        readline.parse_and_bind("set enable-bracketed-paste on")
    except ImportError:  # lines can still be typed
        pass
    while True:
        try:
            yield input("> ")
        except (EOFError, KeyboardInterrupt):
            click.echo()
            return


def piped_questions() -> Iterator[str]:
    """Questions from a script, one a line."""
    try:
        yield from sys.stdin
    except KeyboardInterrupt:
        return
