"""Points 2, 8 and 13: answers of a peer that make a verifier explode, crawl or write to the terminal."""

import subprocess
from typing import Any

import pytest

from tests.redteam import attacks
from tests.redteam.arena import NANO, Arena, peak_mb
from tests.redteam.attacks import STRANGER, answer, many_names

pytestmark = pytest.mark.slow

MOST_MB = 1500.0  # a nano worker takes half a gigabyte
SECONDS_A_ROUND = 25.0


def start_beside(arena: Arena, tasks: str, texts: list[str], **settings: Any) -> "subprocess.Popen[bytes]":
    """A nano worker that reads a stranger's completions in its first rounds."""
    question = attacks.true_question(tasks)
    for number in range(3):
        arena.plant(attacks.forge_rollouts, number, STRANGER, question, [f"{text}{' ' * number}" for text in texts])
    given = {"NODE_ID": "w1", "TASKS": tasks, "NUM_TRANSPLANT_TREES": 2, "COORDINATOR_ROUND_INTERVAL": 1}
    return arena.launch("w1", "work", **NANO | given | settings)


def test_a_formula_with_many_names_neither_stalls_nor_fills_a_node(plain: Arena) -> None:
    assert len(many_names()) <= 300
    texts = [answer(many_names()), answer("P"), *(answer(many_names(57 - number)) for number in range(6))]
    process = start_beside(plain, "propositional_logic", texts, MAX_ROUNDS=1000)
    plain.wait_until(lambda: "round 0:" in plain.console("w1") or process.poll() is not None, "the first round ends", 90)
    peak = peak_mb(process.pid)
    assert plain.stop(process, 40) == 0, plain.console("w1")
    assert peak < MOST_MB, f"the node took {peak:.0f} MB"
    first = plain.metrics("w1")[0]["seconds"]
    assert sum(first.values()) < SECONDS_A_ROUND, first
    plain.assert_contained()


def test_many_slow_completions_in_one_rollout_end_at_the_quota(plain: Arena) -> None:
    process = start_beside(plain, "coin_flip", [answer("1e3200000")] * 24, MAX_ROUNDS=1)
    assert plain.finish(process, 120) == 0, plain.console("w1")
    row = plain.metrics("w1")[0]
    seconds = row["seconds"]["score"] + row["seconds"]["store"]
    assert seconds < SECONDS_A_ROUND, row["seconds"]
    assert row["rejected_total"] or seconds < 2.0, "the peer was not held to account"
    plain.assert_contained()


def test_what_a_verifier_prints_takes_no_effect(plain: Arena) -> None:
    move = f"{attacks.ESCAPES}Move disk 1 from Peg 99 to Peg 1"
    process = start_beside(plain, "tower_of_hanoi", [answer(move)] * 4, MAX_ROUNDS=1, EXTERNAL_CORRECTION="guarded")
    assert plain.finish(process, 90) == 0, plain.console("w1")
    row = plain.metrics("w1")[0]
    assert not row["rejected_total"], f"the rollout was not even scored: {row['rejected_total']}"
    for path in (plain.base / "w1.console", plain.folder / attacks.LAYOUT.log("w1", "stdout.log")):
        assert "\x1b" not in path.read_text() and "\x07" not in path.read_text(), "escape codes of a stranger"
    plain.assert_contained()
