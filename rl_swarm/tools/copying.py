"""Copy an experiment from one store to another, whatever their kinds: resumable, and every file is read back.

A file that is there already with the same content is left as it is, and one that differs is replaced, so the same command goes on
where it was interrupted, and brings what a run has written since. `experiment.json` comes last: until then the copy cannot be taken
for a whole one. Nothing is deleted, neither here nor there. Names that are no keys are left out.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rl_swarm.errors import ConfigError, NotFound, Refused, StoreError
from rl_swarm.store import Store, is_key
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout

MOST_BYTES = 1 << 36  # of one file: larger than any checkpoint
BLOCK_BYTES = 1 << 20


@dataclass
class Copied:
    """What was done, by files; `left_out` could not be read, or have names that no store takes."""

    written: int = 0
    unchanged: int = 0
    left_out: int = 0
    bytes: int = 0


def choose(source: Store, name: str | None) -> Layout:
    """The experiment to copy: the one that is named, or the only one that the store has."""
    known = experiments.names(source)
    if name is None and len(known) == 1:
        return Layout(known[0])
    if name is None:
        listed = f"{source.url} has {', '.join(sorted(known)[:10])}" if known else f"{source.url} has none"
        raise ConfigError(f"EXPERIMENT_NAME is not set: name one with --experiment; {listed}")
    experiments.require(source, layout := Layout(name))
    return layout


def copy_experiment(source: Store, target: Store, layout: Layout, show: Callable[[Copied], None] = lambda done: None) -> Copied:
    """Copy all files; `show` is told now and then. Raises ConfigError if the target has another experiment of this name."""
    ours, theirs = experiments.existing(source, layout), experiments.read(target, layout)
    if theirs and theirs.experiment_id != ours.experiment_id:
        raise ConfigError(
            f"{target.url} has another experiment {layout.experiment_name!r}, id {theirs.experiment_id}, here it is "
            f"{ours.experiment_id}: copy it elsewhere, or remove that one"
        )
    done = Copied()
    with tempfile.TemporaryDirectory(prefix="rl-swarm-copy-") as folder:
        with ThreadPoolExecutor(max(source.parallel, target.parallel)) as threads:
            keys = [key for key in _keys(source, layout.root, done) if key != layout.experiment]
            for outcome in threads.map(lambda key: _copy(source, target, key, Path(folder)), keys):
                _count(done, outcome)
                show(done)
        _count(done, _copy(source, target, layout.experiment, Path(folder)))
    return done


def _count(done: Copied, outcome: tuple[str, int]) -> None:
    kind, size = outcome
    setattr(done, kind, getattr(done, kind) + 1)
    done.bytes += size


def _keys(store: Store, folder: str, done: Copied) -> Iterator[str]:
    """All keys below a folder, oldest rounds not necessarily first."""
    for name in store.list(folder):
        key = f"{folder}/{name}"
        if not is_key(key):
            done.left_out += 1
        elif name.endswith("/"):
            yield from _keys(store, key.rstrip("/"), done)
        else:
            yield key


def _copy(source: Store, target: Store, key: str, folder: Path) -> tuple[str, int]:
    """Copy one file; return the outcome, a field of Copied, and the number of bytes written."""
    here, there = (folder / f"{hashlib.sha256(key.encode()).hexdigest()}.{side}" for side in ("here", "there"))
    try:
        try:
            source.get_file(key, here, limit=MOST_BYTES)
        except NotFound:  # removed meanwhile, such as an old checkpoint, or nothing that can be read
            return "left_out", 0
        if _same(target, key, here, there):
            return "unchanged", 0
        if not target.put_file(key, here):
            target.delete(key)
            if not target.put_file(key, here):
                raise Refused(f"{key} is taken by something that cannot be replaced: remove it")
        if not _same(target, key, here, there):
            raise StoreError(f"{key} does not come back from {target.url} as it was written: copy again, or use another store")
        return "written", here.stat().st_size
    finally:
        here.unlink(missing_ok=True)
        there.unlink(missing_ok=True)


def _same(target: Store, key: str, here: Path, there: Path) -> bool:
    """Whether the target has the same bytes under this key."""
    try:
        target.get_file(key, there, limit=here.stat().st_size)
    except NotFound:  # also if it is longer
        return False
    return _checksum(here) == _checksum(there)


def _checksum(path: Path) -> bytes:
    checksum = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            checksum.update(block)
    return checksum.digest()
