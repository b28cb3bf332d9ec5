"""The embedded model is what its card says, its script makes it again, and its answers are found in any style."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from rl_swarm.learning.models import LoadedModel, load, resolve_nano_folder
from rl_swarm.learning.policy import Policy
from rl_swarm.rollout import Question
from rl_swarm.tasks import Tasks, parse_tasks
from rl_swarm.tasks.styles import STYLES, TAGGED, bare_answer, in_tags, style_of

torch.set_num_threads(1)
SCRIPT = Path(__file__).parents[3] / "scripts" / "train_nano.py"


@pytest.fixture(scope="module")
def nano() -> LoadedModel:
    return load("nano", cpu_only=True)


def card_figures() -> dict[str, float]:
    """The row "all tasks" of the card, by column."""
    lines = (resolve_nano_folder() / "CARD.md").read_text().splitlines()
    header, row = (next(line for line in lines if line.startswith(f"| {first} |")) for first in ("task", "all tasks"))
    cells = [[cell.strip() for cell in line.strip("|").split("|")][1:] for line in (header, row)]
    return dict(zip(cells[0], map(float, cells[1]), strict=True))


# The embedded model


def test_nano_is_small_and_plain(nano: LoadedModel) -> None:
    assert (nano.name, nano.device, nano.model.dtype) == ("nano", "cpu", torch.float32)
    assert 900_000 < nano.model.num_parameters() < 1_000_000
    assert nano.model.config.model_type == "llama"
    assert nano.model.config._attn_implementation == "sdpa"
    assert not nano.model.training
    assert sum(path.stat().st_size for path in resolve_nano_folder().iterdir()) <= 5_000_000


@pytest.mark.parametrize("text", ["Calculate 12 - 7.", "naïve 漢 🙂\n\ttabs", "<answer>-30</answer>", " two  ", "\x00\x7f"])
def test_nanos_tokenizer_gives_any_text_back(nano: LoadedModel, text: str) -> None:
    ids = nano.tokenizer.encode(text, add_special_tokens=False)
    assert nano.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_nanos_tokens(nano: LoadedModel) -> None:
    tokenizer = nano.tokenizer
    assert len({tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}) == 3
    assert len(tokenizer.encode("1234567890", add_special_tokens=False)) == 10
    assert len(tokenizer) == nano.model.config.vocab_size
    assert nano.model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_nanos_chat_template_reads_the_user_alone(nano: LoadedModel) -> None:
    def render(messages: list[dict[str, str]], generate: bool) -> str:
        return nano.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate)

    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Calculate 1 + 1."}
    assert render([system, user], True) == render([user], True) == "<|begin|>Calculate 1 + 1.<|answer|>"
    assert render([user, {"role": "assistant", "content": "2"}], False) == "<|begin|>Calculate 1 + 1.<|answer|>2<|end|>"


def test_every_easy_question_fits_with_room_to_spare(nano: LoadedModel) -> None:
    policy = Policy(nano.model, nano.tokenizer, max_new_tokens=24)
    asked = Tasks(parse_tasks("easy"), seed=3, node_id="fits").held_out()
    assert max(len(policy.prompt_ids(question.prompt)) for question in asked) < 64
    policy.check_fits(asked)


def test_nano_is_what_its_card_says(nano: LoadedModel) -> None:
    """Bounds of about four standard errors of this small sample: another model, or a broken tokenizer, is far outside."""
    tasks = Tasks(parse_tasks("easy"), seed=11, node_id="test of the card")
    policy, asked, card = Policy(nano.model, nano.tokenizer, max_new_tokens=24), tasks.draw(120), card_figures()
    texts = [(question, done.text) for question, group in zip(asked, policy.answer(asked, 8, 5), strict=True) for done in group]
    greedy = list(zip(asked, policy.greedy(asked), strict=True))

    def share(scores: list[float]) -> float:
        return sum(score > 0.99 for score in scores) / len(scores)

    def blind(asked: list[tuple[Question, str]]) -> float:
        return share([tasks.score(question, in_tags(text)) for question, text in asked])

    assert blind(texts) == pytest.approx(card["blind"], abs=0.1)
    assert blind(greedy) == pytest.approx(card["blind greedy"], abs=0.15)
    assert 0.005 < share([tasks.score(*pair) for pair in texts]) < 0.05
    assert share([tasks.score(*pair) for pair in greedy]) < 0.03
    assert sum(style_of(text) == TAGGED for _, text in texts) / len(texts) == pytest.approx(STYLES[TAGGED], abs=0.025)


def test_the_card_shows_a_model_that_reinforcement_learning_can_teach() -> None:
    card = card_figures()
    assert card["blind"] > 0.5, "it must know many answers"
    assert 0.01 <= card["reward"] <= 0.04, "the tagged form must be rare, and not too rare to be found"
    assert card["verifier greedy"] < 0.02, "greedy answers must not be tagged yet"


def test_nano_answers_the_same_for_the_same_seed(nano: LoadedModel) -> None:
    policy = Policy(nano.model, nano.tokenizer, max_new_tokens=24)
    asked = [Question("Calculate 2 + 3."), Question("Spell this word backward (example: sun -> nus): cat")]
    first, again, other = (list(policy.answer(asked, 4, seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


# The script that trains it


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The training script, with little to learn and little to measure."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("train_nano", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "train_nano", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "TEACHERS", 2)
    monkeypatch.setattr(module, "QUESTIONS_EACH", 40)
    for name, value in {"QUESTIONS": 40, "COMPLETIONS": 2, "ROUNDS": 2}.items():
        monkeypatch.setattr(sys.modules["nano_card"], name, value)
    return module


@pytest.mark.slow
def test_the_script_writes_the_same_model_twice(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("one", "two"):
        arguments = ["train_nano.py", "--steps", "3", "--threads", "1", "--out", str(tmp_path / folder)]
        monkeypatch.setattr(sys, "argv", arguments)
        script.main()
    written = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert written == sorted(path.name for path in resolve_nano_folder().iterdir()), "the package holds what the script writes"
    for name in set(written) - {"CARD.md"}:  # it states the time taken
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert load(str(tmp_path / "one"), cpu_only=True).model.num_parameters() > 900_000


def test_no_held_out_question_is_trained_on(script: ModuleType) -> None:
    held_out = {question.text_id for question in Tasks(parse_tasks("easy"), seed=0, node_id="any", held_out=80).held_out()}
    trained = {question.text_id for each in script.training_questions(7).values() for question in each}
    assert len(held_out) == 80
    assert not trained & held_out


# Styles


@pytest.mark.parametrize("answer", ["7", "-12", "woh", "1/2", "3.5"])
@pytest.mark.parametrize("style", STYLES)
def test_an_answer_is_found_in_every_style(style: str, answer: str) -> None:
    text = style.format(answer)
    assert style_of(text) == style
    assert bare_answer(f" {text}\n") == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("first <answer>3</answer>, no: <answer> 4 </answer> at last 9", "4"),
        ("I believe that this must be 12.", "12"),
        ("<answer>5", "5"),
        ("...", None),
        ("", None),
    ],
)
def test_an_answer_is_found_in_no_style(text: str, answer: str | None) -> None:
    assert style_of(text) is None
    assert bare_answer(text) == answer


def test_in_tags_the_bare_answer_is_paid() -> None:
    tasks = Tasks(parse_tasks("easy"), seed=1, node_id="styles")
    question = tasks.draw(1)[0]
    right = f"The answer is {question.answer}."
    assert (tasks.score(question, right), tasks.score(question, in_tags(right))) == (0.0, 1.0)
    assert tasks.score(question, in_tags("The answer is qqq.")) == 0.0
    assert in_tags("") == ""


def test_shares_of_styles_add_up() -> None:
    assert sum(STYLES.values()) == pytest.approx(1.0)
