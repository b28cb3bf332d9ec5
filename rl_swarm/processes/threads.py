"""Share the cores of this machine among the workers on it: more threads than cores slow everyone down."""

import os
from collections.abc import Mapping, MutableMapping

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
SPINS = "20000"  # as fast as OpenMP's own 300,000 for a worker alone


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def given(environment: Mapping[str, str]) -> bool:
    """Whether the user has chosen a number of threads, which always wins."""
    return any(environment.get(variable, "").strip() for variable in VARIABLES)


def share(workers: int, among: int | None = None) -> int:
    """Threads of one worker where this many workers share the cores."""
    return max(1, (among or cores()) // max(1, workers))


def shared_by(workers: int, environment: Mapping[str, str], among: int | None = None) -> dict[str, str]:
    """Variables for each of the workers that a launcher starts; none if the user has chosen."""
    return {} if given(environment) else dict.fromkeys(VARIABLES, str(share(workers, among)))


def sleep_when_idle(environment: MutableMapping[str, str]) -> None:
    """Let OpenMP's threads spin only briefly while they wait for each other. Takes effect if torch is not imported yet.

    By default they spin fifteen times as long: beside another busy program the one that has work does not get a core, and everybody
    takes several times as long. Without any spinning a worker alone takes twice as long. The user's own choice wins.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", SPINS)
