"""Every trouble that a machine, a library or a store can have is a finding, in bounded time, and nothing is left behind."""

import os
import pwd
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_swarm.config import load
from rl_swarm.errors import ConfigError
from rl_swarm.identity import load_identity
from rl_swarm.runs.validate import Finding, passed, results
from rl_swarm.store import Store, open_store
from rl_swarm.store.base import Transient
from rl_swarm.store.folder import FolderStore
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import Registration, register
from rl_swarm.tasks import tasks_version
from rl_swarm.tools import doctor
from rl_swarm.tools.doctor import machine
from rl_swarm.tools.doctor.store import FOLDER, SAMPLE, StoreExam
from rl_swarm.tools.memory import Device
from tests.support.clocks import VirtualClock

LIGHT = {"MODEL_NAME": "nano", "CPU_ONLY": "true"}


def by_check(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


def exam(settings: dict[str, str], **options: Any) -> list[Finding]:
    """The store's part alone."""
    environment = {"GDRIVE_PATH": "memory://doctor", **LIGHT, **settings}
    found = StoreExam(load(environment), environment, {}, **options)
    found.start()
    return found.findings(20.0)


def exam_of(store: Store, **options: Any) -> dict[str, Finding]:
    return by_check(exam({}, open_url=lambda url: store, **options))


# All of it


def test_a_machine_in_order(tmp_path: Path) -> None:
    place = tmp_path / "new" / "store"
    place.parent.mkdir()
    environment = {**LIGHT, "GDRIVE_PATH": str(place), "EXPERIMENT_NAME": "e", "RL_SWARM_HOME": str(tmp_path / "home")}
    findings = doctor.examine(environment, {})
    assert passed(findings), findings
    found = by_check(findings)
    assert {"python", "torch", "transformers", "reasoning-gym", "device", "memory", "threads", "disk"} <= found.keys()
    assert {"store", "write", "read", "listing", "exclusive create", "delete", "experiment", "store's disk"} <= found.keys()
    assert {finding.status for finding in findings} == {"ok"}
    assert "nano (float32) needs about" in found["memory"].detail
    assert "a checkpoint takes 11 MB" in found["disk"].detail
    assert not place.exists(), "not even the folder, which was not there before"
    assert results("e", findings)["passed"]


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Finding]]:
    """The whole examination without loading libraries."""
    monkeypatch.setattr(doctor, "check_libraries", lambda: [Finding("torch", "ok", "2")])
    monkeypatch.setattr(doctor, "check_memory", lambda config, workers: ([Finding("memory", "ok", config.model)], 1000))

    def examine(**settings: str) -> dict[str, Finding]:
        return by_check(doctor.examine({**LIGHT, **settings}, {}))

    return examine


def test_without_a_store_the_rest_is_looked_at(light: Callable[..., dict[str, Finding]], tmp_path: Path) -> None:
    found = light(RL_SWARM_HOME=str(tmp_path), NUM_GENERATION="4")
    assert found["store"].status == "warning" and "GDRIVE_PATH is not set" in found["store"].detail
    assert "did you mean NUM_GENERATIONS?" in found["settings"].detail
    assert found["settings"].status == "warning"
    assert found.keys() >= {"python", "torch", "memory", "threads", "disk"}
    assert passed(list(found.values()))


