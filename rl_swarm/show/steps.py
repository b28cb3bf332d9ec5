"""Show what a command is doing while it takes long: on a terminal with the seconds that pass, elsewhere a line for each step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from rl_swarm.text import visible

Step = Callable[[str], None]


def unseen(line: str) -> None:
    """A step that nobody is shown."""


@contextmanager
def steps(console: Console, first: str) -> Iterator[Step]:
    """Say at once what begins; call the result with each later step. At the end the line is gone from a terminal."""
    if not console.is_terminal:

        def tell(line: str) -> None:
            console.print(Text(visible(line)), soft_wrap=True)

        tell(first)
        yield tell
        return
    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True) as progress:
        shown = progress.add_task(visible(first), total=None)
        yield lambda line: progress.update(shown, description=visible(line))
