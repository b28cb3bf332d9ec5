"""Look at this machine, its libraries, the store and the experiment, and say of each what is fine and what to do about the rest.

    machine.py   Python, libraries, device, threads, memory against the model, disk, settings
    store.py     the store as a node would use it, and the experiment in it

It trains nothing and changes nothing: what it writes into the store lies under `doctor/` and is deleted again. Only a key that
SWARM_IDENTITY names and that is not there is made, so that people see its public half. It always comes to an end: libraries are
tried in other processes, the store in a thread that is left alone when its time is up.
"""

from collections.abc import Mapping

from rl_swarm import config as configuration
from rl_swarm.runs.validate import Finding
from rl_swarm.tools.doctor.machine import (
    check_disk,
    check_home,
    check_identity,
    check_libraries,
    check_memory,
    check_python,
    check_settings,
    check_threads,
)
from rl_swarm.tools.doctor.store import StoreExam

STORE_SECONDS = 60.0

__all__ = ["examine"]


def examine(
    environment: Mapping[str, str], flags: Mapping[str, str | None], *, workers: int = 1, store_seconds: float = STORE_SECONDS
) -> list[Finding]:
    """All findings, machine first; raise ConfigError for a setting that is wrong in itself, as every command does."""
    config = configuration.load(environment, flags)
    exam = StoreExam(config, environment, flags) if config.store else None
    waiting = exam.start() if exam else None  # the store may take its time: libraries are tried meanwhile
    libraries = check_libraries()
    about_store = waiting(store_seconds) if waiting else [Finding("store", "warning", _NO_STORE)]
    config = exam.config if exam else config  # with the experiment's settings beneath the own ones, where there is one
    usable = all(finding.status == "ok" for finding in libraries)
    about_memory, checkpoint_bytes = check_memory(config, workers) if usable else ([_UNKNOWN_MEMORY], None)
    findings = [check_python(), *libraries, *about_memory, check_threads(environment, workers)]
    findings += [check_home(config, checkpoint_bytes), *check_settings(config), *check_identity(config), *about_store]
    if exam and exam.free_bytes is not None:
        findings.append(check_disk("store's disk", config.store_url, exam.free_bytes, checkpoint_bytes))
    return findings


_NO_STORE = "GDRIVE_PATH is not set, so no store was looked at: it names the folder that all nodes share"
_UNKNOWN_MEMORY = Finding("memory", "warning", "not looked at, since a library is missing or broken: mend that first")
