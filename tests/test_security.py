"""docs/security.md promises nothing without a test: every test that it names exists, and every row names one."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
DOCUMENT = (TESTS.parent / "docs" / "security.md").read_text()
ROWS = [line for line in DOCUMENT.splitlines() if line.startswith("| ") and not line.endswith("| shown by |")]


def named(row: str) -> list[str]:
    return re.findall(r"`(test_\w+\.py(?:::\w+)+)`", row)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:40])
def test_every_row_names_a_test(row: str) -> None:
    assert row.count("|") == 4 and named(row.split("|")[3])


def test_every_test_that_is_named_exists() -> None:
    missing = []
    for name in sorted({name for row in ROWS for name in named(row)}):
        file, *inside = name.split("::")
        text = "".join(path.read_text() for path in TESTS.rglob(file))
        if inside[-1] not in text:  # a class may have its tests from another, as the stores do
            text += (TESTS / "store" / "store_contract.py").read_text()
        found = re.search(rf"^ *def {inside[-1]}\(", text, re.MULTILINE)
        if not found or not all(re.search(rf"^class {each}\b", text, re.MULTILINE) for each in inside[:-1]):
            missing.append(name)
    assert not missing and len(ROWS) > 25
