"""experiment.json: what a swarm agrees on, read on a store that has not synchronised yet."""

import pytest

from rl_swarm.config import load
from rl_swarm.errors import ConfigError
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from tests.clocks import VirtualClock

LAYOUT = Layout("trial")
CONFIG = load({"EXPERIMENT_NAME": "trial", "TASKS": "gcd", "NODE_ID": "me"})


def test_the_first_publishes_and_the_others_take_what_it_said() -> None:
    store = MemoryStore()
    first = experiments.publish(store, LAYOUT, CONFIG, "library 1", VirtualClock())
    second = experiments.publish(store, LAYOUT, load({"TASKS": "chain_sum"}), "library 1", VirtualClock())
    assert first == second == experiments.read(store, LAYOUT)


def test_settings_that_are_half_there_are_as_if_not_there_yet_and_never_replaced() -> None:
    whole = MemoryStore()
    experiments.publish(whole, LAYOUT, CONFIG, "library 1", VirtualClock())
    half = whole.get(LAYOUT.experiment, limit=1 << 24)[:100]
    store = MemoryStore(data={LAYOUT.experiment: half})
    assert experiments.read(store, LAYOUT) is None
    with pytest.raises(ConfigError, match="wait until the store has synchronised"):
        experiments.publish(store, LAYOUT, CONFIG, "library 1", VirtualClock())
    assert store.get(LAYOUT.experiment, limit=1 << 24) == half


def test_damaged_settings_are_refused() -> None:
    store = MemoryStore()
    experiments.publish(store, LAYOUT, CONFIG, "library 1", VirtualClock())
    store.rewrite(LAYOUT.experiment, store.get(LAYOUT.experiment, limit=1 << 24).replace(b"gcd", b"bcd"))
    with pytest.raises(ConfigError, match="checksum"):
        experiments.read(store, LAYOUT)
