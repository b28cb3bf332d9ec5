"""Pages on a phone, in a real browser where Debian's chromium is installed (slow)."""

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from rl_swarm.reproduce.analysis import analyse
from rl_swarm.reproduce.table import Provenance, write_report
from rl_swarm.runs.examples import published_examples
from rl_swarm.runs.summary import summarise
from rl_swarm.show.report import PAGE, make_report
from rl_swarm.store.memory import MemoryStore
from tests.reproduce.test_reproduce import finished
from tests.support.clocks import VirtualClock
from tests.support.sample_run import LAYOUT, SampleRun

CHROMIUM = shutil.which("chromium")
PHONE, DESK = 390, 1200
# The page may run no script: it is measured from outside, in a frame as wide as the screen.
MEASURE = """<!DOCTYPE html><body style="margin:0"><iframe id="page" style="border:0;width:{width}px;height:800px" srcdoc="{page}">
</iframe><pre id="found"></pre><script>addEventListener("load", () => {{
const page = document.getElementById("page").contentDocument, box = each => each.getBoundingClientRect();
document.getElementById("found").textContent = JSON.stringify({{
  wide: page.documentElement.scrollWidth,
  plots: [...page.querySelectorAll(".plots img")].map(each => [box(each).left, box(each).width]),
  clipped: [...page.querySelectorAll("p, h1, h2, pre, .tile, figcaption")].filter(
    each => each.scrollWidth > each.clientWidth + 1).length,
  boxes: [...page.querySelectorAll(".scroll")].map(each => box(each).right),
}}) }})</script>"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]


def measured(page: str, width: int, folder: Path) -> dict[str, list[list[float]]]:
    (folder / "measure.html").write_text(MEASURE.format(width=width, page=html.escape(page)), "utf-8")
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    options = ["--window-size=1600,900", "--virtual-time-budget=5000", "--dump-dom"]
    done = subprocess.run(
        [*command, *options, f"file://{folder / 'measure.html'}"], capture_output=True, text=True, timeout=60, check=True
    )
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout)
    assert found and found[1], done.stderr[-2000:]
    return json.loads(html.unescape(found[1]))


@pytest.fixture(params=["a run", "a large run", "the paper's table"])
def page(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "the paper's table":
        cells = [finished(split, seed, [0.1, 0.2, 0.3]) for split in ("8/0", "6/2", "4/4", "2/6") for seed in range(1, 9)]
        made = Provenance(
            "about", "rl-swarm reproduce", "a rule", settings={"TASKS": "chain_sum:{}," * 40}, versions={"python": "3"}
        )
        return write_report(analyse(cells, "4/4"), tmp_path, made).read_text()
    store = MemoryStore(clock=VirtualClock())
    names = [f"w{number}" for number in (1, 2, 3)] if request.param == "a run" else [f"{'n' * 60}{number}" for number in range(12)]
    run = SampleRun(store, tmp_path, names).play(4)
    summary = summarise(store, LAYOUT)
    summary = replace(summary, settings=dict(summary.settings) | {"TASKS": "x" * 3000})
    examples = published_examples(store, LAYOUT, range(run.done), names)
    return make_report(summary, examples)[PAGE].decode()


def test_nothing_is_wider_than_a_phone(page: str, tmp_path: Path) -> None:
    found = measured(page, PHONE, tmp_path)
    assert found["wide"] <= PHONE and found["clipped"] == 0
    assert len({left for left, _ in found["plots"]}) == 1, "one below the other"
    assert min(width for _, width in found["plots"]) > 300 and max(found["boxes"]) <= PHONE


def test_on_a_desk_plots_stand_beside_each_other(page: str, tmp_path: Path) -> None:
    found = measured(page, DESK, tmp_path)
    assert found["wide"] <= DESK and len({left for left, _ in found["plots"]}) == 2
