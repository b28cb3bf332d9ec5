"""A swarm with a founder's key, and a stranger who can write to its folder: refused, counted, said, and without effect."""

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from rich.console import Console

from rl_swarm.config import load
from rl_swarm.document import seal, unseal
from rl_swarm.errors import ConfigError
from rl_swarm.identity import Identity, load_identity
from rl_swarm.learning import checkpoint
from rl_swarm.node.assembly import Node, open_node
from rl_swarm.node.local import experiment_folder
from rl_swarm.reproduce.command import analyze
from rl_swarm.runs.following import look_once
from rl_swarm.runs.validate import Expected, validate
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.experiment import Experiment
from rl_swarm.swarm.peers import Heartbeat, Registration
from rl_swarm.swarm.rounds import Announcement, CurrentState, Reward, Rounds
from rl_swarm.swarm.signatures import Signatures, sign
from rl_swarm.tasks import tasks_version
from rl_swarm.tools.demo import unfinished
from rl_swarm.tools.opening import open_run
from tests.sim.drive_from_hell import File, Temper
from tests.sim.simulation import LAYOUT, Machine, Scenario, Simulation, draw
from tests.support.processes import LocalSwarm
from tests.support.rows import metrics

WORKERS = ("w0", "w1", "w2")
ROUNDS = 5


def forgeries(thief: Signatures, workers: tuple[str, ...], rounds: int) -> Iterator[tuple[str, bytes]]:
    """Well-sealed documents of a stranger, some unsigned, that would end the run, fake rewards and take over names."""
    documents: list[tuple[str, Any]] = [
        (LAYOUT.current_state, CurrentState(rounds - 1, 0.0, "thief", LAYOUT.experiment_name, "complete"))
    ]
    for number in range(1, rounds):
        documents.append((LAYOUT.round(number), Announcement(number, "thief", "f" * 16, 900, 0.0, list(workers), [])))
        documents += [(LAYOUT.reward(number, node), Reward(node, number, 1.0, 4, 0.0)) for node in workers]
    for node in workers:
        documents.append((LAYOUT.heartbeat(node, 77), Heartbeat(node, 77, 0.0, "nothing", 0)))
    for turn, (key, document) in enumerate(documents):
        yield key, thief.sign(key, seal(document)) if turn % 3 else seal(document)


def figures(rows: list[dict[str, Any]]) -> list[Any]:
    """What a worker did, round by round, times aside."""
    names = ("round", "reward", "own_ids", "external_ids", "policy_version", "tokens")
    return [[row[name] for name in names] for row in rows]


# In virtual time


class Founded(Simulation):
    """A calm drive, a key for every node, the coordinator's the founder's; with `thief`, forged documents lie there first."""

    def __init__(self, scenario: Scenario, folder: Path, keys: dict[str, Identity], thief: Identity | None) -> None:
        self.keys = keys
        self.told: list[Signatures] = []
        super().__init__(scenario, folder)
        if thief:
            for key, data in forgeries(Signatures(thief, experiment_id="0" * 16), scenario.workers, scenario.rounds):
                self.cloud.create(File(key, "thief", 0.0, 0.0, [(0.0, data)]))

    def identity(self, node_id: str) -> Identity:
        return self.keys[node_id]

    def experiment(self) -> Experiment:
        return msgspec.structs.replace(super().experiment(), key=self.keys["boss0"].public)

    def _open(self, machine: Machine) -> Node:
        node = super()._open(machine)
        assert node.member is not None
        self.told.append(node.member.signatures)
        return node

    def rows(self, node_id: str) -> list[Any]:
        store = MemoryStore(data={key: datas[-1] for key, datas in self.cloud.truth().items()})
        return figures(metrics(store, LAYOUT, node_id))


