"""Use the store as a node would: write, read, list, create exclusively, delete. Then read the experiment in it.

All documents are written below `doctor/` and deleted again. Times are measured on this machine: how soon other machines see a write
is up to the mount.
"""

import contextlib
import secrets
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial

from rl_swarm import config as configuration
from rl_swarm.clock import Clock, SystemClock
from rl_swarm.config import Config
from rl_swarm.errors import ConfigError, NotFound, Refused, StoreAway
from rl_swarm.runs.validate import Finding
from rl_swarm.store import Store, folder_of, is_key, open_store
from rl_swarm.store.aside import StillRunning, aside
from rl_swarm.store.folder import FolderStore
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import registered
from rl_swarm.tasks import tasks_version

FOLDER = "doctor"
SAMPLE = b"x" * 4096 + b"\n"
VISIBLE_SECONDS = 30.0
LOOK_SECONDS = 0.2
SLOW_SECONDS = 5.0


class StoreExam:
    """Examine a store in a thread. Afterwards `config` has the experiment's settings, and a folder's `free_bytes` are known."""

    def __init__(
        self,
        config: Config,
        environment: Mapping[str, str],
        flags: Mapping[str, str | None],
        *,
        clock: Clock | None = None,
        open_url: Callable[[str], Store] = open_store,
    ) -> None:
        self.config = config
        self.free_bytes: int | None = None
        self._environment, self._flags = environment, flags
        self._clock: Clock = clock or SystemClock()
        self._open_url = open_url
        self._call: Future[None] | None = None
        self._findings: list[Finding] = []
        self._doing = "opening it"

    def start(self) -> None:
        self._call = aside(self._run)

    def findings(self, seconds: float) -> list[Finding]:
        """Wait for the end, so many seconds at most, and return what was found until then."""
        if self._call is None:
            return [
                Finding("store", "warning", "GDRIVE_PATH is not set, so no store was checked: it names the folder of all nodes")
            ]
        try:
            self._call.result(seconds)
        except StillRunning:
            hung = f"{self.config.store_url} gave no answer in {seconds:.0f} s while {self._doing}"
            return [*self._findings, Finding("store", "failed", f"{hung}: if it is a mount, mount it again")]
        return self._findings

    def _run(self) -> None:
        url, made = self.config.store_url, None
        try:
            root = folder_of(url)
            made = root if root and not root.exists() else None
            store = self._open_url(url)
            for check in (self._check_place, self._check_documents, self._check_experiment):
                try:
                    check(store)
                except Refused as error:  # concerns one name only: go on with the others
                    self._add("store", "failed", str(error))
        except ConfigError as error:
            self._add("store", "failed", str(error))
        except StoreAway as away:
            self._add("store", "failed", f"{away}; if it is a mount that stays away, mount it again")
        except OSError as error:  # a dead mount raises even if one only asks whether a folder exists
            self._add("store", "failed", f"{url} does not answer (Errno {error.errno}, {error.strerror}): mount it again")
        if made:
            with contextlib.suppress(OSError):  # not empty, or no folder
                made.rmdir()

    def _check_place(self, store: Store) -> None:
        self._doing = "asking how much room it has"
        if isinstance(store, FolderStore):
            with contextlib.suppress(OSError):  # shows below
                self.free_bytes = shutil.disk_usage(store.root).free
        self._add("store", "warning" if isinstance(store, MemoryStore) else "ok", store.about)

    def _check_documents(self, store: Store) -> None:
        name, contested = (f"{FOLDER}/{secrets.token_hex(8)}.json" for _ in range(2))
        try:
            self._write(store, name)
            self._read(store, name)
            self._list(store, name)
            self._create_exclusively(store, contested)
        finally:
            self._delete(store, [name, contested])

    def _write(self, store: Store, name: str) -> None:
        self._doing, began = "writing", self._clock.monotonic()
        if store.put(name, SAMPLE):
            self._timed("write", began, f"{len(SAMPLE)} bytes are written")
        else:
            self._add("write", "failed", f"{name} existed before it was written: the store mixes up names, use another")

    def _read(self, store: Store, name: str) -> None:
        self._doing, began = "reading back", self._clock.monotonic()
        try:
            data = store.get(name, limit=len(SAMPLE), listed=True)
        except NotFound:
            data = b""
        if data == SAMPLE:
            self._timed("read", began, "the document comes back")
        elif SAMPLE.startswith(data):
            self._add("read", "warning", f"only {len(data)} of {len(SAMPLE)} bytes can be read yet: nodes retry, and are slower")
        else:
            self._add("read", "failed", "other bytes come back than were written: the store damages files, use another")

    def _list(self, store: Store, name: str) -> None:
        self._doing, began = "waiting for a write to be listed", self._clock.monotonic()
        while name.rpartition("/")[2] not in store.list(FOLDER):
            if self._clock.monotonic() - began >= VISIBLE_SECONDS:
                remedy = "peers' rollouts come late; a higher ROLLOUT_WINDOW_ROUNDS keeps them usable"
                self._add("listing", "warning", f"a write is not listed after {VISIBLE_SECONDS:.0f} s: {remedy}")
                return
            self._clock.sleep(LOOK_SECONDS)
        self._timed("listing", began, "a write is visible here")

    def _create_exclusively(self, store: Store, name: str) -> None:
        self._doing = "creating one file twice"
        both = threading.Barrier(2)

        def put(number: int) -> bool:
            both.wait()
            return store.put(name, SAMPLE + bytes([number]))

        writers = [aside(partial(put, number)) for number in range(2)]
        won = sum(writer.result() for writer in writers)
        if won == 1:
            self._add("exclusive create", "ok", "of two writers of one name exactly one wins")
        else:
            remedy = "start the first node alone, one coordinator only, and never one NODE_ID twice"
            self._add("exclusive create", "warning", f"of two writers of one name {won} won: {remedy}")

    def _delete(self, store: Store, names: list[str]) -> None:
        self._doing, began = "deleting the documents", self._clock.monotonic()
        try:
            for name in names:
                store.delete(name)
            store.remove_folder(FOLDER)  # unless another doctor's documents are in it
            left = {name.rpartition("/")[2] for name in names} & set(store.list(FOLDER))
        except StoreAway as away:
            self._add("delete", "warning", f"{away}; delete {FOLDER}/ in the store by hand")
            return
        if left:
            self._add("delete", "warning", f"deleted documents are still listed: look for {FOLDER}/ in the store later")
        else:
            self._timed("delete", began, "nothing is left behind")

    def _check_experiment(self, store: Store) -> None:
        self._doing = "reading the experiment"
        name = self.config.experiment
        if not name:
            self._add("experiment", "warning", "EXPERIMENT_NAME is not set, so no experiment was checked")
            return
        layout = Layout(name)
        try:
            found = experiments.read(store, layout, self.config.founder)
            if found is None:
                if layout.experiment.rpartition("/")[2] in store.list(layout.root):
                    self._add("experiment", "failed", f"{layout.experiment} is incomplete: wait until it has synchronised")
                else:
                    self._add("experiment", "ok", f"{name!r} does not exist yet: the first node publishes its settings")
                return
            self.config = configuration.load(self._environment, self._flags, found.settings)
            experiments.check(self.config, found, tasks_version())
        except ConfigError as error:
            self._add("experiment", "failed", str(error))
            return
        differing = experiments.departures(self.config, found)
        agreeing = f"but {'; '.join(differing)}" if differing else "and the settings here agree with it"
        self._add("experiment", "warning" if differing else "ok", f"{name!r} exists, {agreeing}")
        self._check_permissions(store, layout)
        self._doing = "looking for nodes"
        nodes, own = registered(store, layout), self.config.node_id
        known = f"; {own} among them, it resumes from its checkpoint" if own in nodes else ""
        self._add("nodes", "ok", f"{len(nodes)} registered{known}")

    def _check_permissions(self, store: Store, layout: Layout) -> None:
        """Check folders that were made by hand, or before the root got its mode: new folders take the mode of the root."""
        self._doing = "checking permissions"
        if not isinstance(store, FolderStore):
            return
        below = [f"{layout.root}/{name.rstrip('/')}" for name in store.list(layout.root) if name.endswith("/") and is_key(name)]
        for folder in [layout.root, *below]:
            if why := store.unwritable(folder):
                where = store.root / layout.root
                remedy = f"its owner should run 'chmod -R u+rwX,go=u {where}', or give it the mode of {store.root}"
                self._add("permissions", "failed", f"{folder} cannot be written by this user ({why}): {remedy}")
                return
        self._add("permissions", "ok", "this user may write to the experiment")

    def _timed(self, check: str, began: float, what: str) -> None:
        seconds = self._clock.monotonic() - began
        if seconds < SLOW_SECONDS:
            self._add(check, "ok", f"{what} after {seconds * 1000:.0f} ms")
        else:
            self._add(check, "warning", f"{what}, but after {seconds:.0f} s: nodes go on meanwhile, peers' rollouts come late")

    def _add(self, check: str, status: str, detail: str) -> None:
        self._findings.append(Finding(check, status, detail))
