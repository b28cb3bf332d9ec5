"""The paper's table without a model: plan, test, measures, analysis and report on numbers that were made by hand."""

import csv
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import pytest
from rich.console import Console

from rl_swarm.config import SETTINGS, load
from rl_swarm.errors import ConfigError
from rl_swarm.reproduce import results
from rl_swarm.reproduce.analysis import analyse, kept, rounds_to, sentences
from rl_swarm.reproduce.command import Shown, Wanted, chosen_preset, given_settings, sentence, show_pilot
from rl_swarm.reproduce.elsewhere import read_experiments
from rl_swarm.reproduce.permutation import least_p, permutation_p, verdict
from rl_swarm.reproduce.plan import (
    ABLATIONS,
    PILOT_SEEDS,
    PLANNED,
    PRESETS,
    REPORTED_SEEDS,
    Arm,
    Asked,
    Cell,
    Split,
    arms_of,
    cells_of,
    find_preset,
    horizon,
    parse_split,
    parse_splits,
    pilot_cells,
    quick,
)
from rl_swarm.reproduce.results import Answers, CellResult, authors, collapse, mixed_reward, oscillation
from rl_swarm.reproduce.table import Provenance, write_report
from rl_swarm.runs.record import Evaluated, Round, valid
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.peers import Registration, register
from tests.support.rows import record
from tests.support.sample_run import LAYOUT, SampleRun

NANO = find_preset("nano")


def cell(split: str = "8/0", seed: int = 1, rounds: int = 4, nodes: int = 2, **arm: str) -> Cell:
    return Cell(Arm(arm.pop("name", split), parse_split(split), nodes, **arm), seed, rounds, {"MODEL_NAME": "nano"}, {})


def row(node: str, number: int, reward: float, **more: Any) -> Round:
    return record(number, reward, node_id=node, **({"own_wanted": 8, "own_used": 1, "tokens": 100, "tokens_trained": 10} | more))


def finished(split: str, seed: int, rewards: Sequence[float], nodes: int = 2, **more: Any) -> CellResult:
    planned = cell(split, seed, len(rewards), nodes)
    rows = [row(f"n{place}", number, reward, **more) for number, reward in enumerate(rewards) for place in range(nodes)]
    return CellResult(planned, tuple(rows))


# The split


def test_a_split_is_read_as_people_write_it() -> None:
    assert parse_split(" 4/4 ") == Split(4, 4) and str(Split(6, 2)) == "6/2"
    assert parse_splits("4/4,8/0,4/4") == [Split(8, 0), Split(4, 4)]
    for wrong in ("4", "0/8", "4/-4", "a/b", ""):
        with pytest.raises(ConfigError, match="I/J"):
            parse_split(wrong)
    for wrong in ("4/4", "8/0,4/0"):
        with pytest.raises(ConfigError, match="without sharing"):
            parse_splits(wrong)


# The plan


def test_pilot_seeds_are_never_reported() -> None:
    assert not set(PILOT_SEEDS) & set(REPORTED_SEEDS)
    reported = cells_of(replace(NANO, seeds=len(REPORTED_SEEDS)), arms_of(NANO), NANO.settings)
    pilot = pilot_cells(NANO, NANO.settings)
    assert {each.seed for each in pilot} == set(PILOT_SEEDS)
    assert not {each.seed for each in pilot} & {each.seed for each in reported}


def test_the_baseline_is_also_run_over_the_rounds_that_cost_as_much() -> None:
    preset = PRESETS["knowledge"]
    cells = [each for each in cells_of(preset, arms_of(preset), preset.settings) if each.arm.equal]
    assert {(each.arm.equal, each.arm.split, each.rounds) for each in cells} == {
        ("writing", Split(8, 0), 150),
        ("compute", Split(8, 0), round(preset.equal["compute"] * 300)),
    }
    assert {each.seed for each in cells} == set(range(9, 17)) and all(
        each.environment(0)["MAX_ROUNDS"] == str(each.rounds) for each in cells
    )


