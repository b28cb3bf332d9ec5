"""Write the pictures of the README to docs/pictures/. Each is of a real run; nothing in them is made up.

    python -m checks.pictures [STORE EXPERIMENT]

Without an experiment a demo is run first, which takes a few minutes. `live.svg` is the live view at two thirds of the rounds,
`report.png` the picture of the report. `web/` has the views of the dashboard; a second run, without sharing, is there to compare
with.
"""

import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from checks.screenshots import VIEWS, screenshots
from rl_swarm.document import SMALL_BYTES
from rl_swarm.rollout import Bundle, encode
from rl_swarm.runs import progress
from rl_swarm.runs.examples import published
from rl_swarm.runs.following import Following
from rl_swarm.runs.progress import EVENTS, METRICS
from rl_swarm.runs.summary import summarise
from rl_swarm.show.live import live_frame
from rl_swarm.show.report import PICTURE, make_report
from rl_swarm.store import Store
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import read_registration, register, registered

DOCS = Path(__file__).parents[1] / "docs"
WIDTH, HEIGHT = 100, 32
SHARE = 2 / 3
# Rich asks the reader's browser to fetch a font from elsewhere; the picture does without.
FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def live_picture(store: Store, layout: Layout) -> str:
    """The live view at SHARE of the rounds: the run is copied up to that moment, and shown by the shipped renderer."""
    if experiments.read(store, layout) is None:
        sys.exit(f"there is no experiment {layout.experiment_name!r} in {store.url!r}: run the demo first")
    done = [rows for rows in (progress.records(store, layout, node_id) for node_id in registered(store, layout)) if rows]
    until = max(rows[round(SHARE * len(rows)) - 1].timestamp for rows in done)
    with tempfile.TemporaryDirectory() as folder:
        copy = FolderStore(Path(folder))
        for node_id in registered(store, layout):
            copy_node(store, copy, layout, node_id, until)
        copy.put(layout.experiment, store.get(layout.experiment, limit=SMALL_BYTES))
        moment = Following(copy, layout).look()
    console = Console(record=True, width=WIDTH, height=HEIGHT, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text("$ make demo\n", style="bold"), live_frame(moment, until, WIDTH, HEIGHT - 2))
    svg = console.export_svg(title="RL Swarm: a coordinator and four workers", theme=MONOKAI, unique_id="demo")
    return FONT.sub("", svg)


def copy_node(store: Store, copy: Store, layout: Layout, node_id: str, until: float) -> None:
    """Copy what a node had written by then: registration, journals, and the rollouts of the rounds it had done."""
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


def run_demo(store: Path) -> str:
    """Run a demo in the folder, and one without sharing; return the name of the first."""
    environment = {**os.environ, "GDRIVE_PATH": str(store), "RL_SWARM_HOME": str(store.parent / "home")}
    alone = {"EXPERIMENT_NAME": "alone", "NUM_TRAIN_SAMPLES": "8", "NUM_TRANSPLANT_TREES": "0"}
    for settings in (alone, {"EXPERIMENT_NAME": "demo"}):
        subprocess.run([sys.executable, "-m", "rl_swarm.cli", "demo"], env=environment | settings, check=True)
    return "demo"


def main(arguments: Sequence[str], target: Path = DOCS / "pictures", views: Sequence[str] = VIEWS) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        place, name = arguments or (f"{scratch}/store", run_demo(Path(scratch, "store")))
        store, layout = FolderStore(Path(place)), Layout(name)
        made = {
            "live.svg": live_picture(store, layout).encode(),
            "report.png": make_report(summarise(store, layout), [])[PICTURE],
        }
        target.mkdir(exist_ok=True)
        for file, data in made.items():
            (target / file).write_bytes(data)
        shown = screenshots(Path(place), name, target / "web", views) if views else []
    for path in [*(target / file for file in made), *shown]:
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
