"""The probe with stand-in models that know some answers, on reasoning-gym's own tasks and a virtual clock."""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from reasoning_gym.factory import DATASETS
from rich.console import Console
from rich.text import Text

from rl_swarm.config import load
from rl_swarm.errors import ConfigError, ModelError
from rl_swarm.learning.policy import Prompting
from rl_swarm.randomness import generator
from rl_swarm.rollout import Completion, Question, Rollout
from rl_swarm.tasks import TaskSpec, canonical, parse_tasks
from rl_swarm.tasks.levels import candidates
from rl_swarm.tools.probe import (
    BATCH,
    ENOUGH,
    FEWEST,
    Probe,
    ProbeResult,
    Tally,
    choose,
    next_batch,
    ranked,
    tally_of,
    undecided,
)
from rl_swarm.tools.prompts import Way, prompted, ways_to_try
from tests.support import tiny_models
from tests.support.clocks import VirtualClock

Chance = Callable[[Question], float]


class Pupil:
    """A model that knows an answer with some probability, writes the tag with another, and takes `pace` seconds a question."""

    name = "pupil"

    def __init__(self, clock: VirtualClock, right: Chance, *, tagged: float = 1.0, pace: float = 0.1, room: int = 10**6) -> None:
        self.clock, self.right, self.tagged, self.pace, self.room = clock, right, tagged, pace, room
        self.asked: list[Question] = []
        self.batches: list[int] = []

    def answer(self, questions: Sequence[Question], group_size: int, seed: int) -> Iterator[tuple[Completion, ...]]:
        self.asked.extend(questions)
        self.batches.append(len(questions))
        for question in questions:
            self.clock.sleep(self.pace)
            chance = generator(seed, question.text_id)
            yield tuple(self._write(question, chance.random(), chance.random()) for _ in range(group_size))

    def _write(self, question: Question, knowing: float, tagging: float) -> Completion:
        text = str(question.answer) if knowing < self.right(question) else "no idea"
        return Completion(f"<answer>{text}</answer>" if tagging < self.tagged else text)

    def fits(self, question: Question) -> bool:
        return len(question.prompt) < self.room


class Forgetful(Pupil):
    """Has not the memory for numbers of several digits."""

    def answer(self, questions: Sequence[Question], group_size: int, seed: int) -> Iterator[tuple[Completion, ...]]:
        if questions[0].config.get("max_digits", 4) > 1:
            raise ModelError("8 completions do not fit in the memory")
        yield from super().answer(questions, group_size, seed)


class Interrupted(Pupil):
    """Someone presses Ctrl-C at the fourth batch."""

    def answer(self, questions: Sequence[Question], group_size: int, seed: int) -> Iterator[tuple[Completion, ...]]:
        if len(self.batches) == 3:
            raise KeyboardInterrupt
        yield from super().answer(questions, group_size, seed)


def up_to(most_digits: int) -> Chance:
    """Knows half of the sums whose numbers have few digits, and none of the others."""
    return lambda question: 0.5 if question.config.get("max_digits", 4) <= most_digits else 0.0


def tenth(question: Question) -> float:
    return 0.1


def look(
    tasks: str, right: Chance, seconds: float = 120.0, seed: int = 7, kind: type[Pupil] = Pupil, **more: Any
) -> tuple[ProbeResult, Pupil]:
    clock = VirtualClock()
    pupil: Any = kind(clock, right, **more)
    return Probe(parse_tasks(tasks), pupil, group_size=8, seed=seed, clock=clock).run(seconds), pupil


def keys(report: ProbeResult) -> list[str]:
    return [spec.id for spec, _ in report.seen]


def rows(*found: tuple[str, Tally]) -> list[tuple[TaskSpec, Tally]]:
    return [(parse_tasks(key)[0], tally) for key, tally in found]


def report_of(*found: tuple[str, Tally]) -> ProbeResult:
    return ProbeResult("pupil", 8, 120.0, tuple(ranked(rows(*found))), {}, ())


