"""Compare arms with the baseline, seed by seed, and say in sentences what was found.

The plan names the best split before a reported seed is run: the best of several arms, picked by the results that are then tested,
would look better than it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from statistics import fmean

from rl_swarm.reproduce.permutation import SIGNIFICANT, interval, permutation_p, verdict
from rl_swarm.reproduce.plan import PAPERS_QUESTION, SMOOTHED_ROUNDS, Arm, Asked
from rl_swarm.reproduce.results import CellResult, ending
from rl_swarm.runs.record import Evaluated
from rl_swarm.show.formats import percent
from rl_swarm.text import counted

PAPERS_GAIN = {"6/2": 0.52, "4/4": 0.94, "2/6": 0.68}  # in the paper's own measure, arXiv:2509.08721
PAPERS_CUMULATIVE = {"8/0": 561.79, "6/2": 854.43, "4/4": 1093.31, "2/6": 945.87}
PAPERS_NODES = 8
KEPT = 0.95  # share of its highest cumulative gain that an arm must still have at the end
COSTS = {"writing": "tokens_generated", "compute": "compute"}  # by cost: the measure


@dataclass(frozen=True)
class ArmResult:
    arm: Arm
    cells: Mapping[int, CellResult]  # by seed

    @property
    def name(self) -> str:
        return self.arm.name

    def mean(self, measure: str) -> float | None:
        """The mean over the seeds in which it was measured."""
        known = [value for cell in self.cells.values() if (value := cell.measures[measure]) is not None]
        return fmean(known) if known else None

    @property
    def knowledge(self) -> dict[int, float]:
        """Held-out accuracy by the number of rounds played, at those that every seed has: the mean of the seeds."""
        curves = [cell.knowledge for cell in self.cells.values()]
        return {
            number: fmean(curve[number] for curve in curves) for number in curves[0] if all(number in curve for curve in curves)
        }

    @property
    def by_task(self) -> dict[str, float]:
        """Held-out accuracy of each task at the end: the mean of the seeds."""
        tables = [cell.by_task for cell in self.cells.values() if cell.by_task]
        return {task: fmean(table[task] for table in tables) for task in tables[0]} if tables else {}

    def mean_curve(self, curve: str) -> list[float]:
        return [fmean(values) for values in zip(*(getattr(cell.curves, curve) for cell in self.cells.values()), strict=False)]


@dataclass(frozen=True)
class Comparison:
    """An arm against another on the seeds that both have; the pairs are (other, arm)."""

    arm: str
    other: str
    seeds: tuple[int, ...]
    cumulative: tuple[tuple[float, float], ...]
    final: tuple[tuple[float, float], ...]
    held_out: tuple[tuple[float, float], ...]  # at the end, on the seeds on which both were measured
    by_question: tuple[float, ...]  # the difference of the shares of nodes that were right, mean of the seeds
    kept: float | None
    spent: dict[str, float]  # by cost: what a node of this arm spends, as a share of what a node of the other does
    operations: tuple[float, float]

    @property
    def gain(self) -> float | None:
        return _ratio(self.cumulative)

    @property
    def gain_range(self) -> tuple[float, float] | None:
        """The 95 % interval of the gain, over seeds."""
        base, found = sum(theirs for theirs, _ in self.cumulative), interval(_differences(self.cumulative))
        return (found[0] * len(self.seeds) / base, found[1] * len(self.seeds) / base) if found and base else None

    @property
    def final_gain(self) -> float | None:
        return _ratio(self.final)

    @property
    def p(self) -> float:
        return permutation_p(_differences(self.cumulative))

    @property
    def knows_more(self) -> float | None:
        """How much further held-out accuracy came, as the verifier reads."""
        return fmean(_differences(self.held_out)) if self.held_out else None

    @property
    def held_out_range(self) -> tuple[float, float] | None:
        """Its 95 % interval: over seeds or, where there is one seed, over the questions."""
        return interval(_differences(self.held_out)) or interval(self.by_question)

    @property
    def held_out_p(self) -> float | None:
        return permutation_p(_differences(self.held_out)) if self.held_out else None

    @property
    def worst(self) -> float | None:
        """The smallest gain of any seed."""
        return min((ours / theirs - 1 for theirs, ours in self.cumulative if theirs), default=None)


@dataclass(frozen=True)
class Analysis:
    arms: tuple[ArmResult, ...]  # the baseline first
    best: str
    asked: Asked = PAPERS_QUESTION

    @property
    def baseline(self) -> ArmResult:
        return self.arms[0]

    @property
    def before(self) -> Evaluated | None:
        """What the base model knows, where measured."""
        return next((cell.before for cell in self.baseline.cells.values() if cell.before), None)

    @cached_property
    def threshold(self) -> float:
        """Half of the baseline's reward at its end: how soon an arm gets there says how fast it learns."""
        return fmean(ending(self.baseline.mean_curve("own"))) / 2

    @property
    def table(self) -> list[ArmResult]:
        """The arms of the table itself."""
        return [arm for arm in self.arms if arm.arm.in_table]

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Every other arm of the table against the baseline; nothing without an arm that does not share."""
        return tuple(compare(arm, self.baseline) for arm in self.table[1:]) if self.baseline.arm.split.external == 0 else ()

    @cached_property
    def ablations(self) -> tuple[Comparison, ...]:
        """Every ablation against the split that it changes or, where it has one, against its own arm without sharing."""
        changed = [arm for arm in self.arms if arm.arm.ablation]
        alone = {arm.arm.ablation: arm for arm in changed if not arm.arm.split.external}
        against = {arm.name: alone.get(arm.arm.ablation) or self.arm(self.best) for arm in changed}
        return tuple(compare(arm, other) for arm in changed if (other := against[arm.name]) and other is not arm)

    @cached_property
    def at_equal_cost(self) -> dict[str, Comparison]:
        """By cost: the best arm against the baseline over as many rounds as cost the same."""
        best = self.arm(self.best)
        return {arm.arm.equal: compare(best, arm) for arm in self.arms if arm.arm.equal} if best else {}

    def gain_by_horizon(self, arm: ArmResult) -> list[tuple[int, float]]:
        """The gain up to each round, without the first few, where next to nothing is paid; on the seeds that both have."""
        seeds = arm.cells.keys() & self.baseline.cells.keys()
        theirs, ours = (
            list(accumulate(map(sum, zip(*(each.cells[seed].curves.own for seed in sorted(seeds)), strict=False))))
            for each in (self.baseline, arm)
        )
        pairs = list(zip(theirs, ours, strict=False))
        return [
            (number, mine / base - 1) for number, (base, mine) in enumerate(pairs, start=1) if number >= SMOOTHED_ROUNDS and base
        ]

    def arm(self, name: str) -> ArmResult | None:
        return next((arm for arm in self.arms if arm.name == name), None)

    @property
    def main(self) -> Comparison | None:
        return next((each for each in self.comparisons if each.arm == self.best), None)


def analyse(results: Sequence[CellResult], best: str, asked: Asked = PAPERS_QUESTION) -> Analysis:
    """Group finished cells by arm. The first arm without sharing outside any ablation is the baseline."""
    by_arm: dict[str, dict[int, CellResult]] = {}
    for result in results:
        by_arm.setdefault(result.cell.arm.name, {})[result.cell.seed] = result
    arms = [ArmResult(next(iter(cells.values())).cell.arm, dict(sorted(cells.items()))) for cells in by_arm.values()]
    order = sorted(arms, key=lambda each: (not each.arm.in_table, bool(each.arm.ablation), each.arm.split.external))
    return Analysis(tuple(order), best, asked)


def compare(arm: ArmResult, other: ArmResult) -> Comparison:
    seeds = tuple(sorted(arm.cells.keys() & other.cells.keys()))
    pairs = [(other.cells[seed], arm.cells[seed]) for seed in seeds]
    return Comparison(
        arm=arm.name,
        other=other.name,
        seeds=seeds,
        cumulative=tuple((theirs.measures["cumulative"], ours.measures["cumulative"]) for theirs, ours in pairs),
        final=tuple((theirs.measures["final"], ours.measures["final"]) for theirs, ours in pairs),
        held_out=tuple(
            (theirs.measures["held_out"], ours.measures["held_out"])
            for theirs, ours in pairs
            if theirs.measures["held_out"] is not None and ours.measures["held_out"] is not None
        ),
        by_question=_by_question([(theirs.right_at_end, ours.right_at_end) for theirs, ours in pairs]),
        kept=kept([(theirs.curves.own, ours.curves.own) for theirs, ours in pairs]),
        spent={cost: _spent(arm, measure) / max(1.0, _spent(other, measure)) for cost, measure in COSTS.items()},
        operations=(other.mean("operations") or 0.0, arm.mean("operations") or 0.0),
    )


def _spent(arm: ArmResult, measure: str) -> float:
    """What a node of this arm spends in all."""
    return (arm.mean(measure) or 0.0) / arm.arm.nodes


def _by_question(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> tuple[float, ...]:
    """The mean difference at each question; nothing unless both of each pair were asked the same ones."""
    if not pairs or any(not ours or len(ours) != len(theirs) for theirs, ours in pairs):
        return ()
    seeds = [[ours - theirs for theirs, ours in zip(*pair, strict=True)] for pair in pairs]
    return tuple(map(fmean, zip(*seeds, strict=True)))


def kept(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float | None:
    """The mean cumulative gain at the end, as a share of the highest that it ever was; None where there never was a gain."""
    steps = zip(*([ours - theirs for theirs, ours in zip(*pair, strict=False)] for pair in pairs), strict=False)
    gains = list(accumulate(map(fmean, steps)))
    return gains[-1] / max(gains) if gains and max(gains) > 0 else None


def rounds_to(smoothed: Sequence[float], threshold: float) -> int | None:
    """Rounds until the smoothed reward has reached the threshold; None if it never did."""
    return next((place + 1 for place, value in enumerate(smoothed) if value >= threshold), None)


def _means(pairs: Sequence[Sequence[float]]) -> tuple[float, float]:
    return fmean(pair[0] for pair in pairs), fmean(pair[1] for pair in pairs)


def _differences(pairs: Sequence[tuple[float, float]]) -> list[float]:
    return [ours - theirs for theirs, ours in pairs]


def _ratio(pairs: Sequence[tuple[float, float]]) -> float | None:
    base = sum(theirs for theirs, _ in pairs)
    return sum(ours for _, ours in pairs) / base - 1 if base else None


def sentences(analysis: Analysis) -> list[str]:
    """What was found, good or bad; the split that was named beforehand first, by the measure that was."""
    found, change = list[str](), analysis.asked.change
    main = analysis.main
    if analysis.baseline.arm.split.external:
        found.append("There is no run without sharing (J = 0), so whether sharing helped cannot be said.")
    if main:
        outcomes = [_about_reward(main, change), _about_knowledge(main, change)]
        found += reversed(outcomes) if analysis.asked.outcome == "held_out" else outcomes
        found += [_about_being_as_good(main, analysis.asked.as_good_within), _about_spending(main)]
        found += [_about_equal_cost(cost, each, change) for cost, each in analysis.at_equal_cost.items()]
        found += [_about_keeping(main), _about_the_paper(analysis, main), _about_mixing(analysis, main)]
    for each in (each for each in analysis.comparisons if each is not main):
        found += [_about_reward(each, change), _about_knowledge(each, change)]
    for each in analysis.ablations:
        what = "the change" if each.other == analysis.best else "sharing"
        found += [_about_reward(each, what), _about_knowledge(each, what)]
    if analysis.before:
        found += [_about_learning(arm, analysis.before) for arm in analysis.table]
    for arm in analysis.arms:
        lost = sum(cell.measures["collapsed"] for cell in arm.cells.values())
        if lost:
            found.append(
                f"{arm.name} collapsed on {lost} of {counted(len(arm.cells), 'seed')}: it ended with less than half of its peak."
            )
    return [sentence for sentence in found if sentence]


def _about_reward(each: Comparison, what: str) -> str:
    if not each.seeds:
        return f"{each.arm} and {each.other} share no seed, so they cannot be compared."
    differences = _differences(each.cumulative)
    change = percent(each.gain, "+.0%") if each.gain is not None else f"{fmean(differences):+.3f}"
    shown = _interval([f"{100 * end:+.0f}" for end in each.gain_range], " %") if each.gain_range else ""
    return verdict(f"{each.arm} against {each.other}: {change} cumulative own reward{shown}", differences, what)


def _about_knowledge(each: Comparison, what: str) -> str:
    """Held-out accuracy at the end, which may differ where rewards no longer do."""
    if each.knows_more is None:
        return ""
    theirs, ours = _means(each.held_out)
    head = (
        f"Held-out at the end: {each.arm} {percent(ours, '.1%')}, {each.other} {percent(theirs, '.1%')}, "
        f"{100 * each.knows_more:+.1f} points{_points(each.held_out_range, over_questions=len(each.held_out) < 2)}"
    )
    return verdict(head, _differences(each.held_out), what)


def _points(found: tuple[float, float] | None, over_questions: bool) -> str:
    over = " over the questions" if over_questions else ""
    return _interval([f"{100 * end:+.1f}" for end in found], over) if found else ""


def _interval(ends: Sequence[str], more: str) -> str:
    return f" (95 % interval {' to '.join(ends)}{more})"


def _about_being_as_good(main: Comparison, margin: float | None) -> str:
    if margin is None or not main.held_out_range:
        return ""
    within = f"within {100 * margin:.0f} points of held-out accuracy, a margin that was fixed beforehand"
    if main.held_out_range[0] > -margin:
        return f"{main.arm} is as good as {main.other} {within}."
    return f"That {main.arm} is as good as {main.other} {within}, is not shown."


def _about_spending(main: Comparison) -> str:
    """What the gain costs over the same rounds."""
    theirs, ours = main.operations
    return (
        f"Over the same rounds a node of {main.arm} writes {percent(main.spent['writing'])} of the tokens of one of {main.other} "
        f"and computes {percent(main.spent['compute'])} as much, with {ours:.1f} operations on the store a round instead of "
        f"{theirs:.1f}."
    )


def _about_equal_cost(cost: str, each: Comparison, what: str) -> str:
    """The ends of two whole runs: a run that is read off in the middle has a learning rate that was still high."""
    head = f"At equal {cost} ({percent(each.spent[cost])} of what {each.other} spends)"
    known = _about_knowledge(each, what)
    if known:
        return f"{head}: {known[0].lower()}{known[1:]}"
    theirs, ours = _means(each.final)
    return verdict(f"{head}: final own reward {each.arm} {ours:.3f}, {each.other} {theirs:.3f}", _differences(each.final), what)


def _about_learning(arm: ArmResult, before: Evaluated) -> str:
    """What nodes know at the end, beside what the base model knew when made to answer in the form that is rewarded."""
    cells = [cell for cell in arm.cells.values() if cell.measures["held_out"] is not None]
    if not cells:
        return ""
    ends, known = [cell.measures["held_out"] for cell in cells], before.held_out_in_form
    of_seeds = f"mean of {counted(len(ends), 'seed')}, {percent(min(ends), '.1%')} to {percent(max(ends), '.1%')}"
    head = (
        f"{arm.name} ends at {percent(fmean(ends), '.1%')} of {before.held_out_questions} held-out questions "
        f"({of_seeds if len(ends) > 1 else 'one seed'}); the base model has {percent(before.held_out, '.1%')} by itself, "
        f"{percent(known, '.1%')} in the form and {percent(before.held_out_style_blind, '.1%')} in any form"
    )
    gained = [end - known for end in ends]
    marks = [[int(mark) for mark in cell.right_before.get("held_out_in_form", "")] for cell in cells]
    asked = _by_question([(mark, cell.right_at_end) for mark, cell in zip(marks, cells, strict=True)])
    found = interval(gained) or interval(asked)
    more = f"{100 * fmean(gained):+.1f} points against the form{_points(found, over_questions=len(gained) < 2)}"
    return verdict(f"{head}: {more}", gained, "training")


def _about_keeping(main: Comparison) -> str:
    if main.kept is None or main.final_gain is None:
        return f"{main.arm} was at no time ahead of {main.other}."
    ends = f"in the last tenth of the rounds its reward is {percent(main.final_gain, '+.0%')} against {main.other}"
    if main.kept >= KEPT:
        return f"{main.arm} keeps its gain to the end of the horizon ({percent(main.kept)} of its highest); {ends}."
    return f"{main.arm} loses part of its gain: at the end it has {percent(main.kept)} of its highest; {ends}."


def _about_the_paper(analysis: Analysis, main: Comparison) -> str:
    """Only for swarms of the paper's size and splits."""
    alike = main.other in PAPERS_CUMULATIVE and analysis.baseline.arm.nodes == PAPERS_NODES
    if not alike or main.arm not in PAPERS_GAIN or main.gain is None:
        return ""
    paper, ours = PAPERS_GAIN[main.arm], main.gain
    said = f"The paper reports {percent(paper, '+.0%')} for {main.arm} in its own measure; here it is {percent(ours, '+.0%')}"
    if ours < paper:
        return f"{said}, so that is not reached."
    return f"{said}, so that is reached." if main.p < SIGNIFICANT else f"{said}, on too few seeds to say that it is reached."


def _about_mixing(analysis: Analysis, main: Comparison) -> str:
    arm, reference = analysis.arm(main.arm), analysis.baseline.mean("cumulative_mixed")
    mixed, own = (arm.mean("cumulative_mixed"), arm.mean("cumulative")) if arm else (None, None)
    if not mixed or not own or not reference:
        return ""
    inflated = ": that is inflated" if mixed > own else ""
    return (
        f"Counted as the paper may have counted, with the external rollouts that were chosen for being informative, {main.arm} "
        f"would have {mixed:.2f} instead of {own:.2f}, {percent(mixed / reference - 1, '+.0%')} against {main.other}{inflated}."
    )
