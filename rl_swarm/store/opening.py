"""Open the store that a URL names. A new backend is registered here and nowhere else."""

from rl_swarm.clock import Clock
from rl_swarm.errors import ConfigError
from rl_swarm.store.base import Store


def open_store(url: str, clock: Clock | None = None, *, writable: bool = True) -> Store:
    """Open a folder (a path or file:// URL) or memory://NAME, a store inside this process.

    With `writable`, a folder is probed by writing to it; readers pass False.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "file":
        from rl_swarm.store.folder import FolderStore

        return FolderStore.open(rest if separator else url, clock, writable)
    if scheme == "memory":
        from rl_swarm.store.memory import MemoryStore

        return MemoryStore.named(rest, clock)
    raise ConfigError(f"GDRIVE_PATH has the unknown scheme {scheme!r}, got {url!r}: use a folder, file:// or memory://")
