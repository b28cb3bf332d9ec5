"""The command line: `rl-swarm` and its commands, by what one wants to do."""

import click

from rl_swarm import __version__
from rl_swarm.commands import check, keep, look, start, study, use
from rl_swarm.commands.group import Commands

GROUPS = {
    "start": (start.demo, start.swarm, start.work, start.coordinate, start.join, start.node),
    "look": (look.status, look.logs, look.report, look.web),
    "use": (use.chat, use.ask, use.evaluate, use.export, use.copy),
    "check": (check.doctor, check.probe, check.memory, check.config, check.validate),
    "keep": (keep.experiments, keep.prune),
    "study": (study.reproduce, study.analyze),
}


@click.group(
    cls=Commands,
    groups=GROUPS,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, prog_name="rl-swarm")
def main() -> None:
    """Train language models together. 'rl-swarm COMMAND --help' has an example."""


if __name__ == "__main__":
    main()
