"""Share the cores of this machine among the workers on it: more threads than cores slow everyone down."""

import os
from collections.abc import Mapping, MutableMapping

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


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
    """Let OpenMP's threads sleep while they wait for each other. Takes effect if torch is not imported yet.

    By default they spin: beside any other busy program the one that has work does not get a core, and a round takes many times as
    long. The user's own choice wins.
    """
    if "GOMP_SPINCOUNT" not in environment:
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
