"""Drawing, regenerating and scoring questions, with reasoning-gym itself and with own tasks in files."""

import contextlib
import dataclasses
import inspect
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_swarm.errors import BadRollout, ConfigError
from rl_swarm.rollout import Completion, Question, Rollout
from rl_swarm.tasks import TASK_PRESETS, Tasks, TaskSpec, canonical, helper, parse_tasks, parsed_answer, questions, tasks_version
from rl_swarm.tasks.bench import Bench, _common_divisors
from rl_swarm.tasks.gates import gate_for, is_anything, is_expression, is_formula, is_literal, is_narrow
from rl_swarm.tasks.levels import candidates
from tests.support.standins import made_at

ROOT = Path(__file__).parents[2]
BOTH = sorted({spec.id for preset in TASK_PRESETS for spec in parse_tasks(TASK_PRESETS[preset])})
HOSTILE = [
    "",
    "9**9**9**9",
    "9" * 5000,
    "-" * 1999,
    "(" * 1999,
    "¬" * 300,
    "∨".join(f"a{number}" for number in range(60)),
    "∧".join("P" * 150),
    "1e999999999",
    "-1e999999999999999999",
    "nan",
    "inf",
    "1/" + "0" * 1900,
    "\\frac{" + "1" * 1900 + "}{2}",
    "[[0] * 10**10]",
    "[" * 1000,
    "exit()",
    "\x00",
    "\ud800",
    "None",
]

LADDER = """
import random


def question(seed, index):
    rng = random.Random(seed + index)
    low = rng.randint(1, 10**6)
    return {"prompt": f"Which number comes after {low}?", "answer": str(low + 1), "low": low}


def score(question, text):
    if text == "hang":
        while True:
            pass
    if text == "raise":
        raise RuntimeError(text)
    if text == "die":
        import os
        os._exit(3)
    print("prints are no replies")
    return {"nan": float("nan"), "seven": 7.0, "negative": -1.0}.get(text, float(text == str(question["low"] + 1)))
"""


def tagged(answer: str | None) -> str:
    return f"<answer>{answer}</answer>"


def make(text: str, node_id: str = "a", seed: int = 42, **options: Any) -> Tasks:
    return Tasks(parse_tasks(text), seed=seed, node_id=node_id, **options)


def published(question: Question, *texts: str, claim: float = 1.0) -> Rollout:
    return Rollout(question, tuple(Completion(text, claim) for text in texts), "peer", 3)


def winning(tasks: Tasks, question: Question) -> str:
    """An answer that the verifier must pay in full: the key or, for propositional logic, all premises at once."""
    if question.answer is not None:
        return question.answer
    bench = Bench([parse_tasks("propositional_logic")[0]])
    premises = bench.item(0, question.seed, question.index).entry["metadata"]["premises"]
    return " ∧ ".join(f"({premise})" for premise in premises)


@pytest.fixture(scope="module")
def easy() -> Tasks:
    return make("easy")


@pytest.fixture(scope="module")
def both() -> Tasks:
    return make(",".join(BOTH))


@pytest.fixture
def own_file(tmp_path: Path) -> Callable[..., Path]:
    def write(source: str = LADDER, name: str = "ladder.py") -> Path:
        (tmp_path / name).write_text(source)
        return tmp_path / name

    return write


