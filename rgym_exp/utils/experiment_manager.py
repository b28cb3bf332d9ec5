"""Make, list and read experiments under the names of the reference documents."""

from rl_swarm.notebook import get_experiment_metrics, get_experiment_status, init_experiment, list_experiments

__all__ = ["get_experiment_metrics", "get_experiment_status", "init_experiment", "list_experiments"]
