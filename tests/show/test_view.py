"""What people see in a terminal: right figures, no larger than the terminal, and nothing that a stranger wrote takes effect."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from rich.console import Console

from rl_swarm.errors import StoreAway
from rl_swarm.runs.examples import Answered
from rl_swarm.runs.following import Following, Moment, NodeMoment
from rl_swarm.runs.validate import Finding
from rl_swarm.show.formats import ago, duration, flat
from rl_swarm.show.live import LINE_SECONDS, LiveView, area, ending, live_frame, plain_line, status_view, watch
from rl_swarm.show.tables import findings_table
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
    return Following(run.store, LAYOUT).look()


def own_rows(run: SampleRun, node_id: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.store.get(LAYOUT.log(node_id, "metrics.jsonl"), limit=1 << 24).decode().splitlines()]


def test_a_row_shows_what_the_node_has_recorded(run: SampleRun) -> None:
    run.play(10)
    text = shown(live_frame(moment_of(run), run.clock.wall(), 100, 30))
    for node_id in run.workers:
        rows = own_rows(run, node_id)
        reward = sum(row["reward"] for row in rows[-5:]) / 5
        last = rows[-1]
        cells = " ".join(next(line for line in text.splitlines() if line.startswith(node_id)).split())
        used = f"{last['external_used']}/2 {last['own_used']}/2"
        seconds = sum(sum(row["seconds"].values()) for row in rows[-5:]) / 5
        assert f" 9 {reward:.3f} {used} {seconds:.1f} {last['tokens_per_s']:.0f} " in f"{cells} "
    mean = sum(own_rows(run, node_id)[-1]["reward"] for node_id in run.workers) / 3
    assert f"now {mean:.3f}" in text
    assert "RL Swarm trial: running, 10 of 16 rounds" in text and "11 s left" in text
    tokens = sum(own_rows(run, node_id)[-1]["tokens_per_s"] for node_id in run.workers)
    assert f"3 workers: 3 at work, 2.0 s a round, {tokens:.0f} tokens/s" in text
    assert "<answer>" in text and "right  reward 1.00" in text and "wrong  reward 0.00" in text


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("rounds", [0, 1, 12])
def test_the_picture_is_never_larger_than_the_terminal(run: SampleRun, width: int, height: int, rounds: int) -> None:
    run.play(rounds)
    lines = shown(live_frame(moment_of(run), run.clock.wall(), width, height), width=width, height=height).splitlines()
    assert len(lines) < height
    assert max(map(len, lines)) <= width


def test_of_many_nodes_as_many_are_shown_as_fit() -> None:
    nodes = tuple(
        NodeMoment(f"w{number}", "worker", doing="training", since=0.0, last=record(1), reward=0.5) for number in range(64)
    )
    moment = Moment("e", max_rounds=10, rounds_done=1, pace=1.0, nodes=nodes, curve=((0, 0.5),))
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
    node = NodeMoment(HOSTILE, HOSTILE, HOSTILE, f"failed: {HOSTILE}", 0.0, muted=(Mute(HOSTILE, HOSTILE, 9),), name_in_use=True)
    return Moment(HOSTILE, HOSTILE, 10, rounds_done=4, pace=1.0, nodes=(node,), curve=((0, 0.5),), good=sample, other=sample)


def test_status_says_who_has_muted_whom_why_and_until_when() -> None:
    node = NodeMoment("w1", "worker", doing="training", muted=(Mute("evil", "prompt_mismatch", 14),))
    text = shown(status_view(Moment("e", nodes=(node,)), 0.0, 100))
    assert "w1 has muted evil until round 14: bad files, the last refused as prompt_mismatch" in text


@pytest.mark.parametrize("terminal", [False, True])
def test_what_strangers_write_takes_no_effect(terminal: bool) -> None:
    text = shown(live_frame(hostile_moment(), 0.0, 300, 40), width=300, terminal=terminal)
    ours = re.sub(r"\x1b\[[0-9;]*m", "", text) if terminal else text
    assert "\x1b" not in ours and "\u202e" not in ours
    assert r"\x1b[2J[bold red]gone[/] \u202eevil" in ours, "spelt out, and its markup is plain text"
    assert "\x1b" not in plain_line(hostile_moment(), 0.0)


def test_the_tables_of_other_commands_are_as_careful() -> None:
    for part in (status_view(hostile_moment(), 0.0, 400), findings_table([Finding("logs", "failed", HOSTILE)])):
        assert not {"\x1b", "\u202e"} & set(shown(part, width=400))


@given(some.text(max_size=300))
def test_whatever_is_shown_in_a_line_is_printable(text: str) -> None:
    assert flat(text).isprintable()
    assert visible(text).replace("\n", "").isprintable()


def test_without_a_terminal_there_are_plain_lines_every_few_seconds(run: SampleRun) -> None:
    console = Console(file=io.StringIO(), width=40)
    with LiveView(Following(run.store, LAYOUT), console, run.clock) as view:
        view.tick()
        run.play(3)
        view.tick()
        view.tick()
        run.clock.sleep(LINE_SECONDS + 1)
        view.tick()
        view.say("w1 ended \x1b[2J[red]")
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    tokens = sum(own_rows(run, node_id)[-1]["tokens_per_s"] for node_id in run.workers)
    rates = f"2.0 s a round, {tokens:.0f} tokens/s, 3 workers: 3 at work"
    means = [sum(own_rows(run, node_id)[number]["reward"] for node_id in run.workers) / 3 for number in range(3)]
    assert text.splitlines() == [
        "0 of 16 rounds, 3 workers: 3 registered, starting",
        f"3 of 16 rounds, reward {sum(means) / 3:.3f} (mean of the last 3 rounds), {rates}, 25 s left",
        f"3 of 16 rounds, reward {sum(means) / 3:.3f} (mean of the last 3 rounds), {rates}, 24 s left",
        r"w1 ended \x1b[2J[red]",
    ]


def test_on_a_terminal_the_picture_is_drawn_again_in_place(run: SampleRun) -> None:
    console = Console(file=io.StringIO(), width=100, height=30, force_terminal=True)
    with LiveView(Following(run.store, LAYOUT), console, run.clock) as view:
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
    following = Following(run.store, LAYOUT)

    def away() -> Moment:
        raise StoreAway("the drive does not answer")

    monkeypatch.setattr(following, "look", away)
    console = Console(file=io.StringIO(), width=100)
    with LiveView(following, console, run.clock) as view:
        view.tick()
    assert isinstance(console.file, io.StringIO)
    assert "the drive does not answer" in console.file.getvalue()


def test_watching_outlives_a_store_that_is_away_and_ends_at_ctrl_c(run: SampleRun, monkeypatch: pytest.MonkeyPatch) -> None:
    following = Following(run.store, LAYOUT)
    looks = iter([Moment("trial", rounds_done=3), StoreAway("the drive has gone"), KeyboardInterrupt()])

    def look() -> Moment:
        found = next(looks)
        if isinstance(found, BaseException):
            raise found
        return found

    monkeypatch.setattr(following, "look", look)
    monkeypatch.setattr("rl_swarm.show.live.WATCH_SECONDS", 0.0)
    monkeypatch.setattr("rl_swarm.show.live.FRAME_SECONDS", 0.0)
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    watch(following, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "trial: running, 3 rounds" in re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "the drive has gone; this is what was there before" in text
    assert "Ctrl-C leaves this view, and stops no node" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "the cursor is visible again"


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


def test_the_curve_is_as_wide_as_the_terminal_from_the_second_round() -> None:
    moment = Moment("demo", rounds_done=2, max_rounds=2000, curve=((0, 0.5), (1, 0.5)))
    lines = shown(live_frame(moment, 0.0, 80, 24), width=80, height=24).splitlines()
    assert f"{'█' * 72}" in "\n".join(lines)
    assert any(re.fullmatch(r" +round 0 +1", line) for line in lines), "the axis ends with the newest round"


def test_durations_are_for_people() -> None:
    assert [duration(seconds) for seconds in (-5, 0.9, 59, 61, 3600)] == ["0 s", "0 s", "59 s", "1 min 1 s", "1 h 0 min"]
    assert ago(None, 5.0) == "–"
    assert [ago(10.0, now) for now in (5.0, 69.0, 75.5, 7300.0, 1e6)] == ["0 s", "59 s", "1 min", "2 h", "11 d"]


def node(name: str = "worker_1", doing: str = "training", **fields: Any) -> NodeMoment:
    return NodeMoment(**{"node_id": name, "role": "worker", "doing": doing, "since": 100.0, "last_sign": 100.0} | fields)


def lines_of(*nodes: NodeMoment, now: float = 112.0, width: int = 80, height: int = 24) -> list[str]:
    moment = Moment("demo", max_rounds=60, nodes=nodes)
    return shown(live_frame(moment, now, width, height), width=width, height=height).splitlines()


def test_status_shows_whole_states_in_80_columns() -> None:
    doing = "waiting for worker_1, worker_2, worker_3 and 4 more (2 submitted)"
    moment = Moment("demo", max_rounds=60, nodes=(node("coordinator_0", doing, round=12), node("worker_1", "training", round=12)))
    lines = shown(status_view(moment, 112.0, 80), width=80).splitlines()
    assert max(map(len, lines)) <= 80 and "…" not in "".join(lines)
    assert set(doing.split()) <= {word for line in lines for word in line.split()}


def test_one_round_is_no_mean_of_rounds() -> None:
    moment = Moment("demo", rounds_done=1, max_rounds=1, curve=((0, 0.25),))
    assert plain_line(moment, 0.0).startswith("1 of 1 round, reward 0.250 (of the last round)")


@pytest.mark.parametrize("width", [80, 60, 50])
def test_names_are_whole_and_figures_give_way(width: int) -> None:
    names = ["coordinator_0", "a-name-of-20-letters", "annas-gaming-pc-2"]
    last = record(11, own_used=3, own_wanted=4, external_used=12, external_wanted=12, tokens_per_s=1234.5)
    nodes = [node(name, "waiting for the next round to be announced", round=12, last=last, reward=0.123) for name in names]
    lines = lines_of(*nodes, width=width)
    for name in names:
        row = next(line for line in lines if line.startswith(name))
        assert row[len(name)] == " " and len(row) <= width
        assert "waiting for" in row, "what it does is more important than any figure"
    assert ("external" in "".join(lines[3:5])) == (width >= 80)


def test_a_start_shows_its_phases_and_how_long_each_has_taken() -> None:
    lines = lines_of(
        node("w1", "starting"),
        node("w2", "loading libraries"),
        node("w3", "loading nano"),
        node("w4", "generating", round=0),
        node("w5", "generating", round=3, last=record(2)),
    )
    rows = {line.split()[0]: " ".join(line.split()) for line in lines if line.startswith("w")}
    assert rows["w1"].startswith("w1 starting 12 s")
    assert rows["w2"].startswith("w2 loading libraries 12 s")
    assert rows["w3"].startswith("w3 loading nano 12 s")
    assert rows["w4"].startswith("w4 generating, first round 12 s 0")
    assert rows["w5"].startswith("w5 generating 12 s 3")
    assert "5 workers: 2 at work, 1 starting, 1 loading libraries" in "\n".join(lines)


def coloured(doing: str, now: float = 101.0) -> str:
    return shown(live_frame(Moment("e", nodes=(node(doing=doing),)), now, 100, 30), terminal=True)


def test_who_has_ended_or_is_silent_is_told_in_words_and_colours() -> None:
    assert "\x1b[1;31mfailed: OSError: disk" in coloured("failed: OSError: disk")
    assert "\x1b[1;32mcomplete" in coloured("complete")
    assert "\x1b[33mstopped" in coloured("stopped")
    assert "\x1b[32mtraining" in coloured("training")
    assert "\x1b[1;33msilent for 16 min, was training" in coloured("training", 1100.0)
    for ended in ("complete", "stopped", "failed: OSError: disk"):
        assert "silent" not in coloured(ended, 1e6)


def test_nodes_that_are_being_started_are_there_from_the_first_frame_on(run: SampleRun) -> None:
    run.boss.state("stopped", 3)
    run.flush()
    run.clock.sleep(1000)
    view = LiveView(
        Following(run.store, LAYOUT), Console(file=io.StringIO()), run.clock, starting={"boss": "coordinator", "new": "worker"}
    )
    run.clock.sleep(7)
    view.look()
    assert view.moment is not None
    nodes = {node.node_id: node for node in view.moment.nodes}
    for name in ("boss", "new"):
        assert (nodes[name].doing, nodes[name].since) == ("starting", run.clock.wall() - 7), "what it said before is old"
    run.boss.state("waiting for 3 workers", 3)
    run.flush()
    view.look()
    assert {node.node_id: node.doing for node in view.moment.nodes}["boss"] == "waiting for 3 workers"


def test_an_example_says_what_is_wrong_with_it() -> None:
    unread = Answered("What is 3 + 4?", "The answer is 7.", 0.0, "w1, round 2", "7")
    half = Answered("What is 0 - 0?", "<answer>-0</answer>", 0.5, "w1, round 2", "0")
    for answer, label in ((unread, "right, not in <answer>  reward 0.00"), (half, "partly right  reward 0.50")):
        text = shown(live_frame(Moment("e", max_rounds=9, nodes=(node(),), other=answer), 0.0, 160, 30), width=160)
        assert label in text and "no right completion yet" in text


def test_every_table_has_the_same_style() -> None:
    """`make_table` alone makes tables; a grid is no table."""
    from tests.support.imports import module_files

    users = {name for name, path in module_files().items() if re.search(r"\bTable\(", path.read_text())}
    assert users == {"show.tables"}


def test_external_rollouts_have_one_name() -> None:
    from tests.support.imports import module_files

    for name in ("show.live", "show.report", "show.card", "node.worker"):
        assert "peers' used" not in module_files()[name].read_text() and '"peers\'"' not in module_files()[name].read_text()


def test_of_a_long_question_the_end_is_shown() -> None:
    asked = "State the final answer to the following arithmetic problem: 7 + 9 - 2 ="
    sample = Answered(asked, "<answer>14</answer>", 1.0, "w1, round 3")
    moment = Moment("e", "running", 10, rounds_done=4, pace=1.0, nodes=(), curve=((0, 0.5),), good=sample, other=sample)
    assert "7 + 9 - 2 =" in shown(live_frame(moment, 0.0, 80, 24), width=80)
    assert ending("abcdef", 6) == "abcdef" and ending("abcdefg", 6) == "…cdefg"
