"""The live view in a notebook's cell: drawn in place where widgets are installed, plain lines elsewhere."""

import io
import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from rl_swarm.runs.following import Following
from rl_swarm.show.live import watch
from rl_swarm.store.folder import FolderStore
from rl_swarm.tools import notebook
from tests.support.clocks import VirtualClock
from tests.support.sample_run import LAYOUT, SampleRun


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    SampleRun(FolderStore(tmp_path / "store", VirtualClock(), local=True), tmp_path).complete()
    return tmp_path / "store"


def test_a_cell_shows_the_run_until_it_has_ended(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notebook.watch_experiment(str(finished), LAYOUT.experiment_name)
    [line] = capsys.readouterr().out.replace("\n", " ").split("  ")
    assert line.startswith("16 of 16 rounds, reward ") and "3 workers: 3 complete" in line


def test_with_widgets_the_view_is_drawn_in_place(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    class Output:
        def __enter__(self) -> None: ...
        def __exit__(self, *error: object) -> None: ...
        def clear_output(self, wait: bool) -> None:
            drawn.clear()

    def display(*shown: Any) -> None:
        drawn.extend(str(each.data["text/plain"]) for each in shown if hasattr(each, "data"))

    for name, fields in {"IPython": {}, "IPython.display": {"display": display}, "ipywidgets": {"Output": Output}}.items():
        module = ModuleType(name)
        module.__dict__.update(fields, __spec__=ModuleSpec(name, None))
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("rich.jupyter.JupyterRenderable", lambda html, text: type("Shown", (), {"data": {"text/plain": text}})())
    watch(Following(FolderStore(finished), LAYOUT), Console(force_jupyter=True, file=io.StringIO()), until_ended=True)
    text = re.sub(r"\x1b\[[0-9;]*m", "", "".join(drawn))
    assert "trial: complete, 16 of 16 rounds" in text and "reward, mean of the nodes' own completions" in text
    assert text.count("RL Swarm ") == 1, "in place"