@pytest.mark.parametrize("external", [0, 4])
def test_forged_documents_change_nothing_in_a_simulated_swarm(external: int, tmp_path: Path) -> None:
    scenario = replace(
        draw(3),
        workers=WORKERS,
        coordinators=("boss0",),
        rounds=ROUNDS,
        advance="hybrid",
        own=2,
        external=external,
        temper=Temper(latency=0.0),
        storms=(),
        joins=(("boss0", 0.0), *((node, 1.0 + number) for number, node in enumerate(WORKERS))),
        loads=(),
        faults=(),
    )
    keys = {node: load_identity(str(tmp_path / f"{node}.pem")) for node in (*WORKERS, "boss0")}
    thief = load_identity(str(tmp_path / "thief.pem"))
    runs = []
    for name, stranger in (("quiet", None), ("beside a stranger", thief)):
        (tmp_path / name).mkdir()
        runs.append(Founded(scenario, tmp_path / name, keys, stranger).run())
    quiet, attacked = runs
    for node in WORKERS:
        assert {0, ROUNDS - 1} <= {row[0] for row in quiet.rows(node)}, "a slow one may miss some until its first reward"
        assert attacked.rows(node) == quiet.rows(node), "the same rewards, uses and updates"
        if external:
            assert any(row[3] for row in quiet.rows(node)), "it learnt from its peers"
    assert not any(each.refused for each in quiet.told)
    refused = sum((each.refused for each in attacked.told), start=Counter[str]())
    assert refused["unsigned"] > 0 and refused["key_not_allowed"] + refused["impersonation"] > 0


# Real processes


def play(swarm: LocalSwarm, folder: Path, attack: bool, names: tuple[str, ...] = ("w0", "w1")) -> dict[str, list[Any]]:
    """A founder's coordinator and workers on one folder; a stranger comes when the first round is open."""
    boss = swarm.start("boss", "coordinator", SWARM_IDENTITY=folder / "founder.pem")
    founder = load_identity(str(folder / "founder.pem")).public
    while not swarm.announced():
        assert boss.poll() is None, swarm.console("boss")
    if attack:
        published = unseal((swarm.folder / LAYOUT.experiment).read_bytes(), Experiment)
        thief = Signatures(load_identity(str(folder / "thief.pem")), experiment_id=published.experiment_id)
        for key, data in forgeries(thief, ("w0", "w1"), ROUNDS):
            (swarm.folder / key).parent.mkdir(parents=True, exist_ok=True)
            (swarm.folder / key).write_bytes(data)
        registration = seal(Registration("w0", "worker", 0.0, "evil", "w0", "1", "f"))
        (swarm.folder / LAYOUT.peer("w0")).write_bytes(registration)
    workers = [swarm.start(node, SWARM_FOUNDER=founder, RL_SWARM_HOME=folder / f"home of {node}") for node in names]
    assert not any(swarm.wait(process, 120) for process in (*workers, boss)), swarm.console("boss") + swarm.console("w0")
    return {node: figures(swarm.metrics(node)) for node in names}


def test_forged_documents_change_nothing_in_a_real_swarm(tmp_path: Path) -> None:
    settings = {"MAX_ROUNDS": 3, "NUM_TRAIN_SAMPLES": 2, "NUM_GENERATIONS": 4, "COORDINATOR_ROUND_INTERVAL": 20}
    found = []
    for name in ("quiet", "attacked"):
        (tmp_path / name).mkdir()
        swarm = LocalSwarm(
            tmp_path / name, **settings, STANDIN_SECONDS=1.5
        )  # so that both workers take part from the first round on
        try:
            found.append(play(swarm, tmp_path / name, name == "attacked"))
        finally:
            swarm.close()
    assert found[0] == found[1] and [row[0] for row in found[0]["w0"]] == list(range(3))
    said = swarm.console("boss") + swarm.console("w0")
    assert "refused, 1 so far for this reason" in said
    assert "somebody had put a file of theirs at" in said, "and its own documents were put in their place"
    assert f"rl-swarm join {swarm.folder}/trial#" in swarm.console("boss")


@pytest.mark.slow
def test_forged_documents_leave_the_weights_of_nano_as_they_are(tmp_path: Path) -> None:
    settings = {"MAX_ROUNDS": 6, "NUM_TRAIN_SAMPLES": 8, "NUM_GENERATIONS": 8, "COORDINATOR_ROUND_INTERVAL": 20}
    nano = {"MODEL_NAME": "nano", "CPU_ONLY": "true", "CHECKPOINT_INTERVAL": 1, "NUM_TRANSPLANT_TREES": 0, "OMP_NUM_THREADS": "1"}
    kept, found = [], []
    for name in ("quiet", "attacked"):
        (tmp_path / name).mkdir()
        swarm = LocalSwarm(tmp_path / name, **settings | nano)
        swarm.program = ("rl_swarm.cli", "node")
        if kept:  # a whole checkpoint, with the document of the key that signed it: not the key of this node
            for key in (LAYOUT.checkpoint(5, "w0"), LAYOUT.endorsement(5, "w0")):
                planted = swarm.folder / key
                planted.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(tmp_path / "quiet" / swarm.folder.relative_to(tmp_path / "attacked") / key, planted)
        try:
            found.append(play(swarm, tmp_path / name, name == "attacked", ("w0",)))
        finally:
            swarm.close()
        kept += (tmp_path / name).glob("home of w0/trial-*/w0/checkpoints")
    assert found[0] == found[1] and found[0]["w0"][-1][4] > 0, "the policy has changed, and in the same steps"
    assert "checkpoint was not used" in swarm.console("w0") and "is not signed with this node's key" in swarm.console("w0")
    quiet, attacked = (checkpoint.read(folder / "round_000006.pt", 6)[1]["model"] for folder in kept)
    assert quiet.keys() == attacked.keys() and all(torch.equal(quiet[name], attacked[name]) for name in quiet)


