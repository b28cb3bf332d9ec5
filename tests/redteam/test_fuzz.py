"""Feed every reader with damaged documents: it may raise nothing but our own errors.

Inputs begin as real documents and are damaged by `fuzzer.py`. Each is read by every reader that could meet it, as commands and
loops call it. The generator is seeded: `make test` tries the same share every time, `make test-slow` 10^5 inputs.
"""

import contextlib
import hashlib
import random
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from rl_swarm import config as configuration
from rl_swarm.clock import Clock
from rl_swarm.document import unseal
from rl_swarm.errors import OtherModel, SwarmError
from rl_swarm.learning.checkpoint import Checkpoints
from rl_swarm.learning.trainer import Trainer
from rl_swarm.reproduce.elsewhere import read_experiments
from rl_swarm.reproduce.results import load, path_of
from rl_swarm.rollout import decode, is_plain
from rl_swarm.runs import progress
from rl_swarm.runs.browsing import Wanted
from rl_swarm.runs.examples import published, published_examples
from rl_swarm.runs.following import Following, all_experiments
from rl_swarm.runs.index import RunIndex
from rl_swarm.runs.ledger import FIGURES
from rl_swarm.runs.summary import summarise
from rl_swarm.runs.validate import Expected, validate
from rl_swarm.show.card import Places, sections
from rl_swarm.show.report import run_page
from rl_swarm.store.folder import FolderStore
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.experiment import Experiment
from rl_swarm.swarm.layout import node_of_checkpoint, node_of_file, round_of_file, round_of_folder, sequence_of_file
from rl_swarm.swarm.peers import Heartbeat, Registration, newest_heartbeat, read_heartbeat, read_registration, registered
from rl_swarm.swarm.publisher import Publisher
from rl_swarm.swarm.removals import removed_before
from rl_swarm.swarm.rounds import Announcement, CurrentState, Reward, Rounds, read_reward, submitted
from rl_swarm.swarm.signatures import Signatures
from rl_swarm.text import visible
from rl_swarm.web import views
from rl_swarm.web.figures import prometheus_text
from tests.learning.test_checkpoint import write_archive
from tests.learning.test_trainer import scored
from tests.redteam.fuzzer import CELL, DOCUMENTS, LAYOUT, LOCAL, RESULT, SPOOLED, Fuzzer, plain
from tests.support.clocks import VirtualClock
from tests.support.members import exchange_of, member_of
from tests.support.rows import metrics
from tests.support.standins import TASKS_VERSION
from tests.support.tiny_models import policy

FAST, SLOW = 2_000, 100_000
CLOCK: Clock = VirtualClock()


@dataclass(frozen=True)
class Input:
    """A run in which one document is damaged; `folder` is for what a reader keeps on its own disk."""

    key: str
    data: bytes
    store: MemoryStore
    folder: Path


def read_kinds(given: Input) -> None:
    for kind in (Announcement, CurrentState, Reward, Registration, Heartbeat, Experiment):
        with contextlib.suppress(SwarmError):
            unseal(given.data, kind)


def join(given: Input) -> None:
    found = experiments.read(given.store, LAYOUT)
    if found is not None:
        loaded = configuration.load({}, {"experiment": "trial"}, found.settings)
        experiments.check(loaded, found, TASKS_VERSION)


def gather(given: Input) -> None:
    member = member_of(given.store, given.folder, "me", CLOCK)
    exchange_of(member, quarantine=given.folder / "quarantine").gather(3, 0, 4, random.Random(0))


def publish_spool(given: Input) -> Counter[str]:
    """Publish the damaged spool of a killed node, as its next start does."""
    spool = given.folder / "spool"
    spool.mkdir(exist_ok=True)
    (spool / "000000000001").write_bytes(given.data)
    publisher = Publisher(given.store, spool, CLOCK, background=False)
    publisher.pump()
    shutil.rmtree(spool)
    return publisher.counters


def load_result(given: Input) -> None:
    path_of(given.folder, CELL).write_bytes(given.data)
    load(given.folder, CELL)


def follow(given: Input) -> None:
    """Follow a run whose journal is damaged on disk."""
    store = FolderStore(given.folder / "store", CLOCK)
    store.rewrite(LAYOUT.log("w1", "metrics.jsonl"), given.data)
    Following(store, LAYOUT).look()


