"""Make, list, read, compare, export and remove experiments: functions for programs and notebooks, and the command `experiments`.

Figures come from the journals, by way of an index on this machine: the second look at a long run reads only what is new.
"""

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from rl_swarm.clock import SystemClock
from rl_swarm.config import ALIASES, VARIABLES, load, old_name
from rl_swarm.errors import ConfigError
from rl_swarm.node.assembly import load_config
from rl_swarm.node.local import home_of
from rl_swarm.node.vetting import vet
from rl_swarm.runs import progress
from rl_swarm.runs.following import Moment, all_experiments, look_once
from rl_swarm.runs.kept_journals import KeptJournals
from rl_swarm.runs.record import Round
from rl_swarm.store import Store, open_store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.correction import remove_below
from rl_swarm.swarm.layout import Layout
from rl_swarm.tasks import nearest, tasks_version
from rl_swarm.text import one_line

Rows = list[dict[str, Any]]
LEFT_OUT = {  # of a table of figures: texts that anybody may have written, and what has no one value
    *("version", "experiment", "reward_by_task", "own_ids", "external_ids", "held_out_by_task", "seconds", "muted"),
    *("rejected_total", "tasks_total", "store_total"),
}
SHOWN = ("event", "round", "reward", "elapsed_seconds", "memory_gb", "timestamp")  # of the latest event


def init_experiment(gdrive_base_path: str, experiment_name: str, config_overrides: Mapping[str, Any] | None = None) -> str:
    """Publish an experiment's settings, keyed by variable, and return its folder.

    An experiment that exists continues as it is: neither its settings nor its rounds change. Raises ConfigError for overrides that
    are no settings, and for tasks or a model that nobody could use.
    """
    environment = {str(name): str(value) for name, value in (config_overrides or {}).items()}
    for name in sorted(environment.keys() - VARIABLES - ALIASES):
        fact = old_name(name) or f"{name} is not a setting of RL Swarm: {nearest(name.upper(), sorted(VARIABLES), most=3)}"
        raise ConfigError(f"init_experiment cannot use an override, {fact}")
    environment |= {"GDRIVE_PATH": gdrive_base_path, "EXPERIMENT_NAME": experiment_name}
    config, *_ = load_config(environment, {"role": "coordinator"}, tasks_version(), vet=vet)
    return os.path.join(gdrive_base_path, Layout(config.experiment_name).root)


def list_experiments(gdrive_base_path: str) -> Rows:
    """Return name, path, status, rounds, number of workers, reward and model of every experiment."""
    return [_listed(moment, gdrive_base_path) for moment in all_experiments(open_store(gdrive_base_path, writable=False))]


def _listed(moment: Moment, place: str) -> dict[str, Any]:
    rewards = [node.reward for node in moment.workers if node.reward is not None]
    return {
        "name": moment.experiment,
        "path": os.path.join(place, Layout(moment.experiment).root),
        "status": moment.status,
        "round": moment.round,
        "rounds_done": moment.rounds_done,
        "max_rounds": moment.max_rounds,
        "workers": len(moment.workers),
        "num_peers": len(moment.nodes) + moment.left_out,
        "reward": fmean(rewards) if rewards else None,
        "models": sorted({node.model for node in moment.workers if node.model}),
        "last_round_at": moment.last_round_at,
    }


def get_experiment_status(gdrive_base_path: str, experiment_name: str) -> dict[str, Any]:
    """Return what `rl-swarm status --json` prints."""
    return look_once(*_open(gdrive_base_path, experiment_name)).as_dict(SystemClock().wall())


def get_experiment_metrics(gdrive_base_path: str, experiment_name: str, aggregate_by_round: bool = False) -> Rows:
    """Return a row for each node and round, or one for each round, as `pandas.DataFrame` takes it."""
    records = _records(gdrive_base_path, experiment_name)
    if aggregate_by_round:
        return by_round(records)
    return [msgspec.to_builtins(row) for rows in records.values() for row in rows]


def as_table(gdrive_base_path: str, experiment_name: str) -> str:
    """The figures of every node and round as CSV; texts, lists and figures by name are left out."""
    names = [field.name for field in msgspec.structs.fields(Round) if field.name not in LEFT_OUT]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    for rows in _records(gdrive_base_path, experiment_name).values():
        writer.writerows([getattr(row, name) for name in names] for row in rows)
    return file.getvalue()


def by_round(records: Mapping[str, Sequence[Round]]) -> Rows:
    """One row a round: means of the nodes' rewards and times, sums of what they used and wrote."""
    rows = sorted((row for found in records.values() for row in found), key=lambda row: row.round)
    table = []
    for number, group in ((number, list(found)) for number, found in groupby(rows, key=lambda row: row.round)):
        rewards = [row.reward for row in group]
        table.append(
            {
                "round": number,
                "nodes": len(group),
                "reward": fmean(rewards),
                "reward_min": min(rewards),
                "reward_max": max(rewards),
                "own_used": sum(row.own_used for row in group),
                "external_used": sum(row.external_used for row in group),
                "tokens": sum(row.tokens for row in group),
                "seconds": fmean(sum(row.seconds.values()) for row in group),
                "timestamp": max(row.timestamp for row in group),
            }
        )
    return table


def get_cumulative_rewards(gdrive_base_path: str, experiment_name: str) -> dict[str, Any]:
    """Return the sum of each node's rewards over its rounds, their mean over the nodes, and the running sum of the mean reward."""
    records = _records(gdrive_base_path, experiment_name)
    curve = [{"round": row["round"], "cumulative_reward": row["cumulative_reward"]} for row in _curve(experiment_name, records)]
    return {"experiment": experiment_name, **_totals(records), "rounds": curve}