def test_arms_that_share_nothing_may_have_fewer_nodes() -> None:
    nodes = {arm.name: arm.nodes for arm in arms_of(PRESETS["knowledge"])}
    assert nodes["4/28"] == 8 and {count for name, count in nodes.items() if name.startswith("8/0")} == {4}
    assert {arm.nodes for arm in arms_of(NANO) if arm.in_table} == {8}


def test_the_table_has_eight_paired_seeds_of_the_two_arms_that_matter_and_three_of_the_others() -> None:
    cells = cells_of(NANO, arms_of(NANO), NANO.settings)
    seeds = {name: [each.seed for each in cells if each.arm.name == name] for name in ("8/0", "6/2", "4/4", "2/6")}
    assert seeds["8/0"] == seeds[NANO.best] == list(range(9, 17))
    assert all(found == [9, 10, 11] for name, found in seeds.items() if name not in ("8/0", NANO.best))
    assert {each.arm.name for each in cells[:16]} == {"8/0", NANO.best}, "pairs come first"
    assert len({each.id for each in cells}) == len(cells)


def test_the_id_of_a_cell_changes_with_whatever_could_change_its_result() -> None:
    first = cell()
    others = [
        replace(first, seed=2),
        replace(first, rounds=5),
        replace(first, settings={"MODEL_NAME": "nano", "LEARNING_RATE": "0"}),
        replace(first, versions={"torch": "0"}),
        replace(first, arm=replace(first.arm, adaptive=True)),
        replace(first, arm=replace(first.arm, nodes=3)),
        replace(first, arm=replace(first.arm, models=("nano", "quantised:nano"))),
    ]
    assert len({each.id for each in [first, *others]}) == 8


def test_studies_share_the_cells_that_they_have_in_common() -> None:
    first = cell()
    assert replace(first, arm=replace(first.arm, name="another", ablation="size", equal="compute")).id == first.id
    assert replace(first, settings={"MODEL_NAME": "nano", "LEARNING_RATE": "0.0002", "TASKS": "easy"}).id == first.id, (
        "as by default"
    )
    shared = {each.id for each in cells_of(PRESETS["sizes"], arms_of(PRESETS["sizes"]), PRESETS["sizes"].settings)}
    for name, arm in (("knowledge", "4/28"), ("quarter", "4/12")):
        preset = PRESETS[name]
        found = [each for each in cells_of(preset, arms_of(preset), preset.settings) if each.arm.name == arm]
        assert {each.id for each in found[:3]} <= shared


def test_every_ablation_has_arms_that_a_node_can_be_started_with() -> None:
    arms = arms_of(NANO, list(ABLATIONS))
    assert {arm.ablation for arm in arms} == {"", *ABLATIONS}
    assert len({arm.name for arm in arms}) == len(arms)
    for each in cells_of(NANO, arms, NANO.settings):
        load(each.environment(1) | {"MODEL_NAME": "nano"})  # raises where a value is wrong
    assert {arm.nodes for arm in arms} == {1, 2, 4, 8, 16}
    with pytest.raises(ConfigError, match="correction"):
        arms_of(NANO, ["nonsense"])


def test_a_node_is_started_with_its_split_seed_and_model() -> None:
    mixed = next(each for each in cells_of(NANO, arms_of(NANO, ["models"]), NANO.settings) if each.arm.models)
    assert mixed.environment(0)["MODEL_NAME"] == "nano"
    assert mixed.environment(1)["MODEL_NAME"] == "quantised:nano"
    assert mixed.environment(0)["NUM_TRAIN_SAMPLES"] == str(mixed.arm.split.own)
    assert mixed.environment(0)["SEED"] == str(mixed.seed)


