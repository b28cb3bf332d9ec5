"""Read a store's URL and open the store. A new backend is registered here and nowhere else."""

from pathlib import Path

from rl_swarm.clock import Clock
from rl_swarm.config import expanded
from rl_swarm.errors import ConfigError
from rl_swarm.store.base import Store


def open_store(url: str, clock: Clock | None = None, *, writable: bool = True) -> Store:
    """Open a folder (a path or file:// URL) or memory://NAME, a store inside this process.

    With `writable`, a folder is probed by writing to it; readers pass False.
    """
    scheme, rest = _parts(url)
    if scheme == "file":
        from rl_swarm.store.folder import FolderStore

        return FolderStore.open(rest, clock, writable)
    if scheme == "memory":
        from rl_swarm.store.memory import MemoryStore

        return MemoryStore.named(rest, clock)
    raise ConfigError(f"GDRIVE_PATH has the unknown scheme {scheme!r}, got {url!r}: use a folder, file:// or memory://")


def folder_of(url: str) -> Path | None:
    """The folder that a store's URL names, with '~' expanded; None if the store is no folder."""
    scheme, rest = _parts(url)
    return expanded(rest, "GDRIVE_PATH") if scheme == "file" else None


def _parts(url: str) -> tuple[str, str]:
    """The scheme of a URL and the rest; a path is a file."""
    scheme, separator, rest = url.partition("://")
    return (scheme, rest) if separator else ("file", url)
