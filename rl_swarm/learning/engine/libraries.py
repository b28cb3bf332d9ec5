"""Check library versions where a library is used: a wrong version would fail in strange places later. Imports nothing by itself."""

from rl_swarm.errors import ModelError

WANTED = "transformers>=5.0,<6"  # as in pyproject.toml


def usable_transformers(version: str) -> bool:
    return version.startswith("5.")


def require_transformers() -> None:
    """Raise ModelError if transformers is missing or of an unusable version."""
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise ModelError(f"{error.name} is not installed: run pip install '{WANTED}'") from None
    version = str(getattr(transformers, "__version__", "unknown"))
    if not usable_transformers(version):
        raise ModelError(f"transformers {version} is installed, which does not work here: run pip install '{WANTED}'")
