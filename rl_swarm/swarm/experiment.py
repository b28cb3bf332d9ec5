"""The settings that a swarm must agree on, published once by whoever starts first and taken from there by everyone else."""

import secrets
from typing import Annotated

import msgspec
from msgspec import Meta

from rl_swarm.clock import Clock
from rl_swarm.config import Config, shared_settings
from rl_swarm.document import SCHEMA, SMALL_BYTES, seal, unseal
from rl_swarm.errors import ConfigError, Incomplete, NotFound
from rl_swarm.rollout import GROUP_LIMITS
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout
from rl_swarm.tasks import canonical, parse_tasks


class Experiment(msgspec.Struct, frozen=True):
    schema: int
    experiment: Annotated[str, Meta(max_length=64)]
    experiment_id: Annotated[str, Meta(pattern=r"^[0-9a-f]{8,64}$")]
    created_at: float
    created_by: Annotated[str, Meta(max_length=64)]
    settings: dict[str, str]
    tasks_version: str
    group_limits: tuple[int, int]


def read(store: Store, layout: Layout) -> Experiment | None:
    """The experiment's settings, or None while they are not there, or not all of them."""
    try:
        return unseal(store.get(layout.experiment, limit=SMALL_BYTES), Experiment)
    except (NotFound, Incomplete):
        return None


def publish(store: Store, layout: Layout, config: Config, tasks_version: str, clock: Clock) -> Experiment:
    """Write experiment.json if nobody has; return the one that counts, whoever wrote it."""
    existing = read(store, layout)
    if existing is None:
        mine = Experiment(
            schema=SCHEMA,
            experiment=layout.experiment_name,
            experiment_id=secrets.token_hex(8),
            created_at=clock.wall(),
            created_by=config.node_id or "",
            settings=shared_settings(config) | {"TASKS": canonical(parse_tasks(config.tasks))},
            tasks_version=tasks_version,
            group_limits=GROUP_LIMITS,
        )
        existing = mine if store.put(layout.experiment, seal(mine)) else read(store, layout)
    if existing is None:
        raise ConfigError(f"{layout.experiment} exists and cannot be read: wait until the store has synchronised, then start again")
    return existing


def check(config: Config, experiment: Experiment, tasks_version: str) -> None:
    """Stop a node whose explicit settings contradict the experiment: peers could not check its rollouts, nor it theirs."""
    agreed = experiment.settings.get("TASKS")
    if config.explicit("tasks") and canonical(parse_tasks(config.tasks)) != agreed:
        raise ConfigError(
            f"TASKS contradicts the experiment {experiment.experiment!r}, which has {agreed!r}, got {config.tasks!r}: "
            "leave TASKS out to take the experiment's, or choose another EXPERIMENT_NAME"
        )
    least, most = experiment.group_limits
    if not least <= config.group_size <= most:
        raise ConfigError(
            f"NUM_GENERATIONS must be {least} to {most} in the experiment {experiment.experiment!r}, got {config.group_size}: "
            "peers would refuse such rollouts"
        )
    if tasks_version != experiment.tasks_version:
        raise ConfigError(
            f"the task library is {tasks_version!r} here and {experiment.tasks_version!r} in the experiment "
            f"{experiment.experiment!r}: install the same version, or peers cannot check each other's questions"
        )
