"""A node that learns nothing says so early, and what to set."""

from typing import Any

import pytest
from msgspec import structs

from rl_swarm.config import Config
from rl_swarm.node.hints import DISCOUNTED_ROUNDS, Hints
from rl_swarm.runs.record import Round
from rl_swarm.swarm.protocol import News
from tests.support.rows import record


def told(rows: list[Round], **settings: Any) -> list[News]:
    config = Config(**settings)
    hints = Hints(config)
    return [news for row in rows for news in hints.after(structs.replace(row, own_wanted=config.own_count))]


@pytest.mark.parametrize(("own", "rounds"), [(8, [5, 10, 20, 40]), (4, [10, 20, 40]), (64, [1, 2, 4, 8, 16, 32])])
def test_the_hint_comes_after_forty_rollouts_and_then_less_and_less_often(own: int, rounds: list[int]) -> None:
    news = told([record(number, informative=0.0) for number in range(40)], own_count=own)
    assert [each.details for each in news] == [{"round": count - 1, "rounds": count} for count in rounds]
    assert f"nothing was informative for {rounds[0]} round" in news[0].line and "1 rounds" not in news[0].line


def test_one_rollout_with_a_gradient_is_enough() -> None:
    rows = [record(number, informative=float(number % 5 == 4)) for number in range(40)]
    assert told(rows) == []


def test_a_model_that_answers_is_sent_to_the_probe() -> None:
    [news] = told([record(number, informative=0.0, answered=0.9) for number in range(5)])
    assert news.line.endswith("run 'rl-swarm probe' to find tasks that this model can learn from")


@pytest.mark.parametrize(
    ("settings", "truncated", "remedy"),
    [
        (
            {},
            0.0,
            "0% of the completions have an <answer>, which is all that is read: set PROMPT_EXAMPLES=3 or COMPLETION_PREFIX=answer",
        ),
        ({"prompt_examples": 3}, 1.0, "set COMPLETION_PREFIX=answer or a higher MAX_NEW_TOKENS; 'rl-swarm probe' tries them"),
        ({"prompt_examples": 3, "prefix": "answer"}, 0.0, "set another MODEL_NAME"),
    ],
)
def test_a_model_that_fails_at_the_form_is_told_what_to_set(settings: Any, truncated: float, remedy: str) -> None:
    [news] = told([record(number, informative=0.0, truncated=truncated) for number in range(5)], **settings)
    assert remedy in news.line


def test_it_says_once_when_most_of_what_peers_send_counts_for_nothing() -> None:
    figures = {"informative": 1.0, "external_weighed": 8.0}
    rows = [
        record(number, external_discounted=6.0 if number < 30 else 2.0, **(figures if number % 2 == 0 else {"informative": 1.0}))
        for number in range(3 * DISCOUNTED_ROUNDS)
    ]
    assert told(rows) == []
    rows = [record(number, external_discounted=6.0, **figures) for number in range(DISCOUNTED_ROUNDS + 5)]
    [news] = told(rows)
    assert news.details == {"round": DISCOUNTED_ROUNDS - 1, "rounds": DISCOUNTED_ROUNDS}
    assert "most completions of peers counted for nothing" in news.line
