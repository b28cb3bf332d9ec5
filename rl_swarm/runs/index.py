"""One run, kept up to date for any number of viewers: what its nodes are doing, their figures, and the newest completions.

Reads journals once, a page at a time, and holds as much as the ledger bounds. Reads the store only in `look`.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rl_swarm.errors import ConfigError, StoreAway
from rl_swarm.runs.examples import Answered, completions_of, published
from rl_swarm.runs.following import Following, Moment
from rl_swarm.runs.ledger import Ledger
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout

MOST_GOSSIP = 48  # newest completions that are kept
GOSSIP_NODES = 4  # nodes whose newest completions a look reads
GOSSIP_TEXT = 2_000  # characters of a prompt or a completion
READING_SECONDS = 5.0  # that a viewer waits for a look that is going on
PATIENCE_SECONDS = 1.0  # that a look reads on in long journals


@dataclass(frozen=True)
class Heard:
    """One of the newest completions."""

    at: float
    node_id: str
    round: int
    task: str
    rollout_id: str
    answered: Answered


class RunIndex:
    """Everything that views show of one run. Read it within `reading`: another thread may be looking.

    `version` grows with every change. `trouble` says why nothing new can be read, if nothing can. `current` is True after a look,
    until somebody sets it to False because there was none for long.
    """

    def __init__(self, store: Store, layout: Layout, founder: str | None = None) -> None:
        self.store = store
        self.layout = layout
        self._lock = threading.RLock()
        self.ledger = Ledger()
        self.following = Following(store, layout, founder, ledger=self.ledger)
        self.moment = Moment(layout.experiment_name, status="empty")
        self.version = 0
        self._born = time.monotonic_ns()
        self.behind = True
        self.current = False
        self.trouble = ""
        self.gossip: deque[Heard] = deque(maxlen=MOST_GOSSIP)
        self._heard: dict[str, int] = {}  # the newest round of each node whose completions were read

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep others from changing the index; raise StoreAway if one of them waits for the store all the time."""
        if not self._lock.acquire(timeout=READING_SECONDS):
            raise StoreAway(f"{self.store.url} has not answered for {READING_SECONDS:.0f} s: try again later")
        try:
            yield
        finally:
            self._lock.release()

    @property
    def mark(self) -> tuple[int, int]:
        """The version, different also from every version of another index."""
        return self._born, self.version

    @property
    def workers(self) -> list[str]:
        """Nodes that train; others cannot be credited with rollouts."""
        return [node.node_id for node in self.moment.workers]

    def look(self) -> None:
        """Read what is new. A store that is away leaves everything as it was; raise ConfigError if the run is not the founder's."""
        with self._lock:
            before = (self.moment, self.trouble, self.behind)
            deadline = time.monotonic() + PATIENCE_SECONDS
            try:
                self.moment = self.following.look()
                while self.following.behind and time.monotonic() < deadline:
                    self.moment = self.following.look()
                self._listen()
                self.trouble = ""
            except StoreAway as error:
                self.trouble = str(error)
            except ConfigError as error:
                self.trouble = str(error)
                raise
            finally:
                self.behind, self.current = self.following.behind, True
                self.version += before != (self.moment, self.trouble, self.behind)

    def _listen(self) -> None:
        """Read the completions of the nodes that have finished a round since, the newest first."""
        rows = [(node.last, node.node_id) for node in self.moment.nodes if node.last]
        new = [(row, name) for row, name in rows if self._heard.get(name) != row.round]
        for row, name in sorted(new, key=lambda each: each[0].timestamp)[-GOSSIP_NODES:]:
            self._heard[name] = row.round
            for rollout in published(self.store, self.layout, row.round, row.stage, name)[:2]:
                ranked = sorted(completions_of(rollout), key=lambda done: done.reward)
                worst, best = ranked[0], ranked[-1]
                for done in [best] if worst.reward == best.reward else [worst, best]:
                    short = Answered(done.prompt[:GOSSIP_TEXT], done.text[:GOSSIP_TEXT], done.reward, done.by, done.key)
                    heard = Heard(row.timestamp, name, row.round, rollout.question.task or "", rollout.id, short)
                    self.gossip.append(heard)
