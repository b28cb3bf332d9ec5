"""The report of a run as one HTML page that holds everything: no script, no other file, nothing from the network.

Every text of the run goes through `text`, which leaves no markup and no control character in force; a policy inside the page
forbids to load or run whatever might have slipped through.
"""

import base64
from collections.abc import Iterable, Sequence
from html import escape

from rl_swarm.config import SETTINGS
from rl_swarm.runs.examples import Answered, Example
from rl_swarm.runs.following import GOOD, SMOOTHED_ROUNDS
from rl_swarm.runs.summary import Summary
from rl_swarm.show.card import (
    DAMAGED,
    honest_note,
    percent,
    reward,
    rounds_named,
    times,
    title,
    what_held_out_is,
    what_reward_is,
)
from rl_swarm.show.live import LONGEST_SHOWN
from rl_swarm.text import visible

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1f2328; --faint: #5b6470; --line: #e5e7eb; --tint: #f5f7fa;
  --first: #0b6bcb; --good: #137a3b; --wrong: #b3261e; --code: ui-monospace, Menlo, Consolas, monospace; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171c; --ink: #e6e8eb; --faint: #9aa3af; --line: #2b313a;
  --tint: #1b1f26; --first: #58b0ff; --good: #5fd38d; --wrong: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 66rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem; }
