"""How every command behaves: it has a flag for each setting, and prints our own errors as one line."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from rl_swarm.config import SETTINGS, is_text
from rl_swarm.errors import ConfigError, SwarmError
from rl_swarm.text import visible


def _refuse_secret(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        why = "is no flag, since everybody on this machine can read command lines"
        raise ConfigError(f"{parameter.opts[0]} {why}: set {SETTINGS[str(parameter.name)].variable} instead")


FLAGS = [
    click.Option(
        [setting.flag, *(["--experiment"] if field_name == "experiment" else []), field_name],
        help=f"{setting.meaning} [{setting.variable}]",
        hidden=setting.secret,
        expose_value=not setting.secret,
        callback=_refuse_secret if setting.secret else None,
    )
    for field_name, setting in SETTINGS.items()
]


class Configurable(click.Command):
    """A command with a flag for every setting, after its own options."""

    def __init__(self, *, params: Sequence[click.Parameter], **attributes: Any) -> None:
        super().__init__(params=[*params, *FLAGS], **attributes)


def command() -> Callable[[Callable[..., None]], click.Command]:
    """Make a function a command; `cli.py` lists all of them."""
    return click.command(cls=Configurable)


class Commands(click.Group):
    """Print our own errors as one line, and exit with 2 for a wrong setting or argument, with 1 for any other error."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if reconfigure := getattr(stream, "reconfigure", None):
                reconfigure(errors="replace")  # a terminal that lacks a character shows a question mark
        try:
            for argument in args[0] if args else sys.argv[1:]:
                if not is_text(argument):
                    raise ConfigError(f"an argument is not valid UTF-8, got {argument!r}: type it again")
            return super().main(*args, **kwargs)
        except SwarmError as error:
            click.echo(visible(f"rl-swarm: {error}"), err=True)
            sys.exit(2 if isinstance(error, ConfigError) else 1)
