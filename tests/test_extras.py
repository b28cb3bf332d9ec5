"""The hint that installs an optional part works where it is printed."""

import importlib.metadata
import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from rl_swarm.extras import install_command


def installed_from(document: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda file: document))


def test_in_a_clone_the_clone_is_installed_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clone = tmp_path / "my clone"
    clone.mkdir()
    url = clone.as_uri()
    installed_from(json.dumps({"url": url, "dir_info": {"editable": True}}), monkeypatch)
    assert install_command("signed") == f"pip install -e {shlex.quote(f'{clone}[signed]')}"
    monkeypatch.chdir(clone)
    assert install_command("signed") == "pip install -e '.[signed]'"


@pytest.mark.parametrize("document", [None, "", "[]", "{}", '{"url": "file:///x", "dir_info": {}}', "no json"])
def test_a_wheel_is_named(document: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    installed_from(document, monkeypatch)
    assert install_command("lora") == "pip install 'rl-swarm[lora]'"
