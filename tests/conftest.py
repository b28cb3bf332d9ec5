from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import LocalSwarm


@pytest.fixture
def local_swarm(tmp_path: Path) -> Iterator[Callable[..., LocalSwarm]]:
    """Make a LocalSwarm with settings; its processes are ended afterwards."""
    made: list[LocalSwarm] = []

    def make(**settings: Any) -> LocalSwarm:
        made.append(LocalSwarm(tmp_path, **settings))
        return made[-1]

    yield make
    for swarm in made:
        swarm.close()
