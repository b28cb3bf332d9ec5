"""The end of a run: every number on the card and the page is compared with one computed here from the run's own files."""

import base64
import io
import json
import re
import struct
import subprocess
import sys
import tracemalloc
from collections import Counter
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rl_swarm.errors import ConfigError
from rl_swarm.runs.examples import Answered, Example, published_examples, telling
from rl_swarm.runs.measures import interval
from rl_swarm.runs.summary import Change, Summary, ends_of, summarise
from rl_swarm.show.card import MOST_LINES, Places, facts, headline, honest_note, sections, show_card, worth
from rl_swarm.show.drawing import MOST_POINTS, label, smooth, thin
from rl_swarm.show.formats import date
from rl_swarm.show.report import MOST_CELLS, PAGE, PICTURE, make_panels, make_report, run_page
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm.rounds import CurrentState, Rounds
from rl_swarm.tools import demo
from rl_swarm.tools.ask import asked_examples
from tests.support.clocks import VirtualClock
from tests.support.sample_run import HOSTILE, LAYOUT, ROUND_SECONDS, SampleRun
from tests.tools.test_ask import Trial

PLACES = Places("./data", "./data/experiments/trial", "./report.png", "./report.html")
FOREIGN_TAGS = {"script", "iframe", "object", "embed", "link", "base", "form", "svg", "audio", "video"}


def make_store(tmp_path: Path) -> FolderStore:
    (tmp_path / "store").mkdir()
    return FolderStore(tmp_path / "store", VirtualClock(), local=True)


@pytest.fixture
def run(tmp_path: Path) -> SampleRun:
    return SampleRun(make_store(tmp_path), tmp_path).complete()


@dataclass(frozen=True)
class Finished:
    """A whole run and its report, made once: for tests that change nothing."""

    run: SampleRun
    summary: Summary
    examples: list[Example]
    report: dict[str, bytes]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("finished")
    run = SampleRun(make_store(folder), folder).complete()
    summary, examples = summarise(run.store, LAYOUT), examples_of(run)
    return Finished(run, summary, examples, make_report(summary, examples))


class Raw:
    """The run read by plain means, apart from the package: what its figures must be."""

    def __init__(self, run: SampleRun) -> None:
        self.names = sorted(run.workers)
        self.root = Path(run.store.url) / "experiments" / "trial"
        self.rows = {name: self.lines(name, "metrics.jsonl") for name in self.names}
        self.events = {name: self.lines(name, "training_events.jsonl") for name in self.names}

    def lines(self, name: str, journal: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.root / "logs" / name / journal).read_text().splitlines()]

    def reward(self, names: list[str], numbers: range) -> float:
        values = [row["reward"] for name in names for row in self.rows[name] if row["round"] in numbers]
        return sum(values) / len(values)

    def held_out(self, names: list[str], number: int, field: str = "held_out") -> float:
        found = [event["data"] for name in names for event in self.events[name] if event["event_type"] == "evaluation"]
        values = [data[field] for data in found if data["round"] == number]
        return sum(values) / len(values)

    def uses(self) -> Counter[tuple[str, str]]:
        ids = [(name, used) for name in self.names for row in self.rows[name] for used in row["external_ids"]]
        return Counter((name, used.split("/")[0]) for name, used in ids)


