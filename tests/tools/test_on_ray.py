"""Swarms on a Ray cluster: what is sent to its machines, and a real cluster of two raylets that loses one."""

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from types import ModuleType

import pytest

from rl_swarm.cli import main
from rl_swarm.errors import ConfigError
from rl_swarm.store import Store, open_store
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.rounds import read_reward, rounds_with_rewards
from rl_swarm.tools import on_ray
from rl_swarm.tools.on_ray import Cluster, Host, sent_to_nodes
from tests.support import rows
from tests.support.processes import ROOT, descendants
from tests.support.s3_server import BUCKET, KEY, SECRET, free_ports, s3_server, variables

WORKERS = ["worker_1", "worker_2", "worker_3", "worker_4"]
LAYOUT = Layout("e")
URL = f"s3://{BUCKET}/place"
GUARD = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}


def test_settings_and_credentials_go_to_the_machines_and_nothing_of_this_one() -> None:
    wanted = {"GDRIVE_PATH": "s3://b", "IDENTITY_PATH": "k", "AWS_ACCESS_KEY_ID": "a", "HF_TOKEN": "t", "OMP_NUM_THREADS": "1"}
    mine = {"RL_SWARM_HOME": "/here", "WEB_TOKEN": "w", "PATH": "/bin", "HOME": "/me", "LANG": "C", "HF_HOME": "/cache"}
    assert sent_to_nodes(wanted | mine) == wanted


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--on", "slurm"), "--on is no cluster, got 'slurm': write ray, or ray:HOST:PORT"),
        (("--on", "ray:"), "--on is no cluster"),
        (("--on", "ray:head"), "--on is no cluster"),
        (("--on", "ray", "--gpus-per-worker", "1.5"), "--gpus-per-worker is neither a share of one GPU nor a whole number"),
        (("--gpus-per-worker", "0.5"), "--cpus-per-worker and --gpus-per-worker are shares of a cluster's machines: give --on ray"),
        (("--on", "ray"), "GDRIVE_PATH is not set"),
    ],
)
def test_a_wrong_word_about_the_cluster_is_one_line(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GDRIVE_PATH", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["swarm", *arguments])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith(f"rl-swarm: {says}") and said.count("\n") == 1


def test_without_ray_the_install_command_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SystemExit):
        main(["swarm", "--on", "ray", "--gdrive-path", str(tmp_path), "--model-name", "nano"])
    said = capsys.readouterr().err
    assert "--on ray needs the package ray, which is not installed: pip install " in said and "[ray]" in said
    assert not list(tmp_path.iterdir()), "nothing was published"


def test_an_address_at_which_nobody_answers_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))  # it is not asked
    [port] = free_ports(1)
    with pytest.raises(SystemExit) as ended:
        main(["swarm", "--on", f"ray:127.0.0.1:{port}", "--gdrive-path", str(tmp_path), "--model-name", "nano"])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1
    assert f"--on ray finds no cluster at '127.0.0.1:{port}'" in said and "start one with 'ray start --head'" in said


def test_who_finds_no_room_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = ModuleType("ray")
    machines = [({"CPU": 8.0, "GPU": 1.0}, True), ({"CPU": 2.0}, True), ({"CPU": 8.0, "GPU": 8.0}, False)]
    ray.nodes = lambda: [{"Resources": has, "Alive": alive} for has, alive in machines]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert Cluster(cpus=1.0, gpus=0.25).room() == 4 and Cluster(cpus=1.0).room() == 10
    assert Cluster(cpus=1.0).what_fits(10) == []
    [line] = Cluster(cpus=3.0).what_fits(4)
    assert line.startswith("the Ray cluster has room for 2 workers with 3 CPUs and 0 GPUs each: the others start when")
    with pytest.raises(ConfigError, match="no machine of the Ray cluster has 1 CPUs and 2 GPUs for a worker: lower"):
        Cluster(cpus=1.0, gpus=2.0).what_fits(1)