def test_the_documents_presets_are_those_of_the_documents() -> None:
    assert PRESETS["gpt2"].splits == "4/0,3/1,2/2,1/3" and PRESETS["qwen"].splits == "8/0,6/2,4/4,2/6"
    assert PRESETS["qwen"].nodes == 8 and PRESETS["gpt2"].rounds == PRESETS["qwen"].rounds == 2000
    for preset in PRESETS.values():
        load(preset.settings)
        assert preset.best in [arm.name for arm in arms_of(preset)]
    with pytest.raises(ConfigError, match="nano, longer, alone, knowledge, quarter, sizes, smollm2, gpt2, qwen"):
        find_preset("nonsense")


def test_the_longer_preset_is_the_table_over_twice_its_rounds() -> None:
    longer = PRESETS["longer"]
    assert longer.rounds == 2 * NANO.rounds and longer.settings == NANO.settings and longer.splits == f"8/0,{NANO.best}"


def test_quick_is_smaller_in_every_way() -> None:
    small = quick(NANO)
    assert small.nodes < NANO.nodes and small.rounds < NANO.rounds and small.seeds < NANO.seeds
    assert small.splits == f"8/0,{NANO.best}"
    looked_at = {each.seed for each in cells_of(small, arms_of(small), small.settings)}
    assert len(looked_at) == 2 and not looked_at & ({*REPORTED_SEEDS} | {*PILOT_SEEDS}), (
        "a quick look shows nothing that is reported"
    )


def test_the_horizon_is_where_the_baseline_reaches_its_plateau() -> None:
    rising = [min(1.0, number / 100) for number in range(200)]
    assert horizon([rising]) == 110  # the mean of the last ten is 0.955 at the 101st round
    assert horizon([rising, rising]) == 110
    assert horizon([[0.5] * 40]) == 10
    assert horizon([[number / 40 for number in range(40)]]) == 40, "one that never stops rising takes all there is"
    assert horizon([[*rising[:190], *[1.2] * 10]]) == 110, "a lucky streak at the end is not the plateau"


def test_what_the_plan_governs_cannot_be_set_by_hand() -> None:
    for name in PLANNED:
        with pytest.raises(ConfigError, match="part of the plan"):
            given_settings({}, {name: "3"})
    assert given_settings({"SEED": "3", "LEARNING_RATE": "0", "PATH": "x"}, {"temperature": "0.5"}) == {
        "LEARNING_RATE": "0",
        "TEMPERATURE": "0.5",
    }
    assert set(PLANNED) <= set(SETTINGS)


def test_the_command_line_wins_over_the_preset() -> None:
    chosen = chosen_preset(Wanted(splits="8/0,2/6", rounds=5, nodes=3, seeds=1))
    assert (chosen.splits, chosen.best, chosen.rounds, chosen.nodes, chosen.seeds) == ("8/0,2/6", "2/6", 5, 3, 1)
    assert "by hand" in chosen.rule and chosen_preset(Wanted()).rule == NANO.rule, "no rule is claimed where none was kept"
    with pytest.raises(ConfigError, match="--best"):
        chosen_preset(Wanted(best="3/5"))
    with pytest.raises(ConfigError, match="pilots"):
        chosen_preset(Wanted(seeds=101))
    with pytest.raises(ConfigError, match="--pilot fixes nothing"):
        chosen_preset(Wanted(preset="knowledge", pilot=True))
    assert chosen_preset(Wanted()).equal and not chosen.equal, "equal costs are those of the preset's own pair"
    assert "by hand" in chosen_preset(Wanted(preset="sizes", rounds=5)).rule


# The test


def test_the_permutation_test_is_exact() -> None:
    assert permutation_p([1, 2, 3, 4, 5, 6, 7, 8]) == 2 / 256 == least_p(8)
    assert permutation_p([-1] * 8) == 2 / 256, "two-sided"
    assert permutation_p([1, -1]) == 1.0
    assert permutation_p([1, 1, 1, -1]) == 10 / 16  # sums of at least 2 in size: 2 · (1 + 4) of 16
    assert permutation_p([0.1, 0.2, 0.3]) == 2 / 8, "rounding must not separate equal sums"
    assert permutation_p([]) == 1.0 and permutation_p([0.0, 0.0]) == 1.0