def test_settings_that_somebody_changed_end_a_start_with_one_line(tmp_path: Path) -> None:
    swarm = LocalSwarm(tmp_path, MAX_ROUNDS=2, NUM_TRAIN_SAMPLES=2, COORDINATOR_ROUND_INTERVAL=1)
    try:
        boss = swarm.start("boss", "coordinator", SWARM_IDENTITY=tmp_path / "founder.pem")
        while not swarm.announced():
            assert boss.poll() is None, swarm.console("boss")
        founder = load_identity(str(tmp_path / "founder.pem")).public
        path = swarm.folder / LAYOUT.experiment
        published = unseal(path.read_bytes(), Experiment)
        changed = msgspec.structs.replace(published, key=None, signature=None, settings=published.settings | {"MAX_ROUNDS": "1"})
        path.write_bytes(seal(changed))
        assert swarm.wait(swarm.start("w0", SWARM_FOUNDER=founder)) == 2
        [line] = swarm.console("w0").splitlines()
        assert line.startswith(
            f"{LAYOUT.experiment} is not signed, id {published.experiment_id}, the founder that you named is {founder}: "
        )
        boss.terminate()
        assert swarm.wait(boss) == 0
    finally:
        swarm.close()


def test_a_coordinator_without_the_right_key_is_told_so(tmp_path: Path) -> None:
    swarm = LocalSwarm(tmp_path, MAX_ROUNDS=2, COORDINATOR_ROUND_INTERVAL=1)
    try:
        boss = swarm.start("boss", "coordinator", SWARM_IDENTITY=tmp_path / "founder.pem")
        while not swarm.announced():
            assert boss.poll() is None, swarm.console("boss")
        other = swarm.start("other", "coordinator", SWARM_IDENTITY=tmp_path / "other.pem", RL_SWARM_HOME=tmp_path / "other")
        assert swarm.wait(other) == 2
        assert "SWARM_IDENTITY may not announce rounds in this experiment" in swarm.console("other")
        boss.terminate()
        assert swarm.wait(boss) == 0
    finally:
        swarm.close()


def start(tmp_path: Path, **settings: str) -> Node:
    """A node that has joined, and is let go of at once."""
    environment = {
        "GDRIVE_PATH": str(tmp_path / "store"),
        "RL_SWARM_HOME": str(tmp_path / "home"),
        "EXPERIMENT_NAME": LAYOUT.experiment_name,
        "NODE_ID": "me",
        "TASKS": "gcd",
        **settings,
    }
    node = open_node(environment, {}, tasks_version=tasks_version(), console=None)
    assert node.member is not None
    node.member.publisher.close(10)
    node.local.lock.close()
    return node


@pytest.mark.parametrize("signed", [True, False])
def test_an_experiment_that_was_replaced_is_not_joined_again(tmp_path: Path, signed: bool) -> None:
    """Also by its founder, who restarts a node with the key of the founder, and by who joined without naming it."""
    (tmp_path / "store").mkdir()
    founder, thief = (str(tmp_path / "keys" / f"{name}.pem") for name in ("founder", "thief"))
    first = start(tmp_path, SWARM_IDENTITY=founder).experiment
    assert first.key == load_identity(founder).public
    forged = msgspec.structs.replace(first, key=None, announcers=(first.key,), settings=first.settings | {"MAX_ROUNDS": "1"})
    data = sign(load_identity(thief), first.experiment_id, LAYOUT.experiment, seal(forged)) if signed else seal(forged)
    (tmp_path / "store" / LAYOUT.experiment).write_bytes(data)
    for settings in ({"SWARM_IDENTITY": founder}, {}):
        with pytest.raises(ConfigError, match=f"was signed with {first.key} when this machine took part before: somebody replaced"):
            start(tmp_path, **settings)
    if signed:
        named = start(tmp_path, SWARM_IDENTITY=founder, SWARM_FOUNDER=load_identity(thief).public)
        assert named.experiment.key != first.key, "who names the other key wants it"


