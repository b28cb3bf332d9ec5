"""`--web`: the page is there while the run is, and its process ends with it."""

import json
import re
import time
import urllib.request
from pathlib import Path

import pytest

from rl_swarm.errors import ConfigError
from rl_swarm.tools.dashboard import shown_on_a_page
from tests.support.long_run import LongRun


def settings(tmp_path: Path) -> dict[str, str]:
    run = LongRun(tmp_path / "store", "first", 3, 2)
    return {"GDRIVE_PATH": str(run.store.root), "EXPERIMENT_NAME": "first", "RL_SWARM_HOME": str(tmp_path / "home")}


def test_the_page_of_a_run_is_served_until_it_ends(tmp_path: Path) -> None:
    said: list[str] = []
    with shown_on_a_page(True, settings(tmp_path), said.append):
        [line] = said
        url = re.findall(r"http://127\.0\.0\.1:\d+/", line)[0]
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"{url}api/round_and_stage", timeout=10) as answer:
                    assert json.load(answer)["rounds_done"] == 3
                break
            except OSError:
                time.sleep(0.1)
        else:
            pytest.fail((tmp_path / "home/consoles/first/web.log").read_text())
    assert said[-1].endswith(f"rl-swarm web --gdrive-path {tmp_path / 'store'}")
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{url}api/healthz", timeout=10)


def test_nothing_is_served_unless_it_is_wanted(tmp_path: Path) -> None:
    said: list[str] = []
    with shown_on_a_page(False, {}, said.append):
        assert not said


def test_a_missing_library_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_swarm.web.server.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install .*\[web\]"), shown_on_a_page(True, {}, print):
        pytest.fail("it must not start")
