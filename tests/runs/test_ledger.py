"""The ledger: sums and means agree with the rows, whatever their order, and its size does not grow with the run."""

import json
from collections import Counter
from statistics import fmean

import pytest

from rl_swarm.runs.ledger import FIGURES, MOST_EVALUATIONS, MOST_STRETCHES, MOST_USES, OPEN_ROUNDS, Ledger
from tests.support.rows import record


def test_a_short_run_is_kept_round_by_round() -> None:
    ledger = Ledger()
    for number in range(20):
        ledger.add("w1", record(number, number / 20, entropy=1.0 if number % 2 else None))
    assert ledger.width == 1
    assert [(each.first, each.mean) for each in ledger.stretches("w1", "reward")] == [(n, n / 20) for n in range(20)]
    assert [each.first for each in ledger.stretches("w1", "entropy")] == list(range(1, 20, 2)), "only where it was measured"


@pytest.mark.parametrize("rounds", [MOST_STRETCHES, MOST_STRETCHES + 1, 5000])
def test_a_long_run_has_means_of_the_same_rows_in_bounded_space(rounds: int) -> None:
    ledger, rewards = Ledger(), [((7 * number) % 11) / 11 for number in range(rounds)]
    for number, reward in enumerate(rewards):
        ledger.add("w1", record(number, reward, tokens=3))
    stretches = ledger.stretches("w1", "reward")
    assert MOST_STRETCHES / 2 < len(stretches) <= MOST_STRETCHES
    for each in stretches:
        part = rewards[each.first : each.first + ledger.width]
        assert (each.mean, each.low, each.high) == (pytest.approx(fmean(part)), min(part), max(part))
    assert sum(each.count for each in stretches) == rounds
    node = ledger.nodes["w1"]
    assert (node.rounds, node.tokens) == (rounds, 3 * rounds) and node.reward_total == pytest.approx(sum(rewards))


def test_a_round_played_again_replaces_what_it_was() -> None:
    ledger = Ledger()
    first, again = record(3, 0.25, external_ids=("w2/1/0/0",), tokens=5), record(3, 0.75, external_ids=("w3/1/0/0",), tokens=6)
    ledger.add("w1", first)
    ledger.add("w1", again, first)
    assert [each.mean for each in ledger.stretches("w1", "reward")] == [0.75]
    node = ledger.nodes["w1"]
    assert (node.rounds, node.reward_total, node.tokens, +node.authors) == (1, 0.75, 6, Counter({"w3": 1}))
    assert ledger.uses(["w1", "w2", "w3"]) == {("w1", "w3"): 1}


def test_the_highest_reward_wins_a_round_and_equal_ones_share_it() -> None:
    ledger = Ledger()
    for number, rewards in enumerate([(0.5, 0.2, 0.1), (0.4, 0.4, 0.1), (0.3, 0.3, 0.3)]):
        for node, reward in zip(("w1", "w2", "w3"), rewards, strict=True):
            ledger.add(node, record(number, reward))
    assert ledger.rounds_won() == pytest.approx({"w1": 1 + 1 / 2 + 1 / 3, "w2": 1 / 2 + 1 / 3, "w3": 1 / 3})


def test_old_rounds_keep_their_winners() -> None:
    ledger = Ledger()
    for number in range(OPEN_ROUNDS + 100):
        ledger.add("w1", record(number, 0.5))
        ledger.add("w2", record(number, 0.6))
    assert ledger.rounds_won() == Counter({"w2": OPEN_ROUNDS + 100})


def test_a_made_up_round_does_not_stretch_everybodys_curves() -> None:
    ledger = Ledger()
    ledger.believable = 200
    ledger.add("w1", record(3))
    ledger.add("w2", record(999_999))
    assert ledger.width == 1 and ledger.newest == 3


def test_who_trained_on_a_rollout_is_known_and_forgotten_in_time() -> None:
    ledger = Ledger()
    ledger.add("w1", record(4, external_ids=("w2/3/0/0",)))
    ledger.add("w3", record(5, external_ids=("w2/3/0/0",)))
    assert ledger.learners_of("w2/3/0/0") == (("w1", 4), ("w3", 5)) and ledger.learners_of("w2/3/0/1") == ()
    ledger.add("w4", record(6, external_ids=tuple(f"x/0/0/{number}" for number in range(MOST_USES))))
    assert ledger.learners_of("w2/3/0/0") == ()


def test_events_are_kept_in_bounds_and_foreign_ones_are_skipped() -> None:
    ledger = Ledger()
    figures = {"held_out": 0.5, "held_out_style_blind": 0.6, "held_out_in_form": 0.7}
    lines = [json.dumps({"event_type": "evaluation", "data": {"round": number, **figures}}) for number in range(1000)]
    noise = [
        "",
        "[1]",
        '{"event_type":"evaluation","data":{"round":-1}}',
        '{"event_type":["x"],"data":{"message":"m"}}',
        "{" * 9000,
    ]
    notes = [json.dumps({"timestamp": 1.0, "event_type": "started", "data": {"message": f"line {n}"}}) for n in range(1000)]
    ledger.add_events("w1", [*lines, *noise, *notes], anew=False)
    node = ledger.nodes["w1"]
    assert 0 in node.evaluations and 999 in node.evaluations and len(node.evaluations) <= MOST_EVALUATIONS
    assert len(node.notes) == 32 and node.notes[-1].line == "line 999"
    ledger.add_events("w1", [], anew=True)
    assert not node.evaluations and not node.notes


def test_a_rewritten_journal_begins_again() -> None:
    ledger = Ledger()
    ledger.add("w1", record(0, 0.9))
    ledger.add("w2", record(0, 0.5))
    ledger.forget_rounds("w1")
    ledger.forget_rounds("nobody")
    assert ledger.nodes["w1"].rounds == 0 and ledger.rounds_won() == Counter({"w2": 1})


def test_the_table_has_means_of_the_nodes() -> None:
    ledger = Ledger()
    seconds = {"generate": 2.0, "train": 1.0, "dream": 0.5}
    ledger.add("w1", record(0, 0.2, own_wanted=4, own_used=1, seconds=seconds))
    ledger.add("w2", record(0, 0.4))
    ledger.add("w2", record(1, 0.6))
    names = ["reward", "uninformative", "seconds_generate", "seconds_other", "seconds_score"]
    assert ledger.table(["w1", "w2", "gone"], names) == {
        0: [pytest.approx(0.3), 0.75, 2.0, 0.5, None],
        1: [0.6, None, None, None, None],
    }
    assert len(FIGURES) == len(set(FIGURES))