p { max-width: 48rem; }
code, pre { font-family: var(--code); font-size: .88rem; overflow-wrap: anywhere; }
td:first-child code { overflow-wrap: normal; }
pre { margin: 0; white-space: pre-wrap; min-width: 11rem; }
img { width: 100%; height: auto; }
.faint, caption { color: var(--faint); }
.good { color: var(--good); }
.wrong { color: var(--wrong); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: 1rem; margin: 1.5rem 0; }
.tile { background: var(--tint); border: 1px solid var(--line); border-radius: .6rem; padding: .9rem 1.1rem; }
.tile b { display: block; font-size: 1.45rem; font-variant-numeric: tabular-nums; }
.tile span { color: var(--faint); font-size: .9rem; }
.note { border-left: .25rem solid var(--first); background: var(--tint); padding: .75rem 1rem; max-width: none; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
caption { text-align: left; padding-bottom: .5rem; }
th, td { text-align: left; vertical-align: top; padding: .4rem 1rem .4rem 0; border-bottom: 1px solid var(--line); }
th { white-space: nowrap; color: var(--faint); font-weight: 600; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
""".strip()


STYLE_BLIND = "Style-blind counts an answer that is right in whatever form it is written."
SOURCES = (
    "Everything on this page was read from the folder of the run. Rewards: <code>logs/NODE/metrics.jsonl</code>, field "
    "<code>reward</code>. Held-out accuracy: the events <code>evaluation</code> in <code>logs/NODE/training_events.jsonl</code>. "
    "Who learnt from whom: field <code>external_ids</code> of the metrics, where each id begins with its author; "
    "<code>rl-swarm validate</code> finds every one of them in its author's files under <code>rollouts/</code>. The answers before "
    "and after training, where they are to the same question, were asked of the models when this page was made."
)


def text(value: object) -> str:
    """Anything, as plain text of the page."""
    return escape(visible(str(value)), quote=True)


def make_page(summary: Summary, examples: Sequence[Example], light: bytes, dark: bytes) -> str:
    parts = [
        f"<h1>{text(title(summary))}</h1>",
        f'<p class="faint">{_about(summary)}</p>',
        _tiles(summary),
        f'<p class="note">{text(honest_note(summary))}</p>',
        f"<p>{text(what_reward_is(summary))} {text(what_held_out_is(summary))} {STYLE_BLIND}</p>",
        _picture(light, dark),
        "<h2>The nodes</h2>",
        _nodes(summary),
        "<h2>Who learnt from whom</h2>",
        _uses(summary),
        "<h2>Before and after</h2>",
        _examples(examples),
        "<h2>Settings</h2>",
        _settings(summary),
        "<h2>Versions</h2>",
        table(("", ""), ((text(name), text(version)) for name, version in sorted(summary.versions.items()))),
        "<h2>Where the figures come from</h2>",
        f"<p>{SOURCES}</p>",
        *([f"<h2>{DAMAGED}</h2>", table(("",), ((text(each),) for each in summary.damaged))] if summary.damaged else []),
    ]
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title(summary))}</title><style>{STYLE}</style>"
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(parts) + "\n</body></html>\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0, caption: str = "") -> str:
    """Cells are HTML already; the last `numbers` columns hold figures."""

    def cells(kind: str, row: Sequence[str]) -> str:
        marks = ["" if place < len(row) - numbers else ' class="number"' for place in range(len(row))]
        return "<tr>" + "".join(f"<{kind}{mark}>{cell}</{kind}>" for mark, cell in zip(marks, row, strict=True)) + "</tr>"

    head = f"<thead>{cells('th', heads)}</thead>" if any(heads) else ""
    named = f"<caption>{caption}</caption>" if caption else ""
    return f'<div class="scroll"><table>{named}{head}<tbody>{"".join(cells("td", row) for row in rows)}</tbody></table></div>'


def _about(summary: Summary) -> str:
    models = ", ".join(sorted({node.model for node in summary.nodes})) or "no model"
    shared = sum(summary.uses.values())
    return (
        f"Every node trained its own copy of {text(models)} and shared what it wrote as text. Nodes trained on rollouts of their "
        f"peers {shared} times; no weights and no gradients were exchanged."
    )


def _tiles(summary: Summary) -> str:
    def tile(name: str, before: str, after: str, more: str = "") -> str:
        return f'<div class="tile"><span>{text(name)}</span><b>{text(before)} → {text(after)}</b><span>{text(more)}</span></div>'

    seen, known = summary.held_out, summary.style_blind
    rounds = f"{rounds_named(summary.first_rounds)} against {rounds_named(summary.last_rounds)}"
    grown = times(summary.reward)
    return (
        '<div class="tiles">'
        + tile("reward", reward(summary.reward.before), reward(summary.reward.after), f"{grown}, {rounds}" if grown else rounds)
        + tile(
            "held-out, as the verifier reads", percent(seen.before), percent(seen.after), f"{summary.held_out_questions} questions"
        )
        + tile("held-out, style-blind", percent(known.before), percent(known.after), "right in whatever form")
        + "</div>"
    )


def _picture(light: bytes, dark: bytes) -> str:
    first, second = (f"data:image/png;base64,{base64.b64encode(data).decode()}" for data in (light, dark))
    said = "Reward of each node round by round; held-out accuracy; how often each node trained on the rollouts of each other"
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{second}"><img src="{first}" alt="{said}"></picture>'
        f'<p class="faint">Lines are means of {SMOOTHED_ROUNDS} rounds; the shaded rounds are those that are compared.</p>'
    )


def _nodes(summary: Summary) -> str:
    rows = (
        (
            text(node.node_id),
            str(node.rounds),
            f"{reward(node.reward.before)} → {reward(node.reward.after)}",
            f"{percent(node.held_out.before)} → {percent(node.held_out.after)}",
            f"{percent(node.style_blind.before)} → {percent(node.style_blind.after)}",
            str(node.own_used),
            str(node.got),
            str(node.gave),
            str(node.tokens),
        )
        for node in summary.nodes
    )
    heads = ("node", "rounds", "reward", "held-out", "style-blind", "own used", "peers' used", "given", "tokens")
    caption = (
        "Used: how often the node trained on a rollout of its own, and of its peers. Given: how often peers trained on one of its "
        "rollouts. Tokens: written by the node itself."
    )
    return table(heads, rows, numbers=8, caption=caption)


def _uses(summary: Summary) -> str:
    names = [node.node_id for node in summary.nodes]
    rows = (
        (text(learner), *("" if learner == author else str(summary.uses.get((learner, author), 0)) for author in names))
        for learner in names
    )
    return table(
        ("trained by", *map(text, names)),
        rows,
        numbers=len(names),
        caption="How often the node of the row trained on a rollout of the column's.",
    )


def _examples(examples: Sequence[Example]) -> str:
    if not examples:
        return "<p>The run holds no texts of a first and a last round to compare.</p>"
    rows = [(text(example.task), _asked(example), _answer(example.before), _answer(example.after)) for example in examples]
    if all(example.same_question for example in examples):
        caption = "The first held-out question of each task, answered greedily: chosen before anything was answered."
    else:
        caption = "For each task the first completion of the first round and of the last, to two different questions."
    return table(("task", "question", "before", "after"), rows, caption=caption)


def _asked(example: Example) -> str:
    prompts = [example.before.prompt] if example.same_question else [example.before.prompt, example.after.prompt]
    return "".join(f"<pre>{text(prompt[:LONGEST_SHOWN])}</pre>" for prompt in prompts)


def _answer(answer: Answered) -> str:
    kind = "good" if answer.reward >= GOOD else "wrong"
    shown = answer.text[:LONGEST_SHOWN] or "(nothing)"
    return f'<pre class="{kind}">{text(shown)}</pre><span class="faint">{text(answer.by)}, reward {answer.reward:.2f}</span>'


def _settings(summary: Summary) -> str:
    meanings = {setting.variable: setting.meaning for setting in SETTINGS.values()}
    rows = (
        (f"<code>{text(name)}</code>", f"<code>{text(value)}</code>", text(meanings.get(name, "")))
        for name, value in sorted(summary.settings.items())
    )
    return table(("variable", "value", "meaning"), rows, caption="What the swarm agreed on, from experiment.json.")
