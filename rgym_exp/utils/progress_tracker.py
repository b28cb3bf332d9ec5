"""`get_experiment_progress(gdrive_path, experiment_name)`: what `rl-swarm status --json` prints, as a dictionary."""

from rl_swarm.tools.notebook import get_experiment_progress

__all__ = ["get_experiment_progress"]
