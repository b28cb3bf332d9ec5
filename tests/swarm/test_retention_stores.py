"""Retention on every kind of store: all limits hold, the archive is whole, and the freed space is real."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import obstore
import pytest

from rl_swarm.rollout import BUNDLE_BYTES
from rl_swarm.store import Store, open_store
from rl_swarm.store.agreement import ANSWER
from rl_swarm.store.folder import FolderStore
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.retention import DAY_SECONDS
from rl_swarm.swarm.rounds import FIRST_STAGE, read_reward
from tests.support.clocks import VirtualClock
from tests.support.drive_fake import ROOT, drive_fake
from tests.support.s3_server import BUCKET, make_client, s3_server, variables
from tests.swarm.test_exchange import LAYOUT
from tests.swarm.test_retention import INTERVAL, NODES, clean, cleaner, kept, played

ROUNDS = 12
Opened = tuple[Store, Callable[[], int] | None]  # and what the service counts as stored, if it says so


@pytest.fixture(params=["memory", "folder", "mount", "bucket", "candidates", "drive"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    clock, kind = VirtualClock(), request.param
    with ExitStack() as stack:
        if kind == "memory":
            yield MemoryStore(clock=clock), None
        elif kind in ("folder", "mount"):
            yield FolderStore(tmp_path, clock, local=kind == "folder"), None
        elif kind == "drive":
            fake = stack.enter_context(drive_fake())
            monkeypatch.setenv("DRIVE_EMULATOR_HOST", fake.endpoint)
            yield open_store(f"gdrive://{ROOT}", clock), lambda: fake.stored_bytes
        else:
            server = stack.enter_context(s3_server())
            for name, value in variables(server).items():
                monkeypatch.setenv(name, value)
            answer = b'{"conditional_create": %s}' % (b"true" if kind == "bucket" else b"false")
            obstore.put(make_client(server, BUCKET), f"swarm/{ANSWER}", answer)
            yield open_store(f"s3://{BUCKET}/swarm", clock), None


def left(store: Store) -> list[int]:
    of_each = [kept(store, node_id) for node_id in NODES]
    assert of_each[0] == of_each[1]
    return of_each[0]


def test_every_limit_holds_and_the_archive_is_whole(opened: Opened) -> None:
    store, stored = opened
    played(store, ROUNDS)
    keys = [LAYOUT.bundle(number, node_id) for number in range(ROUNDS) for node_id in NODES]
    files = {key: store.get(key, limit=BUNDLE_BYTES) for key in keys}

    found = clean(cleaner(store, KEEP_LAST_N_ROUNDS=9, ARCHIVE_OLD="true"), ROUNDS - 1)
    assert left(store) == list(range(3, ROUNDS)) and (found.files, found.archived) == (6, 6)
    for key in keys[:6]:
        assert store.get(key.replace("experiments/", "archives/", 1), limit=BUNDLE_BYTES) == files[key]

    store.clock.sleep((ROUNDS - 1) * INTERVAL)
    before = stored() if stored else 0
    rewards = [read_reward(store, LAYOUT, 4, FIRST_STAGE, node_id) for node_id in NODES]
    age = store.clock.wall() - max(reward.submitted_at for reward in rewards if reward)
    clean(cleaner(store, KEEP_DAYS=(age - 1) / DAY_SECONDS), ROUNDS - 1)
    assert left(store) == list(range(5, ROUNDS))

    size = sum(len(files[key]) for key in keys[-10:])  # of five rounds
    found = clean(cleaner(store, KEEP_MB=(size + 1) / 1e6), ROUNDS - 1)
    assert left(store) == list(range(7, ROUNDS)) and found.bytes == sum(len(files[key]) for key in keys[10:14])
    freed = sum(len(files[key]) for key in keys[6:14])
    assert stored is None or before - stored() > freed * 0.9, "documents that say what was removed take little"
