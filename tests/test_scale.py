"""The cost of a node does not follow the size of its swarm, and docs/scale.md computes what it says."""

import re

import pytest

from benchmarks import crowd, scale
from rl_swarm.swarm import exchange

ROW = {"puts": 2.0, "gets": 10.0, "lists": 1.0, "deletes": 0.0, "requests": 13.0}
ROW |= {"kilobytes_out": 10.0, "kilobytes_in": 100.0, "seconds_waited": 0.5}


def test_a_crowd_costs_a_node_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the real sizes: pages of 100 names, and 300 nodes."""
    monkeypatch.setattr(exchange, "MOST_LISTED", 100)
    monkeypatch.setattr(crowd, "PAGE", 100)
    monkeypatch.setattr(crowd, "MEASURED", 3)
    few, many = crowd.measure(20), crowd.measure(300)
    assert few["external_reached"] == many["external_reached"] == 4.0
    assert few["lists"] == 6.0, "the window when generation begins and when it ends"
    assert many["requests"] <= 1.3 * few["requests"] and many["seconds_waited"] <= 1.7 * few["seconds_waited"]
    monkeypatch.setattr(exchange, "MOST_LISTED", 10**6)
    assert crowd.measure(300)["lists"] == 18.0, "without a limit every listing has three pages"


def test_money_is_requests_storage_and_traffic() -> None:
    prices = scale.Prices(writing=0.005, reading=0.0004, month=0.02, leaving=0.1)
    assert prices.of_requests(ROW) == pytest.approx((3 * 0.005 + 10 * 0.0004) / 1000)
    inside = scale.ROUNDS * prices.of_requests(ROW) + 1440 * 10e3 / 1e9 * 0.02
    assert prices.of_day(ROW, away=False) == pytest.approx(inside)
    assert prices.of_day(ROW, away=True) == pytest.approx(inside + 1440 * 100e3 / 1e9 * 0.1)


def test_units_of_drive_follow_the_feed_in_a_large_swarm() -> None:
    assert scale.units(10) == pytest.approx(8 * 100 + 6.6 * 50 + 4 * 200 + 0.4 * 100)
    assert scale.units(10_000) - scale.units(10) == pytest.approx((66 - 8) * 100)


def test_the_page_is_the_one_that_is_written() -> None:
    """Its words and tables come from the script; figures are those of the last run."""
    folder = {"4": {"puts": 1.0, "gets": 1.0, "lists": 1.0, "deletes": 0.0, "operations": 3.0, "milliseconds": 1.0}}
    folder["4"] |= {"kilobytes_out": 1.0, "kilobytes_in": 1.0}
    rows = {str(nodes): ROW for nodes in scale.SIZES}
    made = scale.page(folder, {"per_node_round": rows, "growth": {"requests": 1.0, "seconds_waited": 1.0}})
    figures = re.compile(r"[\d,.]+")
    written = {figures.sub("#", line) for line in scale.PAGE.read_text().splitlines()}
    assert {figures.sub("#", line) for line in made.splitlines()} <= written
