"""An experiment moves between stores of any kind: whole, verified, and again after an interruption."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rl_swarm.cli import main
from rl_swarm.errors import ConfigError, StoreAway, StoreError
from rl_swarm.runs.progress import events
from rl_swarm.store import Store, open_store
from rl_swarm.store.base import Transient
from rl_swarm.store.folder import FolderStore
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.layout import Layout
from rl_swarm.tools.copying import choose, copy_experiment
from tests.support.processes import ROOT
from tests.support.s3_server import BUCKET, s3_server, variables
from tests.support.sample_run import LAYOUT, SampleRun


@pytest.fixture
def run(tmp_path: Path) -> SampleRun:
    made = SampleRun(FolderStore(tmp_path / "from", local=True), tmp_path / "nodes")
    made.play(2)
    return made


@pytest.fixture(autouse=True)
def source(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()


def all_of(store: Store, folder: str = LAYOUT.root) -> dict[str, bytes]:
    found = {}
    for name in store.list(folder):
        key = f"{folder}/{name}"
        found |= all_of(store, key.rstrip("/")) if name.endswith("/") else {key: store.get(key, limit=1 << 24)}
    return found


def test_all_of_it_arrives_and_a_second_time_nothing_is_written(run: SampleRun) -> None:
    target = MemoryStore()
    done = copy_experiment(run.store, target, LAYOUT)
    assert all_of(target) == all_of(run.store) and done.written == len(all_of(target)) > 20
    assert not done.left_out and done.bytes == sum(map(len, all_of(target).values()))
    again = copy_experiment(run.store, target, LAYOUT)
    assert (again.written, again.unchanged) == (0, done.written)
    run.play(1)
    more = copy_experiment(run.store, target, LAYOUT)
    assert all_of(target) == all_of(run.store) and 0 < more.written < done.written, "what is new, and what has grown"


class Breaking(MemoryStore):
    """Goes away after some writes, or damages what is written."""

    left, damage = 10, False

    def _put(self, key: str, data: bytes) -> bool:
        if self.left == 0:
            raise Transient("gone")
        self.left -= 1
        return super()._put(key, data[:-1] + b"?" if self.damage else data)


def test_an_interrupted_copy_goes_on_and_is_not_taken_for_a_whole_one(run: SampleRun) -> None:
    target = Breaking(clock=run.clock)
    with pytest.raises(StoreAway):
        copy_experiment(run.store, target, LAYOUT)
    assert len(all_of(target)) == 10 and LAYOUT.experiment not in all_of(target)
    target.left = 1000
    done = copy_experiment(run.store, target, LAYOUT)
    assert done.unchanged == 10 and all_of(target) == all_of(run.store)


def test_a_store_that_damages_files_is_noticed(run: SampleRun) -> None:
    target = Breaking()
    target.damage = True
    with pytest.raises(StoreError, match="does not come back"):
        copy_experiment(run.store, target, LAYOUT)


def test_another_experiment_of_that_name_is_not_overwritten(run: SampleRun, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = SampleRun(FolderStore(tmp_path / "other", local=True), tmp_path / "others")
    with pytest.raises(ConfigError, match="has another experiment 'trial'"):
        copy_experiment(run.store, other.store, LAYOUT)


def test_names_that_are_no_keys_and_links_are_left_out(run: SampleRun, tmp_path: Path) -> None:
    (tmp_path / "from" / LAYOUT.root / "w1 (1).json").write_text("a copy that a Drive made")
    (tmp_path / "from" / LAYOUT.root / "link.json").symlink_to("/etc/passwd")
    target = MemoryStore()
    assert copy_experiment(run.store, target, LAYOUT).left_out == 2
    assert "root:" not in str(all_of(target))


def test_which_experiment(run: SampleRun) -> None:
    assert choose(run.store, None).experiment_name == "trial"
    with pytest.raises(ConfigError, match="there is no experiment 'trail'"):
        choose(run.store, "trail")
    run.store.put("experiments/second/experiment.json", b"")
    with pytest.raises(ConfigError, match=r"EXPERIMENT_NAME is not set.* has second, trial"):
        choose(run.store, None)


def test_the_command(run: SampleRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXPERIMENT_NAME", raising=False)
    arguments = ["copy", str(tmp_path / "from"), str(tmp_path / "to")]
    for words in (arguments, [*arguments, "--json"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code in (0, None)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("trial: ") and "0 there already" in first
    assert json.loads(second)["written"] == 0
    assert all_of(FolderStore(tmp_path / "to")) == all_of(run.store)


@pytest.mark.slow
def test_a_worker_on_a_folder_copied_from_s3_in_mid_run_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine: another home, and a folder that was copied while the worker on S3 went on."""
    folder, layout = tmp_path / "folder", Layout("moved")
    with s3_server() as endpoint:
        environment = variables(endpoint) | {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "HOME": str(tmp_path),
            "OMP_NUM_THREADS": "1",
            "EXPERIMENT_NAME": "moved",
            "NODE_ID": "w1",
            "MODEL_NAME": "nano",
            "NUM_TRAIN_SAMPLES": "2",
            "EVAL_INTERVAL": "0",
            "CHECKPOINT_INTERVAL": "2",
        }
        command = [sys.executable, "-m", "rl_swarm.cli"]
        url = f"s3://{BUCKET}/moving"
        first = subprocess.Popen([*command, "work"], env=environment | {"GDRIVE_PATH": url, "RL_SWARM_HOME": str(tmp_path / "one")})
        try:
            for name, value in variables(endpoint).items():
                monkeypatch.setenv(name, value)
            store, deadline = open_store(url), time.monotonic() + 120
            while len(store.list(layout.checkpoints)) < 2:
                assert first.poll() is None and time.monotonic() < deadline
                time.sleep(0.2)
            subprocess.run([*command, "copy", url, str(folder)], env=environment, check=True)
            assert first.poll() is None, "it is in mid-run"
        finally:
            first.terminate()
            first.wait()
    copied = max(int(name.strip("round_/")) for name in FolderStore(folder).list(layout.checkpoints))
    there = environment | {"GDRIVE_PATH": str(folder), "RL_SWARM_HOME": str(tmp_path / "two"), "MAX_ROUNDS": str(copied + 2)}
    second = subprocess.run([*command, "work"], env=there, capture_output=True, text=True, timeout=120, check=False)
    assert second.returncode == 0, second.stderr
    assert f"resumed at round {copied} of" in second.stdout, second.stdout
    started = [row["data"] for row in events(FolderStore(folder), layout, "w1") if row["event_type"] == "started"]
    assert started[-1]["round"] == copied
