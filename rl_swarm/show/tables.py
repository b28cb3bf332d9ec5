"""Tables in a terminal: the one style that every command uses."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from rl_swarm.runs.validate import Finding
from rl_swarm.text import visible

WIDE = 110  # columns that also have room for meanings
FINDINGS = {"ok": "green", "warning": "yellow", "failed": "bold red"}


def make_table(*texts: str, numbers: Sequence[str] = (), expand: bool = False) -> Table:
    """A table with columns of texts, which are folded where they are too long, then columns of numbers, which are never cut."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), expand=expand)
    for title in texts:
        table.add_column(title, overflow="fold")
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def findings_table(findings: Sequence[Finding]) -> Table:
    table = make_table("check", "result", "found")
    for finding in findings:
        table.add_row(finding.check, Text(finding.status, style=FINDINGS[finding.status]), Text(visible(finding.detail)))
    return table


def settings_view(rows: Sequence[Mapping[str, Any]], width: int) -> Group:
    """Settings, whose names are never broken; on a narrow terminal without their meanings."""
    titles = ["variable", "value", "source", *(["meaning"] if width >= WIDE else [])]
    table = make_table(*titles)
    table.columns[0].no_wrap = table.columns[2].no_wrap = True
    for row in rows:
        table.add_row(*(Text(visible("" if row[title] is None else str(row[title]))) for title in titles))
    more = [] if width >= WIDE else [Text(f"Meanings: in {WIDE} columns, with --json, or in docs/settings.md", style="dim")]
    return Group(table, *more)
