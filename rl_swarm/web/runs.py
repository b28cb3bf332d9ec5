"""Follow the runs of one store, once for all viewers.

One thread polls the runs that somebody watches. A run that nobody has watched for a while is read again before it is shown.
Memory is bounded: the least recently watched runs are dropped.
"""

import threading
import time
from collections import OrderedDict
from contextlib import suppress

from rl_swarm.errors import ConfigError, NotFound, StoreAway
from rl_swarm.runs.following import Moment, look_once
from rl_swarm.runs.index import RunIndex
from rl_swarm.store import Store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.web import documents as say
from rl_swarm.web.views import safe, status_of

LOOK_SECONDS = 0.5  # between two looks at the watched runs
READ_ON_SECONDS = 0.02  # the same while a journal has more to read; gives viewers their turn
WATCHED_SECONDS = 30.0  # how long a run counts as watched after its last request
MOST_RUNS = 12  # that are kept in memory
MOST_EXPERIMENTS = 200  # in the list
LIST_SECONDS = 5.0  # how long the list, and each line of it, is cached
LIST_BUDGET = 0.5  # seconds that one response may spend on looking at experiments


class Runs:
    """Find the index of a run by its name. `default` is used for requests that name none."""

    def __init__(self, store: Store, default: str | None = None, founder: str | None = None) -> None:
        self.store = store
        self.founder = founder
        self._default = default
        self._indexes: OrderedDict[str, RunIndex] = OrderedDict()
        self._watched_at: dict[str, float] = {}
        self._lock = threading.Lock()
        self._listing = threading.Lock()
        self._names: list[str] = []
        self._listed_at = -LIST_SECONDS
        self._lines: dict[str, tuple[float, say.ExperimentLine]] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="runs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()

    @property
    def closing(self) -> bool:
        return self._closing.is_set()

    @property
    def default(self) -> str | None:
        """The experiment that the server was started with, or else the one with the newest known round."""
        names = self.names()
        if self._default or not names:
            return self._default
        return max(names, key=lambda name: self._lines[name][1].last_round_at or 0.0 if name in self._lines else 0.0)

    def names(self) -> list[str]:
        """The experiments in the store. Raises StoreAway."""
        if time.monotonic() - self._listed_at >= LIST_SECONDS:
            self._names, self._listed_at = sorted(experiments.names(self.store)), time.monotonic()
        return self._names

    def index(self, name: str | None) -> RunIndex:
        """Return the run; raise NotFound if there is none, ConfigError if it is not the founder's."""
        name = name or self.default
        if name is None:
            raise NotFound(f"{self.store.url} holds no experiment: start one with 'rl-swarm demo' or 'rl-swarm swarm'")
        if name not in self._indexes and name not in self.names():
            raise NotFound(f"there is no experiment {name!r} in {self.store.url}: choose one of /api/experiments")
        with self._lock:
            known = self._indexes.setdefault(name, RunIndex(self.store, Layout(name), self.founder))
            known.current &= self._is_watched(name)
            self._watched_at[name] = time.monotonic()
            self._indexes.move_to_end(name)
            while len(self._indexes) > MOST_RUNS:
                dropped, _ = self._indexes.popitem(last=False)
                self._watched_at.pop(dropped, None)
        if not known.current:
            self._catch_up(name, known)
        return known

    def watch(self, index: RunIndex) -> bool:
        """Keep a run up to date for a viewer who holds its index; return False if the run was dropped meanwhile."""
        name = index.layout.experiment_name
        with self._lock:
            if self._indexes.get(name) is not index:
                return False
            self._watched_at[name] = time.monotonic()
            self._indexes.move_to_end(name)
            return True

    def watched(self) -> list[RunIndex]:
        """The runs that somebody has asked for lately."""
        with self._lock:
            return [each for name, each in self._indexes.items() if self._is_watched(name)]

    def _is_watched(self, name: str) -> bool:
        return time.monotonic() - self._watched_at.get(name, -WATCHED_SECONDS) < WATCHED_SECONDS

    def _catch_up(self, name: str, index: RunIndex) -> None:
        """Look at a run before its first viewer sees it; others who ask meanwhile wait for the same look."""
        with index.reading():
            try:
                if not index.current:
                    index.look()
            except ConfigError:
                with self._lock:
                    self._indexes.pop(name, None)
                raise

    def _read_ahead(self) -> None:
        """Read what the first viewer will want: the default run and, on a local disk, the others."""
        with suppress(NotFound, StoreAway):
            others = self.names()[: MOST_RUNS - 1] if self.store.hang_seconds is None else []
            for name in [self.default, *others]:
                with suppress(ConfigError):
                    if not self._closing.is_set():
                        index = self.index(name)
                        while index.behind and not self._closing.wait(READ_ON_SECONDS):
                            index.look()

    def _follow(self) -> None:
        """Poll the watched runs; once all journals are read, spend at most a quarter of the time on it."""
        self._read_ahead()
        pause = LOOK_SECONDS
        while not self._closing.wait(pause):
            began = time.monotonic()
            for index in self.watched():
                with suppress(ConfigError):  # not the founder's after all: the index itself says so
                    index.look()
            behind = any(index.behind for index in self.watched())
            pause = READ_ON_SECONDS if behind else max(LOOK_SECONDS, 3 * (time.monotonic() - began))

    def listing(self, now: float) -> say.Experiments:
        """Return a few figures of each experiment. A long list is read little by little, the oldest lines first."""
        with self._listing:
            names = self.names()
            shown = names[:MOST_EXPERIMENTS]
            deadline = time.monotonic() + LIST_BUDGET
            self._lines = {name: line for name, line in self._lines.items() if name in shown}
            for name in sorted(shown, key=lambda each: self._lines.get(each, (0.0, None))[0]):
                if time.monotonic() >= deadline:
                    break
                if time.monotonic() - self._lines.get(name, (-LIST_SECONDS, None))[0] >= LIST_SECONDS:
                    self._lines[name] = (time.monotonic(), self._line(name, now))
            lines = [self._lines[name][1] if name in self._lines else say.ExperimentLine(name, "unknown") for name in shown]
        return say.Experiments(
            [each for each in lines if each.status != "empty"], self.default, max(0, len(names) - MOST_EXPERIMENTS)
        )

    def _line(self, name: str, now: float) -> say.ExperimentLine:
        known = self._indexes.get(name)
        if known and known.current and self._is_watched(name):
            return line_of(known.moment, now)
        try:
            return line_of(look_once(self.store, Layout(name), self.founder), now)
        except ConfigError as error:
            return say.ExperimentLine(name, "refused", detail=safe(str(error), 300))
        except StoreAway as error:
            return say.ExperimentLine(name, "unknown", detail=safe(str(error), 300))


def line_of(moment: Moment, now: float) -> say.ExperimentLine:
    workers = moment.workers
    rewards = [node.reward for node in workers if node.reward is not None]
    last = next((node.last for node in workers if node.last), None)
    return say.ExperimentLine(
        name=moment.experiment,
        status=status_of(moment, now),
        rounds_done=moment.rounds_done,
        max_rounds=moment.max_rounds,
        workers=len(workers),
        reward=sum(rewards) / len(rewards) if rewards else None,
        model=", ".join(sorted({safe(node.model) for node in workers})[:3]),
        own_wanted=last.own_wanted if last else None,
        external_wanted=last.external_wanted if last else None,
        last_round_at=moment.last_round_at,
    )
