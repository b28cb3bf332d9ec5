"""Whether a published text is right, which is not whether it is rewarded, and which texts are shown."""

import pytest

from rl_swarm.rollout import Completion, Question, Rollout
from rl_swarm.runs.examples import NOT_READ, PARTLY, RIGHT, WRONG, Answered, Example, pick_pair
from rl_swarm.show.formats import number


@pytest.mark.parametrize(
    ("text", "reward", "key", "verdict"),
    [
        ("<answer>7</answer>", 1.0, "7", RIGHT),
        ("<answer>7</answer>", 1.0, None, RIGHT),
        ("The answer is 7.", 0.0, "7", NOT_READ),
        ("7", 0.0, " 7 ", NOT_READ),
        ("The answer is 7.", 0.0, "8", WRONG),
        ("The answer is 7.", 0.0, None, WRONG),
        ("<answer>8</answer> I mean 7", 0.0, "7", WRONG),
        ("<answer>-0</answer>", 0.5, "0", PARTLY),
        ("-0", 0.0, "0", WRONG),
        ("<answer>70</answer>", 0.5, "7", PARTLY),
        ("<answer>70</answer>", 0.999, "7", PARTLY),
        ("<answer>70</answer>", 0.01, "7", WRONG),
        ("", -0.0, "7", WRONG),
    ],
)
def test_only_the_full_reward_is_good_and_a_right_answer_that_is_not_read_is_called_so(
    text: str, reward: float, key: str | None, verdict: str
) -> None:
    answer = Answered("q", text, reward, "w1", key)
    assert answer.verdict == verdict
    assert answer.good == (verdict == RIGHT)


def test_half_a_reward_is_no_turn_to_right() -> None:
    none, half, full = (Answered("q", "text", reward, "w1") for reward in (0.0, 0.5, 1.0))
    assert Example("t", none, full).turned and Example("t", half, full).turned
    assert not Example("t", none, half).turned and not Example("t", full, full).turned


def test_no_number_is_minus_zero() -> None:
    assert [number(value, 2) for value in (-0.0, -0.001, 0.0, -0.006)] == ["0.00", "0.00", "0.00", "-0.01"]


def rollout(*rewards: float, prompt: str = "q") -> Rollout:
    return Rollout(Question(prompt, "7"), tuple(Completion(f"{reward}", reward) for reward in rewards), "w1", 3)


def test_a_good_completion_and_a_worse_one_are_of_one_question_where_there_is_one() -> None:
    mixed = rollout(0.2, 1.0, 0.1, prompt="c")
    good, other = pick_pair([rollout(0.0, 0.5, prompt="a"), rollout(1.0, 1.0, prompt="b"), mixed])
    assert good == Answered("c", "1.0", 1.0, "w1, round 3", "7")
    assert other is not None and (other.prompt, other.reward) == ("c", 0.1)
    good, other = pick_pair([rollout(0.0, 0.9, prompt="a"), rollout(1.0, 1.0, prompt="b")])
    assert good is not None and good.prompt == "b"
    assert other is not None and (other.prompt, other.reward) == ("a", 0.0)
    assert pick_pair([rollout(0.9, 0.9)])[0] is None, "nothing short of the full reward is good"
    assert pick_pair([]) == (None, None)
