"""Use the store as a node would: write, read, list, create exclusively, delete; then look at the experiment in it.

Every document that is written lies under `doctor/` and is deleted again. Times are measured on this machine: how soon *other*
machines see a write is up to the mount. Clocks are compared to inform people only; nothing in the swarm relies on them.
"""

import contextlib
import secrets
import shutil
import threading
from collections.abc import Callable, Mapping
from functools import partial

from rl_swarm import config as configuration
from rl_swarm.clock import Clock, SystemClock
from rl_swarm.config import Config, expanded
from rl_swarm.errors import ConfigError, NotFound, Refused, StoreAway
from rl_swarm.runs.validate import Finding
from rl_swarm.store import Store, Transient, is_key, open_store
from rl_swarm.store.aside import aside
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import newest_heartbeat, read_heartbeat, read_registration, registered
from rl_swarm.tasks import tasks_version

FOLDER = "doctor"
PROBE = b"x" * 4096 + b"\n"
VISIBLE_SECONDS = 30.0
LOOK_SECONDS = 0.2
SLOW_SECONDS = 5.0
CLOCK_SECONDS = 2.0  # some file systems count in steps of two seconds
MOST_PEERS = 10


class StoreExam:
    """Afterwards `config` has the experiment's settings beneath its own, and `free_bytes` is known where the store is a folder."""

    def __init__(
        self,
        config: Config,
        environment: Mapping[str, str],
        flags: Mapping[str, str | None],
        *,
        clock: Clock | None = None,
        visible_seconds: float = VISIBLE_SECONDS,
        open_url: Callable[[str], Store] = open_store,
    ) -> None:
        self.config = config
        self.free_bytes: int | None = None
        self._environment, self._flags = environment, flags
        self._clock: Clock = clock or SystemClock()
        self._visible_seconds, self._open_url = visible_seconds, open_url
        self._findings: list[Finding] = []
        self._doing = "opening it"

    def start(self) -> Callable[[float], list[Finding]]:
        """Begin, and return what waits for the end so many seconds at most and then returns what was found until then."""
        call = aside(self._run)

        def findings(seconds: float) -> list[Finding]:
            try:
                call.result(seconds)
            except TimeoutError:
                hung = f"{self.config.store_url} gave no answer in {seconds:.0f} s while {self._doing}"
                return [*self._findings, Finding("store", "failed", f"{hung}: the mount hangs, mount it again")]
            return self._findings

        return findings

    def _run(self) -> None:
        url = self.config.store_url
        try:
            root = expanded(url.removeprefix("file://"), "GDRIVE_PATH")
            made = not root.exists()
            store = self._open_url(url)
        except ConfigError as error:
            self._add("store", "failed", str(error))
            return
        except OSError as error:  # a mount that died raises also where one only asks whether a folder exists
            self._add("store", "failed", f"{url} does not answer (Errno {error.errno}, {error.strerror}): mount it again")
            return
        try:
            for look in (self._look_at_place, self._look_at_documents, self._look_at_experiment):
                try:
                    look(store)
                except Refused as error:  # of one name: everything else can be looked at
                    self._add("store", "failed", str(error))
        except StoreAway as away:
            self._add("store", "failed", f"{away}; if it stays away, mount it again")
        if made and isinstance(store, FolderStore):
            with contextlib.suppress(OSError):
                root.rmdir()

    def _look_at_place(self, store: Store) -> None:
        self._doing = "asking how much room it has"
        if not isinstance(store, FolderStore):
            inside = store.url.startswith("memory://")
            why = f"{store.url} lives inside one process: nodes started by themselves do not share it" if inside else store.url
            self._add("store", "warning" if inside else "ok", why)
            return
        with contextlib.suppress(OSError):  # what does not answer here shows below
            self.free_bytes = shutil.disk_usage(store.root).free
        if store.local:
            where = (
                "this machine's own disk: journals grow in place; other machines see it only if you share or synchronise the folder"
            )
        else:
            where = (
                "a FUSE or network mount: documents are written in place, journals come in segments, and other machines see a "
                "write when the mount has passed it on, on a Drive after seconds to minutes"
            )
        self._add("store", "ok", f"{store.root}, {where}")

    def _look_at_documents(self, store: Store) -> None:
        name, contested = (f"{secrets.token_hex(8)}.json" for _ in range(2))
        try:
            before = self._clock.wall()
            self._write(store, name)
            self._compare_clocks(store, name, before, self._clock.wall())
            self._read(store, name)
            self._list(store, name)
            self._create_exclusively(store, contested)
        finally:
            self._delete(store, (name, contested))

    def _write(self, store: Store, name: str) -> None:
        self._doing, began = "writing", self._clock.monotonic()
        if store.put(f"{FOLDER}/{name}", PROBE):
            self._timed("write", began, f"{len(PROBE)} bytes are written")
        else:
            self._add("write", "failed", f"{FOLDER}/{name} was there before it was written: the store answers for another one")

    def _read(self, store: Store, name: str) -> None:
        self._doing, began = "reading back", self._clock.monotonic()
        try:
            data = store.get(f"{FOLDER}/{name}", limit=len(PROBE), listed=True)
        except NotFound:
            self._add("read", "warning", "what was written cannot be read yet: nodes will look again, and everything takes longer")
            return
        if data == PROBE:
            self._timed("read", began, "what was written comes back")
        elif PROBE.startswith(data):
            self._add("read", "warning", f"only {len(data)} of {len(PROBE)} bytes are there yet: nodes will look again")
        else:
            self._add("read", "failed", "what comes back is not what was written: the store damages files, use another")

    def _list(self, store: Store, name: str) -> None:
        self._doing, began = "waiting for a write to be listed", self._clock.monotonic()
        while name not in store.list(FOLDER):
            if self._clock.monotonic() - began >= self._visible_seconds:
                late = f"a write is not listed after {self._visible_seconds:.0f} s"
                self._add(
                    "listing", "warning", f"{late}: peers' rollouts come late; a higher ROLLOUT_WINDOW_ROUNDS keeps them usable"
                )
                return
            self._clock.sleep(LOOK_SECONDS)
        self._timed("listing", began, "a write is visible here")

    def _create_exclusively(self, store: Store, name: str) -> None:
        self._doing = "creating one file twice"
        both = threading.Barrier(2)

        def put(number: int) -> bool:
            both.wait()
            return store.put(f"{FOLDER}/{name}", PROBE + bytes([number]))

        racers = [aside(partial(put, number)) for number in range(2)]
        won = sum(racer.result() for racer in racers)
        if won == 1:
            self._add("exclusive create", "ok", "of two writers of one name exactly one wins")
        else:
            remedy = "start the first node alone, one coordinator only, and never one NODE_ID twice"
            self._add("exclusive create", "warning", f"of two writers of one name {won} won: {remedy}")

    def _compare_clocks(self, store: Store, name: str, before: float, after: float) -> None:
        self._doing = "comparing clocks"
        if not isinstance(store, FolderStore):
            return
        try:
            stamp = store.modified(f"{FOLDER}/{name}")
        except (NotFound, Transient) as error:
            self._add("clock", "warning", f"the time of what was written cannot be read ({error})")
            return
        skew = stamp - max(before, min(stamp, after))
        if abs(skew) <= CLOCK_SECONDS:
            self._add("clock", "ok", "the store's times are those of this machine")
        else:
            apart = f"the store's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
            self._add("clock", "warning", f"{apart}: training does not mind, times in 'rl-swarm status' are off; set the clock")

    def _delete(self, store: Store, names: tuple[str, ...]) -> None:
        self._doing, began = "deleting what was written", self._clock.monotonic()
        try:
            for name in names:
                store.delete(f"{FOLDER}/{name}")
            if isinstance(store, FolderStore):
                store.remove_folder(FOLDER)  # unless it is not empty: then somebody else's examination is under way
            left = set(names) & set(store.list(FOLDER))
        except StoreAway as away:
            self._add("delete", "warning", f"{away}; delete {FOLDER}/ in the store by hand")
            return
        if left:
            self._add("delete", "warning", f"still listed after it was deleted: look for {FOLDER}/ in the store later")
        else:
            self._timed("delete", began, "nothing is left behind")

    def _look_at_experiment(self, store: Store) -> None:
        self._doing = "reading the experiment"
        name = self.config.experiment
        if not name:
            self._add("experiment", "warning", "EXPERIMENT_NAME is not set, so no experiment was looked at")
            return
        layout = Layout(name)
        try:
            found = experiments.read(store, layout, self.config.founder)
            if found is None and layout.experiment.rpartition("/")[2] in store.list(layout.root):
                self._add("experiment", "failed", f"{layout.experiment} is not all there: wait until it has synchronised")
                return
            if found is None:
                self._add("experiment", "ok", f"{name!r} is not there yet: the first node that starts publishes its settings")
                return
            self.config = configuration.load(self._environment, self._flags, found.settings)
            experiments.check(self.config, found, tasks_version())
        except ConfigError as error:
            self._add("experiment", "failed", str(error))
            return
        self._add("experiment", "ok", f"{name!r} is there, the settings here agree with it")
        self._look_at_permissions(store, layout)
        self._look_at_nodes(store, layout)

    def _look_at_permissions(self, store: Store, layout: Layout) -> None:
        """New folders take the mode of the root; those made by hand, or before that mode was changed, may not have it."""
        self._doing = "looking at permissions"
        if not isinstance(store, FolderStore):
            return
        below = [f"{layout.root}/{name.rstrip('/')}" for name in store.list(layout.root) if name.endswith("/") and is_key(name)]
        for folder in [layout.root, *below]:
            if why := store.unwritable(folder):
                remedy = (
                    f"its owner should run 'chmod -R u+rwX,go=u {store.root / layout.root}', or give it the mode of {store.root}"
                )
                self._add("permissions", "failed", f"{folder} cannot be written by this user ({why}): {remedy}")
                return
        self._add("permissions", "ok", "this user may write to the experiment")

    def _look_at_nodes(self, store: Store, layout: Layout) -> None:
        self._doing = "looking for nodes"
        nodes = sorted(registered(store, layout))
        own = self.config.node_id
        known = f"; {own} among them, it goes on from its checkpoint" if own in nodes else ""
        self._add("nodes", "ok", f"{len(nodes)} registered{known}")
        signs = {node: sign for node in nodes[:MOST_PEERS] if node != own and (sign := _newest_sign(store, layout, node))}
        if signs:
            node = max(signs, key=lambda node: signs[node])
            apart = self._clock.wall() - signs[node]
            when = f"{apart:.0f} s ago" if apart >= 0 else f"{-apart:.0f} s in the future"
            self._add("peers' clocks", "ok", f"the newest sign, of {node}, is from {when} by its own clock; nothing relies on that")

    def _timed(self, check: str, began: float, what: str) -> None:
        seconds = self._clock.monotonic() - began
        if seconds < SLOW_SECONDS:
            self._add(check, "ok", f"{what} after {seconds * 1000:.0f} ms")
        else:
            self._add(check, "warning", f"{what}, but after {seconds:.0f} s: nodes go on meanwhile, peers' rollouts come late")

    def _add(self, check: str, status: str, detail: str) -> None:
        self._findings.append(Finding(check, status, detail))


def _newest_sign(store: Store, layout: Layout, node_id: str) -> float | None:
    sequence = newest_heartbeat(store, layout, node_id)
    beat = read_heartbeat(store, layout, node_id, sequence) if sequence is not None else None
    registration = read_registration(store, layout, node_id)
    return beat.sent_at if beat else registration.registered_at if registration else None
