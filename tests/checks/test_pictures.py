"""The README's pictures are made from a run and from the measured table."""

import json
import struct
from pathlib import Path

import pytest

from checks import pictures
from checks.screenshots import SIZES, VIEWS
from rl_swarm.store.folder import FolderStore
from tests.support.clocks import VirtualClock
from tests.support.sample_run import SampleRun


def test_the_pictures_are_made_from_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "store").mkdir()
    SampleRun(FolderStore(tmp_path / "store", VirtualClock(), local=True), tmp_path).complete()
    pictures.main([str(tmp_path / "store"), "trial"], tmp_path / "pictures", views=())
    live = (tmp_path / "pictures" / "live.svg").read_text("utf-8").replace("&#160;", " ")
    assert "11 of 16 rounds" in live and "@font-face" not in live and "url(http" not in live
    for name in ("report.png", "sharing.png"):
        data = (tmp_path / "pictures" / name).read_bytes()
        assert data.startswith(b"\x89PNG") and len(data) < 200_000
        assert struct.unpack(">II", data[16:24])[0] >= 1000
    assert capsys.readouterr().out.count(" kB\n") == 3


def test_the_title_of_the_result_states_the_measured_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(pictures, "sheet", lambda title, below, rows: said.extend((title, below)) or b"")
    pictures.sharing_picture(pictures.DOCS / "nano-table")
    results = json.loads((pictures.DOCS / "nano-table" / "results.json").read_text())
    [best] = [each for each in results["against_alone"] if each["arm"] == results["best"]]
    assert f"+{best['gain']:.0%}".replace("%", " %") in said[0] and f"p = {best['p']:.4f}" in said[1]
    assert f"better on {len(best['seeds'])} of {len(best['seeds'])} seeds" in said[1]


def test_the_committed_pictures_are_small() -> None:
    found = {path.name: path.stat().st_size for path in (pictures.DOCS / "pictures").rglob("*.*")}
    views = {f"{view}-{kind}.png" for view in VIEWS for kind in SIZES}
    assert found.keys() == {"live.svg", "report.png", "sharing.png"} | views and max(found.values()) < 200_000