def test_the_permutation_test_agrees_with_counting_and_with_sampling() -> None:
    chance = random.Random(0)
    differences = [chance.gauss(0.4, 1) for _ in range(10)]
    observed = abs(fmean(differences))
    counted = fmean(
        abs(fmean(sign * each for sign, each in zip(signs, differences, strict=True))) >= observed - 1e-12
        for signs in product((1, -1), repeat=10)
    )
    assert permutation_p(differences) == counted
    many = [chance.gauss(0.3, 1) for _ in range(20)]
    assert 0 < permutation_p(many) < 1 and permutation_p(many) == permutation_p(many)


def test_under_no_difference_small_p_values_are_as_rare_as_they_should_be() -> None:
    chance = random.Random(1)
    found = [permutation_p([chance.gauss(0, 1) for _ in range(8)]) for _ in range(400)]
    assert 0.02 < fmean(p < 0.05 for p in found) < 0.08


def test_the_sentence_says_no_more_than_the_test_allows() -> None:
    eight = [0.5 + seed / 100 for seed in range(8)]
    assert verdict("a", eight) == "a, better on 8 of 8 seeds, p = 0.0078: sharing helped."
    assert verdict("a", [-each for each in eight]).endswith("sharing hurt.")
    assert "cannot give less than 0.25" in verdict("a", eight[:3])
    assert "chance would not explain" in verdict("a", [(-1) ** seed for seed in range(8)])
    assert verdict("a", [0.5]) == "a, on one seed: that is no proof."


# Measures


def test_oscillation_collapse_and_thresholds() -> None:
    assert oscillation([0.1, 0.2, 0.4]) == 0.0
    assert oscillation([0.2, 0.4, 0.2, 0.4]) == pytest.approx(0.5)
    assert collapse([0.1, 0.4, 0.1]) == pytest.approx(0.75) and collapse([0.0, 0.0]) == 0.0
    assert rounds_to([0.1, 0.2, 0.3], 0.2) == 2 and rounds_to([0.1], 0.2) is None


def external(used: int, reward: float, *authors: str) -> dict[str, Any]:
    ids = tuple(f"{author}/0/0/{slot}" for slot, author in enumerate(authors))
    return {"external_wanted": 4, "external_used": used, "external_reward": reward, "external_ids": ids}


def test_the_figures_of_a_cell() -> None:
    rows = (
        row("a", 0, 0.2, own_wanted=4, **external(2, 0.8, "b", "b"), external_age=1.0, held_out=0.1),
        row("b", 0, 0.4),
        row(
            "a",
            1,
            0.6,
            own_wanted=4,
            **external(4, 1.0, "b", "b", "c", "c"),
            external_age=0.5,
            held_out=0.5,
            held_out_by_task={"gcd": 0.5},
        ),
        row("b", 1, 0.8, held_out=0.7, held_out_by_task={"gcd": 0.7}),
    )
    found = CellResult(cell("4/4", rounds=2), rows, seconds=3.0)
    lines, figures = found.curves, found.measures
    assert lines.own == pytest.approx((0.3, 0.7)) and lines.smoothed == pytest.approx((0.3, 0.5))
    assert lines.low == pytest.approx((0.2, 0.4)) and lines.high == pytest.approx((0.4, 0.6))
    assert lines.generated == (200, 400) and lines.compute == (260, 520)
    assert figures["cumulative"] == pytest.approx(1.0) and figures["cumulative_mixed"] == pytest.approx(1.2)
    assert figures["held_out"] == pytest.approx(0.6), "the last measurement, mean of the nodes"
    assert found.knowledge == pytest.approx({1: 0.1, 2: 0.6}) and found.by_task == pytest.approx({"gcd": 0.6})
    assert figures["external_age"] == pytest.approx((2 * 1.0 + 4 * 0.5) / 6), "weighted by rollouts"
    assert figures["external_used"] == pytest.approx(6 / 4)
    assert figures["origins"] == pytest.approx(1 / ((4 / 6) ** 2 + (2 / 6) ** 2))
    assert (figures["tokens_generated"], figures["tokens_trained"], figures["seconds"]) == (400, 40, 3.0)


