"""Write numbers, times and texts the way people read them: the one place for pages, pictures, cards and terminals."""

import re
from collections.abc import Sequence
from datetime import datetime, timezone

from rl_swarm.runs.measures import interval
from rl_swarm.text import visible

NOTHING = "–"  # a figure that was not measured
EMPTY = "(nothing)"  # a completion without text
LONGEST_SHOWN = 2000  # characters of a text that are shown
YEAR_9999 = 253_370_764_800  # the last year that has a date


def number(value: float | None, digits: int = 3) -> str:
    """Write a number, and never a minus before a zero."""
    return NOTHING if value is None else f"{round(value, digits) + 0.0:.{digits}f}"


def percent(value: float | None, form: str = ".0%") -> str:
    return NOTHING if value is None else f"{value:{form}}".replace("%", " %")


def within(share: float | None, count: int) -> str:
    """The interval in which a share lies that was measured on so many questions."""
    if share is None or not count:
        return ""
    low, high = interval(share, count)
    return f"{100 * low:.0f} to {100 * high:.0f} %"


def duration(seconds: float) -> str:
    """A number of seconds in its two largest units; a negative one counts as zero."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def roughly(seconds: float) -> str:
    """A number of seconds in its largest unit, for a narrow column."""
    whole = max(0, int(seconds))
    size, unit = next((each for each in ((86400, "d"), (3600, "h"), (60, "min")) if whole >= each[0]), (1, "s"))
    return f"{whole // size} {unit}"


def ago(moment: float | None, now: float) -> str:
    """The time since a moment. Clocks of two machines may disagree, so it is never negative."""
    return NOTHING if moment is None else roughly(now - moment)


def flat(text: str) -> str:
    """Show a text of any length and shape in one line, with its line breaks marked."""
    return visible(re.sub(r"\s*\n\s*", " ⏎ ", text.strip()[:LONGEST_SHOWN]))


def rounds_named(numbers: Sequence[int]) -> str:
    """Name a range of rounds by its ends."""
    if not numbers:
        return "no round"
    return f"round {numbers[0]}" if len(numbers) == 1 else f"rounds {numbers[0]} to {numbers[-1]}"


def date(moment: float | None) -> str:
    """A time in UTC, to the minute. A clock that is centuries off has no date."""
    if moment is None or not 0 <= moment < YEAR_9999:
        return NOTHING
    return f"{datetime.fromtimestamp(moment, timezone.utc):%Y-%m-%d %H:%M} UTC"
