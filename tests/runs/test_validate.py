"""Checking a run in a folder where anybody may write: time and memory stay bounded."""

import json
import re
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from rl_swarm.config import Config
from rl_swarm.packing import METHODS, packed
from rl_swarm.rollout import BUNDLE_BYTES, decode, encode
from rl_swarm.runs import progress
from rl_swarm.runs import validate as validation
from rl_swarm.runs.examples import published_examples
from rl_swarm.runs.validate import Expected, Finding, validate
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.retention import retention_of
from rl_swarm.swarm.signatures import Signatures
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


@pytest.mark.parametrize("again", [True, False])
def test_a_round_that_was_played_again_may_have_had_another_i(store: MemoryStore, again: bool) -> None:
    rows = [json.loads(line) for line in progress.lines(store, METRICS)]
    rows[2] |= {"own_wanted": 1} | ({"reward": 0.125} if again else {})
    replace_journal(store, METRICS, "\n".join(map(json.dumps, rows)))
    found = {finding.check: finding for finding in validate(store, LAYOUT, Expected())}
    assert found["rollouts"].status == ("ok" if again else "failed"), found["rollouts"]


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


def failed(findings: list[Finding]) -> list[Finding]:
    """Findings of the sample run that should not be there; nobody announces its rounds."""
    return [finding for finding in findings if finding.status == "failed" and finding.check != "rounds"]


def pruned(store: MemoryStore, by: str = "boss", archive: bool = False) -> None:
    """Remove all but the last four rounds: everyone's, or a worker's own."""
    role = "coordinator" if by == "boss" else "worker"
    config = Config(cleanup=True, keep_rounds=1, archive=archive, node_id=by, role=role)
    retention = retention_of(config, store, LAYOUT, store.clock, Signatures(), lambda *event, **details: None)
    retention.reached(5)
    assert retention.clean().files


def test_rollouts_that_retention_removed_are_not_missing(store: MemoryStore) -> None:
    before = details(validate(store, LAYOUT, Expected()), "sharing")[0]
    pruned(store)
    found = validate(store, LAYOUT, Expected())
    assert not failed(found)
    assert details(found, "rollouts") == ["all 24 readable and complete; those of 6 rounds of nodes were removed"]
    assert details(found, "sharing") == [f"{before}, or in its author's record where that was removed"]
    assert details(found, "retention") == ["rollouts of rounds before 2 were removed or archived on purpose: of w1, w2, w3"]


def test_rollouts_that_are_lost_are_missing_also_beside_removed_ones(store: MemoryStore) -> None:
    pruned(store, "w1")
    assert not failed(validate(store, LAYOUT, Expected()))
    store.delete(LAYOUT.bundle(1, "w2"))
    store.delete(LAYOUT.bundle(4, "w1"))
    wrong = details(validate(store, LAYOUT, Expected()), "rollouts")
    assert wrong == ["w1 round 4: no rollout file, w2 round 1: no rollout file"], "nobody has removed these on purpose"


def test_a_use_of_a_removed_rollout_that_its_author_never_recorded_is_found(store: MemoryStore) -> None:
    pruned(store)
    rows = "\n".join(progress.lines(store, METRICS))
    used = next(re.finditer(r'"(w[23]/[01]/0)/[01]"', rows[rows.index("external_ids") :]))
    replace_journal(store, METRICS, rows.replace(used[0], f'"{used[1]}/7"'))
    assert f"w1 used {used[1]}/7, which no peer published" in details(validate(store, LAYOUT, Expected()), "sharing")[0]


def test_archived_rollouts_are_checked_and_shown_where_they_are(store: MemoryStore) -> None:
    examples = published_examples(store, LAYOUT, range(6), ["w1", "w2", "w3"])
    pruned(store, archive=True)
    found = validate(store, LAYOUT, Expected())
    assert not failed(found) and details(found, "rollouts") == ["all 36 readable and complete"]
    assert published_examples(store, LAYOUT, range(6), ["w1", "w2", "w3"]) == examples
    for key in [key for key in store._data if key.startswith("archives/")]:
        store.delete(key)
    assert not failed(validate(store, LAYOUT, Expected()))
    [example] = published_examples(store, LAYOUT, range(6), ["w1", "w2", "w3"])
    assert example.before.by == "w1, round 2", "the oldest that is there, by its own number"


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


def test_a_worker_that_was_alone_is_no_failure_unless_sharing_was_asked_for(tmp_path: Path) -> None:
    run = SampleRun(MemoryStore(), tmp_path, workers=("w1",)).play(3)
    [found] = [finding for finding in validate(run.store, LAYOUT, Expected()) if finding.check == "sharing"]
    assert (found.status, found.detail) == ("warning", "J = 2, and only one worker has played: nobody to share with yet")
    [asked] = [finding for finding in validate(run.store, LAYOUT, Expected(external_count=2)) if finding.check == "sharing"]
    assert asked.status == "failed"


def test_rounds_that_were_played_before_the_coordinator_came_are_no_failure(store: MemoryStore) -> None:
    for name in store.list(LAYOUT.states):
        store.delete(f"{LAYOUT.states}/{name}")
    for number in (4, 5):
        store.put(LAYOUT.round(number), b"announced")
    found = [(each.status, each.detail) for each in validate(store, LAYOUT, Expected()) if each.check == "rounds"]
    assert ("warning", "played before the coordinator came: 0, 1, 2 and 1 more of 6") in found
    assert not [status for status, _ in found if status == "failed"]