class TestLevels:
    @pytest.mark.parametrize("tasks", ["paper", "easy", ",".join(sorted(DATASETS))], ids=["paper", "easy", "all"])
    def test_every_level_can_be_written_in_tasks(self, tasks: str) -> None:
        found = candidates(parse_tasks(tasks))
        assert parse_tasks(canonical(found)) == tuple(sorted(found, key=lambda spec: spec.id))

    def test_tasks_as_named_come_first_then_the_easiest_of_each(self) -> None:
        found = [spec.id for spec in candidates(parse_tasks("chain_sum,fraction_simplification"))]
        assert found[:5] == [
            "chain_sum",
            "fraction_simplification",
            "chain_sum:max_digits=1:max_terms=3",  # of the preset
            "fraction_simplification:max_factor=10:max_value=100",
            "chain_sum:max_digits=1:max_terms=2",
        ]

    def test_easier_and_harder_than_the_default(self) -> None:
        digits = [spec.config.get("max_digits", 4) for spec in candidates(parse_tasks("chain_sum"))]
        assert min(digits) < 4 < max(digits)

    def test_what_the_curriculum_does_not_govern_stays(self) -> None:
        found = candidates(parse_tasks("chain_sum:allow_negation=true:max_digits=3*2"))
        assert {spec.weight for spec in found} == {2.0}
        curriculum = [spec for spec in found if spec.id != "chain_sum:max_digits=1:max_terms=3"]
        assert all(spec.config["allow_negation"] for spec in curriculum)
        assert {"allow_negation": True, "max_digits": 1, "max_terms": 2} in [spec.config for spec in curriculum]

    @pytest.mark.parametrize("easier", ["base_conversion:max_base=5:max_value=31", "binary_matrix:max_n=5"])
    def test_a_level_below_curricula_that_begin_high(self, easier: str) -> None:
        assert easier in [spec.id for spec in candidates(parse_tasks(easier.split(":")[0]))]

    def test_ranges_that_were_named_are_not_shrunk(self) -> None:
        assert min(spec.config.get("max_value", 1000) for spec in candidates(parse_tasks("gcd:max_value=20"))) == 20

    @pytest.mark.parametrize("task", ["acre", "gsm_symbolic", "no_such_task"])
    def test_without_a_curriculum_there_is_one_level(self, task: str) -> None:
        assert candidates(parse_tasks(task)) == list(parse_tasks(task))


class TestTally:
    def test_of_a_rollout(self) -> None:
        completions = (
            Completion("<answer>4</answer>", 1.0),
            Completion("<answer>5</answer>", 0.0),
            Completion("4", 0.0, finish="length"),
            Completion("<answer>", 0.0),
        )
        rollout = Rollout(Question("2 + 2?"), completions, "probe", 0)
        assert tally_of(rollout) == Tally(questions=1, informative=1, completions=4, tagged=2, cut_off=1, reward=1.0, divided=1)

    def test_crumbs_of_partial_credit_are_not_informative(self) -> None:
        assert tally_of(Rollout(Question("?"), (Completion("a", 0.04), Completion("b", 0.0)), "probe", 0)).informative == 0

    def test_tallies_add_up(self) -> None:
        total = Tally(1, 1, 8, 4, 0, 2.0, 0.5) + Tally(3, 0, 24, 4, 1, 0.0, 0.5)
        assert total == Tally(4, 1, 32, 8, 1, 2.0, 1.0)
        assert (total.informative_share, total.tagged_share, total.mean_reward) == (0.25, 0.25, 0.0625)

    def test_bounds_by_hand(self) -> None:
        assert Tally().bounds == (0.0, 1.0)
        assert Tally(questions=12).bounds == pytest.approx((0.0, 0.25))  # z²/(n + z²) with z = 2
        assert Tally(questions=4, informative=2).bounds == pytest.approx((0.5 - 2**-1.5, 0.5 + 2**-1.5))


