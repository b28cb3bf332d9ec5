"""Find what a node has learnt, and ask: the base model and the trained one answer the same question.

Looking at a run changes nothing in it: nothing is published, no lock is taken, and the checkpoints of a running node stay as they
are. Only one model is in memory; the trained weights take the place of the base model's.
"""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rl_swarm import config as configuration
from rl_swarm import progress
from rl_swarm.checkpoint import Checkpoints
from rl_swarm.config import Config
from rl_swarm.errors import CheckpointError, ConfigError, NotFound
from rl_swarm.learner import load_policy
from rl_swarm.local import experiment_folder
from rl_swarm.policy import Policy
from rl_swarm.rollout import Question
from rl_swarm.store import Store, open_store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.experiment import Experiment
from rl_swarm.swarm.layout import Layout, round_of_folder
from rl_swarm.swarm.peers import read_registration
from rl_swarm.tasks import Tasks, tasks_of, warm_up
from rl_swarm.view import visible

Flags = Mapping[str, str | None]


@dataclass(frozen=True)
class Run:
    """An experiment as somebody sees it who takes no part: settings, and where everything is."""

    environment: Mapping[str, str]
    flags: Flags
    config: Config
    store: Store
    layout: Layout
    experiment: Experiment


@dataclass(frozen=True)
class Found:
    """A file that should be a checkpoint; `path` is None where only the store has it."""

    node_id: str
    round: int
    path: Path | None = None


@dataclass(frozen=True)
class Trained:
    """What a node has learnt before a round: the tensors that it trains, by name; of an adapter only the adapter's."""

    node_id: str
    round: int
    tensors: dict[str, Any]


@dataclass(frozen=True)
class Answers:
    """Scores are None for a question of which nobody knows the answer."""

    question: str
    model: str
    node_id: str
    round: int
    base: str
    trained: str
    base_score: float | None
    trained_score: float | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def open_run(environment: Mapping[str, str], flags: Flags) -> Run:
    """The experiment that the settings name, with its own settings beneath them; raise ConfigError if nobody has started it."""
    config = configuration.load(environment, flags)
    configuration.require(config, "store", "experiment")
    store, layout = open_store(config.store_url, writable=False), Layout(config.experiment_name)
    experiment = experiments.read(store, layout)
    if experiment is None:
        raise ConfigError(
            f"there is no experiment {config.experiment_name!r} in {config.store_url!r}: check EXPERIMENT_NAME and GDRIVE_PATH, or "
            "train first with 'rl-swarm work'"
        )
    config = configuration.load(environment, flags, experiment.settings)
    return Run(environment, flags, config, store, layout, experiment)


def newest_checkpoint(run: Run) -> Trained:
    """The newest usable checkpoint of NODE_ID, or without one that of the node that came furthest; this disk's before the store's.

    Raises ConfigError if there is none, CheckpointError if none can be read.
    """
    wanted = run.config.node_id
    found = [each for each in (*_on_disk(run), *_in_store(run)) if wanted in (None, each.node_id)]
    whose = f"node {wanted!r} in the experiment" if wanted else "the experiment"
    if not found:
        raise ConfigError(f"no checkpoint of {whose} {run.config.experiment_name!r}: train first with 'rl-swarm work'")
    skipped: list[str] = []
    for each in sorted(found, key=lambda each: (-each.round, each.path is None, each.node_id)):
        trained = _read(run, each, skipped)
        if trained:
            return trained
    raise CheckpointError(
        f"none of the {len(found)} checkpoints of {whose} {run.config.experiment_name!r} can be read ({skipped[0]}): wait for the "
        "next one, or train again with 'rl-swarm work'"
    )


def _on_disk(run: Run) -> Iterator[Found]:
    for path in experiment_folder(run.config, run.experiment).glob("*/checkpoints/round_*.pt"):
        number = path.stem.removeprefix("round_")
        if number.isdecimal():
            yield Found(path.parent.parent.name, int(number), path)


def _in_store(run: Run) -> Iterator[Found]:
    numbers = {number for number in map(round_of_folder, run.store.list(run.layout.checkpoints)) if number is not None}
    for number in numbers:
        for name in set(run.store.list(run.layout.checkpoint_folder(number))):
            if name.endswith(".pt"):
                yield Found(name.removesuffix(".pt"), number)


