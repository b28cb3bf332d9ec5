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
from rl_swarm.reproduce.plan import SMOOTHED_ROUNDS, Arm
from rl_swarm.reproduce.results import CellResult, ending
from rl_swarm.runs.record import Evaluated
from rl_swarm.show.formats import percent
from rl_swarm.text import counted

PAPERS_GAIN = {"6/2": 0.52, "4/4": 0.94, "2/6": 0.68}  # in the paper's own measure, arXiv:2509.08721
PAPERS_CUMULATIVE = {"8/0": 561.79, "6/2": 854.43, "4/4": 1093.31, "2/6": 945.87}
KEPT = 0.95  # share of its highest cumulative gain that an arm must still have at the end
COSTS = {"generated": "tokens written", "compute": "tokens written, and three for each token trained on"}


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

    def mean_curve(self, curve: str) -> list[float]:
        return [fmean(values) for values in zip(*(getattr(cell.curves, curve) for cell in self.cells.values()), strict=False)]


@dataclass(frozen=True)
class AtEqualCost:
    """Both arms at the moment when each has spent, per node, as much as the cheaper one spent in all."""

    cost: str
    rounds: tuple[float, float]
    reached: tuple[float, float]  # smoothed reward then
    mean_reward: tuple[float, float]  # of all rounds until then
    p: float


@dataclass(frozen=True)
class Comparison:
    """An arm against another on the seeds that both have; the pairs are (other, arm)."""

    arm: str
    other: str
    seeds: tuple[int, ...]
    cumulative: tuple[tuple[float, float], ...]
    final: tuple[tuple[float, float], ...]
    held_out: tuple[tuple[float, float], ...]  # at the end, on the seeds on which both were measured
    kept: float | None
    at_equal_cost: tuple[AtEqualCost, ...]

    @property
    def gain(self) -> float | None:
        return _ratio(self.cumulative)

    @property
    def final_gain(self) -> float | None:
        return _ratio(self.final)

    @property
    def p(self) -> float:
        return permutation_p([ours - theirs for theirs, ours in self.cumulative])

    @property
    def knows_more(self) -> float | None:
        """How much further held-out accuracy came, as the verifier reads."""
        return fmean(ours - theirs for theirs, ours in self.held_out) if self.held_out else None

    @property
    def held_out_p(self) -> float | None:
        return permutation_p([ours - theirs for theirs, ours in self.held_out]) if self.held_out else None

    @property
    def worst(self) -> float | None:
        """The smallest gain of any seed."""
        return min((ours / theirs - 1 for theirs, ours in self.cumulative if theirs), default=None)


