"""The judge of `python -m checks.tidy`: what it calls flat, on a short run and on made-up figures."""

from dataclasses import replace
from pathlib import Path

import pytest

from checks.tidy import STRETCHES, Run, Stretch, growth, table

FLAT = [Stretch(200 * number, 80, 212.0, 1800 * number, 3200.0 * number, 30.0, 14.0) for number in range(1, STRETCHES + 1)]


def test_a_flat_run_passes_and_the_first_stretch_does_not_count() -> None:
    assert growth(FLAT) == [] == growth([replace(FLAT[0], milliseconds=900.0, other_files=5000), *FLAT[1:]])
    assert len(table(FLAT)) == STRETCHES + 2


@pytest.mark.parametrize("name", ["rollout_files", "rollout_kb", "milliseconds", "operations"])
def test_growth_of_each_kind_is_named(name: str) -> None:
    grown = [replace(each, **{name: getattr(each, name) * (1 + 0.1 * place)}) for place, each in enumerate(FLAT)]
    [problem] = growth(grown)
    assert problem.startswith(f"{name} grew from")


def test_files_that_grow_faster_and_faster_are_named() -> None:
    assert growth([replace(each, other_files=each.other_files * place) for place, each in enumerate(FLAT, 1)])


@pytest.mark.parametrize("keep", [5, None])
def test_a_short_run_keeps_what_it_is_told_to(tmp_path: Path, keep: int | None) -> None:
    stretches = Run(tmp_path, 50, 3, keep).measure()
    assert [each.rollout_files for each in stretches][-3:] == ([15, 15, 15] if keep else [120, 135, 150])
    problems = [problem for problem in growth(stretches) if not problem.startswith("milliseconds")]
    assert bool(problems) == (keep is None)
