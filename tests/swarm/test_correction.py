"""An experiment in which nobody has played can be corrected; one that was played cannot."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rl_swarm.cli import main
from rl_swarm.config import load
from rl_swarm.document import seal
from rl_swarm.errors import ConfigError
from rl_swarm.identity import load_identity
from rl_swarm.node.assembly import load_config
from rl_swarm.store.folder import FolderStore
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm import correction
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.experiment import Experiment
from rl_swarm.swarm.layout import Layout
from rl_swarm.tools.launch import found, plan
from tests.support.clocks import VirtualClock
from tests.support.processes import LocalSwarm
from tests.support.standins import TASKS_VERSION

LAYOUT = Layout("trial")


class Place:
    """A folder, and whoever starts nodes on it."""

    def __init__(self, tmp_path: Path) -> None:
        self.environment = {
            "GDRIVE_PATH": str(tmp_path / "store"),
            "EXPERIMENT_NAME": "trial",
            "RL_SWARM_HOME": str(tmp_path / "home"),
        }
        self.said: list[str] = []
        self.vetted: list[str] = []

    def start(self, correct: bool = False, **settings: Any) -> Experiment:
        given = {name: str(value) for name, value in settings.items()}
        _, _, experiment, _ = load_config(
            self.environment | given,
            {},
            TASKS_VERSION,
            vet=lambda config, say: self.vetted.append(config.tasks),
            correct=correct,
            say=self.said.append,
        )
        return experiment

    @property
    def store(self) -> FolderStore:
        return FolderStore(Path(self.environment["GDRIVE_PATH"]))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_correction_replaces_the_experiment_and_keeps_its_other_settings(place: Place) -> None:
    before = place.start(TASKS="gcd", MAX_ROUNDS=10)
    for key in (LAYOUT.round(0), LAYOUT.peer("w1"), LAYOUT.heartbeat("w1", 1), LAYOUT.log("w1", "stdout.log")):
        place.store.put(key, b"old")
    after = place.start(correct=True, TASKS="chain_sum")
    assert after.experiment_id != before.experiment_id
    assert (after.settings["TASKS"], after.settings["MAX_ROUNDS"]) == ("chain_sum", "10")
    assert place.vetted == ["gcd", "chain_sum"]
    assert place.said == [
        "the experiment 'trial' is corrected, nodes that have the old one stop: TASKS is now 'chain_sum', was 'gcd'"
    ]
    left = [path.name for path in place.store.root.rglob("*")]
    assert sorted(left) == ["experiment.json", "experiments", "trial"], "no empty folder either"


def test_it_is_done_only_when_asked_for_and_the_refusal_says_how(place: Place) -> None:
    before = place.start(TASKS="gcd")
    with pytest.raises(ConfigError, match="correct it with --correct if no round was played, or choose another EXPERIMENT_NAME"):
        place.start(TASKS="chain_sum")
    assert place.start(MODEL_NAME="nano") == before, "a node's own model needs no correction"
    assert place.start(correct=True, TASKS="gcd") == before == place.start(correct=True), "there is nothing to correct"
    assert place.vetted == ["gcd"] and place.said == []


@pytest.mark.parametrize(
    "key",
    [
        LAYOUT.bundle(0, "w1"),
        LAYOUT.reward(0, "w1"),
        LAYOUT.checkpoint(1, "w1"),
        LAYOUT.log("w1", "metrics.jsonl"),
        LAYOUT.segment(LAYOUT.log("w1", "metrics.jsonl"), 7),
    ],
)
def test_a_played_experiment_is_never_corrected(place: Place, key: str) -> None:
    place.start(TASKS="gcd")
    place.store.put(LAYOUT.log("w0", "stdout.log"), b"starting\n")
    place.store.put(key, b"x")
    before = {path: path.read_bytes() for path in place.store.root.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="'trial' was played and cannot be corrected any more: choose another EXPERIMENT_NAME"):
        place.start(correct=True, TASKS="chain_sum")
    assert {path: path.read_bytes() for path in place.store.root.rglob("*") if path.is_file()} == before


def test_settings_that_are_wrong_correct_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = place.start(TASKS="gcd")
    with pytest.raises(ConfigError, match="TASKS"):
        place.start(correct=True, TASKS="Gcd!")
    assert experiments.read(place.store, LAYOUT) == before


def test_a_signed_experiment_is_corrected_by_its_founder_alone(place: Place, tmp_path: Path) -> None:
    founder, other = str(tmp_path / "founder.pem"), str(tmp_path / "other.pem")
    before = place.start(TASKS="gcd", SWARM_IDENTITY=founder)
    for stranger in ({}, {"SWARM_IDENTITY": other}):
        with pytest.raises(ConfigError, match=f"is signed with {before.key}, and only its founder may correct it"):
            place.start(correct=True, TASKS="chain_sum", **stranger)
    assert experiments.read(place.store, LAYOUT, before.key) is not None
    after = place.start(correct=True, TASKS="chain_sum", SWARM_IDENTITY=founder)
    assert after.key == before.key and after.experiment_id != before.experiment_id


def test_who_comes_second_does_not_remove_the_correction_of_the_first(place: Place) -> None:
    seen = place.start(TASKS="gcd")
    corrected = place.start(correct=True, TASKS="chain_sum")
    correction.remove(place.store, LAYOUT, seen)
    assert experiments.read(place.store, LAYOUT) == corrected


def test_what_cannot_be_removed_is_said(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = place.start(TASKS="gcd")
    monkeypatch.setattr(FolderStore, "_delete", lambda self, key: None)
    with pytest.raises(ConfigError, match=r"experiment\.json cannot be removed by this user: let its owner correct it"):
        place.start(correct=True, TASKS="chain_sum")
    assert experiments.read(place.store, LAYOUT) == before


def test_joining_never_corrects(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["join", "./store/trial", "--correct"])
    assert ended.value.code == 2 and "No such option" in capsys.readouterr().err


def test_a_swarm_corrects_once_before_its_nodes_start(place: Place, tmp_path: Path) -> None:
    settings = place.environment | {"TASKS": "easy", "MODEL_NAME": "nano", "HOME": str(tmp_path)}
    found(settings)
    first = experiments.existing(place.store, LAYOUT)
    environment = found(settings | {"MAX_ROUNDS": "7"}, correct=True, say=place.said.append)
    assert experiments.existing(place.store, LAYOUT).settings["MAX_ROUNDS"] == "7" and len(place.said) == 1
    assert experiments.existing(place.store, LAYOUT).experiment_id != first.experiment_id
    assert not any("--correct" in word for node in plan(environment, 2, tmp_path) for word in node.command)


# Nodes that have the old one


def test_only_a_true_correction_stops_a_node(tmp_path: Path) -> None:
    key = load_identity(str(tmp_path / "founder.pem"))
    config = load({"EXPERIMENT_NAME": "trial", "TASKS": "gcd"})
    for identity in (None, key):
        store, older, newer = MemoryStore(), MemoryStore(), MemoryStore()
        experiments.publish(older, LAYOUT, config, "library 1", VirtualClock(), identity)
        mine = experiments.publish(store, LAYOUT, config, "library 1", VirtualClock(), identity)
        after = experiments.publish(newer, LAYOUT, config, "library 1", VirtualClock(), identity, mine)
        newer.delete(LAYOUT.experiment)
        experiments.publish(newer, LAYOUT, config, "library 1", VirtualClock(), identity, after)
        good, old = (each.get(LAYOUT.experiment, limit=1 << 20) for each in (newer, older))
        forged = seal(msgspec.structs.replace(mine, experiment_id="f" * 16, corrects=(mine.experiment_id,), key=None))
        for harmless in (b"", good[:-20], old, *([forged] if identity else [])):
            store.rewrite(LAYOUT.experiment, harmless)
            correction.check_current(store, LAYOUT, mine)
        store.delete(LAYOUT.experiment)
        correction.check_current(store, LAYOUT, mine)
        store.rewrite(LAYOUT.experiment, good)
        with pytest.raises(ConfigError, match=r"'trial' was corrected, its id is now \w{16}, this node has \w{16}: start the node"):
            correction.check_current(store, LAYOUT, mine)


def test_nodes_that_have_the_old_one_stop_with_one_line_and_publish_nothing(
    local_swarm: Callable[..., LocalSwarm], place: Place
) -> None:
    swarm = local_swarm(COORDINATOR_ROUND_INTERVAL=2, NUM_TRAIN_SAMPLES=2, TASKS="easy", STANDIN_SECONDS=4)
    nodes = {name: swarm.start(name, role) for name, role in (("boss", "coordinator"), ("w1", "worker"))}
    deadline = time.monotonic() + 30
    while not all((swarm.folder / LAYOUT.peer(name)).exists() for name in nodes) or not swarm.announced():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    place.environment |= swarm.environment
    place.start(correct=True, TASKS="paper")
    for name, process in nodes.items():
        assert swarm.wait(process, 30) == 2
        console = swarm.console(name)
        assert console.count("the experiment 'trial' was corrected, its id is now") == 1 and "Traceback" not in console
    assert swarm.rewards() == {} and not correction.played(swarm.store, LAYOUT)
