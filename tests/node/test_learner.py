"""The whole learner: real model, tasks, policy and trainer in the shipped loop."""

import contextlib
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest
import torch

from rl_swarm.errors import CheckpointError, OtherModel
from rl_swarm.identity import load_identity
from rl_swarm.learning.checkpoint import Checkpoints, _write, most_bytes
from rl_swarm.node.assembly import Node, open_node
from rl_swarm.node.learner import MOST_TRIED, _Stored, make_checkpoints, make_learning_worker
from rl_swarm.node.worker import Worker
from rl_swarm.rollout import Completion, decode
from rl_swarm.runs import progress
from rl_swarm.store.folder import FolderStore
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.signatures import Signatures
from rl_swarm.tasks import tasks_version
from rl_swarm.tools.push import make_pusher
from tests.support.learning import LAYOUT, make_worker, same, weights
from tests.support.members import copy_journals
from tests.support.rows import metrics
from tests.support.tiny_models import gpt2, plain_tokenizer


def test_external_rollouts_reach_the_weights_and_j_0_gives_those_of_a_run_without_a_swarm(tmp_path: Path) -> None:
    def train(external: int) -> Any:
        store = MemoryStore()
        peer = make_worker(store, tmp_path / str(external), "peer", SEED=7, EVAL_INTERVAL=0, NUM_TRAIN_SAMPLES=16)
        among = make_worker(store, tmp_path / str(external), "me", NUM_TRANSPLANT_TREES=external, EVAL_INTERVAL=0)
        for number in range(2):
            peer.play(number)
            among.play(number)
        copy_journals(among)
        return weights(among), weights(peer), sum(row["external_used"] for row in metrics(store, LAYOUT, "me"))

    alone = make_worker(MemoryStore(), tmp_path / "alone", "me", MAX_ROUNDS=2, EVAL_INTERVAL=0)
    alone.run()
    (without, peer, none), (with_peers, _, used) = train(0), train(4)
    assert none == 0 < used
    assert same(weights(alone), without) and not same(without, with_peers) and not same(without, peer)


def test_models_with_different_tokenizers_train_on_each_others_rollouts(tmp_path: Path) -> None:
    folder = tmp_path / "random-gpt2"
    tokenizer = plain_tokenizer()
    gpt2(len(tokenizer), seed=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    store = MemoryStore()
    shared = {"TASKS": "easy", "NUM_TRANSPLANT_TREES": 2, "MAX_NEW_TOKENS": 24, "EVAL_INTERVAL": 0}
    nano = make_worker(store, tmp_path, "nano", **shared, NUM_TRAIN_SAMPLES=16)
    other = make_worker(store, tmp_path, "other", **shared, MODEL_NAME=folder, LEARNING_RATE=1e-4)
    _answer_by_chance(other)
    before = weights(nano), weights(other)
    for number in range(3):
        nano.play(number)
        other.play(number)
    used = {}
    for worker in (nano, other):
        copy_journals(worker)
        rows = metrics(store, LAYOUT, worker.config.node_id)
        used[worker.config.node_id] = [rollout_id for row in rows for rollout_id in row["external_ids"]]
        assert all(row["loss"] == row["loss"] for row in rows), "a loss is not a number"
    assert {rollout_id.split("/")[0] for rollout_id in used["nano"]} == {"other"}
    assert {rollout_id.split("/")[0] for rollout_id in used["other"]} == {"nano"}
    assert not same(before[0], weights(nano))
    assert not same(before[1], weights(other))


def _answer_by_chance(worker: Any) -> None:
    """A model with random weights never answers right: let one completion be the answer, in its own tokens."""
    sample = worker.policy.answer

    def answer(questions: Any, group_size: int, seed: int) -> Any:
        for question, group in zip(questions, sample(questions, group_size, seed), strict=True):
            text = f"<answer>{question.answer}</answer>"
            ids = tuple(worker.policy.tokenizer.encode(text))
            told = Completion(text, finish="length", tokens=len(ids), logprob=-5.0, token_ids=ids)
            yield (told, *group[1:])

    worker.policy.answer = answer


def test_evaluation_comes_before_the_first_round_and_at_its_interval(tmp_path: Path) -> None:
    store = MemoryStore()
    worker = make_worker(store, tmp_path, "me", MAX_ROUNDS=2, EVAL_INTERVAL=2, NUM_TRAIN_SAMPLES=2)
    worker.run()
    copy_journals(worker)
    found = [row["data"] for row in progress.events(store, LAYOUT, "me") if row["event_type"] == "evaluation"]
    assert [row["round"] for row in found] == [0, 2]
    assert found[0]["held_out_questions"] >= 40
    assert 0 <= found[0]["held_out"] <= found[0]["held_out_style_blind"] <= 1
    assert len(found[0]["held_out_by_task"]) == 5


def start_work(tmp_path: Path, name: str, **settings: Any) -> "subprocess.Popen[bytes]":
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        "GDRIVE_PATH": str(folder / "store"),
        "RL_SWARM_HOME": str(folder / "home"),
        "EXPERIMENT_NAME": "trial",
        "NODE_ID": "me",
        "MODEL_NAME": "nano",
        **{key: str(value) for key, value in settings.items()},
    }
    with (folder / "console").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "rl_swarm.cli", "work"], env=environment, stdout=log, stderr=log)


