"""The embedded nano model, hub and local models, and the limits of this machine's hardware."""

from rl_swarm.learning.models.hardware import choose_device, choose_dtype, choose_model
from rl_swarm.learning.models.loading import LoadedModel, load, resolve_nano_folder

__all__ = ["LoadedModel", "choose_device", "choose_dtype", "choose_model", "load", "resolve_nano_folder"]