@pytest.fixture
def own(own_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Tasks:
    monkeypatch.setattr(helper, "JUDGE_SECONDS", 0.5)
    return make(str(own_file()))


class TestGrammar:
    def test_paper_is_the_nine(self) -> None:
        assert [spec.name for spec in parse_tasks("paper")] == [
            "arc_1d",
            "base_conversion",
            "basic_arithmetic",
            "bf",
            "binary_matrix",
            "calendar_arithmetic",
            "decimal_arithmetic",
            "fraction_simplification",
            "propositional_logic",
        ]

    def test_parameters_and_weights(self) -> None:
        assert parse_tasks("gcd*2, chain_sum:max_digits=2:min_terms=3*0.5") == (
            TaskSpec("chain_sum", {"max_digits": 2, "min_terms": 3}, 0.5),
            TaskSpec("gcd", {}, 2.0),
        )

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("3", 3),
            ("-3", -3),
            ("0.5", 0.5),
            ("1e3", 1000.0),
            ("true", True),
            ("False", False),
            ("none", None),
            ("word", "word"),
            ("'true'", "true"),
            ('"a,b:c=\\"d\\"*2"', 'a,b:c="d"*2'),
            ("[]", []),
            ("[1,2.5,x]", [1, 2.5, "x"]),
            ("[+,-,*]", ["+", "-", "*"]),
            ("[[1,2],['a,b']]", [[1, 2], ["a,b"]]),
        ],
    )
    def test_values(self, text: str, value: Any) -> None:
        (spec,) = parse_tasks(f"gcd:x={text}")
        assert spec.config == {"x": value}
        assert type(spec.config["x"]) is type(value)

    def test_a_preset_takes_company_and_a_weight(self) -> None:
        specs = parse_tasks("easy*3,lcm")
        assert len(specs) == 6
        assert {spec.weight for spec in specs if spec.name != "lcm"} == {3.0}

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "empty entry"),
            ("gcd,,lcm", "empty entry"),
            ("gcd,gcd", "twice"),
            ("paper,bf", "twice"),
            ("gcd*0", "the weight in 'gcd*0' must be at least 1e-06"),
            ("gcd*-1", "the weight in 'gcd*-1' must be at least"),
            ("gcd*1e99", "must be at most 1,000,000, got '1e99'"),
            ("gcd:max_value", "parameter=value"),
            ("gcd:max_value=", "value ''"),
            ("gcd:a=1:a=2", "once"),
            ("gcd:seed=3", "seed"),
            ("gcd:size=3", "size"),
            ("gcd:a=[1", "bracket"),
            ("gcd:a=1]", "bracket"),
            ("gcd:a='b", "quote"),
            ('gcd:a="\\q"', "quotes"),
            ("gcd:a=1 2", "value '1 2'"),
            ("Great Divisor", "no task"),
            ("./missing.py", "missing.py"),
            ("/", "no task"),
            ("[" * 5000, "bracket"),
        ],
    )
    def test_errors_are_one_line_with_the_value(self, text: str, says: str) -> None:
        with pytest.raises(ConfigError) as caught:
            parse_tasks(text)
        line = str(caught.value)
        assert line.startswith("TASKS")
        assert says in line
        assert repr(text)[1:60].rstrip("'") in line
        assert "\n" not in line
        assert len(line) < 500

    names = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True).filter(lambda name: name not in (*TASK_PRESETS, "seed", "size"))
    values = st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(10**29), 10**29)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=5,
    )
    weights = st.floats(1e-6, 1e6) | st.just(1.0) | st.integers(1, 9).map(float)

    @given(st.lists(st.builds(TaskSpec, names, st.dictionaries(names, values, max_size=3), weights), min_size=1, max_size=4))
    @settings(max_examples=80, deadline=None)
    def test_canonical_text_parses_back(self, specs: list[TaskSpec]) -> None:
        distinct = {spec.id: spec for spec in specs}
        text = canonical(distinct.values())
        parsed = parse_tasks(text)
        assert {spec.id: spec for spec in parsed} == distinct
        assert canonical(parsed) == text

    @given(st.text(alphabet="gcd:=*,[]'\"\\12.e-@ ./py", max_size=40))
    @settings(max_examples=200, deadline=None)
    def test_any_text_is_read_or_refused(self, text: str) -> None:
        with contextlib.suppress(ConfigError):
            specs = parse_tasks(text)
            assert parse_tasks(canonical(specs)) == specs

    def test_order_means_nothing(self) -> None:
        assert canonical(parse_tasks("lcm,gcd:a=1:b=2")) == canonical(parse_tasks("gcd:b=2:a=1, lcm"))

    def test_parsing_is_light(self) -> None:
        code = (
            "import sys; from rl_swarm.tasks import *; parse_tasks('paper,easy*2'); print(tasks_version());"
            "print({'reasoning_gym', 'torch', 'sympy', 'numpy'} & set(sys.modules))"
        )
        done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout.split("\n")[:2] == [tasks_version(), "set()"]
        assert tasks_version() == "reasoning-gym 0.1.25"