def test_a_call_that_is_repeated_starts_no_second_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray repeats calls when it has lost sight of a machine that goes on working."""
    monkeypatch.setattr(on_ray, "NODE_COMMAND", ["/bin/sh", "-c", "echo started; trap 'exit 0' TERM; while :; do sleep 0.1; done"])
    environment = {"GDRIVE_PATH": "memory://x", "EXPERIMENT_NAME": "e", "NODE_ID": "w", "RL_SWARM_HOME": str(tmp_path)}
    host, codes = Host(), list[int]()
    calls = [Thread(target=lambda: codes.append(host.run(environment))) for _ in range(3)]
    for call in calls:
        call.start()
    wait_for(lambda: host.last_line() == "started", 20, tmp_path / "consoles" / "e" / "w.log")
    assert host.new_lines() == ["started"]
    host.stop()
    for call in calls:
        call.join(20)
    assert codes == [0, 0, 0]
    assert (tmp_path / "consoles" / "e" / "w.log").read_text().count("started") == 1


# A real cluster


@dataclass
class Machine:
    """A raylet with all its processes, and the home of the nodes on it."""

    process: "subprocess.Popen[bytes]"
    home: Path

    @property
    def nodes(self) -> set[str]:
        return {path.name for path in self.home.glob("e-*/worker_*")}

    def fail(self) -> None:
        """Kill every process and delete the disk, as the end of a machine does."""
        for pid in descendants(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in descendants(self.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(10)


@dataclass
class TwoMachines:
    address: str
    head: Machine
    other: Machine
    folder: Path  # of Ray: its logs


@contextmanager
def two_machines(place: Path) -> Iterator[TwoMachines]:
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:  # names of sockets are short
        [port] = free_ports(1)
        # Ray takes 127.0.0.1 for another name of the machine's own address. These are on loopback, too. Some of its servers listen
        # on all addresses whatever one asks for, so a token guards them.
        address, made = f"127.0.0.2:{port}", list[Machine]()
        common = [
            "--node-ip-address=127.0.0.1",
            "--num-cpus=4",
            "--object-store-memory=80000000",
            "--block",
            "--disable-usage-stats",
        ]
        first = ["--head", "--node-ip-address=127.0.0.2", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}"]
        try:
            for name, own in (("head", first), ("other", ["--node-ip-address=127.0.0.3", f"--address={address}"])):
                made.append(start_machine([*common, *own], place / f"home_{name}", place / f"{name}.log"))
            yield TwoMachines(address, *made, Path(folder))
        finally:
            for machine in reversed(made):
                machine.stop()


def start_machine(arguments: list[str], home: Path, log: Path) -> Machine:
    environment = os.environ | GUARD | {"RL_SWARM_HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [str(Path(sys.executable).parent / "ray"), "start", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
    wait_for(lambda: b"Ray runtime started" in log.read_bytes() or process.poll() is not None, 90, log)
    assert process.poll() is None, log.read_text()
    return Machine(process, home)


def wait_for(condition: Callable[[], bool], seconds: float, console: Path) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {console.read_text()}"
        time.sleep(0.3)


class Driver:
    """`rl-swarm swarm --on ray` in a process of its own."""

    def __init__(self, place: Path, machines: TwoMachines, endpoint: str) -> None:
        self.console = place / "driver.log"
        self.environment = (
            variables(endpoint)
            | GUARD
            | {
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT),
                "HOME": str(place / "user"),
                "RL_SWARM_HOME": str(place / "home_driver"),
                "GDRIVE_PATH": URL,
                "EXPERIMENT_NAME": "e",
                "OMP_NUM_THREADS": "1",
                "EVAL_INTERVAL": "0",
                "CHECKPOINT_INTERVAL": "2",
                "NUM_GENERATIONS": "4",
                "MAX_NEW_TOKENS": "8",
                "ROUND_ADVANCE": "timer",  # a round every few seconds, whoever is away
                "COORDINATOR_ROUND_INTERVAL": "6",
            }
        )
        settings = ("--model-name", "nano", "--max-rounds", "1000", "--num-train-samples", "2", "--num-transplant-trees", "2")
        cluster = ("--workers", str(len(WORKERS)), "--on", f"ray:{machines.address}", "--cpus-per-worker", "0.5")
        with self.console.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rl_swarm.cli", "swarm", *cluster, *settings],
                env=self.environment,
                cwd=place,
                stdout=output,
                stderr=output,
            )

    def call(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "rl_swarm.cli", *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def saved(store: Store) -> set[str]:
    """Workers with a checkpoint in the store."""
    folders = [name.rstrip("/") for name in store.list(LAYOUT.checkpoints)]
    return {name.removesuffix(".pt") for folder in folders for name in store.list(f"{LAYOUT.checkpoints}/{folder}")}


def rewarded(store: Store, name: str) -> set[int]:
    """Rounds for which a worker has submitted a reward that can be read."""
    return {number for number in rounds_with_rewards(store, LAYOUT) if read_reward(store, LAYOUT, number, 0, name)}


def check_no_secret(*folders: Path) -> None:
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        assert KEY.encode() not in data and SECRET.encode() not in data, path


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_workers_of_a_machine_that_is_lost_go_on_on_another_from_their_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And Ctrl-C saves and stops all of them."""
    pytest.importorskip("ray", reason="installed by make test-slow")
    with s3_server() as server, two_machines(tmp_path) as machines:
        for name, value in variables(server).items():
            monkeypatch.setenv(name, value)
        driver = Driver(tmp_path, machines, server)
        try:
            store = open_store(URL, writable=False)

            def played_more(than: dict[str, set[int]], most: int) -> bool:
                assert driver.process.poll() is None, driver.console.read_text()
                return set(WORKERS) <= saved(store) and all(len(rewarded(store, name) - than[name]) >= most for name in WORKERS)

            wait_for(lambda: played_more({name: set() for name in WORKERS}, 4), 300, driver.console)
            lost, stayed = machines.other.nodes, machines.head.nodes
            assert lost and stayed and lost | stayed == set(WORKERS), "Ray spreads them"
            before, began = {name: rewarded(store, name) for name in WORKERS}, time.monotonic()
            machines.other.fail()
            wait_for(lambda: played_more(before, 2), 300, driver.console)
            print(f"everybody has played two more rounds {time.monotonic() - began:.0f} s after the loss")
            assert machines.head.nodes == set(WORKERS) and not machines.other.home.exists()
            driver.process.send_signal(signal.SIGINT)
            assert driver.process.wait(120) == 0, driver.console.read_text()
            check_stopped(driver, machines)
            for name in WORKERS:
                check_record(driver, store, name, before[name], name in lost)
            status = driver.call("status")
            assert all(name in status for name in WORKERS)
            check_no_secret(tmp_path, machines.folder)
        finally:
            driver.close()


