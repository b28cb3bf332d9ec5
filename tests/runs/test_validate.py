"""Checking a run in a folder where anybody may write: time and memory stay bounded."""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from rl_swarm.packing import METHODS, packed
from rl_swarm.rollout import BUNDLE_BYTES, decode, encode
from rl_swarm.runs import validate as validation
from rl_swarm.runs.validate import Expected, Finding, validate
from rl_swarm.store.memory import MemoryStore
from tests.support.clocks import VirtualClock
from tests.support.sample_run import LAYOUT, SampleRun

METRICS = LAYOUT.log("w1", "metrics.jsonl")


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A run of six rounds."""
    data: dict[str, bytes] = {}
    SampleRun(MemoryStore(clock=VirtualClock(), data=data), tmp_path_factory.mktemp("local")).play(6)
    return data


@pytest.fixture
def store(documents: dict[str, bytes]) -> MemoryStore:
    return MemoryStore(clock=VirtualClock(), data=dict(documents))


def details(findings: list[Finding], check: str) -> list[str]:
    return [finding.detail for finding in findings if finding.check == check]


def replace_journal(store: MemoryStore, key: str, text: str) -> None:
    for name in store.list(LAYOUT.segments(key)):
        store.delete(f"{LAYOUT.segments(key)}/{name}")
    store.rewrite(key, text.encode())


def test_of_a_whole_run_nothing_is_beyond_the_limits(store: MemoryStore) -> None:
    found = validate(store, LAYOUT, Expected())
    assert details(found, "rollouts") == ["all 36 readable and complete"]
    assert "each found in a peer's file" in details(found, "sharing")[0] and not details(found, "limits")


def test_a_compressed_run_is_checked_alike_and_a_bomb_spends_the_limit(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        key = LAYOUT.bundle(number, "w1")
        store.rewrite(key, packed(store.get(key, limit=BUNDLE_BYTES), METHODS[1 + number % 2]))
    found = validate(store, LAYOUT, Expected())
    assert details(found, "rollouts") == ["all 36 readable and complete"] and not details(found, "limits")
    store.rewrite(LAYOUT.bundle(0, "w1"), packed(bytes(BUNDLE_BYTES + 1), "zstd"))
    assert "w1.json cannot be read (too_large" in details(validate(store, LAYOUT, Expected()), "rollouts")[0]
    monkeypatch.setattr(validation, "ROLLOUT_BYTES", BUNDLE_BYTES)
    assert "and not the rest" in details(validate(store, LAYOUT, Expected()), "limits")[0]


def test_a_run_of_another_stage_is_checked_in_that_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(clock=VirtualClock())
    monkeypatch.setattr("rl_swarm.node.worker.STAGE", 1)
    SampleRun(store, tmp_path).play(6)
    store.put(f"{LAYOUT.rollouts_of(2, 1)}/stranger.json", b"")
    found = validate(store, LAYOUT, Expected())
    assert details(found, "rewards") == ["all 18 submitted"]
    assert details(found, "rollouts") == ["all 36 readable and complete"]
    assert "each found in a peer's file" in details(found, "sharing")[0]
    assert details(found, "strangers") == [f"files of no counted node: {LAYOUT.rollouts_of(2, 1)}/stranger.json"]
    store.delete(LAYOUT.reward(2, "w1", 1))
    store.put(LAYOUT.reward(2, "w1"), store.get(LAYOUT.reward(3, "w1", 1), limit=1 << 20))
    assert details(validate(store, LAYOUT, Expected()), "rewards") == ["missing: w1 round 2"]


def test_of_very_many_rows_the_newest_are_looked_at_and_that_is_said(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "MOST_ROWS", 50)
    replace_journal(store, METRICS, "".join(f'{{"timestamp":1,"round":{number},"reward":0.5}}\n' for number in range(5_000)))
    before = store.counts["get"]
    found = validate(store, LAYOUT, Expected())
    assert details(found, "limits") == ["checked only the newest 50 rounds of w1"]
    assert "missing: w1 round 4950, " in details(found, "rewards")[0]
    assert store.counts["get"] - before < 500


def test_workers_share_the_rows_that_are_looked_at(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "MOST_ROWS_OF_ALL", 12)
    assert details(validate(store, LAYOUT, Expected()), "limits") == ["checked only the newest 4 rounds of w1, w2, w3"]


def test_of_a_long_journal_the_newest_bytes_are_read(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "JOURNAL_BYTES", 10_000)
    rows = [f'{{"timestamp":1,"round":{number},"reward":0.5}}\n' for number in range(3_000)]
    replace_journal(store, METRICS, "".join(rows))
    found = validate(store, LAYOUT, Expected())
    assert "w1 did " in " ".join(details(found, "rounds")) and "of 3000 rounds" in " ".join(details(found, "rounds"))
    assert not [detail for detail in details(found, "logs") if "were skipped" in detail]


def test_bundles_are_not_kept(store: MemoryStore) -> None:
    """One large bundle under the names of many rounds costs the memory of one."""
    key = LAYOUT.bundle(0, "w1")
    data, rounds = store.get(key, limit=1 << 20), 8
    rollout = decode(data).rollouts[0]
    group = tuple(replace(rollout.completions[0], text="") for _ in range(256))
    large = encode(replace(decode(data), rollouts=tuple(replace(rollout, slot=slot, completions=group) for slot in range(30))))
    replace_journal(store, METRICS, "".join(f'{{"timestamp":1,"round":{number},"reward":0.5}}\n' for number in range(rounds)))
    for number in range(rounds):
        store.rewrite(LAYOUT.bundle(number, "w1"), large)
    tracemalloc.start()
    kept = decode(large)
    of_one = tracemalloc.get_traced_memory()[1]
    del kept
    tracemalloc.reset_peak()
    validate(store, LAYOUT, Expected())
    of_all = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert of_all < 3 * of_one


def test_files_of_rollouts_are_read_up_to_a_limit_and_the_rest_is_said(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "ROLLOUT_BYTES", 30_000)
    found = validate(store, LAYOUT, Expected())
    assert [line for line in details(found, "limits") if "and not the rest" in line]
    assert not [finding for finding in found if finding.check in ("rollouts", "sharing") and finding.status == "failed"]


def test_quoted_lines_are_short(store: MemoryStore) -> None:
    replace_journal(store, LAYOUT.log("w1", "stdout.log"), "out of memory " + "a b " * 100_000 + "\n")
    row = '{"round":5,"reward":0.5,"external_wanted":1,"external_ids":["' + "x" * 100_000 + '"]}\n'
    replace_journal(store, METRICS, row)
    found = validate(store, LAYOUT, Expected())
    assert all(len(finding.detail) < 800 for finding in found)
    assert details(found, "logs")[0].startswith("w1: out of memory a b")