def _read(run: Run, found: Found, skipped: list[str]) -> Trained | None:
    """What is in a checkpoint, or None, with the reason added to `skipped`.

    A bad file is renamed by whoever restores it. So it is restored from a folder of our own, in which a local one is but a link.
    """
    with tempfile.TemporaryDirectory(prefix="rl-swarm-") as scratch:
        copied = Path(scratch, Checkpoints.name(found.round))
        try:
            if found.path is None:
                run.store.get_file(run.layout.checkpoint(found.round, found.node_id), copied, limit=1 << 40)
            else:
                copied.symlink_to(found.path.absolute())
        except NotFound:
            skipped.append(f"{copied.name}: removed meanwhile")
            return None
        checkpoints = Checkpoints(copied.parent)
        restored = checkpoints.restore()
        skipped += checkpoints.skipped
    return Trained(found.node_id, restored[0], restored[2]["model"]) if restored else None


def trained_config(run: Run, trained: Trained) -> Config:
    """The settings with the model and the rank of LoRA that the checkpoint was made with; an explicit MODEL_NAME stays."""
    rank = next((tensor.shape[0] for name, tensor in trained.tensors.items() if ".lora_A." in name), 0)
    flags = dict(run.flags) | {"lora_rank": str(rank), "node_id": trained.node_id}
    if not run.config.explicit("model"):
        flags["model"] = _model_of(run, trained.node_id)
    return configuration.load(run.environment, flags, run.experiment.settings)


def _model_of(run: Run, node_id: str) -> str:
    """A node may train another model than the experiment's, and 'auto' stands for one that only the node's journal names."""
    for event in reversed(progress.events(run.store, run.layout, node_id)):
        data = event.get("data")
        if event.get("event_type") == "model_loaded" and isinstance(data, dict) and isinstance(data.get("model"), str):
            return str(data["model"])
    registration = read_registration(run.store, run.layout, node_id)
    return registration.model if registration else run.config.model


def apply_weights(policy: Policy, trained: Trained) -> None:
    """Turn the base model into the trained one; raise CheckpointError, with nothing changed, if the checkpoint is of another."""
    own = {name: parameter for name, parameter in policy.model.named_parameters() if parameter.requires_grad}
    if {name: tensor.shape for name, tensor in own.items()} != {name: tensor.shape for name, tensor in trained.tensors.items()}:
        raise CheckpointError(
            f"the checkpoint of {trained.node_id} at round {trained.round} is of another model than {policy.name}: set MODEL_NAME "
            "to the one that it was made with"
        )
    for name, parameter in own.items():
        parameter.data.copy_(trained.tensors[name])


def ask(environment: Mapping[str, str], flags: Flags, question: str) -> Answers:
    """Answer a question greedily with the base model and with what the run has made of it."""
    if not question.strip():
        raise ConfigError(f"the question must not be empty, got {question!r}: write it in quotes")
    run = open_run(environment, flags)
    trained = newest_checkpoint(run)
    config = trained_config(run, trained)
    warm_up()
    policy = load_policy(config)
    asked = Question(question)
    policy.check_fits([asked])
    [before] = policy.greedy([asked])
    apply_weights(policy, trained)
    [after] = policy.greedy([asked])
    scores = _scores(config, question, before, after)
    return Answers(question, policy.name, trained.node_id, trained.round, before, after, *scores)


def _scores(config: Config, question: str, *texts: str) -> list[float | None]:
    """What the verifier pays for each text, where the question is one of the held-out ones, whose answers are known."""
    try:
        tasks = Tasks(tasks_of(config), seed=config.seed, node_id=config.node)
    except ConfigError:  # a task that this machine does not have: it is needed for nothing else here
        return [None] * len(texts)
    try:
        known = next((each for each in tasks.held_out() if each.prompt == question), None)
        return list(tasks.score_all(known, texts)) if known else [None] * len(texts)
    finally:
        tasks.close()


def show(answers: Answers, console: Console) -> None:
    """Side by side on a terminal, one after the other elsewhere; a model's text is shown as it is, and never obeyed."""
    parts = [
        (f"base: {answers.model}", answers.base, answers.base_score),
        (f"trained: {answers.node_id}, round {answers.round}", answers.trained, answers.trained_score),
    ]
    scored = [(title if score is None else f"{title}, score {score:.2f}", text) for title, text, score in parts]
    if not console.is_terminal:
        for title, text in scored:
            console.print(Text(f"{visible(title)}\n{visible(text)}\n"), soft_wrap=True)
        return
    table = Table.grid(expand=True, padding=(0, 1))
    for _ in scored:
        table.add_column(ratio=1)
    table.add_row(*(Panel(Text(visible(text)), title=Text(visible(title))) for title, text in scored))
    console.print(Text(visible(answers.question)), table)
