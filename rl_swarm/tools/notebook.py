"""What notebook cells call: run a command with live output, make an experiment, read what is there."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from rl_swarm import config as configuration
from rl_swarm.clock import SystemClock
from rl_swarm.runs import progress
from rl_swarm.store import open_store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.tasks import tasks_version


def run_with_live_output(command: Sequence[str], cwd: str | None = None, env: Mapping[str, str] | None = None) -> int:
    """Run a command, show its output line by line, return its exit code. Interrupting the cell asks the command to stop."""
    process = subprocess.Popen(
        list(command),
        cwd=cwd,
        env={**os.environ, **(env or {}), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # the interrupt reaches the command once, from here
    )
    assert process.stdout is not None
    with process.stdout:
        while True:
            try:
                for line in process.stdout:
                    print(line, end="", flush=True)
                return process.wait()
            except KeyboardInterrupt:
                print("stopping: the node saves a checkpoint", file=sys.stderr, flush=True)
                process.terminate()


def init_experiment(gdrive_base_path: str, experiment_name: str, config_overrides: Mapping[str, Any] | None = None) -> str:
    """Publish an experiment's settings, keyed by variable, unless it exists: a live one is never rewound. Return its folder."""
    environment = {str(name): str(value) for name, value in (config_overrides or {}).items()}
    config = configuration.load({**environment, "GDRIVE_PATH": gdrive_base_path, "EXPERIMENT_NAME": experiment_name})
    store, layout = open_store(config.store_url), Layout(config.experiment_name)
    version = tasks_version()
    experiments.check(config, experiments.publish(store, layout, config, version, SystemClock()), version)
    return os.path.join(gdrive_base_path, layout.root)


def list_experiments(gdrive_base_path: str) -> list[dict[str, Any]]:
    """Name, path, round and number of registered nodes of every experiment."""
    return [
        {
            "name": status.experiment,
            "path": os.path.join(gdrive_base_path, Layout(status.experiment).root),
            "status": status.status,
            "round": status.round,
            "num_peers": len(status.nodes) + status.left_out,
        }
        for status in progress.all_experiments(open_store(gdrive_base_path, writable=False))
    ]


def get_experiment_status(gdrive_base_path: str, experiment_name: str) -> dict[str, Any]:
    """What `rl-swarm status --json` prints."""
    return progress.experiment_status(open_store(gdrive_base_path, writable=False), Layout(experiment_name)).as_dict()


def get_experiment_metrics(gdrive_base_path: str, experiment_name: str) -> list[dict[str, Any]]:
    """The metrics of all nodes, a row for each node and round; `pandas.DataFrame` takes it as it is."""
    store, layout = open_store(gdrive_base_path, writable=False), Layout(experiment_name)
    status = progress.experiment_status(store, layout)
    return [msgspec.to_builtins(row) for node in status.nodes for row in progress.records(store, layout, node.node_id)]


def compare_experiments(gdrive_base_path: str, experiment_names: Sequence[str]) -> list[dict[str, Any]]:
    """Mean own reward of every round of several experiments, and over how many nodes it was taken."""
    compared = []
    for name in experiment_names:
        rewards: dict[int, list[float]] = {}
        for row in get_experiment_metrics(gdrive_base_path, name):
            rewards.setdefault(row["round"], []).append(row["reward"])
        compared += [
            {"experiment": name, "round": n, "reward": fmean(all_), "nodes": len(all_)} for n, all_ in sorted(rewards.items())
        ]
    return compared


def export_experiment_summary(gdrive_base_path: str, experiment_name: str, output_path: str | None = None) -> dict[str, Any]:
    """Status, settings and rewards of an experiment, also written as JSON: by default into the experiment's own folder."""
    store, layout = open_store(gdrive_base_path, writable=False), Layout(experiment_name)
    published = experiments.read(store, layout)
    summary = {
        "experiment_name": experiment_name,
        "generated_at": SystemClock().wall(),
        "status": get_experiment_status(gdrive_base_path, experiment_name),
        "settings": published.settings if published else None,
        "rewards": compare_experiments(gdrive_base_path, [experiment_name]),
    }
    text = json.dumps(summary, indent=1) + "\n"
    if output_path is None:
        store.rewrite(layout.summary, text.encode())
    else:
        Path(output_path).write_text(text)
    return summary


def get_experiment_progress(gdrive_path: str, experiment_name: str) -> dict[str, dict[str, Any]]:
    """The newest progress line of every node, by node."""
    store, layout = open_store(gdrive_path, writable=False), Layout(experiment_name)
    status = progress.experiment_status(store, layout)
    newest = {node.node_id: progress.last_rows(store, layout.progress(node.node_id)) for node in status.nodes}
    return {node_id: rows[-1] for node_id, rows in newest.items() if rows}
