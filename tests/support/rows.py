"""Records of nodes for tests: read as dictionaries, and made with few fields."""

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