def result(tmp_path: Path, name: str) -> tuple[Any, list[dict[str, Any]]]:
    """Return the last checkpoint, and the metrics without figures that depend on the machine or the time."""
    (checkpoints,) = (tmp_path / name / "home").glob("trial-*/me/checkpoints")
    found: list[Any] = []
    Checkpoints(checkpoints).restore(lambda *state: found.append(state))
    [restored] = found
    rows = metrics(FolderStore(tmp_path / name / "store"), Layout("trial"), "me")
    passing = {"timestamp", "tokens_per_s", "seconds", "store_total", "tasks_total", "pending"}
    return restored, [{key: value for key, value in row.items() if key not in passing} for row in rows]


# What strangers put into the store under this node's name


class Home:
    """A store, and machines on which the node `me` is started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = FolderStore.open(str(folder / "store"))
        self.nodes: list[Node] = []

    def open(self, machine: str = "machine", **settings: Any) -> list[str]:
        """Open the node on a machine, without a learner; return the list of lines that it prints."""
        self.close()
        torch.set_num_threads(1)
        said: list[str] = []
        environment = {
            "GDRIVE_PATH": str(self.folder / "store"),
            "RL_SWARM_HOME": str(self.folder / machine),
            "EXPERIMENT_NAME": "trial",
            "NODE_ID": "me",
            "MODEL_NAME": "nano",
            "CPU_ONLY": "1",
            "MAX_ROUNDS": "200",
            "EVAL_INTERVAL": "0",
            "NUM_TRAIN_SAMPLES": "1",
            "NUM_GENERATIONS": "4",
            **{key: str(value) for key, value in settings.items()},
        }
        self.nodes.append(open_node(environment, {}, tasks_version=tasks_version(), console=said.append))
        return said

    def start(self, machine: str = "machine", **settings: Any) -> tuple[Worker, list[str]]:
        """Return a worker that has restored its checkpoint but played no round, and its lines about checkpoints."""
        said = self.open(machine, **settings)
        worker = make_learning_worker(self.nodes[-1], make_pusher)
        self.number = worker._begin()
        return worker, [line for line in said if "checkpoint" in line]

    def run(self, machine: str = "machine", **settings: Any) -> tuple[str, list[str]]:
        """Run the node to its end, as the command `work` does; return the outcome and the printed lines."""
        said = self.open(machine, **settings)
        node = self.nodes[-1]
        return node.run(lambda: make_learning_worker(node, make_pusher).run()), said

    def save(self, worker: Worker, number: int) -> None:
        """Save a checkpoint as of this round."""
        worker._mark_boundary(number)
        worker._save()
        assert self.nodes[-1].member.publisher.pump()

    @property
    def local(self) -> Path:
        return self.nodes[-1].local.checkpoints

    def path(self, number: int, name: str = "me.pt") -> Path:
        path = self.folder / "store" / LAYOUT.checkpoint_folder(number) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def plant(self, own: Path, number: int, change: Callable[[dict[str, Any]], object]) -> None:
        """Plant a changed copy of an own checkpoint as one of a later round, otherwise valid."""
        document = torch.load(own, weights_only=True) | {"round": number}
        change(document)
        with self.path(number).open("wb") as file:
            _write(document, file)

    def close(self) -> None:
        while self.nodes:
            node = self.nodes.pop()
            node.member.publisher.close(10)
            node.local.lock.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.close()


def test_a_single_node_stops_and_resumes(home: Home) -> None:
    """Scenarios 1 and 4 of the reference documents' testing guide: one node alone, then again after a disconnect.

    The third start is on a machine whose disk has no checkpoint: the node resumes from the one in the store.
    """
    assert home.run(MAX_ROUNDS=3)[0] == "complete"
    first = [decode(home.store.get(LAYOUT.bundle(number, "me"), limit=1 << 24)) for number in range(3)]
    assert home.run(MAX_ROUNDS=5)[0] == "complete"
    assert [decode(home.store.get(LAYOUT.bundle(number, "me"), limit=1 << 24)) for number in range(3)] == first
    assert [row["round"] for row in metrics(home.store, LAYOUT, "me")] == [0, 1, 2, 3, 4]
    assert sorted(path.parent.name for path in (home.folder / "store").rglob("me.pt")) == ["round_3", "round_5"]
    assert home.run("another machine", MAX_ROUNDS=6)[0] == "complete"
    events = progress.events(home.store, LAYOUT, "me")
    starts = [(row["data"]["resumed"], row["data"]["round"]) for row in events if row["event_type"] == "started"]
    assert starts == [(False, 0), (True, 3), (True, 5)]
    states = [row["data"]["doing"] for row in events if row["event_type"] == "state"]
    loading = [place for place, doing in enumerate(states) if doing.startswith("loading ")]
    assert [states[place - 1] for place in loading] == ["starting"] * 3, "each start says what it does before the first round"
    assert not [row for row in events if row["event_type"] == "error"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_is_obeyed_while_held_out_questions_are_made(home: Home, number: signal.Signals) -> None:
    asked = home.folder / "asked"
    (home.folder / "slow.py").write_text(
        "import time\n"
        "def question(seed, index):\n"
        "    if seed:\n"  # the first look at a task is at question(0, 0)
        f"        open({str(asked)!r}, 'w').close()\n"
        "        time.sleep(15)\n"
        "    return f'What is {seed} + {index}?', str(seed + index)\n"
    )
    sent: list[float] = []

    def stop() -> None:
        while not asked.exists():
            time.sleep(0.02)
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)

    threading.Thread(target=stop, daemon=True).start()
    outcome, said = home.run(TASKS=home.folder / "slow.py")
    assert outcome == "stopped" and said[-1] == "stopped before the first round"
    assert time.monotonic() - sent[0] < 10


def some_weight(document: dict[str, Any]) -> torch.Tensor:
    return next(tensor for name, tensor in document["trainer"]["model"].items() if "up_proj" in name)


PLANTED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no node state": (lambda document: document.update(node={}), "no NodeState"),
    "no tasks": (lambda document: document["node"].update(tasks={}), "no Cursor"),
    "no exchange": (lambda document: document["node"].update(swarm={}), "no ExchangeState"),
    "no trainer": (lambda document: document.update(trainer=7), "no trainer state"),
    "no optimizer": (lambda document: document["trainer"].update(optimizer={}), "optimizer state is not by parameter"),
    "not finite": (lambda document: some_weight(document).fill_(math.nan), "not finite"),
    "zeros": (lambda document: some_weight(document).zero_(), "are zero"),
    "another model": (lambda document: document["trainer"]["model"].popitem(), "trainable tensors are not"),
    "half a character pair": (lambda document: document["node"].update({"\ud800": 1}), "no NodeState"),
    "half a pair within": (lambda document: document["node"]["swarm"]["used"].update({"\ud800": 1}), "surrogates not allowed"),
    "another round": (lambda document: document.update(round=7), "its content does not"),
}
AT_ONCE = MOST_TRIED - 1  # the fourth that is read is the node's own


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """The folder of a node that has saved a checkpoint of round 10, and its weights."""
    made = Home(tmp_path_factory.mktemp("saved"))
    worker, said = made.start()
    assert said == []
    worker.play(0)
    made.save(worker, 10)
    made.close()
    return made.folder, weights(worker)


@pytest.mark.parametrize("first", range(0, len(PLANTED), AT_ONCE), ids=lambda first: list(PLANTED)[first])
def test_planted_checkpoints_are_refused_with_their_reasons_and_the_disks_own_is_taken(
    tmp_path: Path, saved: tuple[Path, dict[str, torch.Tensor]], first: int
) -> None:
    """Plant three at a time, since a node tries only four. A machine that lost its disk takes the older one from the store."""
    shutil.copytree(saved[0], tmp_path / "home")
    home, planted = Home(tmp_path / "home"), list(PLANTED.values())[first : first + AT_ONCE]
    [own] = (home.folder / "machine").rglob("round_000010.pt")
    for number, (change, _) in enumerate(planted, 150):
        home.plant(own, number, change)
    try:
        for machine in ("machine", "another machine"):
            worker, said = home.start(machine)
            assert home.number == 10 and same(weights(worker), saved[1])
            for number, (_, reason) in enumerate(planted, 150):
                line = said[len(planted) - 1 - (number - 150)]
                assert line.startswith(f"a checkpoint was not used: round_{number:06d}.pt of the store ") and reason in line
            if machine == "machine":
                assert len(said) == len(planted) and [path.name for path in home.local.iterdir()] == ["round_000010.pt"]
            else:
                assert len(said) == len(planted) + 1 and "resuming at round 10 from the checkpoint of the store" in said[-1]
    finally:
        home.close()


@pytest.mark.timeout(120)
def test_names_in_the_store_that_are_no_checkpoint_cost_nothing(home: Home) -> None:
    worker, _ = home.start()
    home.save(worker, 10)
    home.path(120).symlink_to("/dev/zero")
    os.mkfifo(home.path(121))
    home.path(122).mkdir()
    with home.path(123).open("wb") as file:
        file.truncate(1 << 40)
    home.path(124, "me (1).pt").write_bytes(b"a Drive's duplicate")
    home.path(10**6).write_bytes(b"beyond the last round")
    for machine in ("machine", "another machine"):
        _, said = home.start(machine)
        assert home.number == 10
        refused = [line for line in said if "was not used" in line]
        assert [line.split()[5][:15] for line in refused] == [f"round_000{number}.pt"[:15] for number in (123, 121, 120)]
        assert not list(home.nodes[-1].local.path.glob("fetched/round_00012*"))


def test_a_node_that_went_on_elsewhere_keeps_what_this_machine_had(home: Home) -> None:
    worker, _ = home.start()
    worker.play(0)
    home.save(worker, 10)
    away, said = home.start("another machine")
    assert home.number == 10 and "this disk has none" in said[0]
    away.play(1)
    home.save(away, 20)
    back, said = home.start()
    assert home.number == 20 and same(weights(back), weights(away))
    aside = home.local.with_name("checkpoints-before-20")
    assert len(said) == 1 and "this disk's own end at round 10" in said[0] and str(aside) in said[0]
    for number in (30, 40, 50):
        home.save(back, number)
    assert [path.name for path in aside.iterdir()] == ["round_000010.pt"]
    assert sorted(path.name for path in home.local.iterdir()) == ["round_000040.pt", "round_000050.pt"]
    assert sorted(path.parent.name for path in (home.folder / "store").rglob("me.pt")) == ["round_40", "round_50"]


def test_what_is_beyond_this_nodes_own_round_is_not_deleted_with_what_is_outdated(home: Home) -> None:
    """They may be of another model, which a wrong setting hides."""
    worker, _ = home.start()
    home.save(worker, 10)
    home.plant(home.local / "round_000010.pt", 150, lambda document: document.update(node={}))
    again, _ = home.start()
    for number in (20, 30, 40):
        home.save(again, number)
    assert sorted(path.parent.name for path in (home.folder / "store").rglob("me.pt")) == ["round_150", "round_30", "round_40"]


def test_a_fresh_machine_with_another_model_does_not_begin_anew(home: Home, tmp_path: Path) -> None:
    worker, _ = home.start()
    home.save(worker, 10)
    tokenizer = plain_tokenizer()
    gpt2(len(tokenizer)).save_pretrained(tmp_path / "gpt2")
    tokenizer.save_pretrained(tmp_path / "gpt2")
    with pytest.raises(OtherModel, match="use the MODEL_NAME, LORA_RANK and DTYPE that it was made with, or another NODE_ID"):
        home.start("another machine", MODEL_NAME=tmp_path / "gpt2")


def test_a_node_that_signs_resumes_from_its_own_checkpoints_only(home: Home, tmp_path: Path) -> None:
    worker, _ = home.start()
    identity = load_identity(str(tmp_path / "keys" / "mine.pem"))
    signatures = Signatures(identity, experiment_id=home.nodes[-1].experiment.experiment_id)
    node = replace(home.nodes[-1], member=replace(home.nodes[-1].member, signatures=signatures))
    bytes_ = worker.trainer.trained_bytes  # type: ignore[attr-defined]
    signing = make_checkpoints(node, bytes_)
    for number in (10, 20, 30):
        signing.save(number, worker._boundary[1], worker.trainer.state())
        assert node.member.publisher.pump()
    stored = sorted(path.name for path in (home.folder / "store" / LAYOUT.checkpoints).rglob("*.*"))
    assert stored == ["me.json", "me.json", "me.pt", "me.pt"]
    home.path(30).write_bytes(home.path(20).read_bytes())
    planted = home.folder / "store" / LAYOUT.checkpoint(40, "me")
    planted.parent.mkdir()
    planted.write_bytes(home.path(20).read_bytes())
    shutil.rmtree(home.local)
    found: list[int] = []
    again = make_checkpoints(node, bytes_)
    assert again.restore(lambda number, node_state, trainer_state: found.append(number)) == 20
    assert found == [20], "of round 30 it signed something else, of round 40 nothing"
    strange = Signatures(load_identity(str(tmp_path / "keys" / "other.pem")), experiment_id=node.experiment.experiment_id)
    stored = _Stored(replace(node.member, signatures=strange), 1000, bytes_, print)
    assert stored.rounds == []
    with pytest.raises(CheckpointError, match="not signed with this node's key"):
        stored.fetch(20, tmp_path / "fetched")


def hole(path: Path, size: int) -> None:
    """Make a sparse file, which takes no space on the disk."""
    with path.open("wb") as file:
        file.truncate(size)


def test_a_node_that_signs_fetches_only_what_it_has_signed_for_and_no_more_bytes(home: Home, tmp_path: Path) -> None:
    worker, _ = home.start()
    identity = load_identity(str(tmp_path / "keys" / "mine.pem"))
    signatures = Signatures(identity, experiment_id=home.nodes[-1].experiment.experiment_id)
    node = replace(home.nodes[-1], member=replace(home.nodes[-1].member, signatures=signatures))
    bytes_ = worker.trainer.trained_bytes  # type: ignore[attr-defined]
    signing = make_checkpoints(node, bytes_)
    for number in (10, 20):
        signing.save(number, worker._boundary[1], worker.trainer.state())
        assert node.member.publisher.pump()
    size = home.path(10).stat().st_size
    for number in range(100, 140):
        hole(home.path(number), 3 * bytes_)
        home.path(number, "me.json").write_bytes(home.path(20, "me.json").read_bytes())
    hole(home.path(20), size + 1)  # its own name, and a document of its own that says how large it is
    shutil.rmtree(home.local)
    before = node.member.store.counts["bytes_in"]
    assert make_checkpoints(node, bytes_).restore(lambda *state: None) == 10
    assert node.member.store.counts["bytes_in"] - before < size + 100_000


def test_planted_holes_cost_a_node_without_a_key_two_checkpoints_at_most(home: Home) -> None:
    worker, _ = home.start()
    home.save(worker, 10)
    limit = most_bytes(worker.trainer.trained_bytes)  # type: ignore[attr-defined]
    for number in range(100, 116):
        hole(home.path(number), limit)
    hole(home.path(114), limit // 4)
    _, said = home.start()
    assert home.number == 10, "the disk's own is taken"
    assert len([line for line in said if "was not used" in line]) == MOST_TRIED
    store = home.nodes[-1].member.store
    assert limit < store.counts["bytes_in"] < 2 * limit


def test_half_a_checkpoint_leaves_enough_bytes_for_the_whole_one_before_it(home: Home) -> None:
    worker, _ = home.start()
    for number in (10, 20):
        home.save(worker, number)
    home.path(20).write_bytes(home.path(20).read_bytes()[:-100])
    _, said = home.start("another machine")
    assert home.number == 10 and "half-written" in said[0]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_killed_at_20_moments_ends_like_one_that_never_was(tmp_path: Path) -> None:
    rounds = 160
    settings = {"MAX_ROUNDS": rounds, "NUM_TRAIN_SAMPLES": 2, "NUM_GENERATIONS": 4, "CHECKPOINT_INTERVAL": 3, "EVAL_INTERVAL": 50}
    assert start_work(tmp_path, "straight", **settings).wait(300) == 0
    chance = random.Random(5)
    where = ["checkpoint"] * 4 + ["spool"] * 4 + ["anywhere"] * 12
    chance.shuffle(where)
    for moment in where:
        process = start_work(tmp_path, "killed", **settings)
        assert _wait_for_moment(tmp_path / "killed", process, moment, chance), "the run ended before it could be killed 20 times"
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert start_work(tmp_path, "killed", **settings).wait(300) == 0
    straight, killed = result(tmp_path, "straight"), result(tmp_path, "killed")
    assert [row["round"] for row in killed[1]] == [row["round"] for row in straight[1]] == list(range(rounds))
    pairs = zip(killed[1], straight[1], strict=True)
    assert [
        (one["round"], key) for one, other in pairs for key in one.keys() | other.keys() if one.get(key) != other.get(key)
    ] == []
    assert killed[0][0] == straight[0][0] == rounds
    assert same(killed[0][2]["model"], straight[0][2]["model"])
    for number in range(rounds):
        shared = [tmp_path / name / "store" / Layout("trial").bundle(number, "me") for name in ("killed", "straight")]
        assert decode(shared[0].read_bytes()).rollouts == decode(shared[1].read_bytes()).rollouts


MOMENTS = {
    "checkpoint": "home/trial-*/me/checkpoints/*.partial",
    "spool": "home/trial-*/me/spool/0*",
    "anywhere": "store/experiments/*/logs/me/metrics.jsonl",
}


def _wait_for_moment(folder: Path, process: "subprocess.Popen[bytes]", moment: str, chance: random.Random) -> bool:
    """Wait until a checkpoint is being written, a document is in the spool, or a round has begun; False if it ended first."""

    def seen() -> set[tuple[str, int, int]]:
        found = set()
        for path in folder.glob(MOMENTS[moment]):
            with contextlib.suppress(FileNotFoundError):
                found.add((path.name, path.stat().st_mtime_ns, path.stat().st_size))
        return found

    before = seen()
    while process.poll() is None:
        if seen() - before:
            time.sleep(chance.random() * (0.3 if moment == "anywhere" else 0.005))
            return process.poll() is None
        time.sleep(0.0005)
    return False


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_nano_learns_alone_on_five_seeds(tmp_path: Path) -> None:
    """Mean own reward of the last 10 of 60 rounds against the frozen base on at least 2,000 completions."""
    torch.set_num_threads(1)
    ratios, table = [], []
    for seed in range(1, 6):
        store = MemoryStore()
        frozen = make_worker(store, tmp_path / f"f{seed}", "base", SEED=seed, LEARNING_RATE=0, MAX_ROUNDS=32, EVAL_INTERVAL=0)
        frozen.run()
        copy_journals(frozen)
        base = fmean(row["reward"] for row in metrics(store, LAYOUT, "base"))
        store = MemoryStore()
        worker = make_worker(store, tmp_path / f"w{seed}", "me", SEED=seed, MAX_ROUNDS=60, EVAL_INTERVAL=60)
        worker.run()
        copy_journals(worker)
        last = fmean(row["reward"] for row in metrics(store, LAYOUT, "me")[-10:])
        held_out = [row["data"]["held_out"] for row in progress.events(store, LAYOUT, "me") if row["event_type"] == "evaluation"]
        ratios.append(last / base)
        table.append((seed, base, last, last / base, *held_out))
        print("seed {}: base {:.4f}, last ten {:.4f}, ratio {:.1f}, held out {:.3f} -> {:.3f}".format(*table[-1]), flush=True)
        assert held_out[-1] > held_out[0]
    print(f"median ratio {median(ratios):.1f}, worst {min(ratios):.1f}")
    assert median(ratios) >= 5
