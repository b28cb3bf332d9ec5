"""Where old rollouts go when they leave an experiment: below the shared store, or to a folder elsewhere.

Files keep their names, below the experiment's: `archives/demo/rollouts/round_3/stage_0/w1.json`. Nothing in an archive is ever
replaced or removed. If something else has the name, such as half a file that a killed process left on a mount, digits are added.
"""

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

from rl_swarm.config import Config
from rl_swarm.document import body_of
from rl_swarm.errors import BadDocument, ConfigError, NotFound
from rl_swarm.packing import unpacked
from rl_swarm.rollout import BUNDLE_BYTES
from rl_swarm.store import Store, folder_of, is_key, open_store
from rl_swarm.swarm.layout import EXPERIMENTS, node_of_file


@dataclass(frozen=True)
class Archive:
    """Keeps files of `experiments/` in a store, below a folder of it or at its root."""

    store: Store
    folder: str = ""

    def place(self, key: str) -> str:
        """The key that a key of an experiment has in the archive."""
        return f"{self.folder}/{key.removeprefix(f'{EXPERIMENTS}/')}".lstrip("/")

    def keep(self, key: str, data: bytes) -> bool:
        """Copy a whole document here and read it back; False if it is not whole, or is not here for certain.

        Of an empty file, which another cleaner may just be removing, the document must be here already.
        """
        target = self.place(key)
        if not data:
            return is_whole(self._read(target))
        if not is_whole(data):
            return False
        return self._has(target, data) or self._has(_other_name(target, data), data)

    def _has(self, key: str, data: bytes) -> bool:
        self.store.put(key, data)
        return self._read(key) == data

    def _read(self, key: str) -> bytes:
        try:
            return self.store.get(key, limit=BUNDLE_BYTES, listed=True)
        except NotFound:
            return b""


def _other_name(key: str, data: bytes) -> str:
    """A name of the same node, which depends on the content, so that it is the same for every cleaner."""
    folder, _, name = key.rpartition("/")
    return f"{folder}/{node_of_file(name)}.{int(hashlib.sha256(data).hexdigest(), 16) % 10**6:06d}.json"


def is_whole(data: bytes) -> bool:
    """Whether a document has all its bytes, by its checksum."""
    try:
        body_of(unpacked(data, BUNDLE_BYTES), BUNDLE_BYTES)
    except BadDocument:
        return False
    return True


def open_archive(config: Config, store: Store, make: bool = True) -> Archive:
    """Open ROLLOUT_ARCHIVE_PATH: a folder of the shared store, or a path or URL of its own, which is made unless `make` is False.

    Raises ConfigError for a place that is or lies in the experiments, where a copy might be the file itself.
    """
    typed = config.archive_path
    wrong = f"ROLLOUT_ARCHIVE_PATH must not lie in {EXPERIMENTS}/ of the shared folder, got {typed!r}: name another folder"
    if "://" not in typed and not typed.startswith(("/", "~")):
        folder = typed.removeprefix("./").rstrip("/")
        if not is_key(folder):
            raise ConfigError(
                f"ROLLOUT_ARCHIVE_PATH must be a folder of the shared one, or a whole path from / on, got {typed!r}: "
                "use letters, digits, '.', '_' and '-'"
            )
        if folder.split("/")[0].lower() == EXPERIMENTS:
            raise ConfigError(wrong)
        return Archive(store, folder)
    place, shared = folder_of(typed), folder_of(store.url)
    if place and shared and (below := _below(place, shared)):
        return open_archive(replace(config, archive_path=below), store)  # by keys, which follow no link that others put there
    if place and shared and _inside(place.absolute(), shared / EXPERIMENTS):
        raise ConfigError(wrong)
    if place and make:
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"ROLLOUT_ARCHIVE_PATH cannot be made, got {typed!r} ({error.strerror}): name a folder that can be written"
            ) from None
    return Archive(open_store(typed, store.clock, writable=make))


def _below(place: Path, shared: Path) -> str:
    """The path of a folder below the shared one, as it was typed; empty if it lies elsewhere."""
    typed = Path(os.path.abspath(place))
    roots = [root for root in (shared.absolute(), shared.resolve()) if typed.is_relative_to(root) and typed != root]
    return typed.relative_to(roots[0]).as_posix() if roots else ""


def _inside(place: Path, folder: Path) -> bool:
    """Whether a path is a folder or lies in it, by its name or by what it is."""
    resolved = place.resolve()
    if resolved.is_relative_to(folder.resolve()):
        return True
    return folder.exists() and any(each.exists() and os.path.samefile(each, folder) for each in (resolved, *resolved.parents))
