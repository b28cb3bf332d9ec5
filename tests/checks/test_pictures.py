"""The README's pictures are made from a run."""

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
    data = (tmp_path / "pictures" / "report.png").read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) < 200_000
    assert struct.unpack(">II", data[16:24])[0] >= 1000
    assert capsys.readouterr().out.count(" kB\n") == 2


def test_the_committed_pictures_are_small() -> None:
    found = {path.name: path.stat().st_size for path in (pictures.DOCS / "pictures").rglob("*.*")}
    views = {f"{view}-{kind}.png" for view in VIEWS for kind in SIZES}
    assert found.keys() == {"live.svg", "report.png"} | views and max(found.values()) < 200_000
