"""README and docs/settings.md say what the code and the results say. `make readme` writes these parts of them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_swarm.cli import main
from rl_swarm.config import SETTINGS, TEST_MODE, load
from rl_swarm.show.formats import percent

ROOT = Path(__file__).parents[1]
README, ALL_SETTINGS = ROOT / "README.md", ROOT / "docs" / "settings.md"
RESULTS = ROOT / "docs" / "nano-table" / "results.json"
THAT_MATTER = ("store", "experiment", "model", "tasks", "own_count", "external_count", "group_size", "max_rounds")


def shown(value: Any) -> str:
    return "" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def settings_that_matter() -> str:
    defaults, nano = load({}), load({"MODEL_NAME": "nano"})
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for name in THAT_MATTER:
        usual, small = getattr(defaults, name), getattr(nano, name)
        with_nano = f", {shown(small)} with nano" if small != usual and name != "model" else ""
        rows.append(f"| `{SETTINGS[name].variable}` | {shown(usual)}{with_nano} | {SETTINGS[name].meaning} |")
    return "\n".join(rows)


def all_settings() -> str:
    defaults, nano = load({}), load({"MODEL_NAME": "nano"})
    rows = ["| variable | default | with nano | shared | meaning |", "|---|---|---|---|---|"]
    for name, setting in SETTINGS.items():
        usual, small = getattr(defaults, name), getattr(nano, name)
        with_nano = shown(small) if small != usual and name != "model" else ""
        rows.append(
            f"| `{setting.variable}` | {shown(usual)} | {with_nano} | {'yes' if setting.shared else ''} | {setting.meaning} |"
        )
    return "\n".join(rows)


def result() -> str:
    """The finding of the committed table in one sentence."""
    found = json.loads(RESULTS.read_text())
    against = next(each for each in found["against_alone"] if each["arm"] == found["best"])
    arms = {arm["arm"]["name"]: arm for arm in found["arms"]}
    ours, alone = (arms[against[name]] for name in ("arm", "other"))
    better = sum(mine > other for other, mine in against["cumulative"])
    fewer = 1 - ours["tokens_generated"] / alone["tokens_generated"]
    rounds = int(re.findall(r"(\d+) rounds", found["about"])[0])
    split, whole = ours["arm"]["split"], alone["arm"]["split"]
    gain = f"{percent(abs(against['gain']))} {'more' if against['gain'] > 0 else 'less'}"
    how = (
        f"A model that shares trains on {split['own']} rollouts of its own and {split['external']} of its peers in each round. "
        f"A model alone trains on {whole['own']} of its own."
    )
    return (
        f"**{ours['arm']['nodes']} small models that share earn {gain} reward in {rounds} rounds than {alone['arm']['nodes']} that "
        f"do not, and write {percent(fewer)} fewer tokens for it.** {how} The comparison was repeated with {len(against['seeds'])} "
        f"random seeds, and sharing won {better} times (p = {against['p']:.4f})."
    )


def quick_check() -> str:
    return ", ".join(f"`{SETTINGS[name].variable}={value}`" for name, value in TEST_MODE.items())


BLOCKS: list[tuple[Path, str, Callable[[], str]]] = [
    (README, "settings", settings_that_matter),
    (README, "result", result),
    (ALL_SETTINGS, "settings", all_settings),
    (ALL_SETTINGS, "test mode", quick_check),
]


def filled(text: str, name: str, content: str) -> str:
    """The text with `content` between the marks of this name."""
    before, begin, rest = text.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    assert begin and end, f"the marks of {name} are missing"
    return f"{before}{begin}{content}\n{end}{after}"


@pytest.mark.parametrize(("document", "name", "content"), BLOCKS, ids=[f"{path.name} {name}" for path, name, _ in BLOCKS])
def test_documents_say_what_the_code_and_the_results_say(document: Path, name: str, content: Callable[[], str]) -> None:
    assert document.read_text() == filled(document.read_text(), name, content()), "run `make readme`"


def test_every_command_is_listed() -> None:
    named = set(re.findall(r"^\| `rl-swarm ([a-z]+)", README.read_text(), re.MULTILINE))
    assert named == set(main.commands)


def test_every_link_and_picture_of_the_readme_exists() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", README.read_text()):
        assert (ROOT / target).exists(), target


if __name__ == "__main__":
    for document, name, content in BLOCKS:
        document.write_text(filled(document.read_text(), name, content()))
