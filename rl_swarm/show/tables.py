"""Tables in a terminal: the one style that every command uses."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from rl_swarm.runs.validate import Finding
from rl_swarm.text import visible

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
