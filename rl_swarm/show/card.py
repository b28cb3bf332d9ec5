"""The card at the end of a run: what was learnt, who gave and got, one question before and after, and what to try next.

Every number comes from the summary, which was read from the run. It says what each figure is, and it says where a rise is only
the form of the answers.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from rl_swarm.runs.examples import Answered, Example, telling
from rl_swarm.runs.summary import Change, NodeSummary, Summary
from rl_swarm.show.live import duration, one_line
from rl_swarm.text import visible

NOTHING = "–"
DAMAGED = "Damaged files, which are not or not all in these figures"
TITLE = "bold cyan"
QWEN = "Qwen/Qwen2.5-0.5B-Instruct"


@dataclass(frozen=True)
class Places:
    """Where a run and its report can be looked at."""

    store: str
    folder: str
    picture: str
    page: str


@dataclass(frozen=True)
class Section:
    title: str
    lines: tuple[str, ...]
    to_copy: bool = False  # paths and commands, which a frame would break


def reward(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}"


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1%}".replace("%", " %")


def rounds_named(numbers: Sequence[int]) -> str:
    """'rounds 0 to 2'; what lies between is left to the reader."""
    if not numbers:
        return "no round"
    return f"round {numbers[0]}" if len(numbers) == 1 else f"rounds {numbers[0]} to {numbers[-1]}"


def times(change: Change) -> str:
    return f"{change.times:.1f} times" if change.times is not None else ""


def what_reward_is(summary: Summary) -> str:
    before, after = rounds_named(summary.first_rounds), rounds_named(summary.last_rounds)
    return (
        f"Reward: what the verifier paid, on average over all completions that the nodes wrote themselves; before is {before}, "
        f"when the models were hardly trained, after is {after}."
    )


def what_held_out_is(summary: Summary) -> str:
    last = summary.evaluations[-1].round if summary.evaluations else 0
    return (
        f"Held-out: share of {summary.held_out_questions} questions that nobody trains on, answered greedily; mean of the "
        f"nodes, before training and at round {last}."
    )


def honest_note(summary: Summary) -> str:
    """How much of the rise is knowing more, and how much only the form in which answers are written."""
    seen, known = summary.held_out, summary.style_blind
    if seen.before is None or seen.after is None or known.before is None or known.after is None:
        return "Held-out accuracy was not measured both before and after training: EVAL_INTERVAL says how often it is."
    rise, more = seen.after - seen.before, known.after - known.before
    if rise <= 0:
        return "As the verifier reads the answers, held-out accuracy did not rise in this run."
    if more <= 0:
        went = "stayed at" if more == 0 else f"fell from {percent(known.before)} to"
        return (
            "The rise is finding the form, not knowing more: the verifier reads only <answer>…</answer>, and before training "
            f"{percent(known.before)} of the answers were right in whatever style they were written. Style-blind accuracy {went} "
            f"{percent(known.after)}."
        )
    return (
        "Part of the rise is finding the form <answer>…</answer>, which is all that the verifier reads: of "
        f"{100 * rise:.1f} points, style-blind accuracy accounts for {100 * min(more, rise):.1f}."
    )


def gave_and_got(node: NodeSummary) -> str:
    return f"peers trained on your rollouts {node.gave} times, you on theirs {node.got} times"


def sections(summary: Summary, examples: Sequence[Example], places: Places, program: str = "rl-swarm") -> list[Section]:
    """The card as titles and lines, without any decoration."""
    return [
        Section("What was learnt", tuple(_learnt(summary))),
        Section("Reward of each node before and after, what it gave and got", tuple(_shared(summary))),
        *([Section("One question, before and after", tuple(_example(examples)))] if examples else []),
        *([Section(DAMAGED, summary.damaged)] if summary.damaged else []),
        Section("Where to look", tuple(_places(places)), to_copy=True),
        Section("What to try next", tuple(next_steps(summary.experiment, places, program)), to_copy=True),
    ]


def title(summary: Summary) -> str:
    return f"RL Swarm {summary.experiment}: {len(summary.nodes)} nodes, {summary.rounds} rounds, {duration(round(summary.seconds))}"


def _learnt(summary: Summary) -> list[str]:
    figures = [
        ("", "before", "after", ""),
        ("reward", reward(summary.reward.before), reward(summary.reward.after), times(summary.reward)),
        ("held-out, as the verifier reads", percent(summary.held_out.before), percent(summary.held_out.after), ""),
        ("held-out, style-blind", percent(summary.style_blind.before), percent(summary.style_blind.after), ""),
    ]
    table = [f"{name:<32}{before:>8}  {after:>8}  {more}".rstrip() for name, before, after, more in figures]
    return [*table, what_reward_is(summary), what_held_out_is(summary), honest_note(summary)]


def _shared(summary: Summary) -> list[str]:
    width = max((len(node.node_id) for node in summary.nodes), default=0)
    return [
        f"{node.node_id:<{width}}  {reward(node.reward.before)} → {reward(node.reward.after)}; {gave_and_got(node)}"
        for node in summary.nodes
    ]


def _example(examples: Sequence[Example]) -> list[str]:
    shown = telling(examples)
    assert shown is not None
    turned = "the first that turned from wrong to right" if shown.turned else "the first, since none turned from wrong to right"
    kind = "one question of each task" if shown.same_question else "completions of the first and the last round, one of each task"
    lines = [f"Of {len(examples)} examples ({kind}) {turned}; all are in the report."]
    answers = (shown.before, shown.after)
    asked = [f"asked: {one_line(answer.prompt)}" for answer in answers]
    if shown.same_question:
        return [*lines, asked[0], *map(_answer, answers)]
    return [*lines, *(line for pair in zip(asked, map(_answer, answers), strict=True) for line in pair)]


def _answer(answer: Answered) -> str:
    return f"{answer.by}: {one_line(answer.text) or '(nothing)'}  (reward {answer.reward:.2f})"


def _places(places: Places) -> list[str]:
    return [
        f"report   {places.page}",
        f"picture  {places.picture}",
        f"folder   {places.folder}: every question, completion, reward and metric of the run, to be read with any editor",
    ]


def next_steps(experiment: str, places: Places, program: str) -> list[str]:
    """Commands that can be pasted as they are."""
    command = shlex.quote(program)
    run = f"--gdrive-path {shlex.quote(places.store)} --experiment-name {shlex.quote(experiment)}"
    address = shlex.quote(f"{places.store}/{experiment}")
    return [
        "Ask the trained model something, beside the base model:",
        f'  {command} ask "What is 3 + 4?" {run}',
        "See what every node is doing, also while it runs:",
        f"  {command} status {run}",
        "Join a run that goes on, from any machine that sees the folder:",
        f"  {command} join {address}",
        "Train a real model, on a GPU:",
        f"  {command} swarm --workers 2 --experiment-name qwen --model-name {QWEN} --num-train-samples 4 --num-transplant-trees 4",
    ]


def show_card(summary: Summary, card: Sequence[Section], console: Console) -> None:
    """What was learnt in a frame on a terminal, as plain lines elsewhere; paths and commands are always lines of their own."""
    if console.is_terminal:
        framed = [part for section in card if not section.to_copy for part in _framed(section)]
        console.print(Panel(Group(*framed), title=Text(visible(title(summary)), style="bold"), padding=(0, 2)))
    else:
        console.print(Text(visible(title(summary))), soft_wrap=True)
    for section in card:
        if section.to_copy or not console.is_terminal:
            lines = "".join(f"\n  {visible(line)}" for line in section.lines)
            console.print(Text.assemble("\n", (section.title, TITLE), lines), soft_wrap=True)


def _framed(section: Section) -> list[RenderableType]:
    """Lines are wrapped under their own beginning."""
    return [Text(), Text(section.title, style=TITLE), *(Padding(Text(visible(line)), (0, 0, 0, 2)) for line in section.lines)]
