"""Three kinds of store for an attack: a plain folder, a FUSE mount, and a folder that two Unix users share."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.redteam.arena import NANO, Arena, Mount
from tests.redteam.users import Unavailable, User, make_users

SWARM_SECONDS = 120.0
FINISHED_ROUNDS = 3


@contextmanager
def plain_arena(base: Path) -> Iterator[Arena]:
    arena = Arena(base)
    try:
        yield arena
    finally:
        arena.close()


@contextmanager
def mount_arena(base: Path) -> Iterator[Arena]:
    try:
        mount = Mount(base / "source", base / "store")
    except Unavailable as reason:
        pytest.skip(str(reason))
    arena = Arena(base, mount.point, mount=mount)
    try:
        yield arena
    finally:
        arena.close()
        mount.close()


@contextmanager
def users_arena(users: tuple[User, ...]) -> Iterator[Arena]:
    """The first user has made the folder, and shares it with a group; pytest's own folders are closed to others."""
    with tempfile.TemporaryDirectory(prefix="rl-swarm-redteam-") as name:
        base = Path(name)
        base.chmod(0o755)
        (base / "store").mkdir()
        os.chown(base / "store", users[0].uid, users[0].shared)
        (base / "store").chmod(0o2775)
        arena = Arena(base, users=users)
        try:
            yield arena
        finally:
            arena.close()


@pytest.fixture(scope="session")
def two_users() -> Iterator[tuple[User, ...]]:
    with ExitStack() as undo:
        try:
            users = undo.enter_context(make_users())
        except Unavailable as reason:
            pytest.skip(str(reason))
        yield users


@pytest.fixture(
    params=["plain", pytest.param("mount", marks=pytest.mark.slow), pytest.param("users", marks=pytest.mark.slow)],
)
def arena(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Arena]:
    """Every kind of store."""
    if request.param == "users":
        made = users_arena(request.getfixturevalue("two_users"))
    else:
        made = mount_arena(tmp_path) if request.param == "mount" else plain_arena(tmp_path)
    with made as arena:
        yield arena


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Arena]:
    with plain_arena(tmp_path) as arena:
        yield arena


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Arena]:
    with mount_arena(tmp_path) as arena:
        yield arena


@pytest.fixture
def shared(two_users: tuple[User, ...]) -> Iterator[Arena]:
    with users_arena(two_users) as arena:
        yield arena


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Arena], None]:
    """Run a nano swarm of two workers once; the function puts its store and its private folder into an arena."""
    with plain_arena(tmp_path_factory.mktemp("finished")) as made:
        settings: dict[str, Any] = NANO | {"MAX_ROUNDS": FINISHED_ROUNDS, "NUM_TRANSPLANT_TREES": 1}
        done = made.run("swarm", "--workers", "2", seconds=SWARM_SECONDS, **settings)
    assert done.code == 0, done.output

    def adopt(arena: Arena) -> None:
        shutil.copytree(made.folder, arena.folder, dirs_exist_ok=True)
        shutil.copytree(made.home(), arena.home(), dirs_exist_ok=True)

    return adopt