def test_with_a_broken_library_memory_is_not_looked_at(
    light: Callable[..., dict[str, Finding]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "check_libraries", lambda: [Finding("torch", "failed", "cannot be imported")])
    found = light()
    assert found["memory"].status == "warning"
    assert not passed(list(found.values()))


def test_memory_is_that_of_the_experiment_s_model(light: Callable[..., dict[str, Finding]], tmp_path: Path) -> None:
    publish(tmp_path, MODEL_NAME="nano")
    monitor = {"GDRIVE_PATH": str(tmp_path), "EXPERIMENT_NAME": "e"}
    assert by_check(doctor.examine(monitor, {}))["memory"].detail == "nano", "though the default here is another"


def test_a_wrong_setting_is_said_as_everywhere(light: Callable[..., dict[str, Finding]]) -> None:
    with pytest.raises(ConfigError, match="NUM_GENERATIONS must be at least 2"):
        light(NUM_GENERATIONS="1")


# The machine


def test_libraries_that_are_missing_broken_deadly_or_endless() -> None:
    programs = {
        "no-such-library": "import no_such_library",
        "torch": "raise OSError('libcudart.so.12: cannot open shared object file')",
        "transformers": "import os, signal; os.kill(os.getpid(), signal.SIGILL)",
        "reasoning-gym": "import time; time.sleep(60)",
        "msgspec": "import msgspec",
    }
    began = time.monotonic()
    found = by_check(machine.check_libraries(programs, seconds=3.0))
    assert time.monotonic() - began < 30
    assert [found[name].status for name in programs] == ["failed"] * 4 + ["ok"]
    assert "is not installed: run pip install 'no-such-library'" in found["no-such-library"].detail
    assert "(OSError: libcudart.so.12: cannot open shared object file): install it again" in found["torch"].detail
    assert "killed by SIGILL" in found["transformers"].detail
    assert "not done after 3 s" in found["reasoning-gym"].detail


def test_a_version_that_does_not_work_is_named_with_the_one_that_does() -> None:
    programs = {"transformers": "print('4.51.3', flush=True); raise ImportError('cannot import name AutoTokenizer')"}
    [found] = machine.check_libraries(programs)
    assert found.status == "failed"
    assert found.detail.startswith("4.51.3 does not work here: run pip install 'transformers>=5.0,<6' with ")


@pytest.mark.parametrize(
    ("said", "workers", "cores", "status", "words"),
    [
        (None, 1, 8, "ok", "8 a process on 8 cores, which workers share by themselves"),
        ("2", 4, 8, "ok", "2 a process on 8 cores"),
        ("1", 4, 2, "ok", "1 a process on 2 cores"),
        (None, 4, 8, "ok", "2 a process on 8 cores, which workers share by themselves"),
        ("8", 4, 8, "warning", "32 for 4 workers in all: set OMP_NUM_THREADS=2, or do not set it"),
        ("16", 1, 8, "warning", "16 for one worker in all: set OMP_NUM_THREADS=8"),
        ("many", 2, 2, "warning", "set OMP_NUM_THREADS=1"),
    ],
)
def test_threads_against_cores(said: str | None, workers: int, cores: int, status: str, words: str) -> None:
    found = machine.check_threads({} if said is None else {"OMP_NUM_THREADS": said}, workers, cores)
    assert found.status == status
    assert words in found.detail


def test_an_unknown_home_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(number: int) -> None:
        raise KeyError("no such user")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    found = machine.check_home(load({}), 1000)
    assert found.status == "failed" and found.detail.startswith("RL_SWARM_HOME begins with a home folder that is not known here")


def test_room_for_two_checkpoints(tmp_path: Path) -> None:
    assert [machine.check_disk("disk", "/d", free, 1000).status for free in (2000, 1999, 999)] == ["ok", "warning", "failed"]
    assert [machine.check_disk("disk", "/d", free, None).status for free in (10**9, 10**8)] == ["ok", "warning"]
    assert machine.check_home(load({"RL_SWARM_HOME": str(tmp_path / "a" / "b")}), 1000).status == "ok"
    (tmp_path / "file").touch()
    refused = machine.check_home(load({"RL_SWARM_HOME": str(tmp_path / "file")}), 1000)
    assert refused.status == "failed"
    assert "name a folder that can be written" in refused.detail


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, card = Device("cpu", "2 cores", 8 * 10**9, 4 * 10**9), Device("cuda", "A100", 80 * 10**9, 79 * 10**9)
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    assert machine.check_device(card, False) == Finding("device", "ok", "cuda: A100, 80.0 GB of memory, 79.0 GB free")
    assert "no GPU" in machine.check_device(cpu, False).detail
    monkeypatch.setattr(machine.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    assert machine.check_device(cpu, False).status == "warning"
    assert machine.check_device(cpu, True).status == "ok"


def test_a_model_that_cannot_be_had_is_a_problem_and_a_coordinator_needs_none(tmp_path: Path) -> None:
    config = {"MODEL_NAME": str(tmp_path), "CPU_ONLY": "true"}
    findings, size = machine.check_memory(load(config), 1)
    assert (by_check(findings)["model"].status, size) == ("failed", None)
    assert "no config.json in" in by_check(findings)["model"].detail
    findings, _ = machine.check_memory(load({**config, "NODE_ROLE": "coordinator"}), 1)
    assert passed(findings)


# The store


def test_a_folder_on_this_machine_s_disk_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    found = by_check(exam({"GDRIVE_PATH": str(tmp_path)}))
    assert {finding.status for check, finding in found.items() if check != "experiment"} == {"ok"}
    assert "this machine's own disk" in found["store"].detail
    assert "EXPERIMENT_NAME is not set" in found["experiment"].detail
    assert os.listdir(tmp_path) == ["mine"]


def test_a_name_that_cannot_be_used_does_not_end_the_examination(tmp_path: Path) -> None:
    layout = publish(tmp_path)
    (tmp_path / "doctor").write_text("somebody's file")
    (tmp_path / layout.peer("w1")).mkdir(parents=True)
    findings = exam({"GDRIVE_PATH": str(tmp_path), "EXPERIMENT_NAME": layout.experiment_name})
    refused = [each for each in findings if each.status == "failed"]
    assert len(refused) == 1 and "cannot be used" in refused[0].detail
    assert {"experiment", "permissions", "nodes"} <= by_check(findings).keys()


def test_another_examination_s_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "other.json").touch()
    assert by_check(exam({"GDRIVE_PATH": str(tmp_path)}))["delete"].status == "ok"
    assert os.listdir(tmp_path / FOLDER) == ["other.json"]


def test_a_mount_is_told_from_a_disk(tmp_path: Path) -> None:
    found = exam_of(FolderStore(tmp_path, local=False))
    assert "a FUSE or network mount" in found["store"].detail
    assert found["exclusive create"].status == found["delete"].status == "ok"
    assert os.listdir(tmp_path) == []


def test_a_store_inside_one_process_is_a_warning() -> None:
    store = open_store("memory://doctor-alone")
    found = exam_of(store)
    assert found["store"].status == "warning"
    assert found["write"].status == found["read"].status == found["listing"].status == "ok"
    assert isinstance(store, MemoryStore) and store._data == {}


def test_places_that_cannot_be_used(tmp_path: Path) -> None:
    for place, words in (
        (tmp_path / "not" / "there", "mount the drive or make the folder"),
        (tmp_path / "file", "must be a folder"),
        ("gopher://x", "unknown scheme"),
    ):
        (tmp_path / "file").touch()
        (found,) = exam({"GDRIVE_PATH": str(place)})
        assert (found.check, found.status) == ("store", "failed")
        assert words in found.detail


def test_a_mount_that_died() -> None:
    def dead(url: str) -> Store:
        raise OSError(107, "Transport endpoint is not connected")

    (found,) = exam({}, open_url=dead)
    assert found.status == "failed"
    assert "(Errno 107, Transport endpoint is not connected): mount it again" in found.detail


class Away(MemoryStore):
    first_pause_seconds = 0.001

    def _put(self, *arguments: Any) -> Any:
        raise Transient("Errno 5")

    _list = _delete = _put


def test_a_store_that_is_away() -> None:
    found = exam_of(Away())
    assert found["store"].status == "failed"
    assert "does not answer (put doctor/" in found["store"].detail
    assert "delete doctor/ in the store by hand" in found["delete"].detail


def test_a_store_that_hangs_does_not_hang_the_doctor() -> None:
    released = threading.Event()

    class Hanging(MemoryStore):
        def _get(self, key: str, limit: int, offset: int) -> bytes:
            released.wait(30)
            return super()._get(key, limit, offset)

    environment = {"GDRIVE_PATH": "memory://hanging", **LIGHT}
    hanging = StoreExam(load(environment), environment, {}, open_url=lambda url: Hanging(url))
    began = time.monotonic()
    hanging.start()
    findings = hanging.findings(0.3)
    assert time.monotonic() - began < 5
    assert by_check(findings)["write"].status == "ok", "what was found until then is kept"
    assert findings[-1].status == "failed"
    assert "gave no answer in 0 s while reading back: if it is a mount, mount it again" in findings[-1].detail
    released.set()


class Lagging(MemoryStore):
    """Lists a key so many seconds after it was written."""

    def __init__(self, seconds: float, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.seconds, self.written = seconds, dict[str, float]()

    def _put(self, key: str, data: bytes) -> bool:
        self.written.setdefault(key, self.clock.monotonic())
        return super()._put(key, data)

    def _list(self, folder: str) -> list[str]:
        old = [key for key in self.written if self.clock.monotonic() - self.written[key] >= self.seconds]
        return [name for name in super()._list(folder) if f"{folder}/{name}" in old]


@pytest.mark.parametrize(
    ("seconds", "status", "words"),
    [(1, "ok", "visible here after 1"), (12, "warning", "but after 12 s"), (99, "warning", "not listed after 30 s")],
)
def test_how_long_until_a_write_is_listed(seconds: float, status: str, words: str) -> None:
    clock = VirtualClock()
    found = exam_of(Lagging(seconds, clock), clock=clock)
    assert found["listing"].status == status
    assert words in found["listing"].detail


class Forgetful(MemoryStore):
    """Gives back what it pleases, and lets everybody win."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        super().__init__()
        self.answer = answer

    def _get(self, key: str, limit: int, offset: int) -> bytes:
        return self.answer(super()._get(key, limit, offset))

    def _put(self, key: str, data: bytes) -> bool:
        super()._put(key, data)
        return True


@pytest.mark.parametrize(("answer", "status"), [(lambda data: data[:7], "warning"), (lambda data: b"other", "failed")])
def test_what_does_not_come_back_whole(answer: Callable[[bytes], bytes], status: str) -> None:
    found = exam_of(Forgetful(answer))
    assert found["read"].status == status
    assert found["exclusive create"].status == "warning"
    assert "of two writers of one name 2 won: start the first node alone" in found["exclusive create"].detail


def test_what_cannot_be_read_yet() -> None:
    class Late(MemoryStore):
        first_pause_seconds = 0.001

        def _get(self, key: str, limit: int, offset: int) -> bytes:
            return super()._get("nowhere", limit, offset)

    assert exam_of(Late())["read"].status == "warning"


def test_what_stays_listed_after_it_was_deleted() -> None:
    class Sticky(MemoryStore):
        def _delete(self, key: str) -> None:
            pass

    assert exam_of(Sticky())["delete"].status == "warning"


def test_the_sample_is_larger_than_a_block() -> None:
    assert len(SAMPLE) > 4096


# The experiment


def publish(folder: Path, **settings: str) -> Layout:
    store, layout = FolderStore(folder), Layout("e")
    experiments.publish(store, layout, load({**LIGHT, **settings}), tasks_version(), store.clock)
    return layout


def test_an_experiment_that_is_there_and_one_that_is_not(tmp_path: Path) -> None:
    place = {"GDRIVE_PATH": str(tmp_path), "EXPERIMENT_NAME": "e"}
    assert "does not exist yet" in by_check(exam(place))["experiment"].detail
    layout = publish(tmp_path)
    store = FolderStore(tmp_path)
    for node in ("worker_1", "worker_2"):
        register(store, layout, Registration(node, "worker", 0.0, "nano", node, "0", "s"))
    found = by_check(exam({**place, "NODE_ID": "worker_1"}))
    assert found["experiment"].status == found["nodes"].status == "ok"
    assert found["nodes"].detail == "2 registered; worker_1 among them, it resumes from its checkpoint"


def test_settings_that_contradict_the_experiment(tmp_path: Path) -> None:
    publish(tmp_path)
    found = by_check(exam({"GDRIVE_PATH": str(tmp_path), "EXPERIMENT_NAME": "e", "TASKS": "gcd"}))
    assert found["experiment"].status == "failed"
    assert "TASKS contradicts the experiment 'e'" in found["experiment"].detail


def test_an_experiment_that_cannot_be_read(tmp_path: Path) -> None:
    layout = publish(tmp_path)
    (tmp_path / layout.experiment).write_text("{}")
    found = by_check(exam({"GDRIVE_PATH": str(tmp_path), "EXPERIMENT_NAME": "e"}))
    assert found["experiment"].status == "failed"
    assert "wait until it has synchronised" in found["experiment"].detail


def test_a_bug_in_the_examination_is_not_hidden() -> None:
    class Broken(MemoryStore):
        def _put(self, key: str, data: bytes) -> bool:
            raise AssertionError("our own bug")

    with pytest.raises(AssertionError, match="our own bug"):
        exam_of(Broken())


def test_the_public_key_is_shown_and_made_if_there_is_none(light: Callable[..., dict[str, Finding]], tmp_path: Path) -> None:
    assert "identity" not in light()
    path = tmp_path / "swarm.pem"
    found = light(SWARM_IDENTITY=str(path))["identity"]
    assert (found.status, found.detail) == ("ok", f"signs with the public key {load_identity(str(path)).public}")
    other = light(SWARM_IDENTITY=str(path), SWARM_ALLOWED_KEYS="0" * 64)["identity"]
    assert other.status == "warning" and "not in SWARM_ALLOWED_KEYS" in other.detail
    assert light(SWARM_REQUIRE_SIGNATURES="true")["identity"].status == "warning"
    path.chmod(0o644)
    assert "chmod 600" in light(SWARM_IDENTITY=str(path))["identity"].detail
