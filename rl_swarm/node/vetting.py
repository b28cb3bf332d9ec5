"""Check the tasks and the model of an experiment before it is published: its settings are written once, for everybody.

Imports no torch. Of a model, a coordinator looks at name and folder only, since it may run where there is no model and no network.
"""

from collections.abc import Callable

from rl_swarm.config import Config
from rl_swarm.errors import ConfigError, ModelError
from rl_swarm.learning.models.loading import OWN_MODELS, named, read_config
from rl_swarm.tasks import NOT_INSTALLED, TASK_PRESETS, tasks_of, tasks_version, try_loading


def vet(config: Config, say: Callable[[str], None]) -> None:
    """Raise ConfigError or ModelError if nobody could play with these settings.

    Tasks are loaded as a worker loads them, in a helper process. A worker also locates the model and reads its config; its weights
    are loaded later, once. What takes seconds is said.
    """
    specs, works = tasks_of(config), config.role == "worker"
    before = " before the experiment is published" if config.store else ""  # a node alone publishes nothing
    if tasks_version() == NOT_INSTALLED:
        raise ConfigError("TASKS needs the package 'reasoning-gym', which is not installed: pip install reasoning-gym")
    try:
        named(config.model)
    except ModelError as error:
        raise ConfigError(str(error)) from None
    if config.tasks not in TASK_PRESETS:  # those are known to load
        say(f"loading the tasks, to check them{before}")
        try_loading(specs, keep_loader=works)
    if works and config.model not in OWN_MODELS:
        say(f"looking for {config.model}, to check it{before}")
        read_config(config.model, config.hub_token)
