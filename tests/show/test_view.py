"""What people see in a terminal: right figures, no larger than the terminal, and nothing that a stranger wrote takes effect."""

import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some
from rich.console import Console

from rl_swarm.errors import StoreAway
from rl_swarm.runs.examples import Answered
from rl_swarm.runs.following import Following, Moment, NodeMoment
from rl_swarm.runs.progress import ExperimentStatus, NodeStatus
from rl_swarm.runs.validate import Finding
from rl_swarm.show.formats import ago, duration, flat
from rl_swarm.show.live import LINE_SECONDS, LiveView, area, findings_view, live_frame, plain_line, status_view, watch
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm.standing import Mute
from rl_swarm.text import visible
from tests.support.clocks import VirtualClock
from tests.support.rows import record
from tests.support.sample_run import HOSTILE, LAYOUT, SampleRun

SIZES = [(80, 24), (100, 30), (200, 60), (60, 16), (40, 10), (30, 8)]


def shown(*parts: object, width: int = 100, height: int = 30, terminal: bool = False) -> str:
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=terminal)
    console.print(*parts)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def run(tmp_path: Path) -> SampleRun:
    (tmp_path / "store").mkdir()
    return SampleRun(FolderStore(tmp_path / "store", VirtualClock(), local=True), tmp_path)


def moment_of(run: SampleRun) -> Moment:
    return Following(run.store, LAYOUT, max_rounds=16).look()


def own_rows(run: SampleRun, node_id: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in run.store.get(LAYOUT.log(node_id, "metrics.jsonl"), limit=1 << 24).decode().splitlines()]


def test_a_row_shows_what_the_node_has_recorded(run: SampleRun) -> None:
    run.play(10)
    text = shown(live_frame(moment_of(run), run.clock.wall(), 100, 30))
    for node_id in run.workers:
        rows = own_rows(run, node_id)
        reward = sum(row["reward"] for row in rows[-5:]) / 5
        last = rows[-1]
        cells = next(line for line in text.splitlines() if line.startswith(node_id)).split()
        assert cells[-5:] == [
            "9",
            f"{reward:.3f}",
            f"{last['own_used']}/2",
            f"{last['external_used']}/2",
            f"{last['tokens_per_s']:.0f}",
        ]
    mean = sum(own_rows(run, node_id)[-1]["reward"] for node_id in run.workers) / 3
    assert f"now {mean:.3f}" in text
    assert "10 of 16 rounds" in text and "11 s left" in text
    assert "<answer>" in text and "right  reward 1.00" in text and "wrong  reward 0.00" in text


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("rounds", [0, 1, 12])
def test_the_picture_is_never_larger_than_the_terminal(run: SampleRun, width: int, height: int, rounds: int) -> None:
    run.play(rounds)
    lines = shown(live_frame(moment_of(run), run.clock.wall(), width, height), width=width, height=height).splitlines()
    assert len(lines) < height
    assert max(map(len, lines)) <= width


def test_of_many_nodes_as_many_are_shown_as_fit() -> None:
    nodes = tuple(NodeMoment(f"w{number}", "worker", "training", 0.0, record(1), 0.5) for number in range(64))
    moment = Moment("e", 10, 1, 1.0, 0.0, nodes, ((0, 0.5),), None, None)
    lines = shown(live_frame(moment, 0.0, 80, 24), height=24).splitlines()
    assert len(lines) < 24
    assert sum(line.startswith("w") for line in lines) + int(re.findall(r"and (\d+) more", "\n".join(lines))[0]) == 64


def test_the_picture_grows_with_the_terminal(run: SampleRun) -> None:
    run.play(12)
    small, large = (
        shown(live_frame(moment_of(run), 0.0, width, height), width=width).count("█") for width, height in ((80, 24), (160, 50))
    )
    assert large > 3 * small


def hostile_moment() -> Moment:
    sample = Answered(f"prompt {HOSTILE}\nline", HOSTILE, 0.0, HOSTILE)
    node = NodeMoment(HOSTILE, "worker", f"failed: {HOSTILE}", 0.0, None, None)
    return Moment(HOSTILE, 10, 4, 1.0, 0.0, (node,), ((0, 0.5),), sample, sample)


def test_status_says_who_has_muted_whom_why_and_until_when() -> None:
    node = NodeStatus("w1", "worker", "nano", "training", 0.0, 5, 0.5, 0.0, (Mute("evil", "prompt_mismatch", 14),))
    text = shown(status_view(ExperimentStatus("e", "running", 5, 0.0, (node,)), 0.0))
    assert "w1 has muted evil until round 14: bad files, the last refused as prompt_mismatch" in text


@pytest.mark.parametrize("terminal", [False, True])
def test_what_strangers_write_takes_no_effect(terminal: bool) -> None:
    text = shown(live_frame(hostile_moment(), 0.0, 300, 40), width=300, terminal=terminal)
    ours = re.sub(r"\x1b\[[0-9;]*m", "", text) if terminal else text
    assert "\x1b" not in ours and "\u202e" not in ours
    assert r"\x1b[2J[bold red]gone[/] \u202eevil" in ours, "spelt out, and its markup is plain text"
    assert "\x1b" not in plain_line(hostile_moment(), 0.0)