def check_stopped(driver: Driver, machines: TwoMachines) -> None:
    said = driver.console.read_text()
    assert "swarm stopped" in said and "go on with:" in said
    assert "killed" not in said and "ended with code" not in said, said
    assert not [pid for pid in descendants(machines.head.process.pid) if is_node(pid)]


def check_record(driver: Driver, store: Store, name: str, before: set[int], lost: bool) -> None:
    """Nothing that was published is lost, the record is whole up to the checkpoint, and the last round is saved in the store."""
    after, played = rewarded(store, name), {row["round"] for row in rows.metrics(store, LAYOUT, name)}
    assert before < after
    found = re.search(r"resuming at round (\d+) from the checkpoint of the store", driver.call("logs", name, "-n", "999"))
    assert (found is not None) == lost, name
    resumed = int(found[1]) if found else max(after) + 1
    assert {number for number in after if number < resumed} <= played <= after
    assert resumed > min(before), "it goes on from what it has learnt"
    assert f"{name}.pt" in store.list(LAYOUT.checkpoint_folder(max(played) + 1))
    print(f"{name}: {f'lost, resumed at round {resumed}' if lost else 'stayed'}; rounds {sorted(played)}")


def is_node(pid: int) -> bool:
    with suppress(OSError):
        return b"rl_swarm.cli" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
