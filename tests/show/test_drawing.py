"""Lines stop where a node was away, labels stand beside each other, and no legend covers a line."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rl_swarm.runs.record import Evaluated
from rl_swarm.runs.summary import summarise
from rl_swarm.show.drawing import LABEL_HEIGHT, LIGHT, apart, with_gaps
from rl_swarm.show.report import _smoothed, make_panels
from rl_swarm.store.folder import FolderStore
from tests.support.clocks import VirtualClock
from tests.support.sample_run import LAYOUT, SampleRun


def test_a_line_stops_where_rounds_are_missing() -> None:
    there = [*range(10), *range(40, 50)]
    rounds, means = _smoothed([(number, float(number >= 40)) for number in there])
    assert [number for number, mean in zip(rounds, means, strict=True) if math.isnan(mean)] == [9]
    assert means[-10:] == [1.0] * 10, "means are not taken across the gap"
    skipping = [(number, 0.5) for number in range(0, 60, 3)]
    assert not any(map(math.isnan, _smoothed(skipping)[1])), "a slow node that skips rounds was never away"
    assert with_gaps([], 5) == [] and with_gaps([(3, 1.0)], 5) == [(3, 1.0)]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_labels_keep_apart_and_stay_on_the_axis(values: list[float]) -> None:
    heights = apart(values)
    assert all(after - before >= LABEL_HEIGHT - 1e-9 for before, after in pairwise(sorted(heights)))
    assert max(heights) <= 1.0
    assert [heights[place] for place in sorted(range(len(values)), key=values.__getitem__)] == sorted(heights), "in their order"


@pytest.mark.parametrize("panel", [0, 1])
def test_legend_and_labels_cover_no_line(panel: int, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    run = SampleRun(FolderStore(tmp_path / "store", VirtualClock(), local=True), tmp_path).play(16)
    run.copy()
    evaluations = (Evaluated(0, 0.69, 0.8, 0.7, 100), Evaluated(16, 0.73, 0.74, 0.735, 100))
    figure = Figure(figsize=(5.2, 3.5), layout="constrained")
    canvas, axes = FigureCanvasAgg(figure), figure.add_subplot()
    make_panels(replace(summarise(run.store, LAYOUT), evaluations=evaluations))[panel].draw(axes, LIGHT)
    canvas.draw()
    legend, inside = axes.get_legend(), axes.get_window_extent()
    assert legend and legend.get_window_extent().y1 < axes.xaxis.label.get_window_extent().y0, "below the axis and its label"
    texts = [each.get_window_extent() for each in axes.texts]
    assert texts and not any(one.overlaps(other) for place, one in enumerate(texts) for other in texts[place + 1 :])
    if panel == 0:
        assert all(text.y0 >= inside.y1 for text in texts)
    else:
        ends = [axes.transData.transform((number, 0.5))[0] for number in (0, 16)]
        assert all(text.x1 <= ends[0] or text.x0 >= ends[1] for text in texts)