def card_of(summary: Summary, examples: list[Example], *, terminal: bool = False, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal)
    show_card(summary, sections(summary, examples, PLACES, "rl-swarm"), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def examples_of(run: SampleRun) -> list[Example]:
    return published_examples(run.store, LAYOUT, range(run.done), sorted(run.workers))


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def test_the_summary_is_what_the_files_say(finished: Finished) -> None:
    raw, summary = Raw(finished.run), finished.summary
    assert (summary.first_rounds, summary.last_rounds) == ((0, 1, 2), tuple(range(6, 16)))
    assert summary.reward.before == pytest.approx(raw.reward(raw.names, range(3)))
    assert summary.reward.after == pytest.approx(raw.reward(raw.names, range(6, 16)))
    for change, field in (
        (summary.held_out, "held_out"),
        (summary.style_blind, "held_out_style_blind"),
        (summary.in_form, "held_out_in_form"),
    ):
        assert change.before == pytest.approx(raw.held_out(raw.names, 0, field))
        assert change.after == pytest.approx(raw.held_out(raw.names, 16, field))
    assert summary.uses == raw.uses()
    assert sum(summary.uses.values()) > 0
    for node in summary.nodes:
        assert node.gave == sum(count for (_, author), count in raw.uses().items() if author == node.node_id)
        assert node.got == sum(row["external_used"] for row in raw.rows[node.node_id])
        assert node.own_used == sum(row["own_used"] for row in raw.rows[node.node_id])
        assert node.tokens == sum(row["tokens"] for row in raw.rows[node.node_id])
        assert node.reward.after == pytest.approx(raw.reward([node.node_id], range(6, 16)))
        assert node.held_out.after == pytest.approx(raw.held_out([node.node_id], 16))
        assert (node.rounds, node.model) == (16, "nano")
    assert [each.round for each in summary.evaluations] == [0, 8, 16]
    assert summary.mean_rewards[5] == (5, pytest.approx(raw.reward(raw.names, range(5, 6))))
    assert (summary.rounds, summary.seconds) == (16, pytest.approx(16 * ROUND_SECONDS))
    assert summary.settings == json.loads((raw.root / "experiment.json").read_text())["settings"]
    assert summary.versions["tasks"] == "stand-in 1" and summary.versions["rl_swarm"]


def test_every_number_on_the_card_is_read_from_the_run(finished: Finished) -> None:
    raw, text = Raw(finished.run), card_of(finished.summary, finished.examples)
    before, after = raw.reward(raw.names, range(3)), raw.reward(raw.names, range(6, 16))
    assert text.splitlines()[0] == "RL Swarm trial: 3 workers, 16 rounds, 32 s"
    assert re.search(rf"^  reward +{before:.3f} +{after:.3f}  {after / before:.1f} times$", text, re.MULTILINE)
    for name, field in (
        ("as the verifier reads", "held_out"),
        ("in the form", "held_out_in_form"),
        ("in any form", "held_out_style_blind"),
    ):
        before, after = (raw.held_out(raw.names, number, field) for number in (0, 16))
        low, high = interval(after, 80)
        shown = f"{percent(before)} +{percent(after)}  {100 * low:.0f} to {100 * high:.0f} %"
        assert re.search(rf"^  held-out, {name} +{shown}$", text, re.MULTILINE)
    assert "before is rounds 0 to 2" in text and "after is rounds 6 to 15" in text
    assert "80 questions that nobody trains on" in text and "at round 16" in text
    for name in raw.names:
        gave = sum(name in used.split("/") for other in raw.names for row in raw.rows[other] for used in row["external_ids"])
        got = sum(len(row["external_ids"]) for row in raw.rows[name])
        own = f"{raw.reward([name], range(3)):.3f} → {raw.reward([name], range(6, 16)):.3f}"
        assert f"  {name}  {own}; peers trained on its rollouts {gave} times, it on theirs {got} times\n" in text
    for wanted in (
        "./report.png",
        "./report.html",
        "./data/experiments/trial",
        "rl-swarm ask ",
        "rl-swarm status ",
        "Qwen2.5-0.5B",
    ):
        assert wanted in text
    assert "rl-swarm join" not in text, "it is complete"
    unfinished = replace(finished.summary, max_rounds=20)
    signed = replace(PLACES, address="./data/trial#0123-4567")
    assert any("rl-swarm join ./data/trial" in line for line in sections(unfinished, [], PLACES)[-1].lines)
    assert any("rl-swarm join './data/trial#0123-4567'" in line for line in sections(unfinished, [], signed)[-1].lines)
    assert "\x1b" not in text


def test_on_a_terminal_the_card_has_a_frame_and_commands_stay_whole(finished: Finished) -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", card_of(finished.summary, finished.examples, terminal=True, width=70))
    frame = text[: text.index("╯")]
    assert "peers trained on its rollouts" in frame and "rl-swarm ask" not in frame
    assert max(len(line) for line in frame.splitlines()) <= 70
    commands = [line for line in text.splitlines() if line.startswith("    rl-swarm")]
    assert len(commands) == 3 and any(len(line) > 70 for line in commands)


def test_paths_with_spaces_make_commands_that_can_be_pasted(finished: Finished) -> None:
    places = replace(PLACES, store="./my data; rm -rf ~")
    card = sections(finished.summary, [], places, "'my venv/rl-swarm'")
    command = next(line for line in card[-1].lines if " status " in line).strip()
    assert command == "'my venv/rl-swarm' status --gdrive-path './my data; rm -rf ~' --experiment trial"


class Inspector(HTMLParser):
    """Collects what a page would load or run, and checks that its tags are balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.sources: list[str] = []
        self.handlers: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            if name in {"src", "href", "srcset"}:
                self.sources.append(value or "")
            if name.startswith("on"):
                self.handlers.append(name)
        if tag not in {"meta", "img", "source", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def inspect(page: str) -> Inspector:
    found = Inspector()
    found.feed(page)
    found.close()
    assert not found.open
    return found


def size_of(data: bytes) -> tuple[int, int]:
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_the_page_holds_everything_and_loads_nothing(finished: Finished) -> None:
    raw, summary, report = Raw(finished.run), finished.summary, finished.report
    page = report[PAGE].decode()
    found = inspect(page)
    assert not FOREIGN_TAGS & found.tags.keys() and not found.handlers
    assert all(source.startswith("data:image/png;base64,") for source in found.sources)
    assert len(found.sources) == 2 * 3, "three plots, each for light and for dark"
    drawn = [base64.b64decode(source.partition(",")[2]) for source in found.sources]
    assert len(set(drawn)) == 6
    assert {size_of(data) for data in drawn} == {(780, 525)}, "small enough to be read on a phone"
    width, height = size_of(report[PICTURE])
    assert 1000 <= width <= 2000 and 700 <= height <= 1500
    assert not re.search(r"https?:|url\(|@import", page)
    assert "prefers-color-scheme: dark" in page
    before, after = raw.reward(raw.names, range(3)), raw.reward(raw.names, range(6, 16))
    assert f"{before:.3f} → {after:.3f}" in found.text
    assert f"{percent(raw.held_out(raw.names, 0))} → {percent(raw.held_out(raw.names, 16))}" in found.text
    cells = re.findall(r"<td[^>]*>(.*?)</td>", page)
    for learner in raw.names:
        expected = ["" if learner == author else str(raw.uses()[learner, author]) for author in raw.names]
        assert [learner, *expected] in [cells[place : place + 4] for place in range(len(cells))]
    for name, value in summary.settings.items():
        assert name in found.text and value in found.text
    assert honest_note(summary) in found.text
    assert "stand-in 1" in found.text


def hostile_summary(summary: Summary) -> Summary:
    names = {node.node_id: f"{HOSTILE}{place}" for place, node in enumerate(summary.nodes)}
    return replace(
        summary,
        experiment=HOSTILE,
        settings={HOSTILE: HOSTILE, "TASKS": '"><script>alert(3)</script>'},
        versions={HOSTILE: HOSTILE},
        nodes=tuple(replace(node, node_id=names[node.node_id], model=HOSTILE) for node in summary.nodes),
        rewards={names[name]: points for name, points in summary.rewards.items()},
        uses={(names[learner], names[author]): count for (learner, author), count in summary.uses.items()},
    )


def test_nothing_hostile_takes_effect_on_page_card_or_picture(finished: Finished) -> None:
    summary = hostile_summary(finished.summary)
    bad = Answered(HOSTILE, HOSTILE, 0.0, HOSTILE)
    examples = [*finished.examples, Example(HOSTILE, bad, replace(bad, prompt="other"))]
    assert any(HOSTILE in (each.before.text, each.after.text) for each in examples[:-1]), "the run itself holds it"
    page = run_page(summary, examples, ())
    found = inspect(page)
    assert not FOREIGN_TAGS & found.tags.keys() and not found.handlers and found.tags["img"] == 0
    assert "<script>alert(1)</script>" in found.text, "shown as text"
    for terminal in (False, True):
        shown = card_of(summary, examples, terminal=terminal, width=400)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", shown) if terminal else shown
        assert not {"\x1b", "\u202e"} & set(page + plain)
        assert "[bold red]gone[/]" in plain, "markup is not obeyed"
    assert all(size_of(panel.picture.light) for panel in make_panels(summary))


def test_names_that_a_drawing_library_would_misread_are_drawn() -> None:
    assert [label(name) for name in ("w1", "_w1", "$x^", "größe")] == ["w1", " _w1", "$x^", r"gr\xf6\xdfe"]


def empty_summary() -> Summary:
    return Summary("e", {}, {}, (), 0, None, 0.0, None, (), (), Change(), Change(), Change(), Change(), 0, (), {}, (), {})


def test_a_run_with_nothing_in_it_still_has_a_report(tmp_path: Path) -> None:
    summary = summarise(make_store(tmp_path), LAYOUT)
    assert summary == replace(empty_summary(), experiment="trial")
    assert make_report(summary, []).keys() == {PAGE, PICTURE}
    assert "reward" in card_of(summary, [])
    assert "not measured" in honest_note(summary)


@pytest.mark.parametrize(("workers", "external"), [(("solo",), 0), (tuple(f"_w{number}" for number in range(14)), 1)])
def test_runs_of_one_node_and_of_many_have_a_report(tmp_path: Path, workers: tuple[str, ...], external: int) -> None:
    run = SampleRun(make_store(tmp_path), tmp_path, workers, external).play(3)
    summary = summarise(run.store, LAYOUT)
    assert make_report(summary, examples_of(run)).keys() == {PAGE, PICTURE}
    text = card_of(summary, examples_of(run))
    assert text.count("peers trained on its rollouts") == len(workers)
    assert "was not measured both before and after" in text and "Held-out: share" not in text
    assert summary.held_out == Change()


def test_a_round_done_again_and_foreign_rows_count_once_and_not_at_all(run: SampleRun) -> None:
    expected = summarise(run.store, LAYOUT)
    path = Raw(run).root / "logs" / "w1" / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[4], '{"round": 16, "reward": NaN}', '{"round": "x"}', "[]"]) + "\n")
    found = summarise(run.store, LAYOUT)
    assert replace(found, damaged=()) == expected
    [damaged] = found.damaged
    assert damaged == f"{LAYOUT.log('w1', 'metrics.jsonl')}: not what a node writes: 3 of {len(lines) + 4} lines"


def test_damaged_files_are_named_and_the_rest_is_summarised(run: SampleRun) -> None:
    expected = summarise(run.store, LAYOUT)
    assert expected.damaged == ()
    root = Raw(run).root
    deep = "[" * 100_000
    (root / "experiment.json").write_text("{}")
    (root / "peers" / "w2.json").write_text("{")
    (root / "logs" / "w1" / "system_info.json").write_text(deep)
    (root / "logs" / "w3" / "system_info.json").write_text("7")
    with (root / "logs" / "w1" / "training_events.jsonl").open("a") as events:
        events.write('{"event_type": "evaluation", "data": {"round": 1, "held_out": 7}}\n' + deep + "\n")
    found = summarise(run.store, LAYOUT)
    assert [each.partition(": ")[0].removeprefix(f"{LAYOUT.root}/") for each in found.damaged] == [
        "peers/w2.json",
        "logs/w1/training_events.jsonl",
        "experiment.json",
        "logs/w1/system_info.json",
        "logs/w3/system_info.json",
    ]
    assert found.rewards == {node: points for node, points in expected.rewards.items() if node != "w2"}
    assert len(found.evaluations) == len(expected.evaluations) and found.settings == {}
    assert all(each in card_of(found, []) for each in found.damaged)
    assert "Damaged files" in run_page(found, [], ()) and "Damaged files" not in run_page(expected, [], ())


def test_uses_are_credited_to_registered_peers_only(run: SampleRun) -> None:
    expected = summarise(run.store, LAYOUT)
    path = Raw(run).root / "logs" / "w1" / "metrics.jsonl"
    lines = path.read_text().splitlines()
    row = json.loads(lines[-1])
    row["external_ids"] += ["w1/3/0/0", "stranger/3/0/0", "boss/3/0/0", "", "../w2/3/0/0"]
    path.write_text("\n".join([*lines[:-1], json.dumps(row)]) + "\n")
    assert summarise(run.store, LAYOUT).uses == expected.uses


def test_first_and_last_rounds_never_overlap() -> None:
    assert ends_of([]) == ((), ())
    assert ends_of([7]) == ((), ())
    assert ends_of([0, 1]) == ((0,), (1,))
    assert ends_of(list(range(8))) == ((0, 1, 2), (3, 4, 5, 6, 7))
    assert ends_of(list(range(5, 40))) == ((5, 6, 7), tuple(range(30, 40)))


@pytest.mark.parametrize(
    ("seen", "formed", "expected"),
    [
        ((0.0, 0.5), (0.6, 0.6), "finding the form, not knowing more: made to begin with <answer>, the base model answers 60.0 %"),
        ((0.0, 0.6), (0.6, 0.7), "finding the form, not knowing more"),
        (
            (0.1, 0.8),
            (0.5, 0.8),
            "They learnt more than the form: made to begin with <answer>, the base model answers 50.0 %",
        ),
        ((0.1, 0.8), (0.5, 0.8), "so the rise goes 30.0 points beyond it."),
        (
            (0.1, 0.52),
            (0.5, 0.6),
            "50.0 % correctly. It goes 2.0 points beyond that, but chance alone explains as much on 400 questions.",
        ),
        ((0.3, 0.3), (0.2, 0.5), "did not rise"),
        ((None, None), (0.2, 0.5), "was not measured"),
    ],
)
def test_the_note_says_how_much_is_only_the_form(seen: Any, formed: Any, expected: str) -> None:
    found = replace(empty_summary(), held_out=Change(*seen), in_form=Change(*formed), held_out_questions=400)
    assert expected in honest_note(found)


def test_knowledge_that_was_lost_is_named() -> None:
    found = replace(empty_summary(), held_out=Change(0.0, 0.76), in_form=Change(0.71, 0.76), held_out_questions=400)
    assert "cost" not in honest_note(replace(found, style_blind=Change(0.8, 0.78))), "as chance may have it"
    told = "What it cost: 84.0 % were right in any form before, now 76.0 %."
    assert honest_note(replace(found, style_blind=Change(0.84, 0.76))).endswith(told)
    assert honest_note(replace(found, in_form=Change(0.8, 0.76), style_blind=Change(0.84, 0.76))).endswith(told)


def test_a_rise_from_nothing_has_no_factor() -> None:
    assert Change(0.0, 0.5).times is None
    assert Change(0.1, 0.5).times == pytest.approx(5)
    assert Change(0.1, None).times is None


def test_nodes_that_were_not_measured_first_and_last_are_left_out_of_the_mean(tmp_path: Path) -> None:
    run = SampleRun(make_store(tmp_path), tmp_path)
    run.evaluate(0)
    run.play(4)
    run.evaluate(4)
    late = run.worker("w4", 3, 2)
    late.journal.event("evaluation", round=2, held_out=1.0, held_out_style_blind=1.0, held_out_in_form=1.0)
    late.journal.event("evaluation", round=4, held_out=1.0, held_out_style_blind=1.0, held_out_in_form=1.0)
    died = run.worker("w5", 4, 2)
    died.journal.event("evaluation", round=0, held_out=1.0, held_out_style_blind=1.0, held_out_in_form=1.0)
    died.journal.event("evaluation", round=2, held_out=1.0, held_out_style_blind=1.0, held_out_in_form=1.0)
    run.copy()
    summary = summarise(run.store, LAYOUT)
    assert summary.held_out == Change(pytest.approx(0.1), pytest.approx(0.2))
    assert [each.round for each in summary.evaluations] == [0, 4]
    assert [node.held_out for node in summary.nodes[-2:]] == [Change(), Change(1.0, 1.0)]


def test_smoothing_is_a_mean_of_what_is_there() -> None:
    assert smooth([1.0, 3.0, 5.0, 1.0], 3) == [1.0, 2.0, 3.0, 3.0]


def answered(reward: float, prompt: str = "q") -> Answered:
    return Answered(prompt, "text", reward, "w1")


def test_the_example_on_the_card_is_the_first_that_turned_and_says_so() -> None:
    stayed, turned = Example("a", answered(0), answered(0)), Example("b", answered(0), answered(1))
    assert telling([stayed, turned, turned]) == turned
    assert telling([stayed]) == stayed
    assert "Of 2 examples (one question of each task) the first that came to the full reward" in card_of(
        empty_summary(), [stayed, turned]
    )
    assert "the first that came to the full reward;" in card_of(empty_summary(), [turned])
    assert "the first, since none came to the full reward;" in card_of(empty_summary(), [stayed])


def test_published_examples_are_the_first_completions_not_the_best(finished: Finished) -> None:
    [example] = finished.examples
    first, last = (
        json.loads((Raw(finished.run).root / "rollouts" / f"round_{number}" / "stage_0" / "w1.json").read_text())["rollouts"]["0"][
            0
        ]
        for number in (0, 15)
    )
    assert (example.before.text, example.before.reward, example.before.prompt) == (
        first["response"],
        first["reward"],
        first["prompt"],
    )
    assert (example.after.text, example.after.reward, example.after.by) == (last["response"], last["reward"], "w1, round 15")
    assert not example.same_question


def test_examples_are_asked_of_the_base_and_the_trained_model(tmp_path: Path) -> None:
    trial = Trial(tmp_path, MAX_NEW_TOKENS="4")
    with pytest.raises(ConfigError):
        asked_examples(trial.environment, {})
    trial.save("w2", 30, trial.policy(1))
    examples = asked_examples(trial.environment, {})
    assert len(examples) == len({example.task for example in examples}) == 5
    assert all(example.same_question for example in examples)
    assert {example.after.by for example in examples} == {"w2 at round 30"}
    assert any(example.before.text != example.after.text for example in examples)


def test_a_completed_demo_is_followed_by_another_and_a_stopped_one_goes_on(run: SampleRun, tmp_path: Path) -> None:
    environment = {"GDRIVE_PATH": str(tmp_path / "store"), "EXPERIMENT_NAME": "trial"}
    rounds = Rounds(run.store, LAYOUT)
    assert demo.unfinished(environment)["EXPERIMENT_NAME"] == "trial"
    rounds.write_current(CurrentState(3, 0.0, "boss", "trial", "running"))
    assert demo.unfinished(environment)["EXPERIMENT_NAME"] == "trial"
    rounds.write_current(CurrentState(15, 0.0, "boss", "trial", "complete"))
    assert demo.unfinished(environment)["EXPERIMENT_NAME"] == "trial-2"


def test_showing_a_run_needs_neither_torch_nor_the_drawing_library_until_the_end() -> None:
    code = (
        "import sys; import rl_swarm.tools.demo\n"
        "heavy = {'torch', 'transformers', 'matplotlib', 'numpy', 'reasoning_gym'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_picture_and_page_say_of_what_and_of_when_they_are(finished: Finished) -> None:
    summary = replace(finished.summary, last_round_at=1_800_000_000.0)
    line = "experiment trial · 3 workers, 16 rounds · model nano · last round 2027-01-15 08:00 UTC"
    assert facts(summary) == line and line in inspect(run_page(summary, [], ())).text
    assert "3 workers, 16 of 20 rounds" in facts(replace(summary, max_rounds=20))
    before, after = (finished.summary.reward.before or 0.0), (finished.summary.reward.after or 0.0)
    assert headline(summary) == f"RL Swarm trial: reward {before:.3f} → {after:.3f}, {after / before:.1f} times"
    raw = Raw(finished.run)
    assert finished.summary.last_round_at == max(row["timestamp"] for rows in raw.rows.values() for row in rows)


def test_a_date_is_in_utc_and_a_clock_that_is_far_off_has_none() -> None:
    assert [date(moment) for moment in (0.0, None, -1.0, 1e12)] == ["1970-01-01 00:00 UTC", "–", "–", "–"]


@pytest.mark.parametrize(
    ("text", "reward", "expected", "kind"),
    [
        ("<answer>7</answer>", 1.0, "reward 1.00: right", "good"),
        ("The answer is 7.", 0.0, "reward 0.00: right, but not in <answer> tags, so no reward", "partly"),
        ("<answer>-0</answer>", 0.5, "reward 0.50: part of the reward", "partly"),
        ("<answer>8</answer>", -0.0, "reward 0.00: wrong", "wrong"),
    ],
)
def test_right_and_rewarded_are_two_things_on_card_and_page(text: str, reward: float, expected: str, kind: str) -> None:
    answer = Answered("What is 3 + 4?", text, reward, "w1", "7")
    assert worth(answer) == expected
    example = Example("sums", replace(answer, text="?", reward=0.0), answer)
    assert f"({expected})" in card_of(empty_summary(), [example], width=200)
    page = run_page(empty_summary(), [example], ())
    assert f'<pre class="{kind}">' in page and expected in inspect(page).text


def test_the_card_of_a_large_swarm_names_some_nodes_and_the_page_all(finished: Finished) -> None:
    [node, *_] = finished.summary.nodes
    nodes = tuple(replace(node, node_id=f"n{place}") for place in range(MOST_LINES + 5))
    large = replace(finished.summary, nodes=nodes, damaged=tuple(f"file {place}" for place in range(MOST_LINES + 1)))
    text = card_of(large, [])
    assert text.count("peers trained on its rollouts") == MOST_LINES
    assert "and 5 more, which are in the report" in text and "and 1 more, which are in the report" in text
    page = run_page(large, [], ())
    assert page.count("<td>n") == len(nodes) > MOST_CELLS, "once each: a table of all pairs would be too large"


def test_long_runs_are_drawn_with_a_bounded_number_of_points() -> None:
    points = [(number, float(number % 2)) for number in range(10 * MOST_POINTS)]
    assert len(thin(points)) == MOST_POINTS and {value for _, value in thin(points)} == {0.5}
    assert thin(points[:3]) == [(0, 0.0), (1, 1.0), (2, 0.0)] and thin([]) == []


def test_of_very_many_rows_the_newest_are_read_and_that_is_said(run: SampleRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_swarm.runs.summary.MOST_ROWS_OF_ALL", 3 * 6)
    summary = summarise(run.store, LAYOUT)
    assert {node: [number for number, _ in points] for node, points in summary.rewards.items()} == {
        name: list(range(10, 16)) for name in run.workers
    }
    assert f"{LAYOUT.log('w1', 'metrics.jsonl')}: 16 lines, of which the newest 6 were looked at" in summary.damaged


def test_the_reports_reader_keeps_no_rows(run: SampleRun, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Raw(run).root / "logs" / "w1" / "metrics.jsonl"
    lines = path.read_text().splitlines()
    row = json.loads(lines[-1]) | {"external_ids": [f"w2/{number}/0/0" for number in range(500)]}
    path.write_text("".join(json.dumps(row | {"round": number}) + "\n" for number in range(100)))
    monkeypatch.setattr("rl_swarm.runs.summary.JOURNAL_BYTES", 2 * path.stat().st_size)  # what a read sets aside
    tracemalloc.start()
    summary = summarise(run.store, LAYOUT)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert summary.uses["w1", "w2"] == 50_000
    assert peak < 4.5 * path.stat().st_size, "the journal itself, as bytes, as text and as lines"
