"""The report of an experiment as one HTML page that holds everything: no script, no other file, nothing from the network.

It writes what the analysis has computed. Every figure on it is also in the CSV and JSON files beside it.
"""

import base64
from collections.abc import Mapping, Sequence

from rl_swarm.reproduce.analysis import Analysis, ArmResult, Comparison, sentences
from rl_swarm.reproduce.measures import COLLAPSED, TRAINED_COST
from rl_swarm.reproduce.plan import SMOOTHED_ROUNDS
from rl_swarm.show.page import POLICY, STYLE, table, text

NOTHING = "–"
TITLE = "Does sharing help?"
CAPTIONS = {
    "rewards": "Reward over own rollouts, one panel an arm. Dots are rounds, the line is smoothed, the band reaches from the "
    "lowest to the highest node; all are means over seeds. The dotted line is the threshold.",
    "smoothed": "All arms, smoothed. Left what each node's own completions were paid. Right the measure that also counts external "
    "rollouts, which were chosen for being informative: it rises without any learning.",
    "cost": "The same reward against what a node has spent.",
    "horizon": "The gain against the split without sharing for every horizon that could have been chosen; the first rounds, in "
    "which next to nothing is paid, are left out.",
    "ablations": "What changes when the best split is changed in one way.",
}
WORDS = (
    f"Cumulative is the sum over rounds of the mean over nodes of the reward of <em>own</em> completions. Final is the mean of the "
    f"last tenth of the rounds. Smoothed is over {SMOOTHED_ROUNDS} rounds. Held-out is greedy accuracy on questions that nobody "
    "trains on, style-blind the same whatever the form of the answer. Oscillation is how much the smoothed reward fell on its way, "
    f"and lost what it had lost of its peak at the end, both as shares of the peak; a run that lost more than {COLLAPSED:.0%} has "
    f"collapsed. Compute is tokens written plus {TRAINED_COST} for each token trained on. Origins is the number of peers that "
    "external rollouts came from, as if each had given the same."
).replace("%", " %")


def make_page(
    analysis: Analysis,
    figures: Sequence[tuple[str, bytes, bytes]],
    about: str,
    command: str,
    rule: str,
    settings: Mapping[str, str],
    versions: Mapping[str, str],
) -> str:
    said = sentences(analysis)
    parts = [
        f"<h1>{TITLE}</h1>",
        f'<p class="faint">{text(about)}</p>',
        *(f'<p class="note">{text(sentence)}</p>' for sentence in said[:1]),
        "<ul>" + "".join(f"<li>{text(sentence)}</li>" for sentence in said[1:]) + "</ul>" if said[1:] else "",
        "<h2>The table</h2>",
        _rewards(analysis),
        *(_picture(name, light, dark) for name, light, dark in figures),
        "<h2>Cost</h2>",
        _costs(analysis),
        _equal_costs(analysis),
        "<h2>External rollouts</h2>",
        _external(analysis),
        "<h2>Seed by seed</h2>",
        _seeds(analysis),
        "<h2>What the words mean</h2>",
        f"<p>{WORDS}</p>",
        f"<p>Rounds: {text(rule)}. The test is a paired permutation test on cumulative own reward, two-sided.</p>",
        "<h2>Settings</h2>",
        f"<pre>{text(command)}</pre>",
        table(("variable", "value"), ((_code(name), _code(value)) for name, value in sorted(settings.items()))),
        "<h2>Versions</h2>",
        table(("", ""), ((text(name), text(value)) for name, value in sorted(versions.items()))),
    ]
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{TITLE}</title><style>{STYLE}</style>"
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _rewards(analysis: Analysis) -> str:
    heads = ("arm", "seeds", "cumulative", "against alone", "worst seed", "p", "kept", "final", "rounds to threshold", "held-out")
    more = ("style-blind", "oscillation", "lost", "mixed, inflated")
    against = {each.arm: each for each in analysis.comparisons}
    rows = (_reward_row(arm, against.get(arm.arm.name), analysis.threshold) for arm in analysis.arms)
    before = next((cell.result.before for cell in analysis.baseline.cells.values() if cell.result.before), None)
    base = f" Held-out before training: {before[0]:.3f}, style-blind {before[1]:.3f}." if before else ""
    caption = f"Means over seeds. The threshold is {analysis.threshold:.3f}, half of what the arm without sharing ends with.{base}"
    return table((*heads, *more), rows, numbers=len(heads) + len(more) - 1, caption=caption)


