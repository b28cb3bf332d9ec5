"""The page in a real browser: Debian's chromium. One smoke test is fast; the others need playwright (slow)."""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.chromium import CHROMIUM, tab
from tests.support.long_run import LongRun
from tests.support.web_server import Served, served

if TYPE_CHECKING:
    from playwright.sync_api import Page

AXE = Path("node_modules/axe-core/axe.min.js")
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 800}
VIEWS = ("overview", "nodes", "rollouts", "compare", "experiments")

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")
slow = [pytest.mark.slow, pytest.mark.timeout(300), needs_browser]


@needs_browser
def test_the_page_is_drawn_and_goes_on_and_hostile_text_stays_text(tmp_path: Path) -> None:
    run = LongRun(tmp_path / "store", "first", 6, 2)
    with served(run.store.root, tmp_path) as server, tab(tmp_path) as page:
        page.call("Page.navigate", url=f"{server.url}/#/overview?experiment=first")
        page.wait_until("document.querySelector('main[data-drawn] .tiles')?.innerText.includes('6 of 16')")
        assert page.evaluate("document.querySelectorAll('.plot canvas').length") >= 6
        text = page.evaluate("document.querySelector('main').innerText")
        assert "<script>window.hacked = 1</script>" in text and "\\u202eevil" in text and not {"\x1b", "\u202e"} & set(text)
        assert page.evaluate("[window.hacked === undefined, document.querySelectorAll('main :is(script, img)').length]") == [
            True,
            0,
        ]
        run.play(1)
        page.wait_until("document.querySelector('.tiles').innerText.includes('7 of 16')")


@pytest.fixture(scope="module")
def browse() -> Iterator[Callable[..., "Page"]]:
    """Open pages in one browser; a script error or a blocked script on any of them fails the test."""
    if find_spec("playwright") is None:
        pytest.skip("playwright is not installed: make test-slow installs it")
    from playwright.sync_api import sync_playwright

    errors: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        def browse(url: str = "", **options: Any) -> "Page":
            page = browser.new_context(**({"viewport": DESK} | options)).new_page()
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda line: errors.append(line.text) if "Content Security Policy" in line.text else None)
            if url:
                page.goto(url)
                drawn(page)
            return page

        yield browse
        browser.close()
    assert not errors


def until(page: "Page", script: str) -> None:
    """Wait until a script is true. The page's policy forbids what playwright itself would do."""
    deadline = time.monotonic() + 15
    while not page.evaluate(script):
        assert time.monotonic() < deadline, page.inner_text("main")
        page.wait_for_timeout(20)


def drawn(page: "Page") -> None:
    page.wait_for_selector("main[data-drawn]:not([aria-busy])")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Served, LongRun]]:
    run = LongRun(tmp_path / "store", "first", 12, 3)
    LongRun(tmp_path / "store", "second", 8, 2, NUM_TRANSPLANT_TREES="0")
    with served(run.store.root, tmp_path) as found:
        yield found, run


