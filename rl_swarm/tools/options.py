"""How the commands read what is typed: options are checked by the parsers of config.py, so that a wrong value is always one line.

Where a command will write is looked at before it begins to work. Nothing is written here.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import click

from rl_swarm import config as configuration
from rl_swarm.config import expanded, is_text, read
from rl_swarm.errors import ConfigError
from rl_swarm.text import visible


class Checked(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """An option or argument that `parse` reads, as config.py reads settings; what is not text, such as a default, passes."""

    def __init__(self, parse: Callable[[str], Any], name: str = "text") -> None:
        self.parse = parse
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        shown = "the value" if param is None else param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
        return read(shown, self.parse, value)


def whole(least: int, most: int) -> Checked:
    return Checked(configuration.integer(least, most), "integer")


def decimal(least: float, most: float) -> Checked:
    return Checked(configuration.number(least, most), "number")


NAME = Checked(configuration.name, "name")


class WrongArgument(click.ClickException):
    """An argument that no command can use: one line, exit code 2."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(visible(f"rl-swarm: {self.message}"), err=True)


def check_arguments(arguments: Sequence[str]) -> None:
    for argument in arguments:
        if not is_text(argument):
            raise WrongArgument(f"an argument is not valid UTF-8, got {argument!r}: type it again")


def show_any_text() -> None:
    """Let nothing that is printed end a command: what the terminal has no character for becomes a question mark."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")


def output_file(value: str) -> Path:
    """A file that can be written, made or replaced."""
    path = expanded(value, "the file")
    if path.is_dir():
        raise ValueError("is a folder: name a file")
    if not path.parent.is_dir():
        raise ValueError("lies in a folder that does not exist: make the folder first, or name another file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError("cannot be written: change its permissions, or name another file")
    return path


def output_folder(value: str) -> Path:
    """A folder that can be written; it and its parents are made later where they are missing."""
    path = expanded(value, "the folder")
    there = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    if not there.is_dir():
        raise ValueError("is, or lies below, a file: name a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError("cannot be written: change its permissions, or name another folder")
    return path


def outside(path: Path, store_url: str) -> Path:
    """The path; raise ConfigError if it lies in the shared folder, where others may have put links under such names."""
    shared = None if "://" in store_url.removeprefix("file://") else expanded(store_url.removeprefix("file://"), "GDRIVE_PATH")
    typed = Path(os.path.abspath(path))
    if shared and any(place.is_relative_to(shared.resolve()) for place in (typed, typed.parent.resolve())):
        raise ConfigError(
            f"what is written must not lie in the shared folder, got {str(path)!r}: others may have put links there, name a place "
            "of your own"
        )
    return path
