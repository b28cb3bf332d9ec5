"""`get_experiment_progress(gdrive_path, experiment_name)`: what a run and each of its nodes is doing."""

from rl_swarm.tools.experiments import get_experiment_progress

__all__ = ["get_experiment_progress"]
