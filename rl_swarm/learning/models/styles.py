"""The embedded model's own vocabulary of answers: the styles it was taught, and what it answered whatever the style.

Kept apart from loading so that a demo can report style-blind accuracy without torch. It never decides a reward: rewards are the
verifier's alone, and the verifier reads only `<answer>…</answer>`.
"""

import re
from typing import Protocol

from rl_swarm.rollout import Question
from rl_swarm.tasks import parsed_answer

TAGGED = "<answer>{}</answer>"

# Shares of the styles that the training script mixes. The tagged one is rare, but not so rare that eight questions with eight
# completions each would miss it round after round: that is the whole point of the model.
STYLES: dict[str, float] = {
    "The answer is {}.": 0.30,
    "Answer: {}": 0.14,
    "{}": 0.14,
    "= {}": 0.10,
    "I think it is {}.": 0.10,
    "It is {}.": 0.08,
    "Result: {}": 0.06,
    "[{}]": 0.05,
    TAGGED: 0.03,
}

# The answer of a style: letters, digits, signs; no spaces, so that a rambling text is never taken for a bare answer.
_ANSWER = r"([-+]?[\w.,/]*\w)"
_PATTERNS = {style: re.compile(re.escape(style).replace(r"\{\}", _ANSWER)) for style in STYLES}
_LAST_WORD = re.compile(r"[-+]?\w[\w.,/]*(?<![.,/])")


def style_of(text: str) -> str | None:
    """The style in which a whole completion is written, or None for a text that follows none of them."""
    return next((style for style, pattern in _PATTERNS.items() if pattern.fullmatch(text.strip())), None)


def bare_answer(text: str) -> str | None:
    """The answer that a text gives in whatever style: the last tag, a known style, else its last word; None if it has no word."""
    tagged = parsed_answer(text)
    if tagged is not None:
        return tagged
    style = style_of(text)
    words = _PATTERNS[style].findall(text) if style else _LAST_WORD.findall(text)
    return words[-1] if words else None


class Scorer(Protocol):
    """What of `tasks.Tasks` is needed here."""

    def score(self, question: Question, text: str) -> float: ...


def style_blind_score(tasks: Scorer, question: Question, text: str) -> float:
    """What the verifier would have paid, had the answer been written in the form that it reads.

    Beside the reward it tells finding the form from knowing the answer. It is never trained on.
    """
    answer = bare_answer(text)
    return 0.0 if answer is None else tasks.score(question, TAGGED.format(answer))
