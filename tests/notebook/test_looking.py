"""Looking at runs from a cell: the live view drawn in place, pictures, records, and runs side by side."""

from pathlib import Path
from typing import Any

import pytest

from rl_swarm import notebook
from rl_swarm.show import cell
from rl_swarm.store.folder import FolderStore
from tests.support.clocks import VirtualClock
from tests.support.sample_run import LAYOUT, SampleRun


@pytest.fixture(autouse=True)
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "store").mkdir()
    SampleRun(FolderStore(tmp_path / "store", VirtualClock(), local=True), tmp_path).complete()
    monkeypatch.setenv("GDRIVE_PATH", str(tmp_path / "store"))
    monkeypatch.setenv("EXPERIMENT_NAME", LAYOUT.experiment_name)
    return tmp_path / "store"


class Display:
    """IPython's display: keeps what a cell shows, each place once."""

    def __init__(self) -> None:
        self.places: list[Any] = []

    def __call__(self, shown: Any, *, raw: bool = False, display_id: bool = False) -> "Place | None":
        self.places.append(shown)
        return Place(self, len(self.places) - 1) if display_id else None


class Place:
    def __init__(self, display: Display, number: int) -> None:
        self.display, self.number, self.updates = display, number, 0

    def update(self, shown: Any, *, raw: bool) -> None:
        self.display.places[self.number] = shown


@pytest.fixture
def display(monkeypatch: pytest.MonkeyPatch) -> Display:
    display = Display()
    monkeypatch.setattr("IPython.display.display", display)
    return display


def test_outside_a_notebook_the_run_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    notebook.watch()
    said = capsys.readouterr().out.replace("\n", " ")
    assert said.startswith("Ctrl-C leaves this view") and "16 of 16 rounds, reward " in said and "3 workers: 3 complete" in said


def test_in_a_cell_the_view_is_drawn_in_place(display: Display, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    with notebook.looking.live_view() as view:
        view.show()
        view.show()
    [shown] = display.places
    assert "trial: complete, 16 of 16 rounds" in shown["text/plain"] and "reward, mean of the nodes' own" in shown["text/plain"]
    assert shown["text/html"].startswith("<pre style=") and "trial" in shown["text/html"]


def test_text_of_strangers_stays_text_in_a_cell() -> None:
    assert "<script>" not in cell.as_data("a <script>alert(1)</script>")["text/html"]


def test_records_are_a_frame_with_a_row_for_each_node_and_round() -> None:
    frame = notebook.records()
    assert len(frame) == 3 * 16 and set(frame["node_id"]) == {"w1", "w2", "w3"}
    assert list(frame["node_id"][-3:]) == ["w1", "w2", "w3"] and set(frame["round"][-3:]) == {15}
    assert {"reward", "external_used", "tokens_per_s"} <= set(frame.columns)


def test_the_picture_of_a_run_is_shown(display: Display) -> None:
    notebook.show_report()
    [image] = display.places
    assert image.data.startswith(b"\x89PNG")


def test_runs_are_compared_with_the_measured_one_and_the_papers_figures_are_marked(
    finished: Path, display: Display, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook.show_curves([LAYOUT.experiment_name])
    table = notebook.compare([LAYOUT.experiment_name])
    assert display.places[0].data.startswith(b"\x89PNG")
    assert list(table["runs"]) == [1] and "the paper's gain" in table.columns
    assert "no worker's figures are signed" in capsys.readouterr().out
