"""Functions for programs: make an experiment, read and compare runs."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from rl_swarm.clock import SystemClock
from rl_swarm.config import ALIASES, VARIABLES, old_name
from rl_swarm.errors import ConfigError
from rl_swarm.node.assembly import load_config
from rl_swarm.node.vetting import vet
from rl_swarm.runs import progress
from rl_swarm.runs.following import all_experiments, look_once
from rl_swarm.store import Store, open_store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.tasks import nearest, tasks_version


def init_experiment(gdrive_base_path: str, experiment_name: str, config_overrides: Mapping[str, Any] | None = None) -> str:
    """Publish an experiment's settings, keyed by variable, and return its folder. An experiment that exists is not changed.

    Raises ConfigError for overrides that are no settings, and for tasks or a model that nobody could use.
    """
    environment = {str(name): str(value) for name, value in (config_overrides or {}).items()}
    for name in sorted(environment.keys() - VARIABLES - ALIASES):
        fact = old_name(name) or f"{name} is not a setting of RL Swarm: {nearest(name.upper(), sorted(VARIABLES), most=3)}"
        raise ConfigError(f"init_experiment cannot use an override, {fact}")
    environment |= {"GDRIVE_PATH": gdrive_base_path, "EXPERIMENT_NAME": experiment_name}
    config, *_ = load_config(environment, {"role": "coordinator"}, tasks_version(), vet=vet)
    return os.path.join(gdrive_base_path, Layout(config.experiment_name).root)


def list_experiments(gdrive_base_path: str) -> list[dict[str, Any]]:
    """Return name, path, status, round and number of nodes of every experiment."""
    return [
        {
            "name": status.experiment,
            "path": os.path.join(gdrive_base_path, Layout(status.experiment).root),
            "status": status.status,
            "round": status.round,
            "num_peers": len(status.nodes) + status.left_out,
        }
        for status in all_experiments(open_store(gdrive_base_path, writable=False))
    ]


def get_experiment_status(gdrive_base_path: str, experiment_name: str) -> dict[str, Any]:
    """Return what `rl-swarm status --json` prints."""
    return look_once(*_open(gdrive_base_path, experiment_name)).as_dict(SystemClock().wall())


def get_experiment_metrics(gdrive_base_path: str, experiment_name: str) -> list[dict[str, Any]]:
    """Return a row for each node and round, as `pandas.DataFrame` takes it."""
    store, layout = _open(gdrive_base_path, experiment_name)
    nodes = look_once(store, layout).nodes
    return [msgspec.to_builtins(row) for node in nodes for row in progress.records(store, layout, node.node_id)]


def get_experiment_progress(gdrive_path: str, experiment_name: str) -> dict[str, dict[str, Any]]:
    """Return the newest progress line of every node, by node."""
    store, layout = _open(gdrive_path, experiment_name)
    nodes = look_once(store, layout).nodes
    newest = {node.node_id: progress.last_rows(store, layout.progress(node.node_id)) for node in nodes}
    return {node_id: rows[-1] for node_id, rows in newest.items() if rows}


def compare_experiments(gdrive_base_path: str, experiment_names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the mean own reward of every round of several experiments, and the number of nodes behind it."""
    rewards: dict[tuple[str, int], list[float]] = {}
    for name in experiment_names:
        for row in sorted(get_experiment_metrics(gdrive_base_path, name), key=lambda row: row["round"]):
            rewards.setdefault((name, row["round"]), []).append(row["reward"])
    return [
        {"experiment": name, "round": number, "reward": fmean(found), "nodes": len(found)}
        for (name, number), found in rewards.items()
    ]


def export_experiment_summary(gdrive_base_path: str, experiment_name: str, output_path: str | None = None) -> dict[str, Any]:
    """Return an experiment's status, settings and rewards, and write them as JSON, by default into the experiment's folder."""
    store, layout = _open(gdrive_base_path, experiment_name)
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


def _open(place: str, experiment_name: str) -> tuple[Store, Layout]:
    return open_store(place, writable=False), Layout(experiment_name)
