"""Check this machine, its libraries, the store and the experiment, and say what to do about each problem.

    machine.py   Python, libraries, device, threads, memory for the model, disk, settings
    store.py     the store as a node would use it, and the experiment in it

The doctor trains nothing. It deletes what it writes into the store, all below `doctor/`. It makes the key that SWARM_IDENTITY names
if there is none, to show its public half. It always ends: libraries are tried in other processes, and the store in a thread that is
abandoned when its time is up.
"""

import sys
from collections.abc import Mapping

from rl_swarm import __version__
from rl_swarm import config as configuration
from rl_swarm.runs.validate import Finding
from rl_swarm.show.steps import Step, unseen
from rl_swarm.tools.doctor.machine import check_disk, check_home, check_identity, check_libraries, check_memory, check_threads
from rl_swarm.tools.doctor.store import StoreExam

STORE_SECONDS = 60.0


def examine(
    environment: Mapping[str, str], flags: Mapping[str, str | None], *, workers: int = 1, step: Step = unseen
) -> list[Finding]:
    """Return all findings, the machine's first; raise ConfigError for a wrong setting, as every command does."""
    config = configuration.load(environment, flags)
    exam = StoreExam(config, environment, flags)
    if config.store:
        exam.start()  # the store may be slow: libraries are tried meanwhile
    findings = [Finding("python", "ok", f"{sys.version.split()[0]}, {sys.executable}; rl-swarm {__version__}"), *check_libraries()]
    usable = all(finding.status == "ok" for finding in findings)
    if config.store:
        step("looking at the store")
    about_store = exam.findings(STORE_SECONDS)
    config = exam.config  # with the experiment's settings, if there is one
    checkpoint_bytes = None
    if usable:
        step(f"estimating the memory of {config.model}")
        about_memory, checkpoint_bytes = check_memory(config, workers)
        findings += about_memory
    else:
        findings.append(Finding("memory", "warning", "not estimated, since a library is missing or broken: install that first"))
    findings += [check_threads(environment, workers), check_home(config, checkpoint_bytes)]
    findings += [Finding("settings", "warning", warning) for warning in config.warnings]
    findings += [*check_identity(config), *about_store]
    if exam.free_bytes is not None:
        findings.append(check_disk("store's disk", config.store_url, exam.free_bytes, checkpoint_bytes))
    return findings