@dataclass(frozen=True)
class Analysis:
    arms: tuple[ArmResult, ...]  # the baseline first
    best: str

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

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Every arm against the baseline; nothing without an arm that does not share."""
        return tuple(compare(arm, self.baseline) for arm in self.arms[1:]) if self.baseline.arm.split.external == 0 else ()

    @cached_property
    def ablations(self) -> tuple[Comparison, ...]:
        """Every ablation against the split that it changes."""
        best = self.arm(self.best)
        return tuple(compare(arm, best) for arm in self.arms if arm.arm.ablation) if best else ()

    @property
    def table(self) -> list[ArmResult]:
        """The arms of the table itself."""
        return [arm for arm in self.arms if not arm.arm.ablation]

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


def analyse(results: Sequence[CellResult], best: str) -> Analysis:
    """Group finished cells by arm. The first arm without sharing outside any ablation is the baseline."""
    by_arm: dict[str, dict[int, CellResult]] = {}
    for result in results:
        by_arm.setdefault(result.cell.arm.name, {})[result.cell.seed] = result
    arms = [ArmResult(next(iter(cells.values())).cell.arm, dict(sorted(cells.items()))) for cells in by_arm.values()]
    return Analysis(tuple(sorted(arms, key=lambda each: (bool(each.arm.ablation), each.arm.split.external))), best)


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
        kept=kept([(theirs.curves.own, ours.curves.own) for theirs, ours in pairs]),
        at_equal_cost=tuple(_at_equal_cost(cost, pairs) for cost in COSTS) if pairs else (),
    )


def kept(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float | None:
    """The mean cumulative gain at the end, as a share of the highest that it ever was; None where there never was a gain."""
    steps = zip(*([ours - theirs for theirs, ours in zip(*pair, strict=False)] for pair in pairs), strict=False)
    gains = list(accumulate(map(fmean, steps)))
    return gains[-1] / max(gains) if gains and max(gains) > 0 else None


def rounds_to(smoothed: Sequence[float], threshold: float) -> int | None:
    """Rounds until the smoothed reward has reached the threshold; None if it never did."""
    return next((place + 1 for place, value in enumerate(smoothed) if value >= threshold), None)


def rounds_for(costs: Sequence[float], budget: float) -> int:
    """Rounds that a running cost pays for, and at least one."""
    return max(1, sum(cost <= budget for cost in costs))


def _at_equal_cost(name: str, pairs: Sequence[tuple[CellResult, CellResult]]) -> AtEqualCost:
    rounds, reached, means = [], [], []
    for pair in pairs:
        costs = [[cost / result.cell.arm.nodes for cost in getattr(result.curves, name)] for result in pair]
        budget = min(each[-1] for each in costs)
        done = [rounds_for(each, budget) for each in costs]
        rounds.append(done)
        reached.append([result.curves.smoothed[number - 1] for result, number in zip(pair, done, strict=True)])
        means.append([fmean(result.curves.own[:number]) for result, number in zip(pair, done, strict=True)])
    p = permutation_p([ours - theirs for theirs, ours in reached])
    return AtEqualCost(name, rounds=_means(rounds), reached=_means(reached), mean_reward=_means(means), p=p)


def _means(pairs: Sequence[Sequence[float]]) -> tuple[float, float]:
    return fmean(pair[0] for pair in pairs), fmean(pair[1] for pair in pairs)


def _ratio(pairs: Sequence[tuple[float, float]]) -> float | None:
    base = sum(theirs for theirs, _ in pairs)
    return sum(ours for _, ours in pairs) / base - 1 if base else None


def sentences(analysis: Analysis) -> list[str]:
    """What was found, good or bad; the split that was named beforehand first."""
    found = []
    main = analysis.main
    if analysis.baseline.arm.split.external:
        found.append("There is no run without sharing (J = 0), so whether sharing helped cannot be said.")
    if main:
        found += [verdict(main.arm, main.other, main.cumulative), _about_knowledge(main)]
        found += [_about_keeping(main), _about_the_paper(main)]
        found += [_about_cost(main, each) for each in main.at_equal_cost]
        found.append(_about_mixing(analysis, main))
    for each in (each for each in analysis.comparisons if each is not main):
        found += [verdict(each.arm, each.other, each.cumulative), _about_knowledge(each)]
    if analysis.best != analysis.baseline.name:
        found += [verdict(each.arm, each.other, each.cumulative, what="the change") for each in analysis.ablations]
    if analysis.before:
        found += [_about_learning(arm, analysis.before) for arm in analysis.arms]
    for arm in analysis.arms:
        lost = sum(cell.measures["collapsed"] for cell in arm.cells.values())
        if lost:
            found.append(
                f"{arm.name} collapsed on {lost} of {counted(len(arm.cells), 'seed')}: it ended with less than half of its peak."
            )
    return [sentence for sentence in found if sentence]


def _about_knowledge(each: Comparison) -> str:
    """Held-out accuracy at the end, which may differ where rewards no longer do."""
    if each.knows_more is None:
        return ""
    theirs, ours = _means(each.held_out)
    differences = [ours - theirs for theirs, ours in each.held_out]
    range_of = interval(differences)
    shown = f", 95 % interval {100 * range_of[0]:+.1f} to {100 * range_of[1]:+.1f}" if range_of else ""
    better = sum(difference > 0 for difference in differences)
    return (
        f"Held-out at the end: {each.arm} {percent(ours, '.1%')}, {each.other} {percent(theirs, '.1%')} "
        f"({100 * each.knows_more:+.1f} points{shown}, better on {better} of {counted(len(differences), 'seed')}, "
        f"p = {each.held_out_p:.4f})."
    )


def _about_learning(arm: ArmResult, before: Evaluated) -> str:
    """What nodes know at the end, beside what the base model knew when made to answer in the form that is rewarded."""
    ends = [cell.measures["held_out"] for cell in arm.cells.values() if cell.measures["held_out"] is not None]
    if not ends:
        return ""
    seeds = counted(len(ends), "seed")
    return (
        f"{arm.name} ends at {percent(fmean(ends), '.1%')} of {before.held_out_questions} held-out questions (mean of {seeds}, "
        f"the worst {percent(min(ends), '.1%')}); the base model knows {percent(before.held_out_in_form, '.1%')} in the form and "
        f"{percent(before.held_out_style_blind, '.1%')} in any form."
    )


def _about_keeping(main: Comparison) -> str:
    if main.kept is None or main.final_gain is None:
        return f"{main.arm} was at no time ahead of {main.other}."
    ends = f"in the last tenth of the rounds its reward is {percent(main.final_gain, '+.0%')} against {main.other}"
    if main.kept >= KEPT:
        return f"{main.arm} keeps its gain to the end of the horizon ({percent(main.kept)} of its highest); {ends}."
    return f"{main.arm} loses part of its gain: at the end it has {percent(main.kept)} of its highest; {ends}."


def _about_the_paper(main: Comparison) -> str:
    if main.arm not in PAPERS_GAIN or main.gain is None:
        return ""
    paper, ours = PAPERS_GAIN[main.arm], main.gain
    said = f"The paper reports {percent(paper, '+.0%')} for {main.arm} in its own measure; here it is {percent(ours, '+.0%')}"
    if ours < paper:
        return f"{said}, so that is not reached."
    return f"{said}, so that is reached." if main.p < SIGNIFICANT else f"{said}, on too few seeds to say that it is reached."


def _about_cost(main: Comparison, equal: AtEqualCost) -> str:
    theirs, ours = equal.reached
    return (
        f"At equal cost ({COSTS[equal.cost]}) {main.arm} stands at {ours:.3f} after {equal.rounds[1]:.0f} rounds, {main.other} at "
        f"{theirs:.3f} after {equal.rounds[0]:.0f} (smoothed own reward, p = {equal.p:.4f})."
    )


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
