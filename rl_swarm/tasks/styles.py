"""The styles of answers that the embedded model was taught, and how to find an answer in any form.

Needs no torch, so that a demo can report accuracy in any form without it. Never decides a reward: only the verifier does, and it
reads only `<answer>…</answer>`.
"""

import re

from rl_swarm.tasks.questions import TAGGED, parsed_answer

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
    """The style of a whole completion, or None if it follows none of them."""
    return next((style for style, pattern in _PATTERNS.items() if pattern.fullmatch(text.strip())), None)


def bare_answer(text: str) -> str | None:
    """Find the answer in a text of any style: the last tag, a known style, else its last word; None if it has no word."""
    tagged = parsed_answer(text)
    if tagged is not None:
        return tagged
    style = style_of(text)
    words = _PATTERNS[style].findall(text) if style else _LAST_WORD.findall(text)
    return words[-1] if words else None


def in_tags(text: str) -> str:
    """The answer of a text of any style in the form that the verifier reads; an empty text if there is none. Never trained on.

    Its score separates knowing the answer from knowing the form.
    """
    answer = bare_answer(text)
    return "" if answer is None else TAGGED.format(answer)
