"""How to install an optional part of this package here."""

import importlib.metadata
import json
import os
import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit


def install_command(extra: str) -> str:
    """The command that adds an extra: from the clone that this package was installed from, or else by its name."""
    clone = _clone()
    if clone is None:
        return f"pip install {shlex.quote(f'rl-swarm[{extra}]')}"
    here = "." if clone == Path.cwd() else str(clone)
    return f"pip install -e {shlex.quote(f'{here}[{extra}]')}"


def _clone() -> Path | None:
    """The folder of an editable installation."""
    try:
        said = json.loads(importlib.metadata.distribution("rl-swarm").read_text("direct_url.json") or "{}")
        url = urlsplit(said["url"]) if said["dir_info"]["editable"] else None
    except (importlib.metadata.PackageNotFoundError, KeyError, TypeError, ValueError):
        return None
    return Path(os.path.realpath(unquote(url.path))) if url and url.scheme == "file" else None
