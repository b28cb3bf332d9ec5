"""The parts of a page: everything is escaped but our own markup, and nothing is loaded."""

import re

from rl_swarm.show.drawing import DARK, LIGHT, Panel
from rl_swarm.show.page import Html, bullets, element, join, make_page, plots, settings_table, table, text, tile

BAD = "<b onclick='x'>\x1b[2J\"&"
SAFE = "&lt;b onclick=&#x27;x&#x27;&gt;\\x1b[2J&quot;&amp;"


def test_every_part_escapes_text_once_and_leaves_our_own_markup_alone() -> None:
    assert text(BAD) == text(text(BAD)) == SAFE and text(3) == "3"
    assert element("p", Html("<em>x</em>"), "faint") == '<p class="faint"><em>x</em></p>'
    parts = [
        element("p", BAD),
        bullets([BAD]),
        tile(BAD, BAD, BAD),
        table([BAD, BAD], [[BAD, BAD]], caption=BAD),
        settings_table({BAD: BAD}, caption=BAD),
        plots([Panel(lambda axes, shades: None, BAD, BAD)]),
    ]
    page = make_page(BAD, *parts, BAD)
    assert "<b o" not in page and "\x1b" not in page
    assert join(parts).count(SAFE) == 1 + 1 + 3 + 6 + 3 + 2


def test_a_table_marks_its_last_columns_as_numbers_and_may_have_no_heads() -> None:
    made = table(("node", "reward"), [("w1", 0.5)], numbers=1)
    assert '<th>node</th><th class="number">reward</th>' in made and '<td>w1</td><td class="number">0.5</td>' in made
    assert "thead" not in table(("", ""), [("a", "b")]) and bullets([]) == ""


def test_settings_have_their_meaning() -> None:
    assert re.search(r"<code>SEED</code></td><td[^>]*><code>3</code></td><td[^>]*>\S+", settings_table({"SEED": "3"}))


def test_a_page_has_the_colours_of_the_pictures_and_loads_nothing() -> None:
    page = make_page("Title", "text")
    assert page.count("<h1>Title</h1>") == page.count("<title>Title</title>") == 1
    assert LIGHT.paper in page and DARK.paper in page and "default-src 'none'" in page and not re.search(r"https?:|url\(", page)


def test_on_a_phone_texts_become_paragraphs_and_figures_scroll_in_a_box() -> None:
    texts = table(("task", "before"), [("gcd", "7")], caption="Answers")
    assert texts.startswith('<figure><figcaption>Answers</figcaption><div class="scroll"><table class="texts">')
    assert '<td>gcd</td><td data-head="before">7</td>' in texts
    assert table(("node", "reward"), [("w1", 0.5)], numbers=1).startswith('<div class="scroll"><table class="figures">')
    style = make_page("Title").partition("<style>")[2]
    assert "@media (max-width: 40rem)" in style and "content: attr(data-head)" in style and ".scroll { overflow-x: auto; }" in style
    assert 'name="viewport" content="width=device-width' in make_page("Title")


def test_plots_stand_beside_each_other_only_where_there_is_room() -> None:
    shown = plots([Panel(lambda axes, shades: None, "one"), Panel(lambda axes, shades: None, "two", "A caption")])
    assert shown.startswith('<div class="plots"><figure><picture>') and shown.count("<img ") == 2
    assert "<figcaption>A caption</figcaption></figure></div>" in shown and "width=" not in re.sub(r'"data:[^"]*"', "", shown)
    assert ".plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%," in make_page("Title")