class TestChecksOnLoading:
    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("gdc", "did you mean 'gcd'?"),
            ("papr", "did you mean 'paper'?"),
            ("gcd:max_vale=3", "did you mean 'max_value'?"),
            ("gcd:max_value=two", "default 1000"),
            ("gcd:max_value=true", "default 1000"),
            ("gcd:max_value=1", "max_value must be > min_value"),
            ("basic_arithmetic:allow_parentheses=no", "default True"),
            ("basic_arithmetic:operators=+", "default ('+'"),
            ("spell_backward:data_file=0", "default 'words3to10.txt'"),
        ],
    )
    def test_wrong_names_and_values(self, text: str, says: str) -> None:
        bench_only = [TaskSpec(spec.name, spec.config) for spec in parse_tasks(text)]
        with pytest.raises(ConfigError) as caught:
            Bench(bench_only)
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        "text",
        [
            "simple_integration:symbols=(\"__import__('os').system('touch x')\")",
            "simple_integration:symbols=[\"__import__('os')\"]",
            "spell_backward:data_file=/etc/passwd",
            "spell_backward:data_file=../../../../etc/passwd",
            "figlet_font:static_font=/etc/passwd",
            'aiw:male_names=["<b>"]',
            "caesar_cipher:delimiter=x",
        ],
    )
    def test_text_that_a_task_might_open_or_evaluate_is_refused(self, text: str) -> None:
        name, _, parameter = text.partition(":")
        parameter, _, value = parameter.partition("=")
        value = json.loads(value) if value.startswith("[") else [value] if parameter == "symbols" else value
        with pytest.raises(ConfigError, match=f"{parameter} may not have the text .*docs/tasks.md") as caught:
            Bench([TaskSpec(name, {parameter: value})])
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "config"),
        [
            ("basic_arithmetic", {"format_style": "natural"}),
            ("basic_arithmetic", {"whitespace": "no_space", "operators": ["+", "-"]}),
            ("spell_backward", {"data_file": "words3to10.txt"}),
            ("fraction_simplification", {"styles": ["plain"]}),
        ],
    )
    def test_text_of_the_defaults_and_named_choices_may_be_said(self, name: str, config: dict[str, Any]) -> None:
        assert Bench([TaskSpec(name, config)]).item(0, 1, 0).prompt

    def test_every_preset_and_every_level_that_probe_tries_still_loads(self) -> None:
        for spec in candidates(parse_tasks(",".join(BOTH))):
            try:
                Bench([spec])
            except ConfigError as error:
                assert "may not have the text" not in str(error), spec.id

    def test_a_task_that_cannot_be_made_again(self) -> None:
        with pytest.raises(ConfigError, match="other questions of the same seed"):
            Bench(parse_tasks("list_functions"))

    def test_a_task_whose_questions_cannot_be_made_ends_a_start_soon_in_one_line(self, own_file: Callable[..., Path]) -> None:
        source = "def question(seed, index):\n    assert seed == 0, 'too large'\n    return 'a', 'b'\n"
        tasks = make(str(own_file(source)))
        with pytest.raises(ConfigError, match="whose questions cannot be made, or not in time: leave it out"):
            tasks.held_out()
        assert tasks.counters["question_raised"] == 12

    def test_questions_that_hang_are_tried_three_times(
        self, own_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(helper, "ITEM_SECONDS", 0.5)
        source = "import time\n\n\ndef question(seed, index):\n    time.sleep(60 if seed else 0)\n    return 'a', 'b'\n"
        for ask in (lambda tasks: tasks.held_out(), lambda tasks: tasks.draw(1)):
            tasks = make(str(own_file(source)))
            with pytest.raises(ConfigError, match="cannot be made, or not in time"):
                ask(tasks)
            assert tasks.counters["question_timeout"] <= 4

    def test_no_task_at_all(self) -> None:
        with pytest.raises(ConfigError, match="no task"):
            Tasks((), seed=1, node_id="a")


class TestStream:
    def test_same_node_same_questions(self, both: Tasks) -> None:
        first, second = make("paper").draw(40), make("paper").draw(40)
        assert first == second
        assert len({question.task for question in first}) == 9

    def test_nodes_and_seeds_differ(self) -> None:
        streams = [make("paper", node, seed).draw(60) for node, seed in (("a", 42), ("b", 42), ("a", 43))]
        texts = [{question.text_id for question in stream} for stream in streams]
        assert not texts[0] & texts[1]
        assert not texts[0] & texts[2]

    def test_batches_do_not_matter(self) -> None:
        parts, whole = make("easy"), make("easy")
        assert parts.draw(3) + parts.draw(1) + parts.draw(16) == whole.draw(20)

    def test_restoring_goes_on_with_the_next_question(self) -> None:
        tasks = make("easy")
        tasks.draw(700)  # long enough for small tasks to repeat themselves, which depends on what is remembered
        state = json.loads(json.dumps(tasks.state()))
        later = make("easy")
        later.restore(state)
        assert later.draw(50) == tasks.draw(50)
        assert later.state() == tasks.state()

    def test_state_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(questions, "REMEMBERED", 50)
        tasks = make("chain_sum")
        tasks.draw(200)
        assert len(tasks.state()["recent"]) == 50

    def test_state_of_other_tasks_is_survived(self) -> None:
        before, after = make("gcd"), make("lcm")
        before.draw(5)
        after.restore(before.state())
        assert after.draw(1)[0].task == "lcm"

    def test_weights_are_kept(self) -> None:
        tasks = make("gcd*3,lcm")
        share = Counter(question.task for question in tasks.draw(2000))["gcd"] / 2000
        assert 0.71 < share < 0.79

    def test_small_tasks_repeat_themselves_last_and_counted(self) -> None:
        tasks = make("chain_sum:max_terms=2:max_digits=1")  # 200 questions
        first = tasks.draw(80)
        assert len({question.text_id for question in first}) == 80
        assert tasks.counters["repeated_question"] == 0
        drawn = first + tasks.draw(220)
        assert tasks.counters["repeated_question"] > 100
        assert len({question.text_id for question in drawn}) == 150, "a quarter is held out"

    def test_datasets_are_not_made_for_each_question(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from reasoning_gym import factory

        made: list[str] = []
        create = factory.create_dataset
        monkeypatch.setattr(factory, "create_dataset", lambda name, **rest: made.append(name) or create(name, **rest))
        bench = Bench(parse_tasks("gcd"))
        for number in range(400):
            bench.item(0, number // 100, number % 100)
        assert len(made) < 8

    def test_questions_can_be_published(self, both: Tasks) -> None:
        for question in both.draw(30):
            assert json.loads(json.dumps(question.config)) == question.config
            assert 0 <= question.seed < 2**53
            assert 0 <= question.index < 2**53
            assert question.task is not None

    def test_unanswerable_questions_are_left_out(self) -> None:
        tasks = make("base_conversion:max_value=1:min_base=3:max_base=9")  # half of them ask for zero, whose key is ""
        assert {question.answer for question in tasks.draw(30)} == {"1"}
        assert tasks.counters["question_unanswerable"] > 5

    def test_bf_prints_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        Bench(parse_tasks("bf")).item(0, 1, 1)
        assert capsys.readouterr().out == ""

    def test_precision_does_not_leak_between_tasks(self) -> None:
        import decimal

        bench = Bench(parse_tasks("decimal_arithmetic"))
        decimal.getcontext().prec = before = 28
        bench.item(0, 1, 1)
        assert decimal.getcontext().prec == before

    @given(st.integers(-(10**7), 10**7), st.just(0) | st.integers(-5000, 5000))
    @settings(max_examples=100, deadline=None)
    def test_the_repaired_search_for_divisors_changes_no_question(self, a: int, b: int) -> None:
        from reasoning_gym.arithmetic import basic_arithmetic

        source = inspect.getsource(basic_arithmetic)  # the function itself is replaced as soon as the task is loaded
        function = source[source.index("def find_common_divisors") : source.index("def eval_floordiv")]
        original: dict[str, Any] = {}
        exec(function, original)
        assert _common_divisors(a, b) == original["find_common_divisors"](a, b)

    def test_the_slowest_known_question_is_quick(self) -> None:
        """Upstream tries every number up to the root of a 24-digit number here, which takes a day."""
        assert _common_divisors(999_999_999_989**2, 0) == [1, 999_999_999_989**2, 999_999_999_989]
        assert _common_divisors(12, 18) == [1, 6, 2, 3]
        assert _common_divisors(0, 0) == []


class TestHeldOut:
    def test_the_same_for_every_node_and_seed(self) -> None:
        one, other = make("paper", "a", 1).held_out(), make("paper", "b", 2).held_out()
        assert one == other
        assert len(one) >= 400
        assert len({question.text_id for question in one}) == len(one)

    def test_another_task_changes_only_how_many_there_are(self) -> None:
        alone = make("gcd:max_value=50").held_out()
        among = [question for question in make("gcd:max_value=50*4,lcm").held_out() if question.task == "gcd"]
        assert 100 < len(among) < len(alone) and alone[: len(among)] == among

    def test_large_tasks_make_up_for_small_ones(self) -> None:
        counts = Counter(question.task for question in make("gcd:max_value=8,chain_sum,lcm").held_out())
        assert counts["gcd"] <= 16 and counts["chain_sum"] == counts["lcm"] and counts.total() >= 400

    def test_size(self) -> None:
        assert len(make("gcd", held_out=5).held_out()) == 5
        assert make("gcd", held_out=0).held_out() == []

    def test_small_tasks_keep_most_for_training(self) -> None:
        tasks = make("gcd:max_value=3")  # nine questions
        assert 1 <= len(tasks.held_out()) <= 2
        held = {question.text_id for question in tasks.held_out()}
        assert len({question.text_id for question in tasks.draw(100)} | held) == 9

    def test_never_drawn(self) -> None:
        tasks = make("gcd:max_value=8")
        held = {question.text_id for question in tasks.held_out()}
        assert held
        assert not held & {question.text_id for question in tasks.draw(150)}

    def test_never_trained_on(self, easy: Tasks) -> None:
        question = easy.held_out()[0]
        with pytest.raises(BadRollout) as caught:
            easy.verify(published(question, tagged(question.answer)))
        assert caught.value.reason == "held_out"

    def test_found_by_text_under_another_seed(self) -> None:
        tasks = make("gcd:max_value=3")
        held = tasks.held_out()[0]
        twin = next(
            question
            for index in range(400)
            if (question := made_at(tasks, 77, index)).text_id == held.text_id  # the same text, made by another seed
        )
        assert (twin.seed, twin.index) != (held.seed, held.index)
        with pytest.raises(BadRollout, match="held_out"):
            tasks.verify(published(twin, tagged(twin.answer)))

    def test_every_held_out_question_can_be_won(self, both: Tasks) -> None:
        lost = [question for question in both.held_out() if both.score(question, tagged(winning(both, question))) < 1]
        assert len(lost) <= 1  # propositional_logic may ask what follows from tautologies: nothing but tautologies


class TestParsedAnswer:
    @pytest.mark.parametrize(
        ("text", "answer"),
        [
            ("", None),
            ("42", None),
            ("<answer>42", None),
            ("42</answer>", None),
            ("</answer>42<answer>", None),
            ("<answer>42</answer>", "42"),
            ("<answer>\n 42 </answer>.", "42"),
            ("<answer>1</answer> no: <answer>2</answer>", "2"),
            ("<answer>1 <answer>2</answer>", "2"),
            ("<answer>1</answer> and </answer>", "1"),
            ("<answer>1</answer> then <answer>2", "1"),
            ("<answer></answer>", ""),
        ],
    )
    def test_last_closed_tag(self, text: str, answer: str | None) -> None:
        assert parsed_answer(text) == answer


class TestScore:
    def test_every_task_pays_its_own_answer(self, both: Tasks) -> None:
        paid = Counter[str]()
        for question in both.draw(250):
            score = both.score(question, "I think it is " + tagged(winning(both, question)))
            assert score in (0.25, 1.0) if question.task == "propositional_logic" else score == 1.0, question
            paid[str(question.task)] += score == 1.0
        assert len(paid) == len({spec.name for spec in both.specs})
        assert min(paid.values()) > 5

    def test_without_a_tag_nothing(self, easy: Tasks) -> None:
        for question in easy.draw(20):
            assert easy.score(question, str(question.answer)) == 0.0

    @pytest.mark.parametrize("text", BOTH)
    def test_nonsense_is_worth_nothing(self, text: str) -> None:
        tasks = make(text)
        for question in tasks.draw(8):
            for nonsense in ("", "§", "§§§ §§§", "?!", "§/§", "[]", "{}", "()"):
                assert tasks.score(question, tagged(nonsense)) == 0.0

    @pytest.mark.parametrize("text", BOTH)
    def test_hostile_answers_neither_hang_nor_pay(self, text: str) -> None:
        tasks = make(text)
        (question,) = tasks.draw(1)
        for hostile in HOSTILE:
            start = time.perf_counter()
            assert 0.0 <= tasks.score(question, tagged(hostile)) < (1.1 if question.answer is None else 0.5)
            assert time.perf_counter() - start < 1.5

    def test_floors_are_neutralised_and_partial_credit_stays(self) -> None:
        tasks = make("fraction_simplification:styles=[plain]:min_factor=2")
        question = next(each for each in tasks.draw(50) if each.answer != "1/1")
        asked = question.prompt.split()[3]
        scores = {answer: tasks.score(question, tagged(answer)) for answer in ("zzz", "123457/123456", asked, question.answer)}
        assert list(scores.values()) == [0.0, 0.0, 0.1, 1.0]

    def test_propositional_logic_is_won_through_its_verifier(self) -> None:
        tasks = make("propositional_logic")
        for question in tasks.draw(20):
            assert question.answer is None
            assert tasks.score(question, tagged(winning(tasks, question))) in (0.25, 1.0)
            assert tasks.score(question, tagged("Z")) == 0.0

    def test_containing_the_answer_is_paid_as_the_verifier_says(self) -> None:
        tasks = make("gcd:max_value=20")
        (question,) = tasks.draw(1)
        assert tasks.score(question, tagged(f"it is {question.answer}")) == pytest.approx(
            len(str(question.answer)) / len(f"it is {question.answer}")
        )

    def test_answers_are_never_executed(self, tmp_path: Path) -> None:
        trace = tmp_path / "trace"
        attack = f"__import__('pathlib').Path({str(trace)!r}).write_text('x')"
        for name in ("binary_matrix", "spiral_matrix", "n_queens", "string_insertion", "countdown", "polynomial_multiplication"):
            bench = Bench(parse_tasks(name))
            for answer in (attack, f"[{attack}]", f" \t{attack}", f"f'{{{attack}}}'", f"(lambda: {attack})()", f"x + {attack}"):
                assert bench.judge(0, 1, 1, answer).score == 0.0
        assert not trace.exists()

    def test_a_list_of_lists_is_still_read(self) -> None:
        tasks = make("binary_matrix:max_n=3")
        (question,) = tasks.draw(1)
        rows = [[int(cell) for cell in row.split()] for row in str(question.answer).split("\n")]
        assert tasks.score(question, tagged(str(rows))) == 0.1

    def test_a_task_that_pays_anything_pays_only_its_key(self) -> None:
        bench = Bench(parse_tasks("game_of_life_halting"))  # bool("False") is true: any text is right for its verifier
        key = str(bench.item(0, 1, 1).answer)
        assert bench.judge(0, 1, 1, key).score == 1.0
        assert bench.judge(0, 1, 1, "zzz").score == 0.0

    def test_a_question_of_nobody(self, easy: Tasks) -> None:
        assert easy.score(Question("How?"), tagged("so")) == 0.0
        assert easy.counters["unknown_question"] == 1

    def test_a_group_is_scored_as_its_completions_are_one_by_one(self, both: Tasks) -> None:
        for question in both.draw(40):
            texts = [tagged(winning(both, question)), "no tag", tagged("1"), tagged("P"), "", tagged("[[0]]"), tagged("¤")]
            assert both.score_all(question, texts) == [both.score(question, text) for text in texts]
        assert both.score_all(both.draw(1)[0], []) == []


class TestGates:
    def test_which_verifiers_execute_answers(self) -> None:
        """The search through the code finds the same verifiers as reading it did."""
        from reasoning_gym.factory import DATASETS

        gates = {name: gate_for(name, pair[0]) for name, pair in DATASETS.items()}
        found = {gate: {name for name in gates if gates[name] is gate} for gate in (is_literal, is_expression)}
        assert found[is_literal] == {
            "binary_matrix",
            "bitwise_arithmetic",
            "n_queens",
            "number_sorting",
            "spiral_matrix",
            "string_insertion",
        }
        assert found[is_expression] == {
            "countdown",
            "intermediate_integration",
            "polynomial_multiplication",
            "puzzle24",
            "simple_integration",
        }
        names = ("coin_flip", "propositional_logic", "rubiks_cube", "rush_hour")
        assert {name for name in gates if gates[name] not in (is_anything, is_literal, is_expression)} == set(names)

    @pytest.mark.parametrize("text", ["[[0, 1], [1, 2]]", "0 1\n1 2", "-0x3", "['A', 'B']", "Q _ _", "", "(1, 2.5)", "ABCDE"])
    def test_literals(self, text: str) -> None:
        assert is_literal(text)

    @pytest.mark.parametrize(
        "text",
        [
            "exit()",
            "[f for f in x]",
            "9**9",
            "a.b",
            "x[0]",
            "[exit]",
            "[" * 500,
            "-" * 1999,
            "\x00(",
            "oracle_answer",
            "entry,",
            "ｓelf",
        ],
    )
    def test_no_literals(self, text: str) -> None:
        assert not is_literal(text)

    def test_a_verifiers_own_variables_are_no_answer(self) -> None:
        bench = Bench(parse_tasks("string_insertion"))
        for answer in ("oracle_answer", "oracle_answer,", "answer", "entry", "self"):
            assert bench.judge(0, 1, 1, answer).score == 0.0

    # fmt: off
    @pytest.mark.parametrize(
        "text",
        ["x**3/3 + C", "2.5*sin(2*x) - exp(x)", "(3 + 4)*2", "asinh(x) + sqrt(x)/2", "1. + .5", "E**(3*x**2 - 5)",
         "-4*(7*X - 9)**5/35 + C",
         "x**(3/2)", "x**0.5", "x**-2", "7//2", "pi*x", "log(x, 10)", "x + C1", "99**99", " 1 + 1\n", "1e3*x"],
    )
    def test_expressions(self, text: str) -> None:
        assert is_expression(text)

    @pytest.mark.parametrize(
        "text",
        ["x.diff(x)", "(x).real", "eval(x)", "'a'", "__import__", "x[0]", "1 .real", "factorial(9)", "9!", "N(x, 9)", "S(x)",
         "x(x)", "1, 2",
         "9**9**9", "9**9999", "(9**999)**999", "((1+1/9**9)**999)**999", "9**(1/(1/9**9))", "9**sqrt(9**18)", "9**(9**9 + x)",
         "2**-9999",
         "E**E**E**E", "exp(exp(9))", "1e99999", "1e-99999", "1e٩٩٩٩", "True", "None", "x if x else x", "lambda: x", "(" * 999,
         "-" * 1999, ""],
    )
    def test_no_expressions(self, text: str) -> None:
        assert not is_expression(text)

    @pytest.mark.parametrize("text", ["P", "¬P", "¬¬(P ∧ Q)", "(P→Q)∨¬R ↔ S", "((P))", "P ∧ Q ∧ R", "¬(¬P)"])
    def test_formulas(self, text: str) -> None:
        assert is_formula(text)

    @pytest.mark.parametrize(
        "text",
        ["", "PP", "P Q", "(P", "P)", "P(Q)", "P¬Q", "P∧", "∧P", "()", "P∧∧Q", "p", "P" * 301, "P∧QQ",
         "∨".join(f"P{'P' * n}" for n in range(20)),
         "∨".join("(" * n + "P" for n in range(1, 20)), "P1", "true"],
    )
    def test_no_formulas(self, text: str) -> None:
        assert not is_formula(text)
    # fmt: on

    @pytest.mark.parametrize("text", ["0.5", "1/2", "3e-2", "1,000", "½", "e1000"[:4]])
    def test_narrow_numbers(self, text: str) -> None:
        assert is_narrow(text)

    @pytest.mark.parametrize("text", ["1e3200000", "1E-3200000", "1e3_200", "1e+9999", "1e٣٢٠٠", "1/1e10000"])
    def test_wide_numbers(self, text: str) -> None:
        assert not is_narrow(text)

    def test_moves_that_would_be_carried_out_a_million_times(self) -> None:
        from reasoning_gym.factory import DATASETS

        cube, cars = (gate_for(name, DATASETS[name][0]) for name in ("rubiks_cube", "rush_hour"))
        assert cube("R U2 F'") and cars("A+1 B-4 C+12")
        assert not any(map(cube, ("R99999999", "R99", "U٩٩")))
        assert not any(map(cars, ("A+999999999", "A-100", "A+٩٩٩")))

    @pytest.mark.parametrize("count", [2, pytest.param(200, marks=pytest.mark.slow)])
    def test_right_answers_pass(self, count: int) -> None:
        """A question without a key has an example in its metadata, except in rush_hour."""
        from reasoning_gym.factory import DATASETS

        for name, pair in sorted(DATASETS.items()):
            gate = gate_for(name, pair[0])
            if gate is is_anything:
                continue
            bench = Bench(parse_tasks(name))
            for index in range(count):
                item = bench.item(0, 3, index)
                known = item.entry["metadata"]
                right = item.answer or known.get("example_answer") or known.get("example_correct_answer") or "A+1 B-4"
                assert gate(right.strip()) or "Integral(" in right, (
                    name
                )  # left unsolved by sympy: paid as the key, and as nothing else
                if item.answer is not None:
                    assert bench.judge(0, 3, index, right).score == 1.0, name


class TestVerify:
    def test_our_scores_and_our_key_replace_claims(self, easy: Tasks) -> None:
        (question,) = make("easy", "peer").draw(1)
        lie = dataclasses.replace(question, answer="1000000")
        texts = (tagged("1000000"), tagged(question.answer), "no tag", "")
        rollout = published(lie, *texts, claim=0.9)
        seen = easy.verify(rollout)
        assert seen.rewards == [0.0, 1.0, 0.0, 0.0]
        assert seen.question == question
        assert seen.id == rollout.id
        assert [done.text for done in seen.completions] == list(texts)
        assert rollout.rewards == [0.9] * 4

    def test_every_task_of_a_peer(self, both: Tasks) -> None:
        for question in make(",".join(BOTH), "peer").draw(60):
            assert both.verify(published(question, tagged("x"), "")).question == question

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"task": None}, "unverifiable"),
            ({"task": "lcm"}, "task_not_allowed"),
            ({"task": "os.system"}, "task_not_allowed"),
            ({"config": {"max_value": 21}}, "task_not_allowed"),
            ({"config": {}}, "task_not_allowed"),
            ({"config": {"max_value": [[[]]]}}, "task_not_allowed"),
            ({"prompt": "What is 1 + 1?"}, "prompt_mismatch"),
            ({"index": 499}, "prompt_mismatch"),
            ({"index": 500}, "unverifiable"),
            ({"index": 2**53 - 1}, "unverifiable"),
            ({"index": -1}, "unverifiable"),
            ({"seed": 2**53 - 1}, "prompt_mismatch"),
            ({"seed": 2**64}, "unverifiable"),
        ],
    )
    def test_refusals(self, easy: Tasks, change: dict[str, Any], reason: str) -> None:
        question = next(each for each in make("easy", "peer").draw(50) if each.task == "gcd")
        with pytest.raises(BadRollout) as caught:
            easy.verify(published(dataclasses.replace(question, **change), tagged("1")))
        assert caught.value.reason == reason

    @pytest.mark.parametrize("text", BOTH)
    def test_huge_seeds_make_questions(self, text: str) -> None:
        tasks = make(text)
        huge = [made_at(tasks, 2**53 - 1, index) for index in range(495, 500)]
        held = {question.text_id for question in tasks.held_out()}
        question = next(each for each in huge if each.text_id not in held)
        assert tasks.verify(published(question, tagged("x"))).question == question

    def test_memory_of_seeds_is_bounded(self) -> None:
        bench = Bench(parse_tasks("gcd"))
        for seed in range(60):
            bench.item(0, seed, 0)
        assert bench._sources[0]._dataset.cache_info().currsize <= 16  # type: ignore[attr-defined]

    def test_from_many_threads(self, easy: Tasks) -> None:
        rollouts = [published(question, tagged(question.answer)) for question in make("easy", "peer").draw(80)]
        wrong: list[Rollout] = []
        threads = [
            threading.Thread(target=lambda part=part: wrong.extend(r for r in rollouts[part::4] if easy.verify(r).rewards != [1.0]))
            for part in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


class TestOwnTasks:
    def test_draw_score_and_verify(self, own: Tasks) -> None:
        drawn = own.draw(5)
        name = str(drawn[0].task)
        assert name.startswith("ladder@")
        assert len(name) == len("ladder@") + 16
        assert [own.score(question, tagged(question.answer)) for question in drawn] == [1.0] * 5
        assert own.score(drawn[0], tagged("0")) == 0.0
        assert own.verify(published(drawn[0], tagged(drawn[0].answer), "?")).rewards == [1.0, 0.0]
        assert len(own.held_out()) == 400

    def test_another_file_is_another_task(self, own: Tasks, own_file: Callable[..., Path]) -> None:
        peer = make(str(own_file(LADDER + "\n# other")), "peer")
        with pytest.raises(BadRollout, match="task_not_allowed"):
            own.verify(published(peer.draw(1)[0], tagged("1")))

    def test_canonical_text_names_the_content(self, own_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
        path = own_file()
        specs = parse_tasks(f"{path}*2,gcd")
        monkeypatch.chdir(path.parent)
        assert parse_tasks(canonical(specs)) == specs
        assert canonical(parse_tasks("gcd,./ladder.py*2")) == canonical(specs)
        path.write_text(LADDER + "\n# other")
        with pytest.raises(ConfigError, match="copy the file that the experiment uses"):
            parse_tasks(canonical(specs))

    def test_what_a_verifier_does_costs_only_its_completion(self, own: Tasks) -> None:
        (question,) = own.draw(1)
        right = tagged(question.answer)
        seen = own.verify(published(question, *map(tagged, ("raise", "hang", "die", "nan", "seven", "negative")), right))
        assert seen.rewards == [0.0] * 6 + [1.0]
        assert own.counters == {"scorer_raised": 2, "scorer_timeout": 1, "scorer_out_of_range": 3}

    def test_a_group_that_keeps_hanging_is_not_waited_for(self, own: Tasks) -> None:
        (question,) = own.draw(1)
        start = time.perf_counter()
        assert own.verify(published(question, *[tagged("hang")] * 20)).rewards == [0.0] * 20
        assert time.perf_counter() - start < 5
        assert own.counters["scorer_timeout"] == 20

    def test_off_the_main_thread(self, own: Tasks) -> None:
        (question,) = own.draw(1)
        scores: list[float] = []
        thread = threading.Thread(
            target=lambda: scores.extend(own.score(question, tagged(each)) for each in ("hang", question.answer))
        )
        thread.start()
        thread.join(20)
        assert scores == [0.0, 1.0]

    def test_a_pair_and_no_score_mean_exact_match(self, own_file: Callable[..., Path]) -> None:
        tasks = make(str(own_file("def question(seed, index):\n    return f'Say {seed} {index}', f' {index}\\n'\n")))
        (question,) = tasks.draw(1)
        assert [tasks.score(question, tagged(text)) for text in (question.answer, "no")] == [1.0, 0.0]

    @pytest.mark.parametrize(
        ("source", "says"),
        [
            ("x = 1", "no function question"),
            ("def question(:", "cannot be loaded"),
            ("1 / 0", "ZeroDivisionError"),
            ("def question(seed, index):\n    return 1, 2", "must be text"),
            ("def question(seed, index):\n    return 'one'", "fails"),
            ("import random\ndef question(seed, index):\n    return str(random.random()), ''", "differs at every call"),
        ],
    )
    def test_wrong_files(self, own_file: Callable[..., Path], source: str, says: str) -> None:
        with pytest.raises(ConfigError) as caught:
            make(str(own_file(source)))
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_names_that_cannot_be_written_in_tasks(self, own_file: Callable[..., Path]) -> None:
        with pytest.raises(ConfigError, match="rename"):
            parse_tasks(str(own_file(name="my task.py")))

    def test_no_text_file(self, tmp_path: Path) -> None:
        (tmp_path / "bytes.py").write_bytes(b"\xff\xfe")
        with pytest.raises(ConfigError, match="UTF-8"):
            parse_tasks(str(tmp_path / "bytes.py"))

    def test_the_example_in_the_documentation(self, own_file: Callable[..., Path]) -> None:
        document = (ROOT / "docs" / "tasks.md").read_text()
        source = document.split("```python\n")[1].split("```")[0]
        tasks = make(str(own_file(source, "example.py")))
        for question in tasks.draw(5):
            assert tasks.score(question, tagged(question.answer)) == 1.0
            assert tasks.score(question, tagged("no")) == 0.0


class TestExamples:
    def test_they_are_right_in_the_form_that_is_read_and_not_held_out(self) -> None:
        tasks = make("easy")
        examples = tasks.examples(7)
        assert len(examples) == len(dict(examples)) == 7
        held = {question.prompt for question in tasks.held_out()}
        assert not held & dict(examples).keys()
        assert all(parsed_answer(answer) for _, answer in examples)
        assert len({prompt.split()[0] for prompt, _ in examples[:5]}) > 2, "the tasks take turns"

    def test_the_same_for_every_node_and_seed(self) -> None:
        assert make("easy", "a", 1).examples(3) == make("easy", "b", 2).examples(3) == make("easy").examples(5)[:3]

    def test_tasks_without_a_key_are_left_out(self) -> None:
        assert make("propositional_logic").examples(2) == ()
        assert make("propositional_logic,gcd").examples(2) == make("gcd,propositional_logic").examples(2)

    def test_none(self) -> None:
        assert make("gcd").examples(0) == ()


class TestFormBonus:
    def test_an_answer_that_is_read_gets_it_right_or_wrong(self) -> None:
        tasks = Tasks(parse_tasks("gcd"), seed=1, node_id="me", held_out=0, format_reward=0.1)
        question = Tasks(parse_tasks("gcd"), seed=1, node_id="peer", held_out=0).draw(1)[0]
        texts = (f"<answer>{question.answer}</answer>", "<answer>none</answer>", "no idea")
        verified = tasks.verify(Rollout(question, tuple(map(Completion, texts)), "peer", 0))
        assert verified.rewards == [1.0, 0.0, 0.0] and verified.values == [1.1, 0.1, 0.0]

    def test_a_claim_of_a_peer_is_not_believed(self) -> None:
        tasks = Tasks(parse_tasks("gcd"), seed=1, node_id="me", held_out=0)
        question = Tasks(parse_tasks("gcd"), seed=1, node_id="peer", held_out=0).draw(1)[0]
        claimed = (Completion("no idea", bonus=0.9), Completion("<answer>none</answer>"))
        assert tasks.verify(Rollout(question, claimed, "peer", 0)).values == [0.0, 0.0]
