"""Open a run to use what it has learnt. Imports no torch, so wrong settings and missing runs are reported at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rl_swarm import config as configuration
from rl_swarm.config import Config
from rl_swarm.node.local import experiment_folder
from rl_swarm.store import Store, open_store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.experiment import Experiment
from rl_swarm.swarm.layout import Layout

Flags = Mapping[str, str | None]


@dataclass(frozen=True)
class Run:
    """An experiment as seen by somebody who takes no part in it: its settings, and where everything is."""

    environment: Mapping[str, str]
    flags: Flags
    config: Config
    store: Store
    layout: Layout
    experiment: Experiment

    @property
    def home(self) -> Path:
        return experiment_folder(self.config, self.experiment)


def open_run(environment: Mapping[str, str], flags: Flags) -> Run:
    """Open the experiment that the settings name, with its own settings beneath them. Raise ConfigError if there is none."""
    config = configuration.load(environment, flags)
    configuration.require_run(config)
    store, layout = open_store(config.store_url, writable=False), Layout(config.experiment_name)
    experiment = experiments.existing(store, layout, config.founder)
    config = configuration.load(environment, flags, experiment.settings)
    return Run(environment, flags, config, store, layout, experiment)