def test_a_repeated_question_is_no_failed_verdict() -> None:
    rows = [row("a", 0, 0.1, tasks_total={"repeated_question": 7, "scorer_timeout": 2, "scorer_raised": 1})]
    assert CellResult(cell(rounds=1), tuple(rows)).measures["failed_verdicts"] == 3


def test_the_mixed_measure_counts_the_external_rollouts_that_were_trained_on() -> None:
    row = record(0, 0.1, own_wanted=4, external_used=4, external_reward=0.5, external_ids=("b/0/0/1",))
    assert mixed_reward(row) == pytest.approx(0.3) and authors(row) == {"b": 1}
    assert mixed_reward(msgspec.structs.replace(row, external_used=0, external_reward=None)) == pytest.approx(0.1)


def test_a_line_that_no_node_would_write_is_left_out() -> None:
    good = {"timestamp": 1.0, "round": 0, "reward": 0.1, "own_wanted": 4}
    wrong = [good | {"round": -1}, good | {"reward": "much"}, good | {"tokens": -5}, {}, good | {"held_out": 7}]
    assert len(valid([good, *wrong], Round)) == 1


# Analysis


def test_gain_p_and_worst_seed() -> None:
    cells = [finished("8/0", seed, [0.1, 0.2]) for seed in range(1, 9)]
    cells += [finished("4/4", seed, [0.2, 0.3 + seed / 100]) for seed in range(1, 9)]
    found = analyse(cells, "4/4")
    main = found.main
    assert main is not None and main.seeds == tuple(range(1, 9))
    assert main.gain == pytest.approx((0.5 + 0.045) / 0.3 - 1) and main.worst == pytest.approx(0.51 / 0.3 - 1)
    assert main.p == 2 / 256 and main.kept == pytest.approx(1.0)
    assert main.gain_range == pytest.approx((0.75, 0.88), abs=0.01)
    said = sentences(found)
    assert "+82 % cumulative own reward (95 % interval +75 to +88 %), better on 8 of 8 seeds" in said[0]
    assert said[0].endswith("sharing helped.") and "keeps its gain" in said[2]
    assert not any(each.startswith("The paper") for each in said), "the paper's swarms have eight nodes"


def test_the_papers_gain_is_called_reached_only_where_the_gain_is_proven() -> None:
    def said(seeds: int) -> str:
        pair = (("8/0", 0.1), ("4/4", 0.3))
        cells = [finished(split, seed, [reward], nodes=8) for seed in range(seeds) for split, reward in pair]
        return next(line for line in sentences(analyse(cells, "4/4")) if line.startswith("The paper"))

    assert said(1).endswith("here it is +200 %, on too few seeds to say that it is reached.")
    assert said(8).endswith("here it is +200 %, so that is reached.")


def test_the_gain_is_known_for_every_horizon() -> None:
    found = analyse([finished("8/0", 1, [0.1] * 12), finished("4/4", 1, [0.2] * 10 + [0.1] * 2)], "4/4")
    assert found.gain_by_horizon(found.arms[1]) == [
        (10, pytest.approx(1.0)),
        (11, pytest.approx(10 / 11)),
        (12, pytest.approx(10 / 12)),
    ]


def test_arms_are_compared_on_the_seeds_that_both_have() -> None:
    found = analyse([finished("8/0", 1, [0.1]), finished("8/0", 2, [0.9]), finished("4/4", 1, [0.2])], "4/4")
    assert found.main is not None and found.main.seeds == (1,) and found.main.gain == pytest.approx(1.0)