class TestPlanning:
    def test_the_first_question_measures_the_model(self) -> None:
        assert next_batch({"a": Tally(), "b": Tally()}, 120.0) == ("a", 1)

    @pytest.mark.parametrize(("seconds", "count"), [(0.001, BATCH), (6.0, 5), (20.0, 1), (50.0, 1)])
    def test_slow_models_are_asked_little_at_once(self, seconds: float, count: int) -> None:
        assert next_batch({"a": Tally(questions=1, seconds=seconds), "b": Tally()}, 120.0) == ("b", count)

    def test_the_undecided_take_turns(self) -> None:
        tallies = {"a": Tally(16, 4, seconds=1), "b": Tally(8, 2, seconds=1), "c": Tally(8, 2, seconds=1)}
        assert next_batch(tallies, 120.0) == ("b", BATCH)

    def test_the_end(self) -> None:
        slow = {"a": Tally(questions=1, seconds=10.0)}
        assert next_batch(slow, 0.0) is None
        assert next_batch(slow, 9.0) is None  # a question would take longer
        assert next_batch(slow, 11.0) == ("a", 1)
        assert next_batch({}, 10.0) is None
        assert next_batch({"a": Tally(ENOUGH, ENOUGH // 2)}, 10.0) is None

    def test_what_is_clear_is_left_alone(self) -> None:
        tallies = {
            "clearly good": Tally(32, 28),
            "clearly bad": Tally(32, 0),
            "about half as good": Tally(32, 14),
            "hardly seen": Tally(FEWEST - 1, 0),
            "not seen": Tally(),
            "seen enough": Tally(ENOUGH, ENOUGH // 2),
        }
        assert undecided(tallies) == ["about half as good", "hardly seen", "not seen"]


class TestChoice:
    def test_best_first_and_one_lucky_question_is_not_best(self) -> None:
        found = ranked(rows(("gcd", Tally(1, 1)), ("lcm", Tally(10, 8)), ("bf", Tally(10, 0)), ("ab", Tally(10, 0, 80, 8))))
        assert [spec.id for spec, _ in found] == ["lcm", "gcd", "ab", "bf"]

    def test_at_least_half_as_good_as_the_best(self) -> None:
        found = rows(("gcd", Tally(30, 20)), ("lcm", Tally(30, 10)), ("bf", Tally(30, 9)), ("ab", Tally(30, 0)))
        assert [spec.id for spec in choose(found)] == ["gcd", "lcm"]

    def test_two_levels_of_a_task_and_eight_in_all(self) -> None:
        many = rows(*((f"{task}:level={level}", Tally(8, 4)) for task in ("ab", "bf", "gcd", "lcm", "dice") for level in range(3)))
        assert [spec.id for spec in choose(many)] == [
            f"{task}:level={level}" for task in ("ab", "bf", "dice", "gcd") for level in (0, 1)
        ]

    def test_rare_is_chosen_with_a_warning(self) -> None:
        found = report_of(("gcd", Tally(100, 2, 800, 400, reward=2.0)), ("lcm", Tally(100, 0, 800, 400)))
        assert found.tasks == "gcd"
        assert "2 of 100 rollouts were informative, so learning will be slow: more NUM_GENERATIONS (now 8)" in found.advice

    def test_a_choice_from_single_questions_is_called_chance(self) -> None:
        once = report_of(("gcd", Tally(1, 1, 8, 8, seconds=4.0)), ("lcm", Tally(1, 0, 8, 8, seconds=4.0)))
        assert once.advice.endswith("so that may be chance: --seconds 120 makes it surer."), "4 s × 8 questions × 2 levels / 0.6"
        enough = report_of(("gcd", Tally(FEWEST, 4, 64, 64, seconds=4.0)), ("lcm", Tally(1, 0, 8, 8, seconds=4.0)))
        assert "surer" not in enough.advice

    @pytest.mark.parametrize(
        ("tally", "says"),
        [
            (Tally(), "give more --seconds"),
            (Tally(10, 0, 80, 80, reward=79.0), "nearly always right. Name harder tasks"),
            (
                Tally(10, 0, 80, 60),
                "the mean reward is 0.000. Try easier tasks (TASKS=easy), another MODEL_NAME, or more NUM_GENERATIONS",
            ),
            (Tally(10, 0, 80, 1), "only 1.2% of completions have an <answer>"),
            (Tally(10, 0, 80, 1, cut_off=60), "75% were cut off. Raise MAX_NEW_TOKENS"),
        ],
    )
    def test_nothing_informative_is_said_plainly(self, tally: Tally, says: str) -> None:
        found = report_of(("gcd", tally))
        assert found.tasks is None
        assert says in found.advice
        assert says.startswith("give") or found.advice.startswith("No rollout was informative: ")


class TestProbe:
    def test_finds_the_levels_that_the_model_half_knows(self) -> None:
        report, pupil = look("chain_sum,gcd", up_to(1))
        assert report.tasks == "chain_sum:max_digits=1:max_terms=2,chain_sum:max_digits=1:max_terms=3"
        assert sorted(keys(report)[:2]) == report.tasks.split(",")
        best, worst = report.seen[0][1], report.seen[-1][1]
        assert best.informative_share > 0.9
        assert 0.3 < best.mean_reward < 0.7
        assert (worst.informative, worst.reward, worst.tagged_share) == (0, 0.0, 1.0)
        assert report.not_reached == ()
        assert pupil.batches[0] == 1

    def test_it_ends_when_everything_is_clear(self) -> None:
        report, _ = look("chain_sum", up_to(1), seconds=600.0)
        assert report.seconds < 60

    def test_a_model_without_tags_is_told_from_one_that_knows_nothing(self) -> None:
        report, _ = look("gcd", lambda question: 0.5, tagged=0.0, seconds=10.0)
        assert report.tasks is None
        assert "only 0.0% of completions have an <answer>" in report.advice

    @pytest.mark.parametrize("pace", [0.5, 7.0, 500.0, *(pytest.param(pace, marks=pytest.mark.slow) for pace in (0.02, 3.0, 50.0))])
    def test_the_time_is_kept_but_for_the_first_question(self, pace: float) -> None:
        report, pupil = look("easy", tenth, seconds=60.0, pace=pace)
        assert report.seconds <= 60 or len(pupil.asked) == 1
        assert sum(tally.seconds for _, tally in report.seen) == pytest.approx(report.seconds)

    def test_all_are_seen_before_any_is_seen_again(self) -> None:
        report, _ = look("easy", tenth, seconds=60.0, pace=2.9)
        assert [tally.questions for _, tally in report.seen] == [1] * 20

    def test_what_time_did_not_reach_is_named(self) -> None:
        report, _ = look("easy", tenth, seconds=60.0, pace=8.0)
        assert {spec.id for spec in parse_tasks("easy")} < set(keys(report))
        assert len(report.seen) == 7
        assert len(report.not_reached) == 13

    def test_the_same_seed_gives_the_same_report(self) -> None:
        first, second, other = (look("chain_sum", up_to(2), seconds=5.0, seed=seed)[0] for seed in (1, 1, 2))
        assert first == second
        assert first != other

    def test_which_questions_are_asked_does_not_depend_on_the_time(self) -> None:
        quick, slow = (look("chain_sum,gcd", tenth, seconds=60.0, pace=pace)[1].asked for pace in (0.05, 1.7))
        assert quick != slow
        for config in ({}, {"max_digits": 1, "max_terms": 2}):
            ours = [[each.prompt for each in asked if (each.task, each.config) == ("chain_sum", config)] for asked in (quick, slow)]
            assert ours[1]
            assert ours[1] == ours[0][: len(ours[1])]

    def test_no_question_is_asked_twice(self) -> None:
        _, pupil = look("easy", tenth, seconds=30.0)
        asked = [(each.task, str(each.config), each.text_id) for each in pupil.asked]
        assert len(asked) == len(set(asked))

    def test_levels_that_cannot_be_used_are_skipped_with_the_reason(self) -> None:
        report, _ = look("propositional_logic,gdc,lcm:max_vale=3", tenth, seconds=20.0)
        assert "did you mean 'gcd'?" in report.skipped["gdc"]
        assert "has no parameter 'max_vale'" in report.skipped["lcm:max_vale=3"]
        assert "and then the same again" in report.skipped["propositional_logic:max_complexity=1:max_statements=2:max_vars=2"]
        assert {spec.name for spec, _ in report.seen} == {"propositional_logic"}

    def test_prompts_that_do_not_fit_are_skipped(self) -> None:
        report, pupil = look("binary_matrix", tenth, seconds=20.0, room=1000)
        assert "no room for MAX_NEW_TOKENS" in report.skipped["binary_matrix:max_n=50:min_n=10:p_zero=0.1"]
        assert "binary_matrix:max_n=5" in keys(report)
        assert all(map(pupil.fits, pupil.asked))

    def test_prompts_that_exceed_the_memory_are_skipped(self) -> None:
        report, _ = look("chain_sum", up_to(1), seconds=20.0, kind=Forgetful)
        assert set(report.skipped.values()) == {"8 completions do not fit in the memory"}
        assert {spec.config["max_digits"] for spec, _ in report.seen} == {1}

    def test_nothing_can_be_used(self) -> None:
        with pytest.raises(ConfigError, match=r"none of the TASKS can be used \(.*max_vale.*name others"):
            look("lcm:max_vale=3", tenth)

    def test_an_interrupted_probe_reports_what_it_has(self) -> None:
        report, _ = look("gcd", lambda question: 0.5, kind=Interrupted)
        assert len(report.seen) == 3
        assert report.not_reached
        assert report.tasks

    def test_own_tasks_that_run_out_and_their_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "ladder.py"
        path.write_text("def question(seed, index):\n    return f'What comes after {index % 5}?', str(index % 5 + 1)\n")
        report, _ = look(f"{path}*2", lambda question: 0.5, seconds=10.0)
        assert report.skipped == {}  # few questions, but the user's own choice
        assert report.seen[0][1].questions > 5
        assert report.tasks == f"{path}*2"
        assert parse_tasks(report.tasks) == parse_tasks(f"{path}*2")
        monkeypatch.chdir(tmp_path)
        assert parse_tasks(str(report.tasks)) == parse_tasks("./ladder.py*2")


class TestView:
    report = ProbeResult(
        "pupil",
        8,
        119.6,
        tuple(rows(('basic_arithmetic:operators=["+","-"]:max_digits=1', Tally(16, 8, 128, 64, 0, 32.0, 1.24)), ("gcd", Tally(8)))),
        {"bf": "takes too long to make a question"},
        ("lcm",),
    )

    def shown(self, report: ProbeResult) -> str:
        console = Console(file=io.StringIO(), width=80)
        console.print(report.view, crop=False)
        return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]

    def test_table_and_value(self) -> None:
        text = self.shown(self.report)
        assert "0.250          50%       50%      1.2" in text
        assert '\noperators=["+","-"] ' in text
        assert "gcd default" in text
        assert "skipped bf: takes too long" in text
        assert "not reached in 120 s: lcm" in text
        assert text.splitlines()[-1] == 'export TASKS=\'basic_arithmetic:max_digits=1:operators=["+","-"]\''
        assert "'rl-swarm swarm', 'work' or 'coordinate'), paste:" in text.splitlines()[-2]
        assert any(
            line.startswith("Informative: completions of one question that got different rewards") for line in text.splitlines()
        )

    def test_nothing_found(self) -> None:
        text = self.shown(report_of(("gcd", Tally(8, 0, 64, 40))))
        assert text.splitlines()[-1].startswith("No rollout was informative")
        assert "TASKS='" not in text

    def test_json(self) -> None:
        found = json.loads(json.dumps(self.report.as_dict()))
        assert found["tasks"] == self.report.tasks
        assert found["levels"][0]["config"] == {"max_digits": 1, "operators": ["+", "-"]}
        assert found["levels"][0]["informative_share"] == 0.5
        assert found["skipped"] == self.report.skipped
        assert found["not_reached"] == ["lcm"]

    def test_progress_is_shown_as_plain_text(self) -> None:
        clock, lines = VirtualClock(), list[Text]()
        pupil: Any = Pupil(clock, tenth)
        named = parse_tasks('basic_arithmetic:operators=["+"]')
        Probe(named, pupil, group_size=8, seed=7, clock=clock).run(1.0, lines.append)
        assert str(lines[0]).startswith("1 s left, 0 of ") and str(lines[0]).endswith('now basic_arithmetic:operators=["+"]')


class Prompted(Pupil):
    """Writes the tag only behind examples, or where its completions begin with it."""

    def __init__(self, clock: VirtualClock, way: Way, room: int = 10**6) -> None:
        super().__init__(clock, lambda question: 0.5, tagged=1.0 if way.examples or way.prefix == "answer" else 0.0, room=room)


class TestPrompts:
    def compared(self, rooms: dict[Way, int] | None = None) -> ProbeResult:
        clock = VirtualClock()
        ways = {way: Prompted(clock, way, (rooms or {}).get(way, 10**6)) for way in ways_to_try(load({}))}
        probe = Probe(parse_tasks("chain_sum,gcd"), ways[Way()], group_size=8, seed=7, clock=clock)  # type: ignore[arg-type]
        probe.choose_prompt(ways, 5.0)  # type: ignore[arg-type]
        return probe.run(20.0)

    def test_the_plainest_way_that_is_nearly_as_good_as_the_best_is_taken(self) -> None:
        report = self.compared()
        tallies = dict(report.prompts)
        assert set(tallies) == {Way(), Way(3), Way(0, "answer"), Way(3, "answer"), Way(0, "think")}
        assert len({tally.questions for tally in tallies.values()}) == 1, "all are asked the same"
        assert tallies[Way()].informative == 0 and tallies[Way(3)].informative > 0
        assert report.way == Way(3)
        assert report.settings["PROMPT_EXAMPLES"] == "3" and "COMPLETION_PREFIX" not in report.settings
        assert all(tally.tagged_share == 1 for _, tally in report.seen), "the levels are asked behind that prompt"

    def test_a_prompt_that_does_not_fit_is_left_out(self) -> None:
        report = self.compared({Way(3): 1, Way(3, "answer"): 1})
        assert report.way == Way(0, "answer") and report.settings["COMPLETION_PREFIX"] == "answer"
        assert Way(3) not in dict(report.prompts)

    def test_a_slow_model_is_asked_little_and_the_form_decides(self) -> None:
        clock = VirtualClock()
        ways = {way: Prompted(clock, way) for way in ways_to_try(load({"MAX_NEW_TOKENS": "32"}))}
        probe = Probe(parse_tasks("chain_sum:max_digits=9"), ways[Way()], group_size=8, seed=7, clock=clock)  # type: ignore[arg-type]
        probe.choose_prompt(ways, 0.0)  # type: ignore[arg-type]
        report = probe.run(1.0)
        assert {tally.questions for _, tally in report.prompts} == {2}
        assert report.way == Way(3)
        promise = {tagged: Tally(2, completions=16, tagged=tagged).promise for tagged in (0, 16)}
        assert promise[16] > promise[0], "without an informative rollout, the prompt that finds the form is taken"

    @pytest.mark.parametrize(("seconds", "questions"), [(5.0, 2), (100.0, 8), (1000.0, 24)])
    def test_more_questions_are_asked_only_if_they_end_in_time(self, seconds: float, questions: int) -> None:
        clock = VirtualClock()
        ways = {way: Prompted(clock, way) for way in ways_to_try(load({"MAX_NEW_TOKENS": "32"}))}
        for pupil in ways.values():
            pupil.pace = 2.0
        probe = Probe(parse_tasks("chain_sum,gcd"), ways[Way()], group_size=8, seed=7, clock=clock)  # type: ignore[arg-type]
        began = clock.monotonic()
        probe.choose_prompt(ways, seconds)  # type: ignore[arg-type]
        assert clock.monotonic() - began <= max(seconds, 2 * 2.0 * len(ways))
        assert {tally.questions for _, tally in probe.run(1.0).prompts} == {questions}

    def test_only_the_users_own_way_is_tried(self) -> None:
        assert ways_to_try(load({"PROMPT_EXAMPLES": "2"})) == [Way(2)]
        assert ways_to_try(load({"COMPLETION_PREFIX": "think"})) == [Way(0, "think")]
        assert Way(0, "think") not in ways_to_try(load({"MAX_NEW_TOKENS": "32"}))

    def test_a_reward_for_the_form_is_advised_where_only_some_completions_have_it(self) -> None:
        report = report_of(("gcd", Tally(20, 0, 160, 6, divided=5)))
        assert report.settings == {"FORMAT_REWARD": "0.1"} and "FORMAT_REWARD pays for the form" in report.advice
        assert report_of(("gcd", Tally(20, 0, 160, 160))).settings == {}
        assert "FORMAT_REWARD" not in report_of(("gcd", Tally(20, 10, 160, 80, divided=10))).settings

    def test_examples_are_of_the_tasks_that_can_be_loaded(self) -> None:
        made = prompted(tiny_models.policy(), [Way(), Way(3), Way(0, "answer")], parse_tasks("gcd,gdc,lcm"))
        assert made[Way()].prompting == Prompting()
        assert made[Way(0, "answer")].prompting == Prompting((), "<answer>")
        prompts = [prompt for prompt, _ in made[Way(3)].prompting.examples]
        assert len(prompts) == 2 and all("Find the" in prompt for prompt in prompts)
        assert made[Way(3)].model is made[Way()].model
