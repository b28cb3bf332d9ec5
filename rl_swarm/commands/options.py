"""Read and check what is typed on the command line. Nothing is written here.

Options go through the parsers of config.py, so a wrong value is always one line.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from rl_swarm import values
from rl_swarm.values import expanded, read


class Checked(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """A type of option that `parse` reads, as config.py reads settings. A default that is no text stays as it is."""

    def __init__(self, parse: Callable[[str], Any], name: str = "text") -> None:
        self.parse = parse
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if param is None or not isinstance(value, str):
            return value
        return read(param.opts[0] if isinstance(param, click.Option) else param.human_readable_name, self.parse, value)


def whole(least: int, most: int) -> Checked:
    return Checked(values.integer(least, most), "integer")


def decimal(least: float, most: float) -> Checked:
    return Checked(values.number(least, most), "number")


def cluster_address(value: str) -> str:
    """Parse where nodes run: `ray` for the cluster that this machine belongs to, or `ray:HOST:PORT`."""
    found = re.fullmatch(r"ray(?::([^:/]+:\d{1,5}))?", value)
    if not found:
        raise ValueError("is no cluster: write ray, or ray:HOST:PORT")
    return found[1] or "auto"


def gpus(value: str) -> float:
    """Parse a number of GPUs: a share of one, or whole ones."""
    number = values.number(0, 64)(value)
    if number > 1 and number % 1:
        raise ValueError("is neither a share of one GPU nor a whole number: write 0.25, 1 or 2")
    return number


def question_text(value: str) -> str:
    """Parse a question for a model."""
    if not value.strip():
        raise ValueError("must not be empty: write it in quotes")
    return value


def output_file(value: str) -> Path:
    """Parse the name of a file that can be made or replaced."""
    path = expanded(value, "the file")
    if path.is_dir():
        raise ValueError("is a folder: name a file")
    if not path.parent.is_dir():
        raise ValueError("lies in a folder that does not exist: make the folder first, or name another file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError("cannot be written: change its permissions, or name another file")
    return path


def output_folder(value: str) -> Path:
    """Parse the name of a folder that can be written, or made together with its parents."""
    path = expanded(value, "the folder")
    there = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    if not there.is_dir():
        raise ValueError("is, or lies below, a file: name a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError("cannot be written: change its permissions, or name another folder")
    return path
