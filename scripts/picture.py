"""Write docs/demo.svg: the live view of a finished run as it looked at two thirds of its rounds.

    python scripts/picture.py ./rl-swarm-data demo docs/demo.svg

The run is copied up to that moment and shown by the shipped renderer: nothing in the picture is made up.
"""

import io
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from rl_swarm import config
from rl_swarm.rollout import Bundle, encode
from rl_swarm.runs import progress
from rl_swarm.runs.examples import published
from rl_swarm.runs.following import Following
from rl_swarm.runs.progress import EVENTS, METRICS
from rl_swarm.show.live import live_frame
from rl_swarm.store import Store
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import read_registration, register, registered

WIDTH, HEIGHT = 100, 32
SHARE = 2 / 3
# Rich asks the reader's browser to fetch a font from elsewhere; the picture does without.
FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def main(place: str, name: str, target: str) -> None:
    store, layout = FolderStore(Path(place)), Layout(name)
    experiment = experiments.read(store, layout)
    if experiment is None:
        sys.exit(f"there is no experiment {name!r} in {place!r}: run the demo first")
    max_rounds = config.load({}, shared=experiment.settings).max_rounds
    done = [rows for rows in (progress.records(store, layout, node_id) for node_id in registered(store, layout)) if rows]
    until = max(rows[round(SHARE * len(rows)) - 1].timestamp for rows in done)
    with tempfile.TemporaryDirectory() as folder:
        copy = FolderStore(Path(folder))
        for node_id in registered(store, layout):
            copy_node(store, copy, layout, node_id, until)
        moment = Following(copy, layout, max_rounds).look()
    console = Console(record=True, width=WIDTH, height=HEIGHT, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text("$ make demo\n", style="bold"), live_frame(moment, until, WIDTH, HEIGHT - 2))
    svg = console.export_svg(title="RL Swarm: a coordinator and four workers", theme=MONOKAI, unique_id="demo")
    Path(target).write_text(FONT.sub("", svg), "utf-8")


def copy_node(store: Store, copy: Store, layout: Layout, node_id: str, until: float) -> None:
    """What a node had written by then: registration, journals, and the rollouts of the rounds it had done."""
    registration = read_registration(store, layout, node_id)
    if registration:
        register(copy, layout, registration)
    for journal in (METRICS, EVENTS):
        key = layout.log(node_id, journal)
        rows = [row for row in progress.rows(progress.lines(store, key)) if row["timestamp"] <= until]
        copy.rewrite(key, "".join(json.dumps(row) + "\n" for row in rows).encode())
        if journal == METRICS and rows:
            copy_rollouts(store, copy, layout, node_id, rows[-1])


def copy_rollouts(store: Store, copy: Store, layout: Layout, node_id: str, row: dict[str, Any]) -> None:
    rollouts = tuple(published(store, layout, row["round"], row["stage"], node_id))
    bundle = Bundle(layout.experiment_name, node_id, row["round"], rollouts, row["stage"])
    copy.put(layout.bundle(row["round"], node_id, stage=row["stage"]), encode(bundle))


if __name__ == "__main__":
    main(*sys.argv[1:])
