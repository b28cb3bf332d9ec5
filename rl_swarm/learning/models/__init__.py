"""Models: the embedded nano, hub and local models, and what this machine's hardware allows."""

from rl_swarm.learning.models.hardware import choose_device, choose_dtype, choose_model
from rl_swarm.learning.models.loading import LoadedModel, load, resolve_nano_folder

__all__ = ["LoadedModel", "choose_device", "choose_dtype", "choose_model", "load", "resolve_nano_folder"]
