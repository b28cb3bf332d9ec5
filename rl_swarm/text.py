"""Text for people: make what strangers write safe to show, and count things."""

import re


def one_line(text: str, most: int = 200) -> str:
    """The beginning of a text, as one line."""
    return " ".join(text[:most].split())


def visible(text: str) -> str:
    """Escape control characters (colours, cursor movement, writing direction) so that they have no effect."""
    return re.sub(r"[^\n]", lambda match: match[0] if match[0].isprintable() else repr(match[0])[1:-1], text)


def counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