def test_another_founders_experiment_with_the_same_name_and_id_is_another_one(tmp_path: Path) -> None:
    config = load({"RL_SWARM_HOME": str(tmp_path)})
    mine = Experiment(1, "trial", "ab" * 8, 0.0, "", {}, "1", (2, 256), key="1" * 64)
    other = [
        msgspec.structs.replace(mine, key="2" * 64),
        msgspec.structs.replace(mine, key=None),
        msgspec.structs.replace(mine, experiment_id="ab" * 4 + "cd" * 4),
    ]
    assert len({experiment_folder(config, each) for each in (mine, *other)}) == 4


def test_who_names_the_founder_and_only_looks_believes_nothing_that_is_not_signed(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    node = start(tmp_path, SWARM_IDENTITY=str(tmp_path / "keys" / "founder.pem"), NODE_ROLE="coordinator")
    assert node.member is not None
    store, founder = node.member.store, node.experiment.key
    rounds = Rounds(store, LAYOUT, signatures=node.member.signatures)
    rounds.announce(Announcement(0, "me", "s", 1, 0.0, [], []))
    rounds.write_current(CurrentState(0, 0.0, "me", LAYOUT.experiment_name, "running"))
    store.rewrite(LAYOUT.current_state, seal(CurrentState(999, 0.0, "x", LAYOUT.experiment_name, "complete")))
    store.put(LAYOUT.round(999), seal(Announcement(999, "thief", "f" * 16, 2, 0.0, [], [])))
    store.put(LAYOUT.heartbeat("me", 500), seal(Heartbeat("me", 500, 9e9, "hacked", 0)))
    for insisted in (founder, None):
        status = look_once(store, LAYOUT, insisted)
        assert (status.status, status.round, len(status.nodes)) == ("running", 0, 1)
        assert "hacked" not in [each.doing for each in status.nodes]
    going_on = unfinished({"GDRIVE_PATH": store.url, "EXPERIMENT_NAME": LAYOUT.experiment_name})
    assert going_on["EXPERIMENT_NAME"] == LAYOUT.experiment_name, "the demo does not take it for complete"
    replaced = msgspec.structs.replace(node.experiment, key=None, settings=node.experiment.settings | {"MAX_ROUNDS": "7"})
    store.rewrite(LAYOUT.experiment, seal(replaced))
    with pytest.raises(ConfigError, match="somebody changed it"):
        look_once(store, LAYOUT, founder)
    [found] = [each for each in validate(store, LAYOUT, Expected(), founder) if each.check == "signatures"]
    assert found.status == "failed" and "somebody changed it" in found.detail
    with pytest.raises(ConfigError, match="somebody changed it"):
        open_run({"GDRIVE_PATH": store.url, "EXPERIMENT_NAME": LAYOUT.experiment_name, "SWARM_FOUNDER": founder or ""}, {})
    config = load({"GDRIVE_PATH": store.url, "SWARM_FOUNDER": founder or ""})
    with pytest.raises(ConfigError, match="somebody changed it"):
        analyze(config, [LAYOUT.experiment_name], None, tmp_path / "analysis", "rl-swarm analyze", Console())


@pytest.mark.parametrize("role", ["coordinator", "worker"])
def test_a_folder_in_the_place_of_a_registration_keeps_no_node_from_starting(tmp_path: Path, role: str) -> None:
    (tmp_path / "store" / LAYOUT.peer("me")).mkdir(parents=True)
    said: list[str] = []
    environment = {
        "GDRIVE_PATH": str(tmp_path / "store"),
        "RL_SWARM_HOME": str(tmp_path / "home"),
        "EXPERIMENT_NAME": LAYOUT.experiment_name,
        "NODE_ID": "me",
        "NODE_ROLE": role,
        "TASKS": "gcd",
        "SWARM_IDENTITY": str(tmp_path / "keys" / "mine.pem"),
    }
    node = open_node(environment, {}, tasks_version=tasks_version(), console=said.append)
    assert node.member is not None
    node.member.publisher.close(10)
    node.local.lock.close()
    [line] = [line for line in said if "unregistered" in line]
    assert line.startswith(f"{LAYOUT.peer('me')} cannot be used") and ("does not wait" in line) == (role == "worker")
    signatures = node.member.signatures
    assert signatures.identity is not None and signatures.owner("me") == signatures.identity.public