def _reward_row(arm: ArmResult, compared: Comparison | None, threshold: float) -> tuple[str, ...]:
    reached = arm.rounds_to(threshold)
    return (
        text(arm.arm.name),
        str(len(arm.cells)),
        number(arm.mean("cumulative"), 2),
        percent(compared.gain) if compared else NOTHING,
        percent(compared.worst) if compared else NOTHING,
        number(compared.p, 4) if compared and compared.seeds else NOTHING,
        share(compared.kept) if compared else NOTHING,
        number(arm.mean("final")),
        NOTHING if reached is None else str(reached),
        number(arm.mean("held_out")),
        number(arm.mean("held_out_style_blind")),
        number(arm.mean("oscillation"), 2),
        share(arm.mean("collapse")),
        number(arm.mean("cumulative_mixed"), 2),
    )


def _costs(analysis: Analysis) -> str:
    heads = ("arm", "nodes", "tokens written", "tokens trained on", "compute", "seconds")
    rows = (
        (
            text(arm.arm.name),
            str(arm.arm.nodes),
            *(
                f"{value or 0:,.0f}"
                for value in (
                    arm.mean("tokens_generated"),
                    arm.mean("tokens_trained"),
                    arm.mean_curve("compute")[-1],
                    arm.mean("seconds"),
                )
            ),
        )
        for arm in analysis.arms
    )
    caption = (
        "Of a whole swarm, mean over seeds. Seconds are of one process with one thread, on a machine that did other things too."
    )
    return table(heads, rows, numbers=5, caption=caption)


def _equal_costs(analysis: Analysis) -> str:
    heads = ("arm", "cost", "rounds alone", "rounds", "reached alone", "reached", "p", "mean alone", "mean")
    rows = (
        (
            text(each.arm),
            "tokens written" if equal.cost == "generated" else "compute",
            f"{equal.rounds[0]:.0f}",
            f"{equal.rounds[1]:.0f}",
            number(equal.reached[0]),
            number(equal.reached[1]),
            number(equal.p, 4),
            number(equal.mean_reward[0]),
            number(equal.mean_reward[1]),
        )
        for each in analysis.comparisons
        for equal in each.at_equal_cost
    )
    caption = (
        "At equal cost: each pair at the moment when both have spent, per node, what the cheaper one spent in all. Reached is the "
        "smoothed own reward then, mean that of all rounds until then."
    )
    return table(heads, rows, numbers=7, caption=caption)


def _external(analysis: Analysis) -> str:
    heads = ("arm", "own informative", "external wanted", "external used", "age in rounds", "origins")
    rows = (
        (
            text(arm.arm.name),
            *(number(arm.mean(name), 2) for name in ("own_used", "external_wanted", "external_used", "external_age", "origins")),
        )
        for arm in analysis.arms
    )
    return table(heads, rows, numbers=5, caption="Means per node and round.")


def _seeds(analysis: Analysis) -> str:
    seeds = sorted({seed for arm in analysis.arms for seed in arm.cells})
    rows = (
        (
            text(arm.arm.name),
            *(number(arm.cells[seed].measures.cumulative, 2) if seed in arm.cells else "" for seed in seeds),
        )
        for arm in analysis.arms
    )
    return table(("arm", *map(str, seeds)), rows, numbers=len(seeds), caption="Cumulative own reward.")


def _picture(name: str, light: bytes, dark: bytes) -> str:
    first, second = (f"data:image/png;base64,{base64.b64encode(data).decode()}" for data in (light, dark))
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{second}"><img src="{first}" alt="{text(name)}"></picture>'
        f'<p class="faint">{CAPTIONS[name]}</p>'
    )


def _code(value: str) -> str:
    return f"<code>{text(value)}</code>"


def number(value: float | None, digits: int = 3) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:+.0%}".replace("%", " %")


def share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0%}".replace("%", " %")
