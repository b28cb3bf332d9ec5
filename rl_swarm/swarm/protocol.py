"""The seam: all that the loop of a node knows of the others.

A swarm is a shared store (`through_store.py`) or nobody else (`alone.py`). A third kind, a network of peers or a chain, is a class
with these methods, and a line in `node/assembly.py` that makes it: the loop does not change.
"""

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rl_swarm.rollout import Rollout


class Swarm(Protocol):
    """A round has stages; today only stage 0 is played. Nothing here waits for a peer, and nobody else's failure is raised."""

    def first_round(self, own: int) -> int:
        """The round to begin with, for a node that by itself would begin with `own`."""
        ...

    def next_round(self, done: int, waiting: Callable[[], None]) -> int:
        """The round that comes after this one; `waiting` is called before every pause, and may raise to leave."""
        ...

    def prepare(self, number: int, stage: int, count: int, chooser: random.Random) -> None:
        """Said before the node generates: what `gather` will be asked for, so that it can be looked for meanwhile."""
        ...

    def publish(self, rollout: Rollout, policy_version: int) -> None:
        """Give an own rollout to the others; returns at once."""
        ...

    def gather(self, number: int, stage: int, count: int, chooser: random.Random) -> list[Rollout]:
        """At most so many rollouts of others, verified, none of them ever given before. All own ones of the stage are published."""
        ...

    def submit(self, number: int, stage: int, reward: float, completions: int) -> None:
        """Say what this node's own completions were worth, as the last thing of a round."""
        ...

    def news(self) -> list["News"]:
        """What has happened since last asked."""
        ...

    def figures(self, number: int) -> Mapping[str, Any]:
        """What the exchange was like so far, for the record of a round."""
        ...

    def state(self) -> dict[str, Any]:
        """What must outlive this process, as JSON would have it."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken; raise CheckpointError, with nothing changed, if it is no such state."""
        ...


@dataclass(frozen=True)
class News:
    """Something that people may want to know: the name of the event, a line for the console or none, and details."""

    event: str
    line: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


class Newsbox:
    """Collects news from any thread until the loop asks for them."""

    def __init__(self) -> None:
        self._waiting: deque[News] = deque()

    def add(self, event: str, line: str = "", **details: Any) -> None:
        self._waiting.append(News(event, line, details))

    def take(self) -> list[News]:
        return [self._waiting.popleft() for _ in range(len(self._waiting))]
