"""What nodes have recorded, for tests: as dictionaries, since some look at names; and records with little in them."""

from typing import Any

import msgspec

from rl_swarm.runs import progress
from rl_swarm.runs.record import Round
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout


def metrics(store: Store, layout: Layout, node_id: str) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(row) for row in progress.records(store, layout, node_id)]


def record(number: int, reward: float = 0.5, **figures: Any) -> Round:
    return Round(timestamp=float(number), round=number, reward=reward, **figures)