def _totals(records: Mapping[str, Sequence[Round]]) -> dict[str, Any]:
    totals = {node_id: sum(row.reward for row in rows) for node_id, rows in records.items() if rows}
    return {"nodes": totals, "mean": fmean(totals.values()) if totals else None}


def _curve(experiment_name: str, records: Mapping[str, Sequence[Round]]) -> Rows:
    """The mean own reward of every round, its running sum, and the number of nodes behind it."""
    rows = by_round(records)
    sums = accumulate(row["reward"] for row in rows)
    return [
        {
            "experiment": experiment_name,
            "round": row["round"],
            "reward": row["reward"],
            "cumulative_reward": total,
            "nodes": row["nodes"],
        }
        for row, total in zip(rows, sums, strict=True)
    ]


def get_experiment_progress(gdrive_path: str, experiment_name: str) -> dict[str, Any]:
    """Return how far a run is, and of each node the latest event with round, reward, elapsed seconds and memory, and its state."""
    store, layout = _open(gdrive_path, experiment_name)
    moment = look_once(store, layout)
    nodes = {}
    for node in moment.nodes:
        newest = [{}, *progress.last_rows(store, layout.progress(node.node_id))][-1]
        said = {name: _plain(newest.get(name)) for name in SHOWN}
        if said["reward"] is None and node.last:  # an event that is no end of a round has none
            said["reward"] = node.last.reward
        nodes[node.node_id] = {"role": node.role, **said, "state": node.doing, "since": node.since}
    return {
        "experiment": experiment_name,
        "status": moment.status,
        "complete": moment.complete,
        "round": moment.round,
        "max_rounds": moment.max_rounds,
        "nodes": nodes,
    }


def _plain(value: Any) -> str | float | None:
    """A value as a node writes it; anybody may have written another."""
    return one_line(value) if isinstance(value, str) else value if isinstance(value, int | float) else None


def compare_experiments(gdrive_base_path: str, experiment_names: Sequence[str]) -> Rows:
    """Return the mean own reward of every round of several experiments, its running sum, and the number of nodes behind it."""
    return [row for name in experiment_names for row in _curve(name, _records(gdrive_base_path, name))]


def experiment_summary(gdrive_base_path: str, experiment_name: str) -> dict[str, Any]:
    """An experiment's status, settings and rewards."""
    published = experiments.read(*_open(gdrive_base_path, experiment_name))
    records = _records(gdrive_base_path, experiment_name)
    return {
        "experiment_name": experiment_name,
        "generated_at": SystemClock().wall(),
        "status": get_experiment_status(gdrive_base_path, experiment_name),
        "settings": published.settings if published else None,
        "cumulative_rewards": _totals(records),
        "rewards": _curve(experiment_name, records),
    }


def export_experiment_summary(gdrive_base_path: str, experiment_name: str, output_path: str | None = None) -> dict[str, Any]:
    """Return an experiment's status, settings and rewards, and write them as JSON, by default into the experiment's folder."""
    summary = experiment_summary(gdrive_base_path, experiment_name)
    text = json.dumps(summary, indent=1) + "\n"
    if output_path is None:
        store, layout = _open(gdrive_base_path, experiment_name)
        store.rewrite(layout.summary, text.encode())
    else:
        Path(output_path).write_text(text)
    return summary


def cleanup_experiment(gdrive_base_path: str, experiment_name: str, keep_checkpoints: bool = False) -> int:
    """Remove an experiment from its store and return the number of files; its checkpoints and settings stay if they are to be kept.

    Archives and the nodes' own folders stay. Raises ConfigError if there is no such experiment.
    """
    store, layout = _open(gdrive_base_path, experiment_name)
    experiments.require(store, layout)
    removed = remove_below(store, layout.root, {layout.experiment} | ({layout.checkpoints} if keep_checkpoints else set()))
    if not keep_checkpoints:  # the settings last: an interrupted removal can be repeated
        removed += remove_below(store, layout.root)
    _index(store, layout).forget()
    return removed


def archive_left(place: str, experiment_name: str) -> str | None:
    """The folder with an experiment's archived rollouts, which cleaning leaves; None if there is none."""
    store, layout = _open(place, experiment_name)
    return layout.archived if store.list(layout.archived) else None


def require(place: str, experiment_name: str) -> None:
    """Raise ConfigError, with the nearest names, if there is no such experiment."""
    experiments.require(*_open(place, experiment_name))


def _records(place: str, experiment_name: str) -> dict[str, list[Round]]:
    """The records of every node, in order; the name of its folder counts, whatever a row says of its author."""
    store, layout = _open(place, experiment_name)
    index, found = _index(store, layout), dict[str, list[Round]]()
    for node in look_once(store, layout).nodes:
        rows = index.records(node.node_id)
        found[node.node_id] = [
            row if row.node_id == node.node_id else msgspec.structs.replace(row, node_id=node.node_id) for row in rows
        ]
    return found


def _index(store: Store, layout: Layout) -> KeptJournals:
    settings = {name: value for name, value in os.environ.items() if name == "RL_SWARM_HOME"}
    return KeptJournals(home_of(load(settings)), store, layout)


def _open(place: str, experiment_name: str) -> tuple[Store, Layout]:
    return open_store(place, writable=False), Layout(experiment_name)
