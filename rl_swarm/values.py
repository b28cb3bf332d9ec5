"""Read the text of a setting, an argument or an address into a value, or say in one line what is wrong with it.

Knows nothing of the settings themselves: `config.py` names them.
"""

import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from rl_swarm.errors import ConfigError

T = TypeVar("T")
Parser = Callable[[str], T]  # raises ValueError with "what is wrong: the remedy"

LONGEST_SHOWN = 200  # characters of a wrong value


def read(variable: str, parse: Parser[T], raw: str, hidden: bool = False) -> T:
    """Parse a typed value; raise ConfigError with the variable or flag, the value unless it is hidden, and the remedy."""
    try:
        if not is_text(raw):
            raise ValueError("is not valid UTF-8: type it again")
        return parse(raw)
    except ValueError as error:
        claim, _, remedy = str(error).rpartition(": ")
        shown = "a hidden value" if hidden else repr(raw if len(raw) <= LONGEST_SHOWN else raw[:LONGEST_SHOWN] + "…")
        raise ConfigError(f"{variable} {claim}, got {shown}: {remedy}") from None


def is_text(value: str) -> bool:
    """Whether a value is valid text: Python keeps undecodable bytes of arguments and environment as lone surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def expanded(value: str, variable: str) -> Path:
    """A path with '~' expanded. Checks it again, because no parser has seen a default."""
    return Path(read(variable, path, value)).expanduser()


def matching(pattern: str, otherwise: str) -> Parser[str]:
    def parse(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(otherwise)
        return value

    return parse


def choice(*options: str) -> Parser[str]:
    return matching("|".join(options), f"is not known: use {' or '.join(options)}")


_LETTERS = "use 1 to 64 letters, digits, '.', '_' or '-', not starting with a dot"
name = matching(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", f"is not a valid name: {_LETTERS}")
node_name = matching(  # a dot and digits mark the files of single questions
    r"(?!.*\.[0-9]+$)[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", f"is not a valid node name: {_LETTERS} nor ending in a dot and digits"
)
text = matching(r"(?s).*\S.*", "must not be empty: give a value or leave the variable out")


def founder(value: str) -> str:
    """A public key; after a dash, if known, the id of the experiment that it started."""
    key = matching(
        r"[0-9a-f]{64}(-[0-9a-f]{8,64})?",
        "is no founder's key: copy what follows the # in the address that the founder's node prints",
    )
    return key(value.strip().lower())


def path(value: str) -> str:
    """A path or a name; a leading '~' must lead to a known home folder."""
    text(value)
    try:
        Path(value).expanduser()
    except (RuntimeError, ValueError):  # no such user, or no name of one
        raise ValueError("begins with a home folder that is not known here: write the whole path, from / on, or set HOME") from None
    return value


def place(value: str) -> str:
    """A store: a path or a URL."""
    refuse_credentials(value)
    return path(value)


def refuse_credentials(url: str) -> None:
    """Raise ConfigError, which does not show them, if a URL may hold credentials: it is printed, published and sent to others."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme != "file" and ("@" in rest or "?" in rest):
        raise ConfigError(
            f"GDRIVE_PATH must not hold credentials or parameters, got {scheme}://…: leave out what comes before '@' or after '?', "
            "docs/operating.md says where each store takes its credentials from"
        )


def token(value: str) -> str:
    """A secret that a browser can send in a header, and nobody guesses."""
    return matching(r"[!-~]{16,200}", "is no token: use 16 to 200 letters, digits and signs without spaces")(value.strip())


def boolean(value: str) -> bool:
    word = value.strip().lower()
    if word not in {"true", "1", "yes", "on", "false", "0", "no", "off"}:
        raise ValueError("is neither true nor false: use true, false, 1, 0, yes, no, on or off")
    return word in {"true", "1", "yes", "on"}


def number(
    least: float, most: float, why: str = "choose a value in that range", above: bool = False, whole: bool = False
) -> Parser[float]:
    form = "a whole number: write digits only" if whole else "a finite number: write it like 0.5 or 1e-5"

    def parse(value: str) -> float:
        try:
            result = int(value) if whole else float(value)
            if not (whole or math.isfinite(result)):
                raise ValueError
        except ValueError:
            raise ValueError(f"must be {form}") from None
        if result < least or (above and result == least):
            raise ValueError(f"must be {'above' if above else 'at least'} {least:,.16g}: {why}")
        if result > most:
            raise ValueError(f"must be at most {most:,.16g}: {why}")
        return result

    return parse


integer = partial(number, whole=True)