def test_the_tables_of_other_commands_are_as_careful() -> None:
    node = NodeStatus(HOSTILE, HOSTILE, "", HOSTILE, None, None, None, None, (Mute(HOSTILE, HOSTILE, 9),))
    status = ExperimentStatus(HOSTILE, HOSTILE, None, None, (node,))
    for part in (status_view(status, 0.0), findings_view([Finding("logs", "failed", HOSTILE)])):
        assert not {"\x1b", "\u202e"} & set(shown(part, width=400))


@given(some.text(max_size=300))
def test_whatever_is_shown_in_a_line_is_printable(text: str) -> None:
    assert flat(text).isprintable()
    assert visible(text).replace("\n", "").isprintable()


def test_without_a_terminal_there_are_plain_lines_every_few_seconds(run: SampleRun) -> None:
    console = Console(file=io.StringIO(), width=40)
    with LiveView(Following(run.store, LAYOUT, 16), console, run.clock) as view:
        view.tick()
        run.play(3)
        view.tick()
        view.tick()
        run.clock.sleep(LINE_SECONDS)
        view.tick()
        view.say("w1 ended \x1b[2J[red]")
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    means = [sum(own_rows(run, node_id)[number]["reward"] for node_id in run.workers) / 3 for number in range(3)]
    assert text.splitlines() == [
        "0 of 16 rounds, starting",
        f"3 of 16 rounds, reward {sum(means) / 3:.3f} (mean of the last 3 rounds), 25 s left",
        f"3 of 16 rounds, reward {sum(means) / 3:.3f} (mean of the last 3 rounds), 24 s left",
        r"w1 ended \x1b[2J[red]",
    ]


def test_on_a_terminal_the_picture_is_drawn_again_in_place(run: SampleRun) -> None:
    console = Console(file=io.StringIO(), width=100, height=30, force_terminal=True)
    with LiveView(Following(run.store, LAYOUT, 16), console, run.clock) as view:
        view.tick()
        run.complete()
        view.tick()
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "\x1b[1A" in text, "the cursor goes up"
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "and is visible again at the end"
    last = text[text.rindex("RL Swarm") :]
    assert "16 of 16 rounds" in last and "complete" in last


def test_a_store_that_is_away_ends_nothing(run: SampleRun, monkeypatch: pytest.MonkeyPatch) -> None:
    following = Following(run.store, LAYOUT, 16)

    def away() -> Moment:
        raise StoreAway("the drive does not answer")

    monkeypatch.setattr(following, "look", away)
    console = Console(file=io.StringIO(), width=100)
    with LiveView(following, console, run.clock) as view:
        view.tick()
    assert isinstance(console.file, io.StringIO)
    assert "the drive does not answer" in console.file.getvalue()


def test_watching_outlives_a_store_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([ExperimentStatus("trial", "running", 3, None, ()), StoreAway("the drive has gone"), KeyboardInterrupt()])

    def read() -> ExperimentStatus:
        look = next(looks)
        if isinstance(look, BaseException):
            raise look
        return look

    monkeypatch.setattr("rl_swarm.show.live.REFRESH_SECONDS", 0.0)
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    watch(read, console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "trial: running, round 3" in shown and "the drive has gone; this is what was there before" in shown


def test_the_curve_is_right_to_an_eighth_of_a_line() -> None:
    points = [(0, 0.0), (1, 0.25), (2, 0.5), (3, 1.0)]
    assert area(points, last=3, top=1.0, columns=4, lines=2) == ["   █", " ▄██"]
    assert area(points, last=7, top=1.0, columns=8, lines=1) == [" ▂▄█    "], "rounds to come are empty"
    assert area(points, last=3, top=2.0, columns=4, lines=1) == [" ▁▂▄"]
    assert area([], last=9, top=1.0, columns=5, lines=2) == [" " * 5] * 2


@pytest.mark.parametrize("columns", [10, 37, 80])
def test_the_curve_is_a_mean_where_rounds_are_many_and_a_line_where_they_are_few(columns: int) -> None:
    many = [(number, 0.5) for number in range(2000)]
    assert area(many, 1999, 1.0, columns, 2) == [" " * columns, "█" * columns]
    few = [(0, 0.0), (4, 1.0)]
    drawn = area(few, 4, 1.0, columns, 1)[0]
    assert list(drawn) == sorted(drawn, key=" ▁▂▃▄▅▆▇█".index)


def test_durations_are_for_people() -> None:
    assert [duration(seconds) for seconds in (-5, 0.9, 59, 61, 3600)] == ["0 s", "0 s", "59 s", "1 min 1 s", "1 h 0 min"]
    assert ago(None, 5.0) == "–"
    assert ago(10.0, 75.5) == "1 min 5 s"
