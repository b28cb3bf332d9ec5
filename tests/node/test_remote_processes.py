"""Swarms of real processes on a real S3 server, and on a fake of Google Drive, behind a proxy with faults."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import obstore
import pytest

from rl_swarm.rollout import BUNDLE_BYTES, decode
from rl_swarm.runs import progress
from rl_swarm.store import Store, open_store
from rl_swarm.swarm.layout import Layout
from tests.node.test_swarm_processes import check_rewards
from tests.support.drive_fake import ROOT as ROOT_ID
from tests.support.drive_fake import drive_fake
from tests.support.fault_proxy import FaultProxy, fault_proxy
from tests.support.processes import ROOT, LocalSwarm
from tests.support.s3_server import BUCKET, KEY, SECRET, make_client, s3_server, variables

FAULTS = {"delay": 0.05, "error": 0.05, "limit": 0.05, "cut": 0.05, "lost": 0.02}
ROUNDS = 10
OUTAGE_SECONDS = 20.0  # longer than the library retries
TOKEN = "token-of-the-emulator"


@dataclass
class Remote:
    """A store behind a proxy with faults for the nodes; this process talks to the server itself."""

    place: str
    proxy: FaultProxy
    variables: dict[str, str]  # of a node
    secrets: tuple[str, ...]
    contents: Callable[[], dict[str, bytes]]  # all that is stored, by name


@pytest.fixture(params=["s3", "drive"])
def remote(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    with _bucket(monkeypatch) if request.param == "s3" else _drive(monkeypatch) as made:
        yield made


@contextmanager
def _bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    with s3_server() as server, fault_proxy(server, seed=20, **FAULTS) as proxy:
        for name, value in variables(server).items():
            monkeypatch.setenv(name, value)
        client = make_client(server, BUCKET)

        def contents() -> dict[str, bytes]:
            return {each["path"]: bytes(obstore.get(client, each["path"]).bytes()) for each in obstore.list(client).collect()}

        yield Remote(f"s3://{BUCKET}/place", proxy, variables(proxy.endpoint), (KEY, SECRET), contents)


@contextmanager
def _drive(monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    with drive_fake(lag_seconds=0.2) as drive, fault_proxy(drive.endpoint, seed=20, **FAULTS) as proxy:
        monkeypatch.setenv("DRIVE_EMULATOR_HOST", drive.endpoint)

        def contents() -> dict[str, bytes]:
            return {node.id + node.name: node.data for node in drive.nodes.values()}

        yield Remote(f"gdrive://{ROOT_ID}/place", proxy, {"DRIVE_EMULATOR_HOST": proxy.endpoint}, (TOKEN,), contents)


class RemoteSwarm(LocalSwarm):
    def __init__(self, tmp_path: Path, url: str, **settings: Any) -> None:
        super().__init__(tmp_path, **(settings | {"GDRIVE_PATH": url}))
        self.url, self.opened = url, list[Store]()

    @property
    def store(self) -> Store:
        """Opened once, after the nodes have begun to write: another look costs little then."""
        if not self.opened:
            self.opened.append(open_store(self.url, writable=False))
        return self.opened[0]


def published(store: Store, layout: Layout, last: int) -> set[str]:
    found = set()
    for number in range(last + 1):
        folder = layout.rollouts_of(number)
        for name in store.list(folder):
            found |= {rollout.id for rollout in decode(store.get(f"{folder}/{name}", limit=BUNDLE_BYTES)).rollouts}
    return found


def check_no_secret(remote: Remote, place: Path) -> None:
    """No credential is in the store, nor in anything that a node left on its disk or printed."""
    stored, files = remote.contents(), [path for path in place.rglob("*") if path.is_file()]
    assert any(name.endswith("experiment.json") for name in stored) and any(name.endswith("metrics.jsonl") for name in stored)
    assert files
    for name, data in stored.items() | {(str(path), path.read_bytes()) for path in files}:
        assert not any(secret.encode() in data for secret in remote.secrets), name


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_four_workers_go_on_through_faults_a_kill_and_an_outage(remote: Remote, tmp_path: Path) -> None:
    proxy = remote.proxy
    swarm = RemoteSwarm(
        tmp_path,
        remote.place,
        MAX_ROUNDS=ROUNDS,
        NUM_TRANSPLANT_TREES=2,
        COORDINATOR_ROUND_INTERVAL=10,
        NUM_TRAIN_SAMPLES=4,
        CHECKPOINT_INTERVAL=2,
        STANDIN_SECONDS=1,
        **remote.variables,
    )
    names = ["w1", "w2", "w3", "w4"]
    try:
        processes = {"boss": swarm.start("boss", "coordinator")} | {name: swarm.start(name) for name in names}
        swarm.wait_for_round(3, 120)
        while not swarm.announced():  # the coordinator may be slow to start
            assert processes["boss"].poll() is None, swarm.console("boss")
            time.sleep(0.2)
        processes["w1"].send_signal(signal.SIGKILL)
        processes["w1"].wait()
        proxy.down = True
        time.sleep(OUTAGE_SECONDS)
        died = [swarm.console(name) for name, process in processes.items() if name != "w1" and process.poll() not in (None, 0)]
        assert not died
        proxy.down = False
        processes["w1"] = swarm.start("w1")
        for name, process in processes.items():
            assert swarm.wait(process, 200) == 0, swarm.console(name)
        assert swarm.announced()[-1] == ROUNDS - 1, "workers may be ahead of the coordinator, at first and in the outage"
        assert {max(row["round"] for row in swarm.metrics(name)) for name in names} == {ROUNDS - 1}
        check_rewards(swarm, names)
        ids, learnt = published(swarm.store, swarm.layout, ROUNDS - 1), list[str]()
        for name in names:
            rows, events = progress.records(swarm.store, swarm.layout, name), progress.events(swarm.store, swarm.layout, name)
            # A round that w1 lost with its weights does not count: what it had used there may be used again.
            used = [rollout_id for row in progress.kept_rounds(rows, events) for rollout_id in row.external_ids]
            assert len(used) == len(set(used)) and set(used) <= ids
            learnt += [name] if used else []
            assert {rollout_id.split("/")[0] for rollout_id in used} <= set(names) - {name}
        assert len(learnt) == len(names), "everyone learnt from others"
        assert all(proxy.done[fault] for fault in FAULTS), proxy.done
        print(dict(proxy.done))
        check_no_secret(remote, tmp_path)
    finally:
        swarm.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_nano_swarm_trains_and_reports(remote: Remote, tmp_path: Path) -> None:
    url = remote.place
    environment = remote.variables | {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path / "user"),
        "RL_SWARM_HOME": str(tmp_path / "home"),
        "OMP_NUM_THREADS": "1",
        "EVAL_INTERVAL": "0",
        "CHECKPOINT_INTERVAL": "2",
    }
    settings = ("--model-name", "nano", "--max-rounds", "4", "--num-train-samples", "4", "--num-transplant-trees", "2")
    run = [sys.executable, "-m", "rl_swarm.cli"]
    command = [*run, "swarm", "--workers", "4", "--gdrive-path", url, "--experiment", "e", *settings]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"others join with: rl-swarm join {url}/e\n" in done.stdout
    (tmp_path / "console").write_text(done.stdout + done.stderr)
    store, layout = open_store(url, writable=False), Layout("e")
    assert {"report.html", "report.png", "experiment.json"} <= set(store.list(layout.root))
    assert store.list(layout.checkpoints), "checkpoints are in the bucket"
    assert len(store.list(layout.rollouts_of(3))) == 4
    check_no_secret(remote, tmp_path)
    status = [*run, "status", "--gdrive-path", url, "--experiment", "e"]
    shown = subprocess.run(status, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert shown.returncode == 0 and "worker_4" in shown.stdout, shown.stderr
