"""Write the report of a run and show its card: the command `report`, and the end of `swarm` and `demo`.

The run may be going on, and may be anybody's: the report only reads, and then writes two files of its own into the experiment, or
elsewhere if that cannot be written.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rl_swarm.config import Config, load
from rl_swarm.errors import CheckpointError, ConfigError, LibraryError, ModelError, Refused, StoreAway
from rl_swarm.learning.engine.libraries import require_libraries
from rl_swarm.node.local import holder_of
from rl_swarm.processes.children import python
from rl_swarm.runs.examples import Example, published_examples
from rl_swarm.runs.summary import Summary, summarise
from rl_swarm.show.card import Places, sections, show_card
from rl_swarm.show.report import PAGE, PICTURE, make_report
from rl_swarm.show.steps import Step, steps, unseen
from rl_swarm.store import outside
from rl_swarm.swarm import experiment as experiments
from rl_swarm.text import visible
from rl_swarm.tools.launch import WRONG_SETTING
from rl_swarm.tools.opening import Run, open_run

NO_MODEL = "--no-model"
GRACE_SECONDS = 2.0  # for a report that is all but done when Ctrl-C comes
MOST_READ = 8  # nodes whose texts are looked through for examples

Flags = Mapping[str, str | None]


def report(environment: Mapping[str, str], flags: Flags, output: Path | None, ask: bool, program: str, console: Console) -> None:
    """Write the report of the run that the settings name, into `output` if given, and show its card.

    With `ask`, and if that is possible here, the trained model and its base answer the questions of the examples.
    `program` is this one as people type it here.
    """
    run = open_run(environment, flags)
    if output is not None:
        outside(output, run.config.store_url)
    with steps(console, "reading the run") as step:
        summary = summarise(run.store, run.layout, run.config.founder)
        if not summary.rounds:
            raise ConfigError(f"the experiment {run.config.experiment_name!r} has no round to report: wait for its first round")
        examples = make_examples(run, summary, ask and _can_ask(run), step)
        step("drawing")
        files = make_report(summary, examples)
    picture, page = _keep(files, run, output, console)
    folder, address = nearby(f"{run.config.store_url}/{run.layout.root}"), nearby(experiments.address(run.store, run.experiment))
    places = Places(nearby(run.config.store_url), folder, picture, page, address, _home(run.config))
    show_card(summary, sections(summary, examples, places, nearby(program)), console)


def _can_ask(run: Run) -> bool:
    """Whether there may be a trained model to ask, and no node of the run at work here, which needs the memory."""
    trained = run.flags.get("node_id") is not None or any(run.home.glob("*/checkpoints/*"))
    return trained and not any(holder_of(lock.parent) for lock in run.home.glob("*/lock"))


def make_examples(run: Run, summary: Summary, ask: bool, step: Step = unseen) -> list[Example]:
    """Ask the models, or take what the run has published if there is no model to ask."""
    if ask:
        of_any_node = {name: value for name, value in run.environment.items() if name != "NODE_ID"}
        try:
            require_libraries()
            step("loading libraries")
            from rl_swarm.tools.ask import asked_examples  # imports torch

            return asked_examples(of_any_node, run.flags, step)
        except (ConfigError, CheckpointError, LibraryError, ModelError):
            pass  # this machine has nothing to ask
    numbers = sorted({number for points in summary.rewards.values() for number, _ in points})
    ends = {numbers[0], numbers[-1]}
    nodes = [node for node, points in summary.rewards.items() if ends & {number for number, _ in points}]
    return published_examples(run.store, run.layout, numbers, nodes[:MOST_READ])


def _keep(files: Mapping[str, bytes], run: Run, output: Path | None, console: Console) -> tuple[str, str]:
    """Write the files, and return where the picture and the page are."""
    place = run.config.store_url
    if output is None:
        try:
            for name, data in files.items():
                run.store.rewrite(run.layout.report(name), data)
            picture, page = (f"{place}/{run.layout.report(name)}" for name in (PICTURE, PAGE))
            return nearby(picture), nearby(page)
        except (Refused, StoreAway) as error:
            said = f"The report goes to this folder, since the experiment cannot be written: {error}"
            console.print(Text(visible(said)), soft_wrap=True)
    folder = outside(output or Path(), place).absolute()
    paths = {name: folder / f"{run.config.experiment_name}-{name}" for name in files}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            paths[name].write_bytes(data)
    except OSError as error:
        raise ConfigError(
            f"the report cannot be written to {str(folder)!r} ({error.strerror}): name another folder with --output"
        ) from None
    return nearby(str(paths[PICTURE])), nearby(str(paths[PAGE]))


def _home(config: Config) -> str:
    """RL_SWARM_HOME if somebody has set it: commands to paste need it in another terminal."""
    return nearby(config.home) if config.explicit("home") else ""


def nearby(path: str) -> str:
    """Shorten a path to how one would type it here: relative if it lies below this folder."""
    if not os.path.isabs(path):  # also a URL that names no folder
        return path
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else os.path.join(".", relative)


def report_after(outcome: str, environment: Mapping[str, str], program: str, say: Callable[[str], None]) -> None:
    """Report on a run that has just ended here, in a process of its own: the outcome of the run stands, whatever happens to it.

    After a stop no model is asked, which may take long; nor after a first attempt that failed, as it does without memory.
    """
    code = f"import sys; sys.argv[0] = {sys.argv[0]!r}; from rl_swarm.cli import main; main()"
    sys.stdout.flush()
    reason = ""
    for options in ([], [NO_MODEL]) if outcome == "complete" else ([NO_MODEL],):
        exit_code, errors, stopped = _run(python(code, "report", *options), environment)
        if not exit_code:
            return
        lines = errors.decode(errors="replace").strip().splitlines()
        reason = lines[-1].removeprefix("rl-swarm: ") if lines else f"exit code {exit_code}"
        if stopped:
            reason = "stopped"
            break
        if exit_code == WRONG_SETTING:  # no round was finished, most likely
            say(visible(f"no report: {reason}"))
            return
    config = load(environment)
    at_home = f" --rl-swarm-home {shlex.quote(home)}" if (home := _home(config)) else ""
    again = f"{nearby(program)} report {config.experiment_name} --gdrive-path {shlex.quote(nearby(config.store_url))}{at_home}"
    say(visible(f"no report ({reason}); this makes one: {again}"))


def _run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, bytes, bool]:
    """Run a command; return its exit code, its errors, and whether Ctrl-C ended it.

    Ctrl-C reaches this process alone. It leaves the other a moment, in which one that has written its files ends well.
    """
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True) as child:
        try:
            return _ended(child, None, stopped=False)
        except KeyboardInterrupt:
            with suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
                return _ended(child, GRACE_SECONDS, stopped=True)
            child.kill()
            return _ended(child, None, stopped=True)


def _ended(child: "subprocess.Popen[bytes]", seconds: float | None, stopped: bool) -> tuple[int, bytes, bool]:
    _, errors = child.communicate(timeout=seconds)
    return child.returncode, errors, stopped
