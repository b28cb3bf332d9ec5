"""The versions of libraries that this package works with, checked where they are used: a wrong one fails in strange places later.

Nothing is imported here before it is asked for.
"""

import re

from rl_swarm.errors import ModelError

TRANSFORMERS = ((5, 0), (6, 0))  # from, and below; pyproject.toml says the same
WANTED = "transformers>=5.0,<6"


def usable_transformers(version: str) -> bool:
    least, beyond = TRANSFORMERS
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    return least <= found < beyond


def require_transformers() -> None:
    """Raise ModelError if transformers is missing or of a version that this package does not work with."""
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise ModelError(f"{error.name} is not installed: run pip install '{WANTED}'") from None
    version = str(getattr(transformers, "__version__", "unknown"))
    if not usable_transformers(version):
        raise ModelError(f"transformers {version} is installed, which does not work here: run pip install '{WANTED}'")
