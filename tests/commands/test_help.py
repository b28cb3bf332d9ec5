"""The help of every command: short, with an example that can be pasted."""

import re
import shlex

import pytest

from rl_swarm.cli import GROUPS, main
from rl_swarm.config import SETTINGS

COMMANDS = sorted(main.commands)


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    assert done.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_a_help_fits_on_one_screen(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, *command.split(), "--help").splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80, "\n".join(lines)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_can_be_pasted(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, command, "--help")
    example = text.partition("Example:\n")[2].partition("\n\n")[0].replace("\\\n", "")
    lines = [shlex.split(line) for line in example.splitlines()]
    assert lines and all(words[:2] == ["rl-swarm", command] for words in lines), text
    for words in lines:
        main.commands[command].make_context(command, words[2:])


@pytest.mark.parametrize("command", COMMANDS)
def test_all_settings_are_one_line_away(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    short, long = shown(capsys, command, "--help"), shown(capsys, command, "--help-all")
    assert f"rl-swarm {command} --help-all" in " ".join(short.split())
    flags = {setting.flag for setting in SETTINGS.values() if not setting.secret}
    assert flags <= set(re.findall(r"--[\w-]+", long))
    assert len(flags & set(re.findall(r"--[\w-]+", short))) < 12


def test_the_commands_are_grouped_by_what_one_wants_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "--help")
    rows = re.findall(r"^(\w+| {5,7}) +(\w+)  +(\S.*)$", text, re.MULTILINE)
    assert [row[1] for row in rows] == [each.name for group in GROUPS.values() for each in group if not each.hidden]
    assert [row[0].strip() for row in rows if row[0].strip()] == list(GROUPS) == ["start", "look", "use", "check", "keep", "study"]
    assert not any(row[2].endswith("...") for row in rows), "the first sentence of a command's help is short"
    assert {each.name for group in GROUPS.values() for each in group} == set(COMMANDS)
