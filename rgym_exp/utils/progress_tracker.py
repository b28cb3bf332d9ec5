"""`get_experiment_progress(gdrive_path, experiment_name)`: the newest progress line of every node, by node."""

from rl_swarm.tools.notebook import get_experiment_progress

__all__ = ["get_experiment_progress"]