def test_a_gain_that_melts_away_is_not_kept() -> None:
    early, late = [0.5, 0.5, 0.1, 0.1], [0.1, 0.1, 0.4, 0.4]
    assert kept([(late, early)]) == pytest.approx(0.2 / 0.8)
    assert kept([(early, [0.0] * 4)]) is None and kept([]) is None
    said = sentences(analyse([finished("8/0", 1, late), finished("4/4", 1, early)], "4/4"))
    assert "loses part of its gain: at the end it has 25 %" in said[2]
    assert "at no time ahead" in sentences(analyse([finished("8/0", 1, early), finished("4/4", 1, [0.0] * 4)], "4/4"))[2]


def knowing(split: str, seed: int, right: str, rounds: int = 2, nodes: int = 2, **arm: Any) -> CellResult:
    """A finished cell whose nodes all answer these of the held-out questions rightly at the end; the base knows the first."""
    made = finished(split, seed, [0.1] * rounds, nodes, held_out=right.count("1") / len(right))
    planned = replace(made.cell, arm=replace(made.cell.arm, **arm))
    shares = {"held_out": 0.0, "held_out_style_blind": 0.8, "held_out_in_form": 1 / len(right)}
    before = Evaluated(round=0, **shares, held_out_questions=len(right))
    in_form = {"held_out_in_form": "1" + "0" * (len(right) - 1)}
    return replace(made, cell=planned, before=before, right_before=in_form, right=({"held_out": right},) * nodes)


def test_at_equal_cost_the_ends_of_whole_runs_are_compared() -> None:
    cells = [knowing("8/0", seed, "1100", rounds=4) for seed in range(8)]
    cells += [knowing("8/0", seed, "1000", name="8/0 for 2 rounds", equal="writing") for seed in range(8)]
    cells += [knowing("4/4", seed, "1110", rounds=4) for seed in range(8)]
    found = analyse(cells, "4/4")
    assert [each.arm for each in found.comparisons] == ["4/4"], "what is only there for its cost is not in the table"
    each = found.at_equal_cost["writing"]
    assert each.other == "8/0 for 2 rounds" and each.spent["writing"] == pytest.approx(2.0)
    said = next(line for line in sentences(found) if line.startswith("At equal"))
    assert said == (
        "At equal writing (200 % of what 8/0 for 2 rounds spends): held-out at the end: 4/4 75.0 %, 8/0 for 2 rounds 25.0 %, "
        "+50.0 points (95 % interval +50.0 to +50.0), better on 8 of 8 seeds, p = 0.0078: sharing helped."
    )
    rewards = [
        replace(cell, right=(), rows=tuple(msgspec.structs.replace(row, held_out=None) for row in cell.rows)) for cell in cells
    ]
    assert any(line.startswith("At equal writing") and "final own reward" in line for line in sentences(analyse(rewards, "4/4")))


def test_the_cost_of_a_gain_is_that_of_a_node() -> None:
    small, large = finished("8/0", 1, [0.1, 0.2], nodes=2), finished("4/4", 1, [0.1, 0.2], nodes=6)
    main = analyse([small, large], "4/4").main
    assert main is not None and main.spent == {"writing": 1.0, "compute": 1.0}


def test_one_seed_has_an_interval_over_its_questions_and_proves_nothing() -> None:
    question = Asked(outcome="held_out")
    said = sentences(analyse([knowing("8/0", 1, "1000" * 25), knowing("4/4", 1, "1100" * 25)], "4/4", question))
    assert said[0] == (
        "Held-out at the end: 4/4 50.0 %, 8/0 25.0 %, +25.0 points (95 % interval +16.3 to +33.7 over the questions), on one seed: "
        "that is no proof."
    )
    assert not any("p = " in line for line in said)


def test_being_as_good_is_judged_by_a_margin_that_was_fixed_beforehand() -> None:
    question = Asked(outcome="held_out", as_good_within=0.02)

    def said(right: str) -> list[str]:
        cells = [knowing("16/0", seed, "1" * 50 + "0" * 50) for seed in range(8)]
        return sentences(analyse([*cells, *(knowing("4/12", seed, right) for seed in range(8))], "4/12", question))

    assert "4/12 is as good as 16/0 within 2 points of held-out accuracy, a margin that was fixed beforehand." in said(
        "1" * 49 + "0" * 51
    )
    assert any("is not shown" in line for line in said("1" * 47 + "0" * 53))


