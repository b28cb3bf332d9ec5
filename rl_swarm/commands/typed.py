"""Commands to paste: how to go on with a node, and what to do with a finished run."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from rl_swarm.config import SETTINGS, Config

PROGRAM = "rl-swarm"


def program() -> str:
    """The program as one would type it here: its name if the shell finds it, else its path."""
    path = Path(sys.argv[0])
    return shlex.quote(str(path)) if path.name == PROGRAM and shutil.which(PROGRAM) != str(path) else PROGRAM


def as_typed() -> str:
    """The command that started this process, also if it was another program, such as `python -m`."""
    if Path(sys.argv[0]).name == PROGRAM:
        return " ".join([program(), *map(shlex.quote, sys.argv[1:])])
    return shlex.join(sys.orig_argv)


def to_repeat(config: Config, agreed: Mapping[str, str] | None = None, **more: str) -> str:
    """The command as it was typed, after the variables that it was started with, and `more`.

    Leaves out secrets, and variables whose value the experiment has `agreed` on.
    """
    variables = {
        setting.variable: os.environ[setting.variable]
        for field_name, setting in SETTINGS.items()
        if config.sources.get(field_name) == "environment" and not setting.secret
    }
    variables = {name: value for name, value in variables.items() if value != (agreed or {}).get(name)} | more
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in variables.items()), as_typed()])


def resuming(config: Config, agreed: Mapping[str, str]) -> Iterator[str]:
    """Say how to go on with a node. A node without a name is named: on a machine with several, another one might be taken."""
    named = any(word.startswith(SETTINGS["node_id"].flag) for word in sys.argv)
    yield "go on with:"
    yield f"  {to_repeat(config, agreed, **({} if named else {'NODE_ID': config.node}))}"


def what_next(config: Config) -> Iterator[str]:
    """Name the commands that show and use a finished run."""
    named = [name for name in ("store", "experiment", "home") if config.explicit(name)]
    run = "".join(f" {SETTINGS[name].flag} {shlex.quote(str(getattr(config, name)))}" for name in named)
    node = f" {SETTINGS['node_id'].flag} {shlex.quote(config.node)}"
    yield "what next:"
    yield f"  {program()} status{run}"
    yield f"  {program()} report{run}"
    if config.role == "worker":
        yield f"  {program()} ask 'Calculate 3 + 4.'{run}{node}"
        yield f"  {program()} chat{run}{node}"
