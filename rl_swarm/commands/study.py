"""Study whether sharing helps."""

import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from rl_swarm import config as configuration
from rl_swarm import values
from rl_swarm.commands.common import WORKERS, check_libraries, make_console
from rl_swarm.commands.group import command
from rl_swarm.commands.options import Checked, output_folder, whole
from rl_swarm.config import MOST_ROUNDS, load
from rl_swarm.store import outside


@command(example="rl-swarm reproduce --quick")
@click.option("--preset", default="nano", help="nano, longer, alone, knowledge, quarter, sizes, smollm2, gpt2 or qwen")
@click.option("--splits", help="splits I/J to compare [the preset's, 8/0,6/2,4/4,2/6]")
@click.option("--best", help="the split tested first, with all seeds [the preset's]")
@click.option("--seeds", type=whole(1, 1000), help="paired seeds of the first two splits [8]; others have 3")
@click.option("--rounds", type=whole(1, MOST_ROUNDS), help="rounds of each run [the preset's horizon]")
@click.option("--nodes", type=WORKERS, help="nodes of each swarm [the preset's]")
@click.option("--ablations", default="", show_default=False, help="all, or correction,choice,window,adaptive,models,size")
@click.option("--quick", is_flag=True, help="a look within four minutes, which proves nothing")
@click.option("--pilot", is_flag=True, help="run pilot seeds, print the horizon and the best split")
@click.option("--parallel", type=whole(1, 1024), help="runs at a time [cores; 1 on a GPU]")
@click.option("--output", type=Checked(output_folder, "folder"), default="reproduce-results", help="where all of it goes")
def reproduce(**given: Any) -> None:
    """Run the paper's table on this machine: does sharing help?

    Runs real swarms, and says whether sharing helps and at what cost.
    """
    check_libraries()
    from rl_swarm.reproduce.command import Wanted, as_typed
    from rl_swarm.reproduce.command import reproduce as run

    wanted = Wanted(**{field.name: given.pop(field.name) for field in fields(Wanted)})
    if not run(wanted, os.environ, given, as_typed(sys.argv[1:]), make_console()):
        sys.exit(130)


@command(settings=("store",), example="rl-swarm analyze alone-1 sharing-1 --gdrive-path ./rl-swarm-data")
@click.argument("experiments", type=Checked(values.name, "name"), nargs=-1, required=True, metavar="EXPERIMENT...")
@click.option("--best", help="the split that is tested first [the sharing one with most own rollouts]")
@click.option("--output", type=Checked(output_folder, "folder"), default="analysis", help="where the report goes")
def analyze(experiments: tuple[str, ...], best: str | None, output: Path, **flags: str | None) -> None:
    """Compare experiments that were run elsewhere.

    Reports as 'reproduce' does with its own. Runs of one split are paired in order.
    """
    from rl_swarm.reproduce.command import analyze as run
    from rl_swarm.reproduce.command import as_typed

    loaded = load(os.environ, flags)
    configuration.require(loaded, "store")
    run(loaded, list(experiments), best, outside(output, loaded.store_url), as_typed(sys.argv[1:]), make_console())
