"""Keep journals that were read on this machine, so that a later look, also of another process, reads only what is new.

The store stays the truth: a journal that was rewritten is read again. An index that is damaged or cannot be written costs time and
nothing else.
"""

import contextlib
import hashlib
import secrets
import shutil
from pathlib import Path

import msgspec

from rl_swarm.runs.following import Place, Tail
from rl_swarm.runs.progress import JOURNAL_BYTES, METRICS
from rl_swarm.runs.record import Round, by_round, decoded
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout


class _Header(msgspec.Struct, frozen=True):
    """The first line of a file of the index; the lines that were read follow."""

    key: str
    sha256: str
    place: Place


class KeptJournals:
    """The metrics of one experiment. `home` is RL_SWARM_HOME."""

    def __init__(self, home: Path, store: Store, layout: Layout) -> None:
        self.store, self.layout = store, layout
        name = hashlib.sha256(f"{store.url}\n{layout.root}".encode()).hexdigest()[:32]
        self.folder = home / "index" / name

    def records(self, node_id: str) -> list[Round]:
        """Return a node's records, one a round, in order: as `progress.records` does."""
        key = self.layout.log(node_id, METRICS)
        tail, lines = Tail(self.store, key, JOURNAL_BYTES), list[str]()
        path = self.folder / node_id
        if kept := _read(path, key):
            tail.go_on_at(kept[0])
            lines = kept[1]
        anew, new = tail.lines()
        anew = anew or tail.place().long
        lines = new if anew else lines + new
        if new and not tail.place().long:
            _write(path, key, tail.place(), lines)
        return list(by_round(decoded(lines, Round)).values())

    def forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _read(path: Path, key: str) -> tuple[Place, list[str]] | None:
    """The place and the lines of a file of the index; None if there is none that can be used."""
    try:
        first, _, body = path.read_bytes().partition(b"\n")
        header = msgspec.json.decode(first, type=_Header)
        bytes.fromhex(header.place.before)
    except (OSError, ValueError):
        return None
    if header.key != key or hashlib.sha256(body).hexdigest() != header.sha256:
        return None
    return header.place, body.decode().split("\n") if body else []


def _write(path: Path, key: str, place: Place, lines: list[str]) -> None:
    body = "\n".join(lines).encode("utf-8", "replace")
    header = _Header(key, hashlib.sha256(body).hexdigest(), place)
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(msgspec.json.encode(header) + b"\n" + body)
        part.replace(path)
