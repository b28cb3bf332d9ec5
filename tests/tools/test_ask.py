"""Asking: which checkpoint is found, that finding it disturbs nobody, and what is shown."""

import atexit
import io
import json
import os
import shutil
import tempfile
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from rl_swarm.config import load
from rl_swarm.errors import CheckpointError, ConfigError, ModelError, OtherModel
from rl_swarm.learning.checkpoint import Checkpoints
from rl_swarm.learning.policy import Policy
from rl_swarm.learning.trainer import Trainer
from rl_swarm.learning.weights import check_weights
from rl_swarm.node.learner import load_policy
from rl_swarm.node.local import MODEL_FILE, claim, experiment_folder
from rl_swarm.rollout import Question
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import Registration, register
from rl_swarm.text import visible
from rl_swarm.tools import ask as asking
from rl_swarm.tools.ask import Answers, Trained, load_trained, show
from rl_swarm.tools.opening import open_run
from tests.support.tiny_models import chat_tokenizer, gpt2, llama, plain_tokenizer

LAYOUT = Layout("trial")
QUESTION = "What is 1 + 1?"


@cache
def model_folders() -> dict[str, Path]:
    """Two tiny models on disk, made once for all tests."""
    root = Path(tempfile.mkdtemp(prefix="rl-swarm-models-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    for name, build, tokenizer in (("llama", llama, chat_tokenizer()), ("gpt2", gpt2, plain_tokenizer())):
        build(len(tokenizer)).save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return {name: root / name for name in ("llama", "gpt2")}


class Trial:
    """An experiment on disk, as nodes that trained a tiny model have left it."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.models = model_folders()
        self.environment = {
            "GDRIVE_PATH": str(folder / "store"),
            "EXPERIMENT_NAME": "trial",
            "RL_SWARM_HOME": str(folder / "home"),
            "CPU_ONLY": "1",
            "MAX_NEW_TOKENS": "8",
        } | settings
        (folder / "store").mkdir()
        self.store = FolderStore(folder / "store")
        config = load(self.environment | {"MODEL_NAME": str(self.models["llama"]), "TASKS": "easy"})
        self.experiment = experiments.publish(self.store, LAYOUT, config, "reasoning-gym", self.store.clock)
        self.home = experiment_folder(config, self.experiment)

    def policy(self, seed: int, model: str = "llama", lora_rank: int = 0) -> Policy:
        """The base model moved away from its start, as training would, by random steps."""
        config = load(self.environment | {"MODEL_NAME": str(self.models[model]), "LORA_RANK": str(lora_rank)})
        policy = load_policy(config)
        generator = torch.Generator().manual_seed(seed)
        for parameter in policy.model.parameters():
            if parameter.requires_grad:
                parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
        return policy

    def save(self, node_id: str, number: int, policy: Policy, *, on_disk: bool = True, in_store: bool = False) -> Path:
        folder = self.home / node_id / "checkpoints" if on_disk else self.home.parent / "elsewhere"
        state = Trainer(policy, 1e-3).state()
        path = Checkpoints(folder).save(number, {}, state)
        if on_disk:
            (self.home / node_id / MODEL_FILE).write_text(str(self.models["llama"]))
        if in_store:
            self.store.put_file(LAYOUT.checkpoint(number, node_id), path)
        return path

    def plant(self, number: int, node_id: str) -> Path:
        """Where a checkpoint of this name is in the store, for whoever wants to put something there."""
        path = Path(self.store.root, LAYOUT.checkpoint(number, node_id))
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def find(self, **flags: str) -> Trained:
        model = {"model": str(self.models["llama"])} if "node_id" in flags else {}  # what only the store has says no path
        return load_trained(open_run(self.environment, model | flags))


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path)


def holds(trained: Trained, policy: Policy) -> bool:
    return all(
        torch.equal(trained.tensors[name], tensor) for name, tensor in policy.model.named_parameters() if tensor.requires_grad
    )


def everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    """All files below a folder, with content and time of change."""
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_without_a_node_the_one_that_came_furthest_on_this_machine_is_found(trial: Trial) -> None:
    policies = [trial.policy(seed) for seed in range(4)]
    trial.save("w1", 10, policies[0])
    trial.save("w1", 9, policies[1])
    assert (found := trial.find()) and (found.node_id, found.round) == ("w1", 10) and holds(found, policies[0])
    trial.save("w2", 30, policies[2], on_disk=False, in_store=True)
    trial.save("w1", 31, policies[2], on_disk=False, in_store=True)
    assert (found := trial.find()) and (found.node_id, found.round) == ("w1", 10), "a stranger's is not taken unasked"
    trial.save("w3", 30, policies[3])
    assert (found := trial.find()) and found.node_id == "w3" and holds(found, policies[3])


def test_where_this_machine_has_none_the_nodes_of_the_store_are_named(trial: Trial) -> None:
    for node_id in ("w2", "w1"):
        trial.save(node_id, 30, trial.policy(1), on_disk=False, in_store=True)
    trial.plant(30, "w1 (1)").write_bytes(b"")
    with pytest.raises(ConfigError) as refused:
        trial.find()
    assert str(refused.value) == (
        "no checkpoint of the experiment 'trial' on this machine; the store has some of w1, w2: name one with --node-id, or train "
        "first with 'rl-swarm work'"
    )
    for number in range(20):
        trial.plant(30, f"x{number:02d}").write_bytes(b"")
    with pytest.raises(ConfigError, match="some of w1, w2, x00, x01, x02, x03, x04, x05, x06, x07, …: name one"):
        trial.find()
    assert trial.find(node_id="w1").round == 30


def test_names_that_a_drive_makes_of_duplicates_are_passed_over(trial: Trial) -> None:
    trial.save("w1", 10, trial.policy(1), in_store=True)
    for name in ("w1 (1)", "Copy of w1", "w1.pt", ".w1", "w1\n", "ä", "x" * 200):
        trial.plant(12, name).write_bytes(b"somebody's own")
    trial.plant(12, "w1").mkdir()
    assert (found := trial.find(node_id="w1")) and found.round == 10
    assert (found := trial.find()) and found.round == 10


def test_of_a_named_node_the_newest_is_found_on_this_disk_or_else_in_the_store(trial: Trial) -> None:
    old, new = trial.policy(1), trial.policy(2)
    trial.save("w1", 10, old, in_store=True)
    trial.save("w2", 50, new)
    assert (found := trial.find(node_id="w1")) and (found.node_id, found.round) == ("w1", 10) and holds(found, old)
    trial.save("w1", 20, new, on_disk=False, in_store=True)
    assert (found := trial.find(node_id="w1")) and found.round == 20 and holds(found, new)


def test_there_is_a_clear_line_where_nothing_was_trained(trial: Trial) -> None:
    with pytest.raises(
        ConfigError, match="no checkpoint of the experiment 'trial' on this machine: train first with 'rl-swarm work'"
    ):
        trial.find()
    trial.save("w1", 1, trial.policy(0))
    with pytest.raises(ConfigError, match="no checkpoint of node 'w2' in the experiment 'trial': train first"):
        trial.find(node_id="w2")
    before = everything(Path(trial.store.root))
    with pytest.raises(ConfigError, match="there is no experiment 'other' in"):
        trial.find(experiment="other")
    assert everything(Path(trial.store.root)) == before, "looking publishes nothing"


def test_a_broken_checkpoint_is_passed_over_and_left_where_it_is(trial: Trial) -> None:
    policy = trial.policy(1)
    trial.save("w1", 10, policy)
    broken = trial.save("w1", 20, trial.policy(2), in_store=True)
    whole = broken.read_bytes()
    broken.write_bytes(whole[:-100])
    trial.store.delete(LAYOUT.checkpoint(20, "w1"))
    trial.store.put(LAYOUT.checkpoint(20, "w1"), whole[: len(whole) // 2])
    before = everything(trial.home)
    for flags in ({}, {"node_id": "w1"}):
        assert (found := trial.find(**flags)) and found.round == 10 and holds(found, policy)
    assert everything(trial.home) == before
    for path in trial.home.rglob("*.pt"):
        path.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="2 checkpoints of the experiment 'trial' on this machine, and none can be used"):
        trial.find()
    with pytest.raises(CheckpointError, match="3 checkpoints of node 'w1' in the experiment 'trial', and none can be used"):
        trial.find(node_id="w1")


def test_a_running_node_is_not_disturbed(trial: Trial, tmp_path: Path) -> None:
    running = claim(load(trial.environment | {"NODE_ID": "w1"}), trial.experiment)
    trial.save("w1", 10, trial.policy(1), in_store=True)
    for number in (11, 12, 13):  # more than would be kept
        (running.checkpoints / Checkpoints.name(number)).write_bytes(b"half")
    (running.checkpoints / "round_000014.partial").write_bytes(b"being written")
    (running.checkpoints / "round_latest.pt").write_bytes(b"somebody's own")
    before = everything(trial.home), everything(Path(trial.store.root))
    answers = asking.ask(open_run(trial.environment, {"node_id": "w1"}), QUESTION)
    assert (answers.node_id, answers.round) == ("w1", 10)
    assert (everything(trial.home), everything(Path(trial.store.root))) == before
    running.lock.close()


def test_a_checkpoint_that_vanishes_while_it_is_looked_for_is_passed_over(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    trial.save("w1", 10, trial.policy(1))
    newer = trial.save("w1", 11, trial.policy(2))
    trial.save("w2", 12, trial.policy(3), on_disk=False, in_store=True)
    listed = [*asking._candidates(open_run(trial.environment, {})), asking.Found("w2", 12)]
    newer.unlink()
    trial.store.delete(LAYOUT.checkpoint(12, "w2"))
    monkeypatch.setattr(asking, "_candidates", lambda run: listed)
    assert trial.find().round == 10


def test_both_models_answer_as_they_do_in_training(trial: Trial) -> None:
    trained = trial.policy(3)
    trial.save("w1", 10, trained)
    base = load_policy(load(trial.environment | {"MODEL_NAME": str(trial.models["llama"])}))
    answers = asking.ask(open_run(trial.environment, {}), QUESTION)
    assert [answers.base] == base.greedy([Question(QUESTION)])
    assert [answers.trained] == trained.greedy([Question(QUESTION)])
    assert answers.base != answers.trained
    assert json.loads(json.dumps(asdict(answers)))["question"] == QUESTION


def test_an_adapter_is_recognised_by_its_checkpoint(trial: Trial) -> None:
    trained = trial.policy(3, lora_rank=3)
    trial.save("w1", 10, trained)
    found = trial.find()
    assert found.config.lora_rank == 3 and holds(found, trained)
    answers = asking.ask(open_run(trial.environment, {}), QUESTION)
    assert [answers.trained] == trained.greedy([Question(QUESTION)])
    base = load_policy(load(trial.environment | {"MODEL_NAME": str(trial.models["llama"])}))
    assert [answers.base] == base.greedy([Question(QUESTION)]), "an adapter that was never trained does nothing"


def test_a_node_that_trains_another_model_than_the_experiment_is_asked_with_its_own(trial: Trial) -> None:
    trained = trial.policy(3, "gpt2")
    trial.save("w1", 10, trained)
    with pytest.raises(OtherModel, match=r"the checkpoint of w1 at round 10: .* of .*llama.*: use the MODEL_NAME"):
        asking.ask(open_run(trial.environment, {}), QUESTION)
    assert asking.ask(open_run(trial.environment, {"model": str(trial.models["gpt2"])}), QUESTION).trained
    node = claim(load(trial.environment | {"NODE_ID": "w1"}), trial.experiment)
    node.remember_model(str(trial.models["gpt2"]))
    node.lock.close()
    answers = asking.ask(open_run(trial.environment, {}), QUESTION)
    assert [answers.trained] == trained.greedy([Question(QUESTION)])


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_stores_word_about_a_nodes_model_is_not_believed(trial: Trial, on_disk: bool) -> None:
    """It could name a model that fills the disk."""
    trial.save("w1", 10, trial.policy(3), on_disk=on_disk, in_store=True)
    event = {"event_type": "model_loaded", "data": {"model": "stranger/giant"}}
    trial.store.put(LAYOUT.log("w1", "training_events.jsonl"), json.dumps(event).encode())
    register(trial.store, LAYOUT, Registration("w1", "worker", 0.0, "stranger/giant", "w1", "", ""))
    named = {"node_id": "w1"} if on_disk else {"node_id": "w1", "model": str(trial.models["llama"])}
    assert load_trained(open_run(trial.environment, named)).config.model == str(trial.models["llama"])
    if not on_disk:
        with pytest.raises(CheckpointError, match="trains a model from a folder, 'llama', which is not shared"):
            load_trained(open_run(trial.environment, {"node_id": "w1"}))


def planted(trial: Trial, made: Policy, kind: str, path: Path) -> None:
    """Put something into the store as a newer checkpoint of w1."""
    state = Trainer(made, 1e-3).state()
    name = next(name for name in state["model"] if "up_proj" in name)
    if kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(trial.save("w1", 90, made, on_disk=False))
    elif kind == "giant":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif kind == "wide adapter":
        state["model"] = {"base_model.model.lora_A.default.weight": torch.zeros(1).expand(10**9, 64)}
    elif kind == "no trainer":
        state = {"model": 3}
    elif kind == "another name":
        state["model"] = {"stranger": torch.zeros(3)}
    elif kind == "not finite":
        state["model"][name].fill_(float("nan"))
    elif kind == "zeros":
        state["model"][name].zero_()
    if not os.path.lexists(path):
        path.write_bytes(Checkpoints(trial.home.parent / "made").save(90, {}, state).read_bytes())


KINDS = ["endless", "pipe", "folder", "link", "giant", "wide adapter", "no trainer", "another name", "not finite", "zeros"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_planted_in_the_store_is_passed_over(trial: Trial, kind: str, tmp_path: Path) -> None:
    policy = trial.policy(1)
    trial.save("w1", 10, policy, in_store=True)
    weights = {name: tensor.clone() for name, tensor in policy.model.named_parameters()}
    planted(trial, policy, kind, trial.plant(90, "w1"))
    shutil.rmtree(trial.home)
    found = trial.find(node_id="w1")
    assert found.round == 10 and all(torch.equal(found.tensors[name], weights[name]) for name in weights), "the store's older one"


def test_very_many_planted_checkpoints_are_not_all_tried(trial: Trial) -> None:
    trial.save("w1", 1, trial.policy(1), in_store=True)
    for number in range(2, 60):
        trial.plant(number, "w1").write_bytes(b"nothing")
    trial.plant(10**9, "w1").write_bytes(b"beyond the last round")
    run = open_run(trial.environment, {"node_id": "w1"})
    assert load_trained(run).round == 1, "this disk's own"
    assert run.store.counts["bytes_in"] < 10_000
    assert run.store.counts["get"] <= asking.MOST_TRIED + 2


def test_weights_of_another_model_change_nothing(trial: Trial) -> None:
    policy = trial.policy(0)
    before = {name: tensor.clone() for name, tensor in policy.model.named_parameters()}
    wrong = dict(list(before.items())[1:])
    for tensors in (wrong, before | {"more": torch.zeros(1)}, before | {"lm_head.weight": torch.zeros(1, 32)}):
        with pytest.raises(OtherModel, match="trainable tensors are not the"):
            check_weights(tensors, before, policy.name, any_precision=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.model.named_parameters())


def test_questions_that_cannot_be_asked_are_refused(trial: Trial) -> None:
    trial.save("w1", 10, trial.policy(3))
    with pytest.raises(ModelError, match="exceed the 512 tokens of context"):
        asking.ask(open_run(trial.environment, {}), "long " * 500)


HOSTILE = Answers("why [b]?", "nano", "w1", 60, "[red]hi[/red] \x1b[31m\x07", "one\ntwo\u202e\tthree")


def shown(**options: Any) -> str:
    console = Console(file=io.StringIO(), width=100, **options)
    show(HOSTILE, console)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_a_model_text_is_shown_and_never_obeyed() -> None:
    plain = shown()
    assert plain.splitlines() == [
        "base: nano",
        r"[red]hi[/red] \x1b[31m\x07",
        "",
        "trained: w1, round 60",
        "one",
        r"two\u202e\tthree",
        "",
    ]
    panels = shown(force_terminal=True, color_system=None)
    assert "why [b]?" in panels
    row = next(line for line in panels.splitlines() if "[red]hi[/red]" in line)
    assert r"[red]hi[/red] \x1b[31m\x07" in row and "one" in row, "side by side"
    assert "\x1b" not in panels and "\x07" not in panels and "\u202e" not in panels


def test_a_model_that_writes_nothing_is_explained() -> None:
    console = Console(file=io.StringIO())
    show(replace(HOSTILE, base="", trained=""), console)
    said = str(console.file.getvalue())  # type: ignore[attr-defined]
    assert said.count("(nothing)") == 2 and "trained on its tasks alone" in said
    assert "trained on its tasks alone" not in shown()


def test_what_can_be_printed_stays_as_it_is() -> None:
    assert visible("naïve 数\n— ok") == "naïve 数\n— ok"
    assert visible("\r\x00\x9b\ud800\u2028") == r"\r\x00\x9b\ud800\u2028"
