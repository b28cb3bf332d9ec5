"""The README says what the code says."""

import re
from pathlib import Path

from rl_swarm.cli import main
from rl_swarm.config import SETTINGS, load

README = Path(__file__).parents[1] / "README.md"


def settings_table() -> str:
    defaults = load({})
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for field_name, setting in SETTINGS.items():
        value = getattr(defaults, field_name)
        shown = "" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"
        rows.append(f"| `{setting.variable}` | {shown} | {setting.meaning} |")
    return "\n".join(rows)


def test_the_table_of_settings_is_the_codes() -> None:
    text = README.read_text()
    table = re.search(r"<!-- settings -->\n(.*?)\n?<!-- /settings -->", text, re.DOTALL)
    assert table is not None
    assert table[1] == settings_table(), "run `make readme`"


def test_every_command_is_listed() -> None:
    named = set(re.findall(r"^\| `rl-swarm ([a-z]+)", README.read_text(), re.MULTILINE))
    assert named == set(main.commands)


def write() -> None:
    text = README.read_text()
    block = f"<!-- settings -->\n{settings_table()}\n<!-- /settings -->"
    README.write_text(re.sub(r"<!-- settings -->.*<!-- /settings -->", lambda _: block, text, flags=re.DOTALL))


if __name__ == "__main__":
    write()
