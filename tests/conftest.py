import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support.processes import LocalSwarm

# `make test` tries the same examples every time, so that it fails only for a reason; `make test-slow` goes on looking for new ones.
settings.register_profile("steady", derandomize=True)
settings.register_profile("searching", max_examples=400)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


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
