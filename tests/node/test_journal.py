"""Journals on a node's own disk, their copies in the store, and the reader of both: in place on a local disk, else in segments."""

import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from rl_swarm.clock import Clock
from rl_swarm.errors import StoreAway
from rl_swarm.node.journal import Journal
from rl_swarm.runs import progress
from rl_swarm.runs.following import look_once
from rl_swarm.runs.record import stamped, unstamped
from rl_swarm.store import Store
from rl_swarm.store.folder import FolderStore
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.copies import FANOUT, GROWING_SECONDS, TRIES, Copies
from rl_swarm.swarm.layout import SEGMENT_STEP, Layout
from rl_swarm.swarm.peers import Registration, register
from rl_swarm.swarm.protocol import News
from tests.support.clocks import VirtualClock
from tests.support.members import journal_of, member_of
from tests.support.rows import metrics, record

LAYOUT = Layout("trial")
METRICS = LAYOUT.log("me", "metrics.jsonl")


class Copied(Journal):
    """A journal whose lines are copied to a store, periodically or when it is flushed."""

    def __init__(self, store: Store, folder: Path, clock: Clock, said: list[str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder / "record", LAYOUT, "me", clock, console=None)
        tell = (said if said is not None else []).append
        self.copies = Copies(folder / "record", LAYOUT.journals("me"), store, folder / "copied", clock, tell)

    def bring(self) -> None:
        self.clock.sleep(GROWING_SECONDS)
        self.copies.bring()

    def flush(self) -> None:
        super().flush()
        self.copies.bring(all_of_it=True)

    def merge(self, seconds: float) -> None:
        self.copies.merge(self.clock.monotonic() + seconds)


def said_in(lines: list[str]) -> list[str]:
    """The lines of a console without their times, which all of them have."""
    assert all(unstamped(line)[0] is not None for line in lines), lines
    return [unstamped(line)[1] for line in lines]


def make(store: Store, tmp_path: Path, clock: Clock) -> Copied:
    return Copied(store, tmp_path / "node", clock)


@pytest.fixture(params=["disk", "mount", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    (tmp_path / "store").mkdir()
    if request.param == "memory":
        return MemoryStore(clock=VirtualClock())
    return FolderStore(tmp_path / "store", VirtualClock(), local=request.param == "disk")


def test_rows_are_read_back_in_order_and_once_before_and_after_merging(store: Store, tmp_path: Path) -> None:
    clock = VirtualClock()
    for life in range(2):
        journal = make(store, tmp_path, clock)
        for number in range(10):
            journal.round_done(record(life * 10 + number, 0.5))
            clock.sleep(Store.journal_seconds / 4)
            journal.bring()
        journal.flush()
        assert [row["round"] for row in metrics(store, LAYOUT, "me")] == list(range(life * 10 + 10))
        journal.merge(60.0)
        assert [row["round"] for row in metrics(store, LAYOUT, "me")] == list(range(life * 10 + 10))
    text = store.get(LAYOUT.log("me", "metrics.jsonl"), limit=1 << 24).decode()
    assert [json.loads(line)["round"] for line in text.splitlines()] == list(range(20))


def test_a_round_done_again_counts_once(store: Store, tmp_path: Path) -> None:
    clock = VirtualClock()
    first = make(store, tmp_path, clock)
    for number in range(5):
        first.round_done(record(number, 0.1))
    first.flush()
    clock.sleep(5)
    second = make(store, tmp_path, clock)
    for number in range(3, 6):
        second.round_done(record(number, 0.9))
    second.flush()
    assert [row["reward"] for row in metrics(store, LAYOUT, "me")] == [0.1, 0.1, 0.1, 0.9, 0.9, 0.9]


def test_a_disk_journal_grows_in_place_and_survives_half_a_line(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, VirtualClock(), local=True)
    journal = make(store, tmp_path / "local", VirtualClock())
    journal.round_done(record(0))
    journal.bring()
    path = tmp_path / METRICS
    assert path.read_text().endswith("\n")
    path.write_text(path.read_text() + '{"round": 1, "rew')
    assert [row["round"] for row in metrics(store, LAYOUT, "me")] == [0]


def test_a_growing_file_is_copied_at_most_once_a_second(tmp_path: Path) -> None:
    store, clock = FolderStore(tmp_path, VirtualClock(), local=True), VirtualClock()
    journal = make(store, tmp_path / "local", clock)
    for number in range(40):
        journal.round_done(record(number))
        clock.sleep(GROWING_SECONDS / 4)
        journal.copies.bring()
    assert store.counts["put"] == 2 * 10  # the rows and the events
    journal.flush()
    assert [row["round"] for row in metrics(store, LAYOUT, "me")] == list(range(40))


def test_lines_written_while_the_disk_refuses_are_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "disk", LAYOUT, "me", VirtualClock(), console=None)
    journal.event("one")
    (tmp_path / "disk").rename(tmp_path / "away")
    (tmp_path / "disk").write_text("no folder")
    journal.event("two")
    (tmp_path / "disk").unlink()
    (tmp_path / "away").rename(tmp_path / "disk")
    journal.event("three")
    record = FolderStore(tmp_path / "disk", VirtualClock())
    assert [row["event_type"] for row in progress.events(record, LAYOUT, "me")] == ["one", "two", "three"]


def test_lines_written_while_the_store_is_away_are_copied_later(tmp_path: Path) -> None:
    root = tmp_path / "drive"
    root.mkdir()
    store = FolderStore(root, VirtualClock(), local=True)
    journal = make(store, tmp_path, VirtualClock())
    journal.event("one")
    journal.bring()
    root.rename(tmp_path / "away")
    journal.event("two")
    with pytest.raises(StoreAway):
        journal.bring()
    assert not root.exists()
    (tmp_path / "away").rename(root)
    journal.event("three")
    journal.bring()
    assert [row["event_type"] for row in progress.events(store, LAYOUT, "me")] == ["one", "two", "three"]


def test_what_a_killed_node_did_not_get_to_is_copied_at_its_next_start(store: Store, tmp_path: Path) -> None:
    clock = VirtualClock()
    killed = make(store, tmp_path, clock)
    killed.say("first")
    killed.flush()
    killed.say("last words")
    clock.sleep(Store.journal_seconds)
    make(store, tmp_path, clock).flush()
    assert said_in(progress.lines(store, LAYOUT.log("me", "stdout.log"))) == ["first", "last words"]


def test_nothing_in_the_store_is_ever_read(tmp_path: Path) -> None:
    class WriteOnly(MemoryStore):
        def _get(self, key: str, limit: int, offset: int) -> bytes:
            raise AssertionError("somebody else's files may lie there")

        def _list(self, folder: str) -> list[str]:
            raise AssertionError("and thousands of names")

    journal = make(WriteOnly(clock=VirtualClock()), tmp_path, VirtualClock())
    journal.round_done(record(0))
    journal.flush()
    journal.merge(10.0)


def test_status_names_what_a_node_does_and_since_when(store: Store, tmp_path: Path) -> None:
    clock = VirtualClock()
    register(store, LAYOUT, Registration("me", "worker", clock.wall(), "nano", "me", "1", "s"))
    assert look_once(store, LAYOUT).nodes[0].doing == "registered"
    journal = make(store, tmp_path, clock)
    clock.sleep(10)
    journal.state("training", 7)
    journal.round_done(record(6, 0.25))
    since = clock.wall()
    clock.sleep(20)
    journal.state("training", 7)
    journal.say("still training")
    journal.flush()
    [status] = look_once(store, LAYOUT).nodes
    assert (status.role, status.model, status.doing, status.since, status.round, status.reward) == (
        "worker",
        "nano",
        "training",
        since,
        7,
        0.25,
    )


def test_the_tail_of_a_long_journal_is_read_without_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderStore(tmp_path, VirtualClock(), local=True)
    journal = make(store, tmp_path / "local", VirtualClock())
    for number in range(3000):
        journal.event("x" * 50, number=number)
    journal.flush()
    read: list[dict[str, Any]] = progress.last_rows(store, LAYOUT.log("me", "training_events.jsonl"))
    assert read[-1]["data"]["number"] == 2999
    assert len(read) < 1000


def test_errors_have_a_file_before_there_are_any(store: Store, tmp_path: Path) -> None:
    clock = VirtualClock()
    member = member_of(store, tmp_path, "me", clock)
    journal_of(member, tmp_path)
    member.open_logs()
    member.open_logs()
    errors, text = LAYOUT.log("me", "stderr.log"), LAYOUT.how_to_read("me")
    assert store.get(errors, limit=10) == b"" == (tmp_path / "me" / "record" / errors).read_bytes()
    journal_of(member, tmp_path).error(ZeroDivisionError("x"))
    member.copies.bring(True)
    assert "ZeroDivisionError" in progress.lines(store, errors)[-1]
    if store.appendable:
        assert "HOW_TO_READ.txt" not in store.list(text.rpartition("/")[0])
    else:
        assert "rl-swarm logs -f me --experiment trial --gdrive-path FOLDER" in store.get(text, limit=1000).decode()


def test_an_error_is_kept_with_its_traceback(store: Store, tmp_path: Path) -> None:
    register(store, LAYOUT, Registration("me", "worker", 0.0, "nano", "me", "1", "s"))
    journal = make(store, tmp_path, VirtualClock())
    try:
        raise ZeroDivisionError("of weights")
    except ZeroDivisionError as error:
        journal.error(error)
    journal.flush()
    assert "ZeroDivisionError: of weights" in "\n".join(progress.lines(store, LAYOUT.log("me", "stderr.log")))
    assert progress.rows(progress.lines(store, LAYOUT.progress("me")))[-1]["event"] == "error"
    assert look_once(store, LAYOUT).nodes[0].doing.startswith("failed: ZeroDivisionError")


def test_a_half_line_that_a_killed_process_left_spoils_no_other(tmp_path: Path) -> None:
    journal = Journal(tmp_path, LAYOUT, "me", VirtualClock(), console=None)
    journal.round_done(record(0))
    path = tmp_path / METRICS
    path.write_text(path.read_text() + '{"round": 1, "rew')
    journal.round_done(record(1))
    assert [row["round"] for row in metrics(FolderStore(tmp_path), LAYOUT, "me")] == [0, 1]


def test_merging_removes_no_segment(tmp_path: Path) -> None:
    """A listing may omit segments and a read may be short: simulated seed 1 lost rows that had been merged in part."""
    store = MemoryStore(clock=VirtualClock())
    journal = make(store, tmp_path, VirtualClock())
    journal.round_done(record(0))
    journal.flush()
    before = progress.segment_keys(store, LAYOUT.log("me", "metrics.jsonl"))
    journal.merge(60.0)
    assert before and progress.segment_keys(store, LAYOUT.log("me", "metrics.jsonl")) == before


def said_of_a_week(store: Store, folder: Path, count: int, kill_at: int = -1) -> list[int]:
    """The number of segments after each of very many, with a node that is started again after some of them."""
    clock, counts = VirtualClock(), []
    journal = Copied(store, folder, clock)
    for number in range(count):
        journal.round_done(record(number, 0.5))
        clock.sleep(Store.journal_seconds)
        journal.bring()
        counts.append(len(progress.segment_keys(store, METRICS)))
        if number % 97 == kill_at:
            journal = Copied(store, folder, clock)
    return counts


@pytest.mark.parametrize("kill_at", [-1, 19])
def test_segments_stay_few_and_every_line_is_there_once(tmp_path: Path, kill_at: int) -> None:
    store, count = MemoryStore(clock=VirtualClock()), FANOUT**2 * 3 + 7
    assert max(said_of_a_week(store, tmp_path, count, kill_at)) <= 5 * FANOUT
    found = progress.rows(progress.lines(store, METRICS))
    assert [row["round"] for row in found] == list(range(count)), "also while segments are there twice"


def test_segments_are_removed_only_after_their_successor_had_time_to_appear(tmp_path: Path) -> None:
    store = MemoryStore(clock=VirtualClock())
    assert said_of_a_week(store, tmp_path, FANOUT + 1)[-1] == FANOUT + 2
    assert said_of_a_week(MemoryStore(clock=VirtualClock()), tmp_path / "longer", 2 * FANOUT + 1)[-1] == FANOUT + 3
    keys = progress.segment_keys(store, METRICS)
    for missing in range(FANOUT):  # the oldest go first, and a process may be killed between any two
        assert [row["round"] for row in progress.rows(progress.segment_lines(store, keys[missing:]))] == list(range(FANOUT + 1))


def test_a_node_killed_while_it_puts_segments_together_does_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(clock=VirtualClock())
    said_of_a_week(store, tmp_path, FANOUT)
    with monkeypatch.context() as context:
        context.setattr(Copies, "_save_marks", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        journal = Copied(store, tmp_path, VirtualClock())
        journal.round_done(record(FANOUT, 0.5))
        with pytest.raises(KeyboardInterrupt):
            journal.copies.bring(True)
    assert len(progress.segment_keys(store, METRICS)) == FANOUT + 1
    Copied(store, tmp_path, VirtualClock()).copies.bring(True)
    assert [row["round"] for row in progress.rows(progress.lines(store, METRICS))] == list(range(FANOUT + 1))


def test_merging_begins_nothing_when_its_time_is_over(tmp_path: Path) -> None:
    class Slow(MemoryStore):
        def _rewrite(self, key: str, data: bytes) -> None:
            clock.sleep(2.0)
            super()._rewrite(key, data)

    clock = VirtualClock()
    store = Slow(clock=clock)
    journal = make(store, tmp_path, clock)
    journal.round_done(record(0))
    journal.event("something")
    journal.flush()
    journal.merge(1.0)
    assert METRICS in store._data and LAYOUT.log("me", "training_events.jsonl") not in store._data
    assert [row["round"] for row in metrics(store, LAYOUT, "me")] == [0]


def test_news_are_said_and_recorded(tmp_path: Path) -> None:
    said = list[str]()
    journal = Journal(tmp_path, LAYOUT, "me", VirtualClock(), said.append)
    journal.tell([News("name_in_use", "somebody else is here"), News("went_on_alone", details={"round": 3})])
    assert said == ["somebody else is here"]
    found = [(row["event_type"], row["data"]) for row in progress.events(FolderStore(tmp_path), LAYOUT, "me")]
    assert found == [("name_in_use", {"message": "somebody else is here"}), ("went_on_alone", {"round": 3})]


def test_a_console_on_a_full_disk_does_not_end_the_run(tmp_path: Path) -> None:
    def full(line: str) -> None:
        raise OSError(28, "No space left on device")

    journal = make(MemoryStore(), tmp_path, VirtualClock())
    journal.console = full
    journal.say("round 3")


@pytest.mark.parametrize(
    "row",
    [
        {"event_type": "state", "data": 3, "timestamp": "yesterday"},
        {"event_type": "state", "data": {"doing": [], "round": "x"}, "timestamp": True},
        {"event_type": "state", "data": {"round": 10**400}, "timestamp": 10**400},
    ],
)
def test_a_status_survives_rows_that_make_no_sense(store: Store, row: dict[str, Any]) -> None:
    register(store, LAYOUT, Registration("me", "worker", 0.0, "nano", "me", "1", "s"))
    for name in ("training_events.jsonl", "metrics.jsonl"):
        store.rewrite(LAYOUT.log("me", name), (json.dumps(row | {"reward": "high"}) + "\n" + "[" * 100_000 + "\n").encode())
    [status] = look_once(store, LAYOUT).nodes
    assert (status.round, status.reward, status.doing) == (None, None, "registered")


def test_a_line_that_a_full_disk_cut_is_written_whole_later(tmp_path: Path) -> None:
    journal = Journal(tmp_path, LAYOUT, "me", VirtualClock(), console=None)
    journal.round_done(record(0))
    path = tmp_path / METRICS
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, before[1]))
    try:
        journal.round_done(record(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    journal.round_done(record(2))
    assert [json.loads(line)["round"] for line in path.read_text().splitlines()] == [0, 1, 2]


def test_lines_that_were_said_twice_stay_twice(store: Store, tmp_path: Path) -> None:
    clock = VirtualClock()
    for _ in range(2):
        journal = make(store, tmp_path, clock)
        for line in ("waiting", "round 1", "waiting", "waiting"):
            journal.say(line)
            clock.sleep(Store.journal_seconds)
            journal.bring()
        journal.flush()
        journal.merge(10)
    key = LAYOUT.log("me", "stdout.log")
    assert said_in(progress.lines(store, key)) == ["waiting", "round 1", "waiting", "waiting"] * 2
    assert said_in(store.get(key, limit=1 << 20).decode().splitlines()) == ["waiting", "round 1", "waiting", "waiting"] * 2


def test_what_grew_in_place_before_the_folder_was_a_mount_is_not_lost(tmp_path: Path) -> None:
    clock = VirtualClock()
    disk, mount = (FolderStore(tmp_path, clock, local=local) for local in (True, False))
    for store, line in ((disk, "first"), (mount, "second")):
        journal = Copied(store, tmp_path / f"disk of {line}", clock)  # the node has moved, too
        journal.say(line)
        journal.flush()
    assert said_in(progress.lines(disk, LAYOUT.log("me", "stdout.log"))) == ["first", "second"]


@pytest.mark.parametrize("plant", ["fifo", "folder", "link", "unreadable"])
def test_what_somebody_put_in_the_place_of_a_journal_is_said_and_stops_nothing(plant: str, tmp_path: Path) -> None:
    store, said = FolderStore(tmp_path, VirtualClock(), local=True), list[str]()
    path = tmp_path / LAYOUT.log("me", "metrics.jsonl")
    path.parent.mkdir(parents=True)
    if plant == "fifo":
        os.mkfifo(path)
    elif plant == "folder":
        path.mkdir()
    elif plant == "link":
        path.symlink_to(tmp_path / "private")
    else:
        path.touch(mode=0)
        if os.access(path, os.W_OK):
            pytest.skip("this user may write to everything")
    journal = Copied(store, tmp_path / "node", VirtualClock(), said)
    for number in range(3):
        journal.round_done(record(number))
        journal.bring()
    [line] = said
    assert "metrics.jsonl cannot be used" in line and str(tmp_path / "node" / "record") in line
    assert metrics(store, LAYOUT, "me") == []
    path.rmdir() if plant == "folder" else path.unlink()
    make(store, tmp_path, VirtualClock()).flush()
    assert [row["round"] for row in metrics(store, LAYOUT, "me")] == [0, 1, 2]


def test_numbers_of_segments_that_somebody_took_are_gone_past(tmp_path: Path) -> None:
    clock, said = VirtualClock(), list[str]()
    store = FolderStore(tmp_path, clock, local=False)
    journal = Copied(store, tmp_path / "node", clock, said)
    for taken in range(TRIES - 1):
        store.put(Layout.segment(METRICS, (int(clock.wall()) + taken) * SEGMENT_STEP), b"{}\n")
    journal.round_done(record(0))
    journal.flush()
    assert [row["round"] for row in metrics(store, LAYOUT, "me")] == [0] and not said


def test_a_segment_far_in_the_future_hides_nothing(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = FolderStore(tmp_path, clock, local=False)
    key = LAYOUT.log("me", "metrics.jsonl")
    store.put(Layout.segment(key, 999_999_999_999_999), b"")
    journal = make(store, tmp_path / "local", clock)
    journal.round_done(record(0))
    journal.flush()
    assert [row["round"] for row in metrics(store, LAYOUT, "me")] == [0]


def test_what_is_said_is_kept_with_its_time_and_shown_without(tmp_path: Path) -> None:
    said: list[str] = []
    clock = VirtualClock()
    journal = Journal(tmp_path, LAYOUT, "me", clock, console=said.append)
    journal.say("round 1\x1b[2J")
    journal.error(ZeroDivisionError("of weights"))
    assert said == ["round 1\\x1b[2J"]
    [line] = (tmp_path / LAYOUT.log("me", "stdout.log")).read_text().splitlines()
    assert unstamped(line) == (pytest.approx(clock.wall(), abs=1e-3), "round 1\\x1b[2J")
    lines = (tmp_path / LAYOUT.log("me", "stderr.log")).read_text().splitlines()
    assert said_in(lines)[-1] == "ZeroDivisionError: of weights"
    journal.stamps = True  # as a launcher keeps it in a file
    journal.say("round 2")
    assert (tmp_path / LAYOUT.log("me", "stdout.log")).read_text().splitlines()[-1] == said[-1] != "round 2"


@pytest.mark.parametrize(
    "line", ["", "no time", "2026-13-45T99:00:00.000Z x", "Z", "\udcff", "9" * 5000, "２０２６-11-17T08:41:12.345Z x"]
)
def test_a_line_without_a_time_is_a_line(line: str) -> None:
    moment, text = unstamped(line)
    assert text in (line, "x") and (moment is None or text == "x")
    assert unstamped(stamped(0.25, line)) == (0.25, line)
