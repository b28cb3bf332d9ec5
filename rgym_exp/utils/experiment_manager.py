"""Make, list, read, compare and remove experiments under the names of the reference documents."""

from rl_swarm.tools.experiments import (
    cleanup_experiment,
    compare_experiments,
    export_experiment_summary,
    get_cumulative_rewards,
    get_experiment_metrics,
    get_experiment_status,
    init_experiment,
    list_experiments,
)

__all__ = [
    "cleanup_experiment",
    "compare_experiments",
    "export_experiment_summary",
    "get_cumulative_rewards",
    "get_experiment_metrics",
    "get_experiment_status",
    "init_experiment",
    "list_experiments",
]
