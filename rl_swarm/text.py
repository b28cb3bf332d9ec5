"""Text for people: make what strangers write safe to show, and count things."""


def one_line(text: str, most: int = 200) -> str:
    """The beginning of a text, as one line."""
    return " ".join(text[:most].split())


def visible(text: str) -> str:
    """Escape control characters (colours, cursor movement, writing direction) so that they have no effect."""
    return "\n".join(line if line.isprintable() else _spelt_out(line) for line in text.split("\n"))


def _spelt_out(line: str) -> str:
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line)


def counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