def test_a_collapse_is_said() -> None:
    falling = [0.5] * 15 + [0.0] * 15
    said = sentences(analyse([finished("8/0", 1, [0.1] * 30), finished("4/4", 1, falling)], "4/4"))
    assert any("4/4 collapsed on 1 of 1 seed:" in each for each in said)
    assert not any("8/0 collapsed" in each for each in said)


@pytest.mark.parametrize("preset", PRESETS)
def test_what_a_preset_is_about_is_one_sentence(preset: str) -> None:
    said = sentence(find_preset(preset).about)
    assert said[-1] in ".?" and said[-2].isalnum()


def test_a_node_alone_is_compared_with_the_base_model() -> None:
    found = analyse([knowing("8/0", seed, right) for seed, right in enumerate(("1110", "1100"))], "8/0")
    assert found.main is None and found.comparisons == ()
    [said] = sentences(found)
    assert said == (
        "8/0 ends at 62.5 % of 4 held-out questions (mean of 2 seeds, 50.0 % to 75.0 %); the base model has 0.0 % by itself, "
        "25.0 % in the form and 80.0 % in any form: +37.5 points against the form (95 % interval -121.4 to +196.4), better on 2 of "
        "2 seeds, p = 0.5000; 2 pairs cannot give less than 0.50, so this test proves nothing either way."
    )


def test_without_a_baseline_nothing_is_claimed() -> None:
    found = analyse([finished("4/4", 1, [0.1]), finished("2/6", 1, [0.9])], "4/4")
    assert found.comparisons == () and "cannot be said" in sentences(found)[0]


# Files


def test_a_cell_is_finished_when_its_whole_file_is_there(tmp_path: Path) -> None:
    made = finished("4/4", 1, [0.1, 0.2])
    assert results.load(tmp_path, made.cell) is None
    path = results.save(tmp_path, made)
    assert results.load(tmp_path, made.cell) == made
    assert results.load(tmp_path, replace(made.cell, rounds=3)) is None
    path.write_bytes(path.read_bytes()[:-20])
    assert results.load(tmp_path, made.cell) is None, "half a file counts as none"


