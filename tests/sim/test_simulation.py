"""Simulated swarms on drives from hell, seed by seed; and proof that the invariants would see the mistakes of earlier systems."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from multiprocessing import get_context
from typing import NamedTuple

import pytest

from checks.reliability import PAGE, structure
from tests.sim.drive_from_hell import HABITS
from tests.sim.invariants import INVARIANTS
from tests.sim.mutations import MUTATIONS, Mutation
from tests.sim.simulation import report, simulate
from tests.support.processes import ROOT

FAST = range(100)  # 7 and 75 once found a defect
SLOW = (*range(100, 300), *range(1000, 3000))
MOST_SEEDS_A_MUTATION = 60


class Outcome(NamedTuple):
    problem: str
    told: Counter[str]
    checks: Counter[str]


def run(seed: int) -> Outcome:
    simulation = simulate(seed)
    return Outcome(report(simulation) if simulation.witness.violations else "", simulation.cloud.told, simulation.witness.checks)


def run_all(seeds: Iterable[int]) -> tuple[list[str], Counter[str], Counter[str]]:
    """Problems, habits met and checks made, on as many cores as there are."""
    problems, told, checks = [], Counter[str](), Counter[str]()
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for outcome in pool.map(run, seeds, chunksize=10):
            problems += [outcome.problem] if outcome.problem else []
            told += outcome.told
            checks += outcome.checks
    return problems, told, checks


def check(seeds: Iterable[int]) -> None:
    problems, told, checks = run_all(seeds)
    assert not problems, "\n".join(problems[:10])
    assert set(HABITS) == {habit for habit in HABITS if told[habit]}, "a habit of the drive was never met"
    assert set(INVARIANTS) == {name for name in INVARIANTS if checks[name]}, "an invariant was never checked"


def test_every_invariant_holds_on_every_seed() -> None:
    check(FAST)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_invariant_holds_on_many_more_seeds() -> None:
    check(SLOW)


def test_a_seed_replays_exactly() -> None:
    """Also in another process, where Python hashes strings differently."""
    seeds = (1, 7, 12)
    code = f"from tests.sim.simulation import simulate; print(*(simulate(seed).fingerprint for seed in {seeds}))"
    command, environment = [sys.executable, "-c", code], os.environ | {"PYTHONHASHSEED": "1"}
    other = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    assert other.stdout.split() == [str(simulate(seed).fingerprint) for seed in seeds]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_invariants_catch(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, invariant = first_objection(mutation, monkeypatch)
    print(f"{mutation.name}: seed {seed}, {invariant}")


def first_objection(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """The first seed at which one of the right invariants objects, and which."""
    mutation.apply(monkeypatch)
    for tried, seed in enumerate(count(mutation.first_seed)):
        assert tried < MOST_SEEDS_A_MUTATION, f"{mutation.name} was not caught in {tried} seeds: the invariants are blind to it"
        objections = {violation.partition(":")[0] for violation in simulate(seed).witness.violations}
        if objections & mutation.caught_by:
            return seed, min(objections & mutation.caught_by)
    raise AssertionError("unreachable")


def test_the_page_on_reliability_is_current() -> None:
    missing = [part for part in structure(FAST) if part not in PAGE.read_text()]
    assert not missing, f"docs/reliability.md lacks {missing[:3]}: write it with python -m checks.reliability"
