"""The report of a run: one picture, and one page that contains its plots. Draws and writes what `runs/summary.py` has computed."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rl_swarm.runs.examples import NOT_READ, PARTLY, RIGHT, WRONG, Answered, Example
from rl_swarm.runs.following import MEAN_ROUNDS
from rl_swarm.runs.measures import interval
from rl_swarm.runs.record import Evaluated
from rl_swarm.runs.summary import Change, Summary
from rl_swarm.show.card import (
    DAMAGED,
    WHAT_THE_FORMS_ARE,
    facts,
    headline,
    honest_note,
    times,
    title,
    what_held_out_is,
    what_is_gone,
    what_reward_is,
    worth,
)
from rl_swarm.show.drawing import Panel, Shades, apart, label, legend_below, round_axis, sheet, smooth, thin, with_gaps
from rl_swarm.show.formats import EMPTY, LONGEST_SHOWN, number, percent, rounds_named, within
from rl_swarm.show.page import Html, element, join, make_page, plots, settings_table, table, tile
from rl_swarm.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE, PICTURE = "report.html", "report.png"
MOST_COLOURS = 8
MOST_CELLS = 12  # nodes up to which the counts of who learnt from whom are written out
SHADES_OF = {RIGHT: "good", NOT_READ: "partly", PARTLY: "partly", WRONG: "wrong"}
SOURCES = Html(
    "Everything on this page was read from the folder of the run. Rewards: <code>logs/NODE/metrics.jsonl</code>, field "
    "<code>reward</code>. Held-out accuracy: the events <code>evaluation</code> in <code>logs/NODE/training_events.jsonl</code>. "
    "Who learnt from whom: field <code>external_ids</code> of the metrics, where each id begins with its author; "
    "<code>rl-swarm validate</code> finds every one of them in its author's files under <code>rollouts/</code>, or in its author's "
    "metrics where these files were removed on purpose. Answers to the same question before and after training were asked of the "
    "models when this page was made."
)


def make_report(summary: Summary, examples: Sequence[Example]) -> dict[str, bytes]:
    """The picture and the page, by name of file."""
    rewards, held_out, uses = panels = make_panels(summary)
    drawn = sheet(headline(summary), facts(summary), [[rewards], [held_out, uses]])
    return {PICTURE: drawn, PAGE: run_page(summary, examples, panels).encode()}


def run_page(summary: Summary, examples: Sequence[Example], panels: Sequence[Panel]) -> str:
    """The page, with the panels of `make_panels`, or none."""
    about = (
        f"Every node trained its own copy of {summary.model} and shared what it wrote as text. Nodes trained on rollouts of their "
        f"peers {counted(sum(summary.uses.values()), 'time')}; no weights and no gradients were exchanged."
    )
    words = f"{what_reward_is(summary)} {what_held_out_is(summary)}"
    return make_page(
        title(summary),
        element("p", facts(summary), "faint"),
        element("p", about),
        _tiles(summary),
        element("p", honest_note(summary), "note"),
        element("p", words),
        plots(panels[:2]),
        element("h2", "The nodes"),
        _nodes(summary),
        element("h2", "Who learnt from whom"),
        plots(panels[2:]),
        _uses(summary),
        element("h2", "Before and after"),
        _examples(examples),
        element("h2", "Settings"),
        settings_table(summary.settings, caption="The settings of the experiment, from experiment.json."),
        element("h2", "Versions"),
        table(("", ""), sorted(summary.versions.items())),
        element("h2", "Where the figures come from"),
        element("p", SOURCES),
        *([element("p", f"In this run, {gone}.")] if (gone := what_is_gone(summary)) else []),
        *([element("h2", DAMAGED), table(("",), ([each] for each in summary.damaged))] if summary.damaged else []),
    )


def _tiles(summary: Summary) -> Html:
    rounds = f"{rounds_named(summary.first_rounds)} against {rounds_named(summary.last_rounds)}"
    grown = times(summary.reward)
    tiles = (
        tile("reward", _rewards(summary.reward), f"{grown}, {rounds}" if grown else rounds),
        tile("held-out, as the verifier reads", _shares(summary.held_out), _asked_on(summary)),
        tile("held-out, in the form", _shares(summary.in_form), "made to begin with <answer>"),
        tile("held-out, in any form", _shares(summary.style_blind), "right wherever the answer stands"),
    )
    return element("div", join(tiles), "tiles")


def _asked_on(summary: Summary) -> str:
    asked = counted(summary.held_out_questions, "question")
    range_after = within(summary.held_out.after, summary.held_out_questions)
    return f"{asked}, after {range_after}" if range_after else asked


def _rewards(change: Change) -> str:
    return f"{number(change.before)} → {number(change.after)}"


def _shares(change: Change) -> str:
    return f"{percent(change.before, '.1%')} → {percent(change.after, '.1%')}"


def _nodes(summary: Summary) -> Html:
    heads = ("node", "rounds", "reward", "held-out", "in the form", "in any form", "own used", "external used", "given", "tokens")
    rows = (
        (
            node.node_id,
            node.rounds,
            _rewards(node.reward),
            _shares(node.held_out),
            _shares(node.in_form),
            _shares(node.style_blind),
            node.own_used,
            node.got,
            node.gave,
            node.tokens,
        )
        for node in summary.nodes
    )
    caption = (
        "Used: how often the node trained on a rollout of its own, and on an external one, which a peer wrote. Given: how often "
        "peers trained on one of its rollouts. Tokens: written by the node itself."
    )
    return table(heads, rows, numbers=9, caption=caption)


def _uses(summary: Summary) -> Html:
    names = [node.node_id for node in summary.nodes]
    if len(names) > MOST_CELLS:
        return element("p", f"The table of the nodes has the sums; {len(names)} nodes are too many for one of each pair.")
    rows = (
        (learner, *("" if learner == author else summary.uses.get((learner, author), 0) for author in names)) for learner in names
    )
    caption = "How often the node of the row trained on a rollout of the column's."
    return table(("trained by", *names), rows, numbers=len(names), caption=caption)


def _examples(examples: Sequence[Example]) -> Html:
    if not examples:
        return element("p", "The run holds no texts of a first and a last round to compare.")
    rows = ((each.task, _asked(each), _answer(each.before), _answer(each.after)) for each in examples)
    if all(example.same_question for example in examples):
        caption = "The first held-out question of each task, answered greedily: chosen before anything was answered."
    else:
        caption = "For each task the first completion of the first round and of the last, to two different questions."
    return table(("task", "question", "before", "after"), rows, caption=caption)


def _asked(example: Example) -> Html:
    prompts = [example.before.prompt] if example.same_question else [example.before.prompt, example.after.prompt]
    return join(element("pre", prompt[:LONGEST_SHOWN]) for prompt in prompts)


def _answer(answer: Answered) -> Html:
    kind = SHADES_OF[answer.verdict]
    shown = element("pre", answer.text[:LONGEST_SHOWN] or EMPTY, kind)
    return join((shown, element("span", worth(answer), kind), element("div", answer.by, "faint")))


def make_panels(summary: Summary) -> tuple[Panel, Panel, Panel]:
    """Rewards, held-out accuracy, and who learnt from whom."""
    return (
        Panel(
            lambda axes, shades: _draw_rewards(axes, summary, shades),
            "Reward of each node round by round",
            f"Lines are means of {MEAN_ROUNDS} rounds; the shaded rounds are compared.",
        ),
        Panel(
            lambda axes, shades: _draw_held_out(axes, summary.evaluations, shades),
            "Held-out accuracy before and during training",
            f"The verifier reads only what stands in <answer>…</answer>. {WHAT_THE_FORMS_ARE} The band is the range that chance "
            "leaves.",
        ),
        Panel(lambda axes, shades: _draw_uses(axes, summary, shades), "How often each node trained on the rollouts of each other"),
    )


def _draw_rewards(axes: "Axes", summary: Summary, shades: Shades) -> None:
    axes.set_title(f"Reward of the nodes' own completions, mean of {MEAN_ROUNDS} rounds", pad=22)  # above the compared rounds
    if len(summary.rewards) <= MOST_COLOURS:
        for (node_id, points), colour in zip(summary.rewards.items(), shades.nodes, strict=False):
            axes.plot(*_smoothed(points), color=colour, linewidth=1.1, alpha=0.85, label=label(node_id))
    else:
        rounds, low, high = _band(summary.rewards.values())
        axes.fill_between(rounds, low, high, color=shades.faint, alpha=0.25, linewidth=0, label="lowest to highest node")
    dots = thin(summary.mean_rewards)
    axes.plot(*_columns(dots), ".", color=shades.first, alpha=0.4, markersize=4, label="all nodes, each round")
    axes.plot(*_smoothed(summary.mean_rewards), color=shades.first, linewidth=2.8, label="all nodes")
    if min((reward for _, reward in dots), default=0.0) >= 0:
        axes.set_ylim(bottom=0.0)
    compared = ((summary.first_rounds, summary.reward.before, "left"), (summary.last_rounds, summary.reward.after, "right"))
    for numbers, value, side in compared:
        if numbers:
            begin, end = numbers[0] - 0.5, numbers[-1] + 0.5
            axes.axvspan(begin, end, color=shades.first, alpha=0.09, linewidth=0)
            said = f"{rounds_named(numbers)}: {number(value)}"
            axes.text(begin if side == "left" else end, 1.02, said, transform=axes.get_xaxis_transform(), ha=side, va="bottom")
    round_axis(axes)
    axes.grid(axis="y")
    axes.margins(x=0.01)
    legend_below(axes)


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [number for number, _ in points], [value for _, value in points]


def _smoothed(points: Sequence[tuple[int, float]]) -> tuple[list[float], list[float]]:
    """Means of a few rounds, with a gap where a node was away for more rounds than that."""
    stretches: list[list[tuple[int, float]]] = []
    for point in points:
        if not stretches or point[0] - stretches[-1][-1][0] > MEAN_ROUNDS:
            stretches.append([])
        stretches[-1].append(point)
    means = [value for each in stretches for value in smooth([value for _, value in each], MEAN_ROUNDS)]
    return _columns(with_gaps(thin(list(zip((number for number, _ in points), means, strict=True))), MEAN_ROUNDS))


def _band(nodes: Iterable[Sequence[tuple[int, float]]]) -> tuple[list[float], list[float], list[float]]:
    """Rounds, and the smoothed rewards of the lowest and of the highest node."""
    found: dict[float, tuple[float, float]] = {}
    for points in nodes:
        for place, value in zip(*_smoothed(points), strict=True):
            low, high = found.get(round(place), (value, value))
            found[round(place)] = min(low, value), max(high, value)
    rounds = sorted(found)
    return rounds, [found[place][0] for place in rounds], [found[place][1] for place in rounds]


def _draw_held_out(axes: "Axes", evaluations: Sequence[Evaluated], shades: Shades) -> None:
    axes.set_title("Held-out accuracy, mean of the nodes")
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.grid(axis="y")
    round_axis(axes, ticks=6)
    if not evaluations:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=shades.faint)
        return
    numbers = [each.round for each in evaluations]
    low, high = zip(*(interval(each.held_out, each.held_out_questions) for each in evaluations), strict=True)
    axes.fill_between(numbers, low, high, color=shades.first, alpha=0.15, linewidth=0)
    lines = {
        "in any form": ([each.held_out_style_blind for each in evaluations], shades.second, "s--"),
        "in the form": ([each.held_out_in_form for each in evaluations], shades.faint, ":"),
        "as the verifier reads": ([each.held_out for each in evaluations], shades.first, "o-"),
    }
    for name, (values, colour, style) in lines.items():
        axes.plot(numbers, values, style, color=colour, linewidth=2, markersize=5, label=name, clip_on=False)
    for place, side in ((0, "right"), *([(-1, "left")] if len(numbers) > 1 else [])):
        named = [(values[place], colour) for values, colour, _ in lines.values()]
        for height, (value, colour) in zip(apart([value for value, _ in named]), named, strict=True):
            shift = -8 if side == "right" else 8
            axes.annotate(
                percent(value, ".1%"),
                (numbers[place], height),
                (shift, 0),
                textcoords="offset points",
                color=colour,
                ha=side,
                va="center",
            )
    axes.margins(x=0.2)  # room for the figures beside the lines
    legend_below(axes)


def _draw_uses(axes: "Axes", summary: Summary, shades: Shades) -> None:
    """Who learnt from whom: a row for each learner, a column for each author; the diagonal counts a node's own rollouts."""
    from matplotlib.colors import LinearSegmentedColormap

    axes.set_title("Rollouts that each node trained on, by author")
    names = [node.node_id for node in summary.nodes]
    if not names:
        return
    counts = [
        [float("nan") if learner == author else summary.uses.get((learner, author), 0) for author in names] for learner in names
    ]
    shading = LinearSegmentedColormap.from_list("uses", (shades.paper, shades.first))
    most = 2 * max(summary.uses.values(), default=0)  # half of the scale, so that figures stay readable
    axes.imshow(counts, cmap=shading, vmin=0, vmax=max(1, most), aspect="auto")
    labels = [label(name) for name in names]
    borders = [place + 0.5 for place in range(len(names) - 1)]
    for set_ticks, turned in ((axes.set_xticks, 90 if len("".join(labels)) > 50 else 0), (axes.set_yticks, 0)):
        set_ticks(borders, minor=True)
        set_ticks(range(len(names)), labels, rotation=turned)
    axes.grid(which="minor", color=shades.paper, linewidth=3)
    axes.set_xlabel("author")
    axes.set_ylabel("learner")
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    if len(names) > MOST_CELLS:
        axes.tick_params(labelbottom=False, labelleft=False)
        return
    for row, node in enumerate(summary.nodes):
        for column, count in enumerate(counts[row]):
            own = row == column
            text = f"own {node.own_used}" if own else f"{count:.0f}"
            axes.text(column, row, text, ha="center", va="center", color=shades.faint if own else shades.ink)
