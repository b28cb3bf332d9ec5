"""Read a store's URL and open the store. A new backend is registered here and nowhere else."""

import os
from pathlib import Path

from rl_swarm.clock import Clock
from rl_swarm.errors import ConfigError, LibraryError
from rl_swarm.extras import install_command
from rl_swarm.store.base import Store
from rl_swarm.values import expanded, refuse_credentials

EXTRAS = {"s3": "cloud", "gs": "cloud", "az": "cloud", "gdrive": "gdrive"}
CREDENTIALS = ("AWS_", "AZURE_", "GOOGLE_", "DRIVE_EMULATOR_HOST")  # beginnings of the variables that stores read


def open_store(url: str, clock: Clock | None = None, *, writable: bool = True) -> Store:
    """Open a folder (a path or file:// URL), a bucket (s3://, gs://, az://), a folder of Google Drive
    (gdrive://FOLDER_ID), or memory://NAME, a store inside this process.

    With `writable`, a store is probed by writing to it; readers pass False. Raises LibraryError with the command that installs a
    missing extra.
    """
    scheme, rest = _parts(url)
    if scheme == "file":
        from rl_swarm.store.folder import FolderStore

        return FolderStore.open(rest, clock, writable)
    if scheme == "memory":
        from rl_swarm.store.memory import MemoryStore

        return MemoryStore.named(rest, clock)
    if scheme in EXTRAS:
        try:
            return _open_remote(scheme, rest, clock, writable)
        except ModuleNotFoundError as error:
            raise LibraryError(
                f"{scheme}:// needs the package {error.name}, which is not installed: {install_command(EXTRAS[scheme])}"
            ) from None
    raise ConfigError(f"GDRIVE_PATH has the unknown scheme {scheme!r}, got {url!r}: use a folder, s3://, gs://, az:// or gdrive://")


def _open_remote(scheme: str, rest: str, clock: Clock | None, writable: bool) -> Store:
    if scheme == "gdrive":
        from rl_swarm.store.drive import DriveStore

        return DriveStore.open(rest, clock, writable)
    from rl_swarm.store.clouds import open_bucket

    return open_bucket(scheme, rest, clock, writable)


def folder_of(url: str) -> Path | None:
    """The folder that a store's URL names, with '~' expanded; None if the store is no folder."""
    scheme, rest = _parts(url)
    return expanded(rest, "GDRIVE_PATH") if scheme == "file" else None


def outside(path: Path, store_url: str) -> Path:
    """Return the path; raise ConfigError if it lies in the shared folder, where others may have put links under such names."""
    shared = folder_of(store_url)
    typed = Path(os.path.abspath(path))
    if shared and any(place.is_relative_to(shared.resolve()) for place in (typed, typed.parent.resolve())):
        raise ConfigError(
            f"output must not lie in the shared folder, got {str(path)!r}: others may have put links there, name another place"
        )
    return path


def _parts(url: str) -> tuple[str, str]:
    """The scheme of a URL and the rest; a path is a file."""
    refuse_credentials(url)
    scheme, separator, rest = url.partition("://")
    return (scheme, rest) if separator else ("file", url)
