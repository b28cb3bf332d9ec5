"""The judge of `make soak`: what it calls flat; the long run itself is a command."""

from dataclasses import replace
from pathlib import Path

import pytest

from checks import reliability
from checks.reliability import PROCESS_HEADING, SOAK_HEADING, section, write_section
from checks.soak import STRETCHES, Stretch, between, growth, page_section

FLAT = [Stretch(180.0, 100, 40.0, 12.0, 9.0)] * STRETCHES


def test_a_flat_run_passes_and_warming_up_does_not_count() -> None:
    assert growth([replace(FLAT[0], memory_mb=10.0, operations=30.0), *FLAT[1:]]) == []


def test_growth_of_each_kind_is_named() -> None:
    for name, value in (("memory_mb", 50.0), ("open_files", 20.0), ("operations", 15.0)):
        [problem] = growth([*FLAT[:-1], replace(FLAT[0], **{name: value})])  # type: ignore[arg-type]
        assert problem.startswith(name)


def test_a_run_that_stands_still_is_not_flat() -> None:
    assert growth([*FLAT[:-1], replace(FLAT[0], operations=None)])


def test_operations_are_counted_between_rounds() -> None:
    assert between([(1, 10), (2, 20), (4, 30), (9, 1000)], 1, 4) == 10
    assert between([(1, 10)], 1, 4) is None


def test_the_page_gets_a_row_for_every_stretch_and_keeps_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reliability, "PAGE", tmp_path / "page.md")
    reliability.PAGE.write_text(f"# Page\n\n{SOAK_HEADING}\noutdated\n\n{PROCESS_HEADING}\nkept\n")
    for _ in range(2):
        write_section(SOAK_HEADING, page_section(FLAT, 16))
        text = reliability.PAGE.read_text()
        assert text.startswith(f"# Page\n\n{SOAK_HEADING}\n`make soak`: a coordinator and 16 stand-in workers")
        assert text.endswith(f"| 4 | 180 | 100 | 40.0 | 12.0 | 9.0 |\n\n{PROCESS_HEADING}\nkept\n")
    assert "outdated" not in text and section(PROCESS_HEADING) == ["kept"]
