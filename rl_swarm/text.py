"""Text that a stranger may have written, made safe to show."""

import re


def one_line(text: str, most: int = 200) -> str:
    """The beginning of a text as one line, for a place that has room for one."""
    return " ".join(text[:most].split())


def visible(text: str) -> str:
    """Text whose control characters (colours, cursor movement, writing direction) are spelt out instead of taking effect."""
    return re.sub(r"[^\n]", lambda match: match[0] if match[0].isprintable() else repr(match[0])[1:-1], text)