def summary(given: Input) -> None:
    """Summarise: it must raise nothing, and its result must be printable."""
    try:
        found = summarise(given.store, LAYOUT)
    except SwarmError as error:
        raise AssertionError("a summary skips what is damaged") from error
    run_page(found, [], ()).encode()
    "".join(visible(line) for section in sections(found, [], Places("s", "f", "p", "h")) for line in section.lines).encode()


def dashboard(given: Input) -> None:
    """Index the run and make every answer about it: none may raise, and all must be JSON without control characters."""
    index = RunIndex(given.store, LAYOUT)
    index.look()
    made = [
        views.round_and_stage(index, 0.0),
        views.peers(index, 0.0, 0, 256),
        views.leaderboard(index, "won", 0, 50),
        views.leaderboard_cumulative(index, 0, 16),
        views.rewards_history(index),
        views.metrics(index, FIGURES, None),
        views.gossip(index, 48),
        views.rollouts(index, Wanted(), None, 10),
    ]
    for each in made:
        assert msgspec.json.decode(msgspec.json.encode(each)) is not None
    assert prometheus_text(index)


# Which reader meets which documents: those whose key contains the text.
READERS: list[tuple[str, Callable[[Input], object]]] = [
    ("", read_kinds),
    (LAYOUT.experiment, join),
    (LAYOUT.states, lambda given: Rounds(given.store, LAYOUT).survey()),
    (LAYOUT.states, lambda given: Rounds(given.store, LAYOUT).advance(-1)),
    (LAYOUT.rewards, lambda given: read_reward(given.store, LAYOUT, 3, 0, "w1")),
    (LAYOUT.rewards, lambda given: Rounds(given.store, LAYOUT, 100).reached_by_others("me", -1, random.Random(0))),
    ("/peers/", lambda given: read_registration(given.store, LAYOUT, "w1")),
    ("/peers/", lambda given: read_heartbeat(given.store, LAYOUT, "w1", 2)),
    (LAYOUT.rollouts, lambda given: decode(given.data)),
    (LAYOUT.rollouts, lambda given: is_plain(given.data)),
    (LAYOUT.rollouts, gather),
    (LAYOUT.rollouts, lambda given: published(given.store, LAYOUT, 3, 0, "w1")),
    (LAYOUT.rollouts, lambda given: published_examples(given.store, LAYOUT, [3, 3], ["w1"])),
    (LAYOUT.removals, lambda given: removed_before(given.store, LAYOUT, ["w1"], Signatures())),
    ("/logs/", lambda given: metrics(given.store, LAYOUT, "w1")),
    ("/logs/", lambda given: progress.events(given.store, LAYOUT, "w1")),
    ("metrics.jsonl", follow),
    ("/progress_", lambda given: progress.rows(progress.lines(given.store, LAYOUT.progress("w1")))),
    (LAYOUT.root, lambda given: all_experiments(given.store)),
    (LAYOUT.root, lambda given: Following(given.store, LAYOUT).look()),
    (LAYOUT.root, lambda given: validate(given.store, LAYOUT, Expected())),
    (LAYOUT.root, lambda given: read_experiments(given.store, ["trial"])),
    (LAYOUT.root, summary),
    (LAYOUT.root, dashboard),
    (RESULT, load_result),
]


def fuzz(count: int, folder: Path, seed: int) -> Counter[str]:
    """Read so many inputs; return how often each document was damaged."""
    fuzzer, tried = Fuzzer(seed), Counter[str]()
    originals = DOCUMENTS | {RESULT: LOCAL[RESULT]}
    keys = list(originals)
    for number in range(count):
        key = keys[number % len(keys)]
        original = plain() if key.startswith(LAYOUT.rollouts) and number % 3 == 0 else originals[key]
        data = fuzzer.damage(original)
        if key.startswith(LAYOUT.rollouts) and number % 2:
            data = fuzzer.packed(original, data)
        given = Input(key, data, MemoryStore(clock=CLOCK, data=DOCUMENTS | ({key: data} if key in DOCUMENTS else {})), folder)
        try:
            for where, reader in READERS:
                if where in key:
                    with contextlib.suppress(SwarmError):
                        reader(given)
        except Exception as error:
            raise AssertionError(f"input {number} of seed {seed}, {key}: {error!r}\n{data[:2000]!r}") from error
        tried[key] += 1
    return tried


