"""The experiments of a store in a terminal: all of them as a table, or one."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from rl_swarm.show.formats import date, number
from rl_swarm.show.tables import make_table
from rl_swarm.text import visible


def list_view(rows: Sequence[Mapping[str, Any]], place: str) -> RenderableType:
    """Show the rows of `list_experiments`."""
    if not rows:
        return Text(f"{visible(place)} has no experiments")
    table = make_table("experiment", "status", "model", numbers=("rounds", "workers", "reward", "last round"))
    for row in rows:
        texts = (row["name"], row["status"], ", ".join(row["models"]))
        rounds = f"{row['rounds_done']} of {row['max_rounds'] or '?'}"
        reward = "" if row["reward"] is None else number(row["reward"])
        table.add_row(*(Text(visible(text)) for text in texts), rounds, str(row["workers"]), reward, date(row["last_round_at"]))
    return table


def show_view(summary: Mapping[str, Any]) -> RenderableType:
    """Show an `experiment_summary`."""
    status, rewards = summary["status"], summary["cumulative_rewards"]
    rows = [("experiment", summary["experiment_name"])]
    rows.append(("status", f"{status['status']}, {status['rounds_done']} of {status['max_rounds'] or '?'} rounds"))
    rows += [(node["node_id"], f"{node['role']}, {node['doing']}") for node in status["nodes"]]
    if rewards["mean"] is not None:
        each = ", ".join(f"{node} {number(total, 2)}" for node, total in rewards["nodes"].items())
        rows.append(("cumulative reward", f"{number(rewards['mean'], 2)}, the mean of {each}"))
    table = make_table("what", "value")
    for name, value in [*rows, *(summary["settings"] or {}).items()]:
        table.add_row(Text(visible(name)), Text(visible(value)))
    return table
