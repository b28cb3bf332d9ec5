"""The card at the end of a run: what was learnt, who gave and got, one question before and after, and what to try next.

Every number comes from the summary of the run. The card says what each figure is, and how much of a rise is only the form of the
answers.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from rl_swarm.runs.examples import NOT_READ, PARTLY, Answered, Example, telling
from rl_swarm.runs.measures import interval
from rl_swarm.runs.summary import Change, NodeSummary, Summary
from rl_swarm.show.formats import EMPTY, date, duration, flat, number, percent, rounds_named, within
from rl_swarm.text import counted, visible

DAMAGED = "Damaged files, missing at least in part from these figures"
TITLE = "bold cyan"
QWEN = "Gensyn/Qwen2.5-0.5B-Instruct"
HELD_OUT_READINGS = {"as the verifier reads": "held_out", "in the form": "held_out_in_form", "in any form": "held_out_style_blind"}
WHAT_THE_FORMS_ARE = (
    "In the form: the completion is made to begin with <answer>. In any form: a right answer counts wherever it stands."
)
MOST_LINES = 16  # nodes, and damaged files, on a card


@dataclass(frozen=True)
class Places:
    """Where a run and its report can be looked at."""

    store: str
    folder: str
    picture: str
    page: str
    address: str = ""  # with which others join, the founder's key included
    home: str = ""  # RL_SWARM_HOME, if the run was told where its models are


@dataclass(frozen=True)
class Section:
    title: str
    lines: Sequence[str]
    to_copy: bool = False  # paths and commands, which a frame would break


def times(change: Change) -> str:
    return f"{change.times:.1f} times" if change.times is not None else ""


def what_reward_is(summary: Summary) -> str:
    before, after = rounds_named(summary.first_rounds), rounds_named(summary.last_rounds)
    return (
        "Reward: the mean that the verifier paid over all completions that the nodes wrote themselves; before is "
        f"{before}, when the models were hardly trained, after is {after}."
    )


def what_held_out_is(summary: Summary) -> str:
    """Explain held-out accuracy; nothing where it was not measured before and after."""
    if summary.held_out.after is None:
        return ""
    last = summary.evaluations[-1].round
    return (
        f"Held-out: share of {counted(summary.held_out_questions, 'question')} that nobody trains on, answered greedily; mean of "
        f"the nodes, before training and at round {last}. {WHAT_THE_FORMS_ARE} The last column has the range in which chance "
        "leaves the figure after training."
    )


def honest_note(summary: Summary) -> str:
    """Say how much of the rise is knowing more, and how much only the form in which answers are written."""
    seen, base = summary.held_out, summary.in_form
    if seen.before is None or seen.after is None or base.before is None:
        return "Held-out accuracy was not measured both before and after training: EVAL_INTERVAL says how often it is."
    if seen.after <= seen.before:
        return "As the verifier reads the answers, held-out accuracy did not rise in this run."
    knew, low = percent(base.before, ".1%"), interval(seen.after, summary.held_out_questions)[0]
    form = f"made to begin with <answer>, the base model answers {knew} correctly"
    if seen.after <= base.before:
        return f"The rise is finding the form, not knowing more: {form}.{_lost(summary)}"
    more = f"{100 * (seen.after - base.before):.1f} points"
    if low > base.before:
        return f"They learnt more than the form: {form}, so the rise goes {more} beyond it.{_lost(summary)}"
    chance = f"chance alone explains as much on {counted(summary.held_out_questions, 'question')}"
    return f"The rise is mostly finding the form: {form}. It goes {more} beyond that, but {chance}.{_lost(summary)}"


def _lost(summary: Summary) -> str:
    """Name what training has cost, where that is more than chance explains."""
    known = summary.style_blind
    if known.before is None or known.after is None or interval(known.after, summary.held_out_questions)[1] >= known.before:
        return ""
    before, after = percent(known.before, ".1%"), percent(known.after, ".1%")
    return f" What it cost: {before} were right in any form before, now {after}."


def title(summary: Summary) -> str:
    return f"RL Swarm {summary.experiment}: {_size(summary)}, {duration(round(summary.seconds))}"


def facts(summary: Summary) -> str:
    """What a picture or a page is of, in one line."""
    return f"experiment {summary.experiment} · {_size(summary)} · model {summary.model} · last round {date(summary.last_round_at)}"


def headline(summary: Summary) -> str:
    """What came out, in one line."""
    before, after, grown = number(summary.reward.before), number(summary.reward.after), times(summary.reward)
    return f"RL Swarm {summary.experiment}: reward {before} → {after}{f', {grown}' if grown else ''}"


def _size(summary: Summary) -> str:
    unfinished = summary.max_rounds is not None and summary.rounds < summary.max_rounds
    rounds = f"{summary.rounds} of {counted(summary.max_rounds or 0, 'round')}" if unfinished else counted(summary.rounds, "round")
    return f"{counted(len(summary.nodes), 'worker')}, {rounds}"


def what_is_gone(summary: Summary) -> str:
    """Which rollouts were removed on purpose; empty if none were."""
    before = summary.removed_before
    return f"questions and completions of rounds before {before} were removed or archived on purpose" if before else ""


def sections(summary: Summary, examples: Sequence[Example], places: Places, program: str = "rl-swarm") -> list[Section]:
    """The card as titles and lines, without any decoration."""
    width = max((len(node.node_id) for node in summary.nodes), default=0)
    gone = what_is_gone(summary)
    texts = "every question, completion, reward and metric of the run, as text"
    if gone:
        texts = f"every reward and metric of the run, as text; {gone}"
    where = (
        f"report   {places.page}",
        f"picture  {places.picture}",
        f"folder   {places.folder}: {texts}",
    )
    return [
        Section("What was learnt", _learnt(summary)),
        Section(
            "Reward of each node before and after, what it gave and got", _some([_shared(node, width) for node in summary.nodes])
        ),
        *([_example(examples)] if examples else []),
        *([Section(DAMAGED, _some(summary.damaged))] if summary.damaged else []),
        Section("Where to look", where, to_copy=True),
        Section("What to try next", next_steps(summary, places, program), to_copy=True),
    ]


def _learnt(summary: Summary) -> list[str]:
    changes = (summary.held_out, summary.in_form, summary.style_blind)
    figures = [
        ("", "before", "after", ""),
        ("reward", number(summary.reward.before), number(summary.reward.after), times(summary.reward)),
        *(
            (
                f"held-out, {name}",
                percent(change.before, ".1%"),
                percent(change.after, ".1%"),
                within(change.after, summary.held_out_questions),
            )
            for name, change in zip(HELD_OUT_READINGS, changes, strict=True)
        ),
    ]
    table = [f"{name:<32}{before:>8}  {after:>8}  {more}".rstrip() for name, before, after, more in figures]
    said = (what_reward_is(summary), what_held_out_is(summary), honest_note(summary))
    return [*table, *filter(None, said)]


def _shared(node: NodeSummary, width: int) -> str:
    rewards = f"{number(node.reward.before)} → {number(node.reward.after)}"
    gave, got = counted(node.gave, "time"), counted(node.got, "time")
    return f"{node.node_id:<{width}}  {rewards}; peers trained on its rollouts {gave}, it on theirs {got}"


def _example(examples: Sequence[Example]) -> Section:
    shown = telling(examples)
    turned = "the first that came to the full reward" if shown.turned else "the first, since none came to the full reward"
    kind = "one question of each task" if shown.same_question else "completions of the first and the last round, one of each task"
    lines = [f"Of {counted(len(examples), 'example')} ({kind}) {turned}; all are in the report."]
    for answer in (shown.before, shown.after):
        asked = f"asked: {flat(answer.prompt)}"
        lines += [_answer(answer)] if asked in lines else [asked, _answer(answer)]
    about = "One question, before and after" if shown.same_question else "Two answers, of the first rounds and of the last"
    return Section(about, lines)


def _answer(answer: Answered) -> str:
    return f"{answer.by}: {flat(answer.text) or EMPTY}  ({worth(answer)})"


def worth(answer: Answered) -> str:
    """The reward, and what it is paid for. Right and rewarded are two things."""
    said = {NOT_READ: "right, but not in <answer> tags, so no reward", PARTLY: "part of the reward"}.get(
        answer.verdict, answer.verdict
    )
    return f"reward {number(answer.reward, 2)}: {said}"


def next_steps(summary: Summary, places: Places, program: str) -> list[str]:
    """Commands that can be pasted as they are; `program` is typed as it stands."""
    run = f"--gdrive-path {shlex.quote(places.store)} --experiment {shlex.quote(summary.experiment)}"
    at_home = f" --rl-swarm-home {shlex.quote(places.home)}" if places.home else ""
    address = places.address or f"{places.store}/{summary.experiment}"
    goes_on = summary.max_rounds is None or summary.rounds < summary.max_rounds
    return [
        "Ask the trained model something, beside the base model:",
        f'  {program} ask "Calculate 3 + 4." {run}{at_home}',
        "See what every node is doing, also while it runs:",
        f"  {program} status {run}{at_home}",
        *(["Join it from any machine that sees the folder:", f"  {program} join {shlex.quote(address)}"] if goes_on else []),
        "Train a real model, on a GPU:",
        f"  {program} swarm --workers 2 --experiment qwen --model-name {QWEN}",
    ]


def show_card(summary: Summary, card: Sequence[Section], console: Console) -> None:
    """Frame the card on a terminal, print plain lines elsewhere. Paths and commands are never framed."""
    framed = [section for section in card if console.is_terminal and not section.to_copy]
    if framed:
        parts = Group(*(part for section in framed for part in _indented(section)))
        console.print(Panel(parts, title=Text(visible(title(summary)), style="bold"), padding=(0, 2)))
    else:
        console.print(Text(visible(title(summary))), soft_wrap=True)
    for section in card:
        if section not in framed:
            lines = "".join(f"\n  {visible(line)}" for line in section.lines)
            console.print(Text.assemble("\n", (section.title, TITLE), lines), soft_wrap=True)


def _indented(section: Section) -> list[RenderableType]:
    """A long line is wrapped under its own beginning."""
    return [Text(), Text(section.title, style=TITLE), *(Padding(Text(visible(line)), (0, 0, 0, 2)) for line in section.lines)]


def _some(lines: Sequence[str]) -> list[str]:
    more = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], *([f"and {more} more, which are in the report"] if more > 0 else [])]
