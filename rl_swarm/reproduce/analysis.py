"""Arms against the baseline, seed by seed. Pure: from finished cells to what the report says.

The best split is named by the plan, before a reported seed was run: the best of several arms, picked by the results that are then
tested, would look better than it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from statistics import fmean

from rl_swarm.reproduce.measures import Curves, Measures, curves, ending, measure, rounds_for, rounds_to
from rl_swarm.reproduce.plan import SMOOTHED_ROUNDS, Arm
from rl_swarm.reproduce.results import CellResult
from rl_swarm.reproduce.statistics import permutation_p, verdict

PAPERS_GAIN = {"6/2": 0.52, "4/4": 0.94, "2/6": 0.68}  # in the paper's own measure, arXiv:2509.08721
KEPT = 0.95  # share of its highest cumulative gain that an arm must still have at the end
OWN_REWARD = "cumulative own reward"


@dataclass(frozen=True)
class Finished:
    """One cell with its figures."""

    result: CellResult
    curves: Curves
    measures: Measures


@dataclass(frozen=True)
class ArmResult:
    arm: Arm
    cells: Mapping[int, Finished]  # by seed

    def mean(self, name: str) -> float | None:
        values = [getattr(cell.measures, name) for cell in self.cells.values()]
        known = [value for value in values if value is not None]
        return fmean(known) if known else None

    def mean_curve(self, name: str) -> list[float]:
        return [fmean(values) for values in zip(*(getattr(cell.curves, name) for cell in self.cells.values()), strict=False)]

    def rounds_to(self, threshold: float) -> int | None:
        """Of the mean over seeds."""
        return rounds_to(self.mean_curve("smoothed"), threshold)


@dataclass(frozen=True)
class AtEqualCost:
    """Both arms at the moment when each has spent what the cheaper one spent in all: rounds done, and reward reached (smoothed)."""

    cost: str
    rounds: tuple[float, float]
    reached: tuple[float, float]
    mean_reward: tuple[float, float]
    p: float


@dataclass(frozen=True)
class Comparison:
    """An arm against another on the seeds that both have; the pairs are (other, arm)."""

    arm: str
    other: str
    seeds: tuple[int, ...]
    cumulative: tuple[tuple[float, float], ...]
    final: tuple[tuple[float, float], ...]
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

    @cached_property
    def threshold(self) -> float:
        """Half of what the baseline ends with: how soon an arm gets there says how fast it learns."""
        return fmean(ending(self.baseline.mean_curve("own"))) / 2

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Every arm against the baseline; none where nobody worked alone."""
        return tuple(compare(arm, self.baseline) for arm in self.arms[1:]) if self.baseline.arm.split.external == 0 else ()

    @cached_property
    def ablations(self) -> tuple[Comparison, ...]:
        """Every ablation against the split that it changes."""
        best = self.arm(self.best)
        return tuple(compare(arm, best) for arm in self.arms if arm.arm.ablation) if best else ()

    def gain_by_horizon(self, arm: ArmResult) -> list[tuple[int, float]]:
        """The gain up to each round but the first few, where next to nothing is paid; on the seeds that both have."""
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
        return next((arm for arm in self.arms if arm.arm.name == name), None)

    @property
    def main(self) -> Comparison | None:
        return next((each for each in self.comparisons if each.arm == self.best), None)


def analyse(results: Sequence[CellResult], best: str) -> Analysis:
    """Group finished cells by arm. The first arm without sharing outside any ablation is the baseline."""
    arms: dict[str, Arm] = {}
    cells: dict[str, dict[int, Finished]] = {}
    for result in results:
        arm = result.cell.arm
        arms.setdefault(arm.name, arm)
        cells.setdefault(arm.name, {})[result.cell.seed] = Finished(result, curves(result), measure(result))
    found = [ArmResult(arm, dict(sorted(cells[name].items()))) for name, arm in arms.items()]
    order = sorted(found, key=lambda each: (bool(each.arm.ablation), each.arm.split.external))
    return Analysis(tuple(order), best)


def compare(arm: ArmResult, other: ArmResult) -> Comparison:
    seeds = tuple(sorted(arm.cells.keys() & other.cells.keys()))
    pairs = [(other.cells[seed], arm.cells[seed]) for seed in seeds]
    return Comparison(
        arm=arm.arm.name,
        other=other.arm.name,
        seeds=seeds,
        cumulative=tuple((theirs.measures.cumulative, ours.measures.cumulative) for theirs, ours in pairs),
        final=tuple((theirs.measures.final, ours.measures.final) for theirs, ours in pairs),
        kept=kept([(theirs.curves.own, ours.curves.own) for theirs, ours in pairs]),
        at_equal_cost=tuple(_at_equal_cost(name, pairs) for name in ("generated", "compute")) if pairs else (),
    )


