"""README and docs/settings.md say what the code and the results say. `make readme` writes these parts of them."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from rl_swarm.cli import main
from rl_swarm.config import SETTINGS, TEST_MODE, load
from rl_swarm.show.formats import percent

ROOT = Path(__file__).parents[1]
README, ALL_SETTINGS = ROOT / "README.md", ROOT / "docs" / "settings.md"
STUDIES = ROOT / "docs"
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
    """The findings of three committed studies in a few sentences."""
    studies = ("knowledge", "sizes", "smollm2")
    found, sizes, real = (json.loads((STUDIES / study / "results.json").read_text()) for study in studies)
    [against], equal = found["against_alone"], found["at_equal_cost"]["compute"]
    arms = {arm["arm"]["name"]: arm for arm in found["arms"]}
    ours, alone, longer = (arms[name] for name in (against["arm"], against["other"], equal["other"]))
    rounds, peers = int(re.findall(r"(\d+) rounds", found["about"])[0]), ours["arm"]["nodes"] - 1
    split, whole = ours["arm"]["split"], alone["arm"]["split"]
    better = sum(mine > other for other, mine in against["held_out"])
    single, *swarms = sizes["arms"]
    return (
        f"**Of questions that it never saw, a small model that trained with {peers} others answers {known(ours)}, and one that "
        f"trained alone {known(alone)}, although that one wrote twice as much.** In each of {rounds} rounds the first trains on "
        f"{split['own']} rollouts of its own and the {split['external']} that the others wrote, the second on {whole['own']} of "
        f"its own. Sharing won with {better} of {len(against['seeds'])} random seeds (p = {against['held_out_p']:.4f}). Reading is "
        f"not free: it takes {against['spent']['compute']:.1f} times the compute. Alone with as much compute, a model ends at "
        f"{known(longer)}.\n\n"
        f"**Knowledge grows with the swarm.** With {single['arm']['split']['own']} rollouts a round from each model, and everybody "
        f"reading everything, a model alone ends at {known(single)}; in swarms of {listed(arm['arm']['nodes'] for arm in swarms)} "
        f"models at {listed(map(known, swarms))}.\n\n"
        f"**A real model learns, too.** On two cores, SmolLM2-135M-Instruct goes from {known(real['before'])} of "
        f"{real['before']['held_out_questions']} questions to {known(real['arms'][1])} in a swarm of two, and to "
        f"{known(real['arms'][0])} alone. That was run with one seed."
    )


def known(arm: dict[str, Any]) -> str:
    return percent(arm["held_out"], ".1%")


def listed(things: Iterable[object]) -> str:
    *most, last = map(str, things)
    return f"{', '.join(most)} and {last}"


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