class TestPage:
    pytestmark = slow

    def test_a_new_round_appears_without_a_reload(self, server: tuple[Served, LongRun], browse: Callable[..., "Page"]) -> None:
        found, run = server
        page = browse(f"{found.url}/#/overview?experiment=first")
        assert "12 of 22" in page.inner_text(".tiles")
        page.evaluate("window.sameDocument = true")
        run.play(1)
        until(page, "document.querySelector('.tiles').innerText.includes('13 of 22')")
        until(page, "document.querySelector('.plot[aria-label*=\"rounds 0 to 12\"]')")
        assert page.evaluate("window.sameDocument") is True

    def test_a_new_round_leaves_focus_and_scroll_positions_where_they_were(
        self, server: tuple[Served, LongRun], browse: Callable[..., "Page"]
    ) -> None:
        found, run = server
        page = browse(f"{found.url}/#/nodes?experiment=first", viewport=PHONE)
        page.select_option("#sort", "won")
        page.focus("#sort")
        page.evaluate("document.querySelector('[aria-label=Nodes]').scrollLeft = 120")
        run.play(1)
        until(page, "document.querySelector('.plot[aria-label*=\"rounds 0 to 12\"]')")
        assert page.evaluate("[document.activeElement.id, document.getElementById('sort').value]") == ["sort", "won"]
        assert page.evaluate("document.querySelector('[aria-label=Nodes]').scrollLeft") == 120
        assert "13" in page.inner_text("[aria-label=Leaderboard] tbody tr td:last-child")

    def test_plots_are_read_and_the_content_is_reached_by_keyboard(
        self, server: tuple[Served, LongRun], browse: Callable[..., "Page"]
    ) -> None:
        page = browse(f"{server[0].url}/#/nodes?experiment=first")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main" and "#/nodes" in page.url, "the first link skips the head"
        page.focus(".plot")
        for keys, shown in ((["ArrowLeft"], "round 10"), (["Home", "ArrowRight"], "round 1"), (["Escape"], "round 11")):
            for key in keys:
                page.keyboard.press(key)
            assert page.inner_text(".readout span:first-child") == shown

    def test_a_rollout_is_opened_and_read_by_keyboard(self, server: tuple[Served, LongRun], browse: Callable[..., "Page"]) -> None:
        page = browse(f"{server[0].url}/#/rollouts?experiment=first")
        summary = page.locator("details.rollout summary").first
        summary.focus()
        page.keyboard.press("Enter")
        inside = page.locator("details.rollout").first.inner_text()
        for word in (
            "What is 3 + 4?",
            "Expected answer: 7",
            "advantage +1.73",
            "parsed 7",
            "reward 1.00",
            "Written by",
            "worker_1",
        ):
            assert word in inside, inside
        page.select_option("select[name=task]", "gcd")
        page.click("form button[type=submit]")
        until(page, "document.querySelectorAll('details.rollout').length && location.hash.includes('task=gcd')")
        drawn(page)
        assert all("gcd" in each for each in page.locator("details.rollout summary").all_inner_texts())

    def test_hostile_texts_stay_texts(self, server: tuple[Served, LongRun], browse: Callable[..., "Page"]) -> None:
        for view in ("overview", "rollouts"):
            page = browse(f"{server[0].url}/#/{view}?experiment=first")
            for each in page.locator("details.rollout").all():
                each.evaluate("details => { details.open = true }")
            text = page.inner_text("main")
            assert "<script>window.hacked = 1</script>" in text and "\\x1b[2J\\u202eevil" in text
            assert not {"\x1b", "\u202e", "\x07"} & set(text)
            assert page.evaluate("window.hacked") is None and page.locator("main script, main img").count() == 0

    def test_experiments_are_compared(self, server: tuple[Served, LongRun], browse: Callable[..., "Page"]) -> None:
        page = browse(f"{server[0].url}/#/compare?experiment=first")
        figures = page.inner_text("section:has-text('Figures')")
        assert "first" in figures and "second" in figures and "4/4" in figures and "4/0" in figures
        assert page.locator(".chart.wide .legend button").all_inner_texts() == ["first", "second"]
        page.uncheck("input[value=second]")
        until(page, "document.querySelectorAll('.chart.wide .legend button').length === 1")

    @pytest.mark.parametrize("view", VIEWS)
    @pytest.mark.parametrize("colours", ["light", "dark"])
    def test_a_phone_does_not_scroll_sideways_and_axe_finds_nothing_serious(
        self, view: str, colours: str, server: tuple[Served, LongRun], browse: Callable[..., "Page"], axe: str
    ) -> None:
        for size in (PHONE, DESK):
            page = browse(f"{server[0].url}/#/{view}?experiment=first", viewport=size, color_scheme=colours, bypass_csp=True)
            page.wait_for_timeout(300)
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
            page.evaluate(axe)
            found = page.evaluate("axe.run().then(result => result.violations)")
            serious = [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found]
            assert not [each for each, issue in zip(serious, found, strict=True) if issue["impact"] in ("serious", "critical")], (
                serious
            )

    def test_empty_and_broken_states_say_what_to_do(self, tmp_path: Path, browse: Callable[..., "Page"]) -> None:
        (tmp_path / "nothing" / "experiments").mkdir(parents=True)
        with served(tmp_path / "nothing", tmp_path) as found:
            page = browse()
            page.goto(f"{found.url}/")
            page.wait_for_selector("main .state pre")
            assert "No experiment yet" in page.inner_text("main") and "rl-swarm demo" in page.inner_text("main")
            run = LongRun(tmp_path / "nothing", "late", 0, 2)
            until(page, "document.querySelector('main').innerText.includes('No round is finished yet')")
            page.goto(f"{found.url}/#/rollouts?experiment=late")
            page.wait_for_selector("text=No node has published any yet")
            run.play(2)
            page.wait_for_selector("details.rollout")
            assert page.locator("select[name=task] option").count() > 1
            page.goto(f"{found.url}/#/nodes?experiment=none")
            page.wait_for_selector("text=Not found")
            other = browse(f"{found.url}/#/overview?experiment=late")
            found.process.terminate()
            found.process.wait(20)
            other.wait_for_selector("#lost:has-text('still running?')")
            assert "2 of 10" in other.inner_text(".tiles"), "what was there stays"
            page.click("text=Try again")
            page.wait_for_selector("text=Is 'rl-swarm web' still running?")

    def test_a_token_in_the_address_opens_the_page_and_is_never_logged(self, tmp_path: Path, browse: Callable[..., "Page"]) -> None:
        run, token = LongRun(tmp_path / "store", "first", 3, 2), "a-token-of-some-length"
        with served(run.store.root, tmp_path, environment={"WEB_TOKEN": token}) as found:
            page = browse()
            page.goto(f"{found.url}/")
            page.wait_for_selector("text=A token is needed")
            page.fill("#token", "wrong")
            page.click("#token + button")
            page.wait_for_selector("text=The token is wrong")
            page.fill("#token", token)
            page.click("#token + button")
            drawn(page)
            page = browse()
            page.goto(f"{found.url}/#token={token}")
            drawn(page)
            assert "3 of 13" in page.inner_text(".tiles") and token not in page.url
            page.wait_for_selector("#live[data-state=live]")
        assert token not in found.console.read_text()

    def test_a_long_run_is_drawn_nearly_as_fast_as_a_short_one(self, tmp_path: Path, browse: Callable[..., "Page"]) -> None:
        store = tmp_path / "store"
        LongRun(store, "long", 2000, 8)
        LongRun(store, "short", 20, 8)
        with served(store, tmp_path) as found:
            seconds: dict[str, list[float]] = {"short": [], "long": []}
            for _ in range(6):
                for name, times in seconds.items():
                    page = browse()
                    began = time.perf_counter()
                    page.goto(f"{found.url}/#/overview?experiment={name}")
                    page.wait_for_selector("main[data-drawn]")
                    rounds = 20 if name == "short" else 2000
                    until(page, f"document.querySelector('.tiles').innerText.includes('{rounds:,} of')")
                    times.append(time.perf_counter() - began)
                    page.context.close()
        print({name: [round(each, 2) for each in times] for name, times in seconds.items()})
        first = {name: times[0] for name, times in seconds.items()}
        warm = {name: median(times[1:]) for name, times in seconds.items()}
        assert warm["long"] <= 1.5 * warm["short"] + 0.5, seconds
        assert first["long"] <= 1.5 * first["short"] + 5.0, "the first viewer also waits until the journals are read"


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The accessibility checker, from npm."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed: apt-get install npm")
    folder = tmp_path_factory.mktemp("axe")
    subprocess.run(["npm", "install", "--no-save", "--silent", "axe-core@4.14.0"], cwd=folder, check=True, timeout=120)
    return (folder / AXE).read_text()