def kept(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float | None:
    """The mean cumulative gain at the end, as a share of the highest that it ever was; None where there never was a gain."""
    if not pairs:
        return None
    steps = [fmean(ours[place] - theirs[place] for theirs, ours in pairs) for place in range(min(map(_shorter, pairs)))]
    gains = list(accumulate(steps))
    return gains[-1] / max(gains) if gains and max(gains) > 0 else None


def _shorter(pair: tuple[Sequence[float], Sequence[float]]) -> int:
    return min(map(len, pair))


def _at_equal_cost(name: str, pairs: Sequence[tuple[Finished, Finished]]) -> AtEqualCost:
    rounds, reached, means = [], [], []
    for pair in pairs:
        costs = [[cost / cell.result.cell.arm.nodes for cost in getattr(cell.curves, name)] for cell in pair]
        budget = min(each[-1] for each in costs)
        done = [rounds_for(each, budget) for each in costs]
        rounds.append(done)
        reached.append([cell.curves.smoothed[number - 1] for cell, number in zip(pair, done, strict=True)])
        means.append([fmean(cell.curves.own[:number]) for cell, number in zip(pair, done, strict=True)])
    return AtEqualCost(
        cost=name,
        rounds=_means(rounds),
        reached=_means(reached),
        mean_reward=_means(means),
        p=permutation_p([ours - theirs for theirs, ours in reached]),
    )


def _means(pairs: Sequence[Sequence[float]]) -> tuple[float, float]:
    return fmean(pair[0] for pair in pairs), fmean(pair[1] for pair in pairs)


def _ratio(pairs: Sequence[tuple[float, float]]) -> float | None:
    base = sum(theirs for theirs, _ in pairs)
    return sum(ours for _, ours in pairs) / base - 1 if base else None


def sentences(analysis: Analysis) -> list[str]:
    """What was found, in plain words, good or bad; the split that was named beforehand first."""
    found = []
    main = analysis.main
    if analysis.baseline.arm.split.external:
        found.append("There is no run without sharing (J = 0), so whether sharing helped cannot be said.")
    if main:
        found += [verdict(main.arm, main.other, main.cumulative, OWN_REWARD), _about_keeping(main), _about_the_paper(main)]
        found += [_about_cost(main, each) for each in main.at_equal_cost]
        found += _about_mixing(analysis, main)
    found += [verdict(each.arm, each.other, each.cumulative, OWN_REWARD) for each in analysis.comparisons if each is not main]
    found += [
        verdict(each.arm, each.other, each.cumulative, OWN_REWARD, what="the change")
        for each in analysis.ablations
        if analysis.best != analysis.baseline.arm.name
    ]
    for arm in analysis.arms:
        lost = [seed for seed, cell in arm.cells.items() if cell.measures.collapsed]
        if lost:
            found.append(
                f"{arm.arm.name} collapsed on {len(lost)} of {len(arm.cells)} seeds: it ended with less than half of its peak."
            )
    return [sentence for sentence in found if sentence]


def _about_keeping(main: Comparison) -> str:
    if main.kept is None or main.final_gain is None:
        return f"{main.arm} was at no time ahead of {main.other}."
    ends = f"in the last tenth of the rounds its reward is {_percent(main.final_gain)} against {main.other}"
    if main.kept >= KEPT:
        return f"{main.arm} keeps its gain to the end of the horizon ({_share(main.kept)} of its highest); {ends}."
    return f"{main.arm} loses part of its gain: at the end it has {_share(main.kept)} of its highest; {ends}."


def _about_the_paper(main: Comparison) -> str:
    if main.arm not in PAPERS_GAIN or main.gain is None:
        return ""
    said, ours = PAPERS_GAIN[main.arm], main.gain
    relation = "reached" if ours >= said else "not reached"
    return (
        f"The paper reports {_percent(said)} for {main.arm} in its own measure; here it is {_percent(ours)}, so that is {relation}."
    )


def _about_cost(main: Comparison, equal: AtEqualCost) -> str:
    cost = {"generated": "tokens written", "compute": "tokens written, and three for each token trained on"}[equal.cost]
    theirs, ours = equal.reached
    return (
        f"At equal cost ({cost}) {main.arm} stands at {ours:.3f} after {equal.rounds[1]:.0f} rounds, {main.other} at {theirs:.3f} "
        f"after {equal.rounds[0]:.0f} (smoothed own reward, p = {equal.p:.4f})."
    )


def _about_mixing(analysis: Analysis, main: Comparison) -> list[str]:
    arm, base = analysis.arm(main.arm), analysis.baseline
    mixed, own = (arm.mean("cumulative_mixed"), arm.mean("cumulative")) if arm else (None, None)
    reference = base.mean("cumulative_mixed")
    if not mixed or not own or not reference:
        return []
    inflated = ": that is inflated" if mixed > own else ""
    return [
        f"Counted as the paper may have counted, with the external rollouts that were chosen for being informative, {main.arm} "
        f"would have {mixed:.2f} instead of {own:.2f}, {_percent(mixed / reference - 1)} against {main.other}{inflated}."
    ]


def _share(value: float) -> str:
    return f"{value:.0%}".replace("%", " %")


def _percent(value: float) -> str:
    return f"{value:+.0%}".replace("%", " %")
