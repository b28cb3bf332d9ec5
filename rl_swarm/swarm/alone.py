"""A node without peers: it learns from its own rollouts, and nothing leaves this machine."""

import random
from collections.abc import Callable
from typing import Any

from rl_swarm.rollout import Rollout
from rl_swarm.swarm.protocol import News, Newsbox, Swarm


class Alone(Swarm):
    """`prepare`, `publish`, `submit` and `restore` do nothing, as inherited."""

    def __init__(self, news: Newsbox) -> None:
        self._news = news

    def first_round(self, resumed_at: int) -> int:
        return resumed_at

    def next_round(self, done: int, waiting: Callable[[], None]) -> int:
        return done + 1

    def gather(self, number: int, stage: int, count: int, chooser: random.Random) -> list[Rollout]:
        return []

    def news(self) -> list[News]:
        return self._news.take()

    def figures(self, number: int) -> dict[str, Any]:
        return {}

    def state(self) -> dict[str, Any]:
        return {}