def test_the_report_is_whole_and_asks_nothing_of_the_network(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    known = {"held_out": 0.5, "held_out_by_task": {"gcd": 0.625}}
    cells = [finished(split, seed, [0.1, 0.2, 0.3], **known) for split in ("8/0", "4/4") for seed in (1, 2)]
    figures = {"held_out": 0.1, "held_out_style_blind": 0.3, "held_out_in_form": 0.2, "held_out_by_task": {"gcd": 0.125}}
    cells[0] = replace(cells[0], before=Evaluated(round=0, **figures))
    cells[2] = replace(cells[2], answers=(Answers("2 + 2?", None, hostile, "<answer>4</answer>"),))
    cells.append(replace(cells[-1], cell=replace(cells[-1].cell, arm=replace(cells[-1].cell.arm, name=hostile, ablation="size"))))
    made = Provenance(hostile, hostile, hostile, settings={"MODEL_NAME": hostile}, versions={"python": hostile})
    page = write_report(analyse(cells, "4/4"), tmp_path, made)
    html = page.read_text()
    assert hostile not in html and "&lt;script&gt;" in html
    assert "http://" not in html and "https://" not in html and "default-src 'none'" in html
    assert "<td>gcd</td>" in html and "0.125" in html and "0.625" in html
    assert "2 + 2?" in html and "&lt;answer&gt;4&lt;/answer&gt;" in html
    for name in ("rewards", "smoothed", "cost", "knowledge", "horizon", "ablations"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((tmp_path / "rounds.csv").read_text().splitlines()))
    assert len(rows) == 5 * 3 and float(rows[0]["own_reward"]) == 0.1
    table = list(csv.DictReader((tmp_path / "cells.csv").read_text().splitlines()))
    assert [float(each["cumulative"]) for each in table] == pytest.approx([0.6] * 5)
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["sentences"] and written["against_alone"][0]["p"] == 1.0


# Progress and pilots


def test_progress_is_said_when_a_cell_is_done_and_from_time_to_time() -> None:
    console, now = Console(record=True, width=200), [0.0]
    shown = Shown(console, lambda: now[0])
    for done, seconds in ((0, 0.0), (0, 1.0), (1, 2.0), (1, 3.0), (1, 40.0)):
        now[0] = seconds
        shown(done, f"{done} of 4 cells at {seconds}")
    assert console.export_text().splitlines() == ["0 of 4 cells at 0.0", "1 of 4 cells at 2.0", "1 of 4 cells at 40.0"]


def test_the_pilot_prints_the_horizon_and_the_best_split() -> None:
    console = Console(record=True, width=300)
    show_pilot([finished("8/0", 101, [0.1] * 30), finished("4/4", 101, [0.2] * 30), finished("2/6", 101, [0.3] * 30)], console)
    text = console.export_text()
    assert "Horizon: 10 rounds." in text and "Best sharing split: 2/6" in text


# Runs that were done elsewhere


def test_an_experiment_done_elsewhere_is_read_as_a_cell(tmp_path: Path) -> None:
    run = SampleRun(MemoryStore(), tmp_path, external_count=2).play(4)
    run.evaluate(0)
    run.flush()
    [found], _ = read_experiments(run.store, [LAYOUT.experiment_name])
    assert found.cell.arm.name == "2/2" and found.cell.arm.nodes == 3 and found.cell.rounds == 4
    assert len(found.rows) == 12 and found.before is not None
    assert found.measures["external_used"] > 0
    with pytest.raises(ConfigError, match="no experiment"):
        read_experiments(run.store, ["nothing"])


def test_a_run_whose_nodes_adapt_is_not_taken_for_one_with_a_fixed_split(tmp_path: Path) -> None:
    run = SampleRun(MemoryStore(), tmp_path, external_count=2).play(4)
    node = run.workers["w1"]
    node.config = replace(node.config, own_count=1, external_count=3)
    run.play(2)
    [found], _ = read_experiments(run.store, [LAYOUT.experiment_name])
    assert found.cell.arm.name == "2/2 adapted"


def test_a_name_that_somebody_registers_does_not_end_the_comparison(tmp_path: Path) -> None:
    store, row = MemoryStore(), {"timestamp": 1.0, "reward": 0.5, "own_wanted": 2, "external_wanted": 2}
    SampleRun(store, tmp_path).play(4)
    for name, numbers in {"x1": [77], "x2": [0], "x3": range(50, 3_000)}.items():
        register(store, LAYOUT, Registration(name, "worker", 0.0, "nano", name, "1", "s"))
        lines = [json.dumps(row | {"round": number}) for number in numbers]
        store.put(LAYOUT.log(name, "metrics.jsonl"), "\n".join(lines).encode())
    [found], said = read_experiments(store, [LAYOUT.experiment_name])
    assert found.cell.arm.nodes == 3 and found.cell.rounds == 4
    assert said[1:] == [
        "trial: left out: x1, with 0 of 4 rounds",
        "trial: left out: x2, with 1 of 4 rounds",
        "trial: left out: x3, with 0 of 4 rounds",
    ]


def test_runs_of_one_split_are_paired_in_the_order_in_which_they_are_named(tmp_path: Path) -> None:
    store = MemoryStore()
    SampleRun(store, tmp_path / "a").play(5)
    same, _ = read_experiments(store, [LAYOUT.experiment_name, LAYOUT.experiment_name])
    assert [each.cell.seed for each in same] == [1, 2]
