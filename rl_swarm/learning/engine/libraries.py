"""Check library versions before a library is used: a wrong one would fail in strange places later. Imports nothing by itself."""

import importlib.metadata
import operator
import re
import sys
from collections.abc import Iterable

from rl_swarm.errors import LibraryError

# As in pyproject.toml. The first are all that commands need which load no model.
LIGHT = ("click>=8.1", "msgspec>=0.19", "rich>=13", "zstandard>=0.22")
NEEDED = (*LIGHT, "matplotlib>=3.8", "reasoning-gym==0.1.25", "safetensors>=0.4", "torch>=2.6", "transformers>=5.0,<6")
WANTED = NEEDED[-1]

_COMPARED = {">=": operator.ge, "<": operator.lt, "==": operator.eq}


def require_libraries(needed: Iterable[str] = NEEDED) -> None:
    """Raise LibraryError if one of these is missing or of a version that does not fit. Reads metadata only, in milliseconds."""
    if wrong := {each: version for each in needed if not fits(each, version := installed(name_of(each)))}:
        found = ", ".join(f"{name_of(each)} {f'is {version}' if version else 'is missing'}" for each, version in wrong.items())
        raise LibraryError(f"libraries do not fit ({found}): {remedy(wrong)}")


def require_transformers() -> None:
    """Raise LibraryError if the transformers that is imported does not fit: it need not be the one that is installed."""
    import transformers

    version = str(getattr(transformers, "__version__", "unknown"))
    if not fits(WANTED, version):
        raise LibraryError(f"libraries do not fit (transformers is {version}): {remedy([WANTED])}")


def explained(error: ImportError) -> LibraryError:
    """Say in one line which library cannot be imported, and what to do."""
    try:
        require_libraries()
    except LibraryError as found:
        return found
    name = (error.name or "a library").partition(".")[0]
    return LibraryError(f"{name} cannot be imported ({' '.join(str(error).split())[:300]}): install it again, or run 'make setup'")


def installed(name: str) -> str:
    """The version of an installed package; empty if it is missing."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def name_of(requirement: str) -> str:
    return re.split("[<>=]", requirement, maxsplit=1)[0]


def fits(requirement: str, version: str) -> bool:
    """Whether a version meets a requirement such as `transformers>=5.0,<6`."""
    bounds = re.findall(r"(>=|==|<)([0-9.]+)", requirement)
    return bool(_release(version)) and all(_COMPARED[sign](_release(version), _release(bound)) for sign, bound in bounds)


def remedy(requirements: Iterable[str]) -> str:
    """The command that installs them, in the environment of this process, and what to do if that breaks something else."""
    wanted = " ".join(repr(each) for each in requirements)
    return (
        f"run pip install {wanted} with {sys.executable}, or use an environment of its own if something else needs other versions"
    )


def _release(version: str) -> tuple[int, ...]:
    """The release of a version as numbers: of `5.1.0.dev0` and `2.13.0+cpu` only the first three."""
    match = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
