"""Build one HTML page that holds everything: no script, no other file, nothing from the network.

    make_page("Title", element("h2", "Nodes"), table(("node", "reward"), rows, numbers=1), plots([panel]))

On a phone nothing is wider than the screen: plots stand one below the other, a table of figures scrolls in its own box, the rows
of a table of texts become paragraphs.

Every part escapes what it is given unless that is `Html` already, so text of strangers cannot become markup. A policy inside the
page also forbids the browser to load or run anything.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from rl_swarm.config import SETTINGS
from rl_swarm.show.drawing import DARK, LIGHT, Panel, Shades
from rl_swarm.text import visible

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def _colours(shades: Shades, selector: str = ":root") -> str:
    names = ("paper", "ink", "faint", "grid", "edge", "tint", "first", "second", "good", "wrong")
    colours = {name: getattr(shades, name) for name in names} | {f"node-{place}": each for place, each in enumerate(shades.nodes)}
    return f"{selector} {{ " + " ".join(f"--{name}: {value};" for name, value in colours.items()) + " }"


STYLE = f"""
:root {{ color-scheme: light dark; --code: ui-monospace, Menlo, Consolas, monospace; }}
{_colours(LIGHT)}
@media (prefers-color-scheme: dark) {{ {_colours(DARK)} }}
""" + """
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 66rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem; }
p { max-width: 48rem; }
code, pre { font-family: var(--code); font-size: .88rem; }
pre { margin: 0; white-space: pre-wrap; }
figure { margin: 0 0 1rem; }
figcaption, .faint { color: var(--faint); font-size: .92rem; }
img { display: block; width: 100%; height: auto; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); gap: 1rem 1.5rem; }
.good { color: var(--good); }
.partly { color: var(--second); }
.wrong { color: var(--wrong); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr)); gap: 1rem; margin: 1.5rem 0; }
.tile { background: var(--tint); border: 1px solid var(--grid); border-radius: .6rem; padding: .9rem 1.1rem; }
.tile b { display: block; font-size: 1.45rem; font-variant-numeric: tabular-nums; }
.tile span { color: var(--faint); font-size: .9rem; }
.note { border-left: .25rem solid var(--first); background: var(--tint); padding: .75rem 1rem; max-width: none; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: left; vertical-align: top; padding: .4rem 1rem .4rem 0; border-bottom: 1px solid var(--grid); }
th { white-space: nowrap; color: var(--faint); font-weight: 600; }
.figures td, td:first-child { overflow-wrap: normal; }
.texts td { min-width: 9rem; }
.figures :is(th, td):first-child { position: sticky; left: 0; background: var(--paper); }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
@media (max-width: 40rem) {
  body { padding: 1.25rem 1rem 3rem; }
  .texts thead { display: none; }
  .texts :is(tbody, tr, td) { display: block; overflow-wrap: anywhere; }
  .texts tr { border-bottom: 1px solid var(--grid); padding: .6rem 0; }
  .texts td { border: 0; padding: .1rem 0; min-width: 0; }
  .texts td[data-head]::before { content: attr(data-head); display: block; color: var(--faint); font-size: .8rem; }
}
""".rstrip()


# For a page on which readers choose the colours themselves: `data-theme` on the root element.
CHOSEN_COLOURS = "\n".join(
    f"{_colours(shades, selector)}\n{selector} {{ color-scheme: {name}; }}"
    for name, shades in (("light", LIGHT), ("dark", DARK))
    for selector in (f':root[data-theme="{name}"]',)
)


class Html(str):
    """Markup of our own, which goes onto the page as it is."""


def text(value: object) -> Html:
    """Escape anything but `Html`, and spell out its control characters."""
    return value if isinstance(value, Html) else Html(escape(visible(str(value))))


def join(parts: Iterable[object], between: str = "") -> Html:
    return Html(between.join(map(text, parts)))


def element(tag: str, content: object, kind: str = "") -> Html:
    """One element; `kind` is a class of the style sheet."""
    mark = f' class="{kind}"' if kind else ""
    return Html(f"<{tag}{mark}>{text(content)}</{tag}>")


def bullets(lines: Sequence[object]) -> Html:
    return element("ul", join(element("li", line) for line in lines)) if lines else Html()


def tile(name: str, figure: str, more: str) -> Html:
    """A figure in large letters; place several inside an element of kind `tiles`."""
    return element("div", join((element("span", name), element("b", figure), element("span", more))), "tile")


def table(heads: Sequence[object], rows: Iterable[Sequence[object]], numbers: int = 0, caption: object = "") -> Html:
    """A table whose last `numbers` columns hold figures; without any it is one of texts."""

    def line(tag: str, cells: Sequence[object]) -> Html:
        words = len(cells) - numbers
        return element("tr", join(element(tag, cell, "number" if place >= words else "") for place, cell in enumerate(cells)))

    def texts(cells: Sequence[object]) -> Html:
        """A phone shows the head of the column before each text, but for the first, which names the row."""
        named = [Html(f' data-head="{text(head)}"') if head and place else "" for place, head in enumerate(heads)]
        return element("tr", join(Html(f"<td{name}>{text(cell)}</td>") for name, cell in zip(named, cells, strict=True)))

    head = element("thead", line("th", heads)) if any(heads) else Html()
    body = element("tbody", join(line("td", row) if numbers else texts(row) for row in rows))
    shown = element("div", element("table", join((head, body)), "figures" if numbers else "texts"), "scroll")
    return element("figure", join((element("figcaption", caption), shown))) if caption else shown


def settings_table(settings: Mapping[str, str], caption: str = "") -> Html:
    """Settings by variable, each with its meaning."""
    meanings = {setting.variable: setting.meaning for setting in SETTINGS.values()}
    rows = ((element("code", name), element("code", value), meanings.get(name, "")) for name, value in sorted(settings.items()))
    return table(("variable", "value", "meaning"), rows, caption=caption)


def plots(panels: Iterable[Panel]) -> Html:
    """Plots in the reader's colours, as many beside each other as the screen is wide, each above its caption."""
    return element("div", join(map(_plot, panels)), "plots")


def _plot(panel: Panel) -> Html:
    drawn = panel.picture
    light, dark = (f"data:image/png;base64,{base64.b64encode(data).decode()}" for data in (drawn.light, drawn.dark))
    source = f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">'
    shown = Html(f'<picture>{source}<img src="{light}" alt="{text(panel.alt)}"></picture>')
    return element("figure", join((shown, element("figcaption", panel.caption))) if panel.caption else shown)


def make_page(title: str, *parts: object) -> str:
    """The whole page, under its title as heading."""
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{STYLE}</style>"
    )
    body = join((element("h1", title), *parts), "\n")
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'
