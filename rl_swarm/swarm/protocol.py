"""The interface between a node's loop and its peers.

A swarm is a shared store (`through_store.py`) or nobody else (`alone.py`). A third kind, a peer-to-peer network or a chain, is a
class with these methods, made in `node/assembly.py`: the loop does not change.
"""

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rl_swarm.rollout import Rollout


class Swarm(Protocol):
    """A round has stages; today only stage 0 is played. No method waits for a peer, or raises because of one.

    Methods whose body is `return` may be left out by an implementation that has nothing to do.
    """

    def first_round(self, resumed_at: int) -> int:
        """The round to begin with; a node without peers would begin with `resumed_at`."""
        ...

    def next_round(self, done: int, waiting: Callable[[], None]) -> int:
        """The round after this one. `waiting` is called before every pause; an exception from it ends the wait."""
        ...

    def prepare(self, number: int, stage: int, count: int, chooser: random.Random) -> None:
        """Say which `gather` comes next, so that the swarm can read ahead while the node generates.

        `chooser` must be in the same state as the one that `gather` will get.
        """
        return

    def publish(self, rollout: Rollout, policy_version: int) -> None:
        """Share an own rollout. Returns at once; it may be sent later, with its stage or round."""
        return

    def gather(self, number: int, stage: int, count: int, chooser: random.Random) -> list[Rollout]:
        """Return at most `count` verified external rollouts, never the same one twice, even after a restart.

        Ends the stage: its own rollouts may be sent now.
        """
        ...

    def submit(self, number: int, stage: int, reward: float, completions: int) -> None:
        """Publish the mean reward of the own completions. Call it last in a round."""
        return

    def news(self) -> list["News"]:
        """Events since the last call."""
        ...

    def figures(self, number: int) -> Mapping[str, Any]:
        """Figures of the exchange by their names in `runs/record.py::Round`.

        Also `checking_seconds`, the part of the time in `gather` that was spent on scoring, which the loop counts as such.
        """
        ...

    def state(self) -> dict[str, Any]:
        """State that must outlive this process, as JSON values."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a `state`; raise CheckpointError, with nothing changed, if it is not one."""
        return


@dataclass(frozen=True)
class News:
    """An event, a line for the console (or none), and details."""

    event: str
    line: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


class Newsbox:
    """Collects news from any thread until the loop takes them."""

    def __init__(self) -> None:
        self._waiting: deque[News] = deque()

    def add(self, event: str, line: str = "", **details: Any) -> None:
        self._waiting.append(News(event, line, details))

    def take(self) -> list[News]:
        return [self._waiting.popleft() for _ in range(len(self._waiting))]
