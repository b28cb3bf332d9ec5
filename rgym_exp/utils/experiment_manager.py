"""Make, list, read and compare experiments under the names of the reference documents."""

from rl_swarm.tools.notebook import (
    compare_experiments,
    export_experiment_summary,
    get_experiment_metrics,
    get_experiment_status,
    init_experiment,
    list_experiments,
)

__all__ = [
    "compare_experiments",
    "export_experiment_summary",
    "get_experiment_metrics",
    "get_experiment_status",
    "init_experiment",
    "list_experiments",
]
