"""How every command behaves: a flag for each setting, a short help with an example, and our own errors as one line."""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import click

from rl_swarm.config import SETTINGS
from rl_swarm.errors import ConfigError, SwarmError
from rl_swarm.text import visible
from rl_swarm.values import is_text

NO_COMMAND = getattr(click.exceptions, "NoArgsIsHelpError", ())  # click before 8.2 shows the help by itself
EVERYTHING = "rl_swarm.help_all"  # marks a context whose help shows every setting


def _refuse_secret(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        why = "is no flag, since everybody on this machine can read command lines"
        raise ConfigError(f"{parameter.opts[0]} {why}: set {SETTINGS[str(parameter.name)].variable} instead")


def _help_all(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        context.meta[EVERYTHING] = True
        click.echo(context.get_help())
        context.exit()


FLAGS = {
    field_name: click.Option(
        [*dict.fromkeys((setting.flag, setting.long_flag)), field_name],
        help=f"{setting.meaning} [{setting.variable}]",
        hidden=setting.secret,
        expose_value=not setting.secret,
        callback=_refuse_secret if setting.secret else None,
    )
    for field_name, setting in SETTINGS.items()
}
HELP_ALL = click.Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False, hidden=True, callback=_help_all)


class Rare(click.Option):
    """An option that only --help-all shows."""

    def get_help_record(self, context: click.Context) -> tuple[str, str] | None:
        return super().get_help_record(context) if EVERYTHING in context.meta else None


class Configurable(click.Command):
    """A command with a flag for every setting, after its own options.

    Its help shows its own options, the `settings` that it needs, and an `example` to paste; `--help-all` shows every setting.
    """

    def __init__(
        self, *, params: Sequence[click.Parameter], settings: Sequence[str] = (), example: str = "", **attributes: Any
    ) -> None:
        self.settings, self.example = settings, example
        super().__init__(params=[*params, *FLAGS.values(), HELP_ALL], **attributes)

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        own = [
            each.get_help_record(context) for each in self.params if isinstance(each, click.Option) and each not in FLAGS.values()
        ]
        settings = [(f"{SETTINGS[name].flag} TEXT", SETTINGS[name].meaning) for name in self.settings]
        if EVERYTHING in context.meta:
            settings = [record for each in FLAGS.values() if (record := each.get_help_record(context))]
        for title, records in (("Options", [record for record in own if record]), ("Settings", settings)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Example"):
            for line in self.example.splitlines():
                formatter.write(f"  {line}\n")
        formatter.write_paragraph()
        formatter.write_text(f"All settings, also as variables (GDRIVE_PATH): {context.command_path} --help-all")


def command(*, settings: Sequence[str] = (), example: str, **attributes: Any) -> Callable[[Callable[..., None]], click.Command]:
    """Make a function a command; `cli.py` lists all of them. `settings` are fields of Config that its help shows."""
    return click.command(cls=Configurable, settings=settings, example=example, **attributes)


class Commands(click.Group):
    """The commands in `groups`, by what one wants to do.

    Print our own errors, and libraries that cannot be imported, as one line. Exit with 2 for a wrong setting or argument, with 1
    for any other error.
    """

    def __init__(self, *, groups: Mapping[str, Sequence[click.Command]], **attributes: Any) -> None:
        self.groups = groups
        super().__init__(commands=[each for commands in groups.values() for each in commands], **attributes)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            if reconfigure := getattr(stream, "reconfigure", None):
                # What a terminal cannot show, or sends by mistake, is a question mark. A line is seen at once, also in a file.
                reconfigure(errors="replace", line_buffering=True)
        try:
            for argument in args[0] if args else sys.argv[1:]:
                if not is_text(argument):
                    raise ConfigError(f"an argument is not valid UTF-8, got {argument!r}: type it again")
            code = super().main(*args, **({"prog_name": "rl-swarm"} | kwargs | {"standalone_mode": False}))
            sys.exit(code if isinstance(code, int) else 0)
        except SwarmError as error:
            _end(error)
        except click.UsageError as error:
            if isinstance(error, NO_COMMAND):
                error.show()  # the help
                sys.exit(error.exit_code)
            _end(ConfigError(f"{error.format_message().rstrip('.')}: {_try(error)}"))
        except click.Abort:
            click.echo("Aborted!", err=True)
            sys.exit(1)
        except ImportError as error:
            from rl_swarm.learning.engine.libraries import explained

            if (error.name or "").startswith("rl_swarm"):
                raise
            _end(explained(error))

    def format_help(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write as few lines as possible, so that all commands fit on a screen."""
        formatter.write(f"{inspect.cleandoc(self.help or '')}\n")
        self.format_options(context, formatter)

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in self.groups.items():
            for number, each in enumerate(each for each in commands if not each.hidden):
                formatter.write(f"{'' if number else title:<7}{each.name:<13}{each.get_short_help_str(limit=60)}\n")


def _try(error: click.UsageError) -> str:
    return f"see {error.ctx.command_path if error.ctx else 'rl-swarm'} --help"


def _end(error: SwarmError) -> NoReturn:
    click.echo(visible(f"rl-swarm: {error}"), err=True)
    sys.exit(2 if isinstance(error, ConfigError) else 1)
