"""`run_with_live_output(command)`: run a command and show its output as it comes."""

from rl_swarm.notebook import run_with_live_output

__all__ = ["run_with_live_output"]