def check(count: int, folder: Path, seed: int) -> None:
    tried = fuzz(count, folder, seed)
    assert sum(tried.values()) == count
    assert min(tried[key] for key in (*DOCUMENTS, RESULT)) >= count // (len(DOCUMENTS) + 1)
    assert all(any(where in key for key in tried) for where, _ in READERS), "a reader has read nothing"


def test_no_reader_of_documents_raises_anything_but_our_own_errors(tmp_path: Path) -> None:
    check(FAST, tmp_path, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_reader_of_documents_raises_anything_but_our_own_errors_at_length(tmp_path: Path) -> None:
    check(SLOW, tmp_path, seed=2)


def test_a_damaged_spool_is_set_aside(tmp_path: Path) -> None:
    fuzzer = Fuzzer(6)
    became: Counter[str] = Counter()
    for _ in range(300):
        became += publish_spool(Input(SPOOLED, fuzzer.damage(LOCAL[SPOOLED]), MemoryStore(clock=CLOCK), tmp_path))
    assert became["published"] + became["spool_damaged"] == 300 and min(became["published"], became["spool_damaged"]) > 10


def test_no_damaged_checkpoint_raises_anything_but_our_own_error(tmp_path: Path) -> None:
    """One that cannot be used is set aside; restoring never raises."""
    checkpoints = Checkpoints(tmp_path)
    original = checkpoints.save(3, {"tasks": {}}, {"weights": [1, 2, 3]}).read_bytes()
    fuzzer = Fuzzer(4)
    for number in range(200):
        data = fuzzer.chance.choice((fuzzer._cut, fuzzer._flip, fuzzer._splice))(original)
        if number % 2 and len(data) > 71:  # past the checksum, to what torch makes of it
            data = data[:-64] + hashlib.sha256(data[:-71]).hexdigest().encode()
        (tmp_path / Checkpoints.name(3)).write_bytes(data)
        Checkpoints(tmp_path).restore(lambda number, node_state, trainer_state: None)


@pytest.mark.parametrize("count", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_no_damaged_pickle_of_a_checkpoint_reaches_a_trainer_with_anything_but_our_own_error(tmp_path: Path, count: int) -> None:
    """The archive is complete and its checksum right, but its pickle describes the tensors wrongly."""
    trainer = Trainer(policy(), 1e-3)
    trainer.update(scored(policy()))
    path = Checkpoints(tmp_path).save(3, {"tasks": {}}, trainer.state())
    with zipfile.ZipFile(path) as archive:
        members = {name.removeprefix("archive/"): archive.read(name) for name in archive.namelist()}
    fuzzer, refused = Fuzzer(8), 0
    for _ in range(count):
        with path.open("wb") as file:
            write_archive(file, members | {"data.pkl": fuzzer._flip(members["data.pkl"])})
        try:
            refused += Checkpoints(tmp_path).restore(lambda number, node, state: trainer.restore(state)) is None
        except OtherModel:
            refused += 1
    assert refused > count / 2


def test_no_name_in_a_folder_confuses_its_readers() -> None:
    fuzzer = Fuzzer(5)
    names = [
        "round_000003.json",
        "round_3/",
        "w1.json",
        "w1.0.json",
        "000002.json",
        ".hidden",
        "w1 (1).json",
        "٣.json",
        "w1.pt",
        "w1 (1).pt",
    ]
    for _ in range(2_000):
        damaged = fuzzer._flip(fuzzer.chance.choice(names).encode()).decode("utf-8", "replace")
        listed = fuzzer.chance.choices([*names, damaged], k=3)
        store = MemoryStore(
            clock=VirtualClock(),
            data={f"{LAYOUT.root}/{folder}/{name}": b"" for folder in ("state", "peers", "rewards") for name in listed},
        )
        for reader in (round_of_file, round_of_folder, node_of_file, node_of_checkpoint, sequence_of_file):
            for name in listed:
                assert reader(name) is None or isinstance(reader(name), (int, str))
        assert all(node_of_file(f"{name}.json") == name for name in read_names(store)), "a name that is none was taken for a node"


def read_names(store: MemoryStore) -> set[str]:
    Rounds(store, LAYOUT).survey()
    submitted(store, LAYOUT, 3, 0)
    newest_heartbeat(store, LAYOUT, "w1")
    return set(registered(store, LAYOUT))
