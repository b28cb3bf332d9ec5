"""What people see of a running swarm in a terminal: one renderer for every command."""

import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rl_swarm.progress import ExperimentStatus

REFRESH_SECONDS = 2.0


def ago(moment: float | None, now: float) -> str:
    """How long ago, for people; clocks of two machines may disagree, so it is never negative."""
    if moment is None:
        return "–"
    seconds = max(0, int(now - moment))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def status_view(status: ExperimentStatus, now: float) -> Group:
    """The experiment in one line, its nodes in a table."""
    head = Text(f"{status.experiment}: {status.status}")
    if status.round is not None:
        head.append(f", round {status.round}")
    if status.opened_at is not None:
        head.append(f", open for {ago(status.opened_at, now)}")
    table = Table()
    for column in ("node", "role", "doing", "since", "round", "reward", "last sign"):
        table.add_column(column, justify="right" if column in {"since", "round", "reward", "last sign"} else "left")
    for node in status.nodes:
        table.add_row(
            Text(node.node_id),
            Text(node.role),
            Text(node.doing),
            ago(node.since, now),
            "–" if node.round is None else str(node.round),
            "–" if node.reward is None else f"{node.reward:.3f}",
            ago(node.last_sign, now),
        )
    return Group(head, table)


def watch(read: Callable[[], ExperimentStatus], console: Console | None = None) -> None:
    """Show the status again and again until Ctrl-C."""
    with Live(status_view(read(), time.time()), console=console, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(REFRESH_SECONDS)
                live.update(status_view(read(), time.time()), refresh=True)
        except KeyboardInterrupt:
            return
