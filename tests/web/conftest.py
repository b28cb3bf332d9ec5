"""One run to look at, and the application on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from rl_swarm.store.folder import FolderStore
from rl_swarm.web.app import make_app
from rl_swarm.web.runs import Runs
from tests.support.long_run import LongRun


@pytest.fixture
def run(tmp_path: Path) -> LongRun:
    return LongRun(tmp_path / "store", "first", 12, 3)


@pytest.fixture
def client(run: LongRun) -> Iterator[TestClient]:
    runs = Runs(FolderStore(run.store.root), None)
    with TestClient(make_app(runs), base_url="http://127.0.0.1") as found:
        yield found
