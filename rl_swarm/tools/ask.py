"""Find what a node has learnt, and ask: the base model and the trained one answer the same question.

Looking at a run changes nothing in it: nothing is published, no lock is taken, and the checkpoints of a running node stay as they
are. Only one model is in memory; the trained weights take the place of the base model's.
"""

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rl_swarm import config as configuration
from rl_swarm.config import MOST_RANK, Config
from rl_swarm.errors import CheckpointError, ConfigError, NotFound, OtherModel, Refused
from rl_swarm.learning.checkpoint import Checkpoints, Saved, most_bytes, read, round_of
from rl_swarm.learning.policy import Policy
from rl_swarm.learning.weights import adapter_rank, check_weights, tensors_by_name, trainable
from rl_swarm.node.learner import MOST_TRIED, checkpoint_rounds, load_policy, stored_rounds
from rl_swarm.node.local import experiment_folder, remembered_model
from rl_swarm.rollout import Question
from rl_swarm.runs.examples import Answered, Example
from rl_swarm.store import Store, open_store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.experiment import Experiment
from rl_swarm.swarm.layout import Layout, node_of_checkpoint
from rl_swarm.tasks import Tasks, tasks_of, warm_up
from rl_swarm.text import visible
from rl_swarm.tools.memory import shape_of, this_device

MOST_NAMED = 10  # nodes in one line

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
    configuration.require_run(config)
    store, layout = open_store(config.store_url, writable=False), Layout(config.experiment_name)
    experiment = experiments.read(store, layout, config.founder)
    if experiment is None:
        raise ConfigError(
            f"there is no experiment {config.experiment_name!r} in {config.store_url!r}: check EXPERIMENT_NAME and GDRIVE_PATH, or "
            "train first with 'rl-swarm work'"
        )
    config = configuration.load(environment, flags, experiment.settings)
    return Run(environment, flags, config, store, layout, experiment)


def load_trained(run: Run) -> tuple[Config, Policy, Trained]:
    """The base model, and the newest usable checkpoint to turn it into the trained one: of NODE_ID, from this disk or the store; or
    without NODE_ID of the node that came furthest on this machine.

    Raises ConfigError if there is none, CheckpointError if none can be used.
    """
    found, refused = _candidates(run), list[str]()
    of_other_model: OtherModel | None = None
    policies: dict[tuple[str, int], Policy] = {}
    for each in found:
        try:
            trained, config = _read(run, each)
            key = (config.model, config.lora_rank)
            if key not in policies:
                policies.clear()
                policies[key] = load_policy(config)
            _check(policies[key], trained)
            return config, policies[key], trained
        except OtherModel as error:
            of_other_model = of_other_model or OtherModel(f"the checkpoint of {each.node_id} at round {each.round}: {error}")
        except (CheckpointError, Refused, NotFound) as error:
            refused.append(f"round {each.round}: {error}")
        except OSError as error:
            refused.append(f"round {each.round}: {error.strerror}")
    if of_other_model:
        raise of_other_model
    raise CheckpointError(
        f"none of the {len(found)} checkpoints of {_whose(run)} can be used ({refused[0]}): wait for the next one, or train again "
        "with 'rl-swarm work'"
    )


def _candidates(run: Run) -> list[Found]:
    """The newest first; of one round first what is on this disk. Nobody else's is taken unless it is named."""
    wanted = run.config.node_id
    found = [each for each in _on_disk(run) if wanted in (None, each.node_id)]
    if wanted:
        stored = stored_rounds(run.store, run.layout, wanted, run.config.max_rounds)
        found += [Found(wanted, number) for number in itertools.islice(stored, MOST_TRIED)]
    if not found:
        raise ConfigError(f"no checkpoint of {_whose(run)}{_remedy(run)}")
    return sorted(found, key=lambda each: (-each.round, each.path is None, each.node_id))


def _whose(run: Run) -> str:
    wanted, experiment = run.config.node_id, f"the experiment {run.config.experiment_name!r}"
    return f"node {wanted!r} in {experiment}" if wanted else f"{experiment} on this machine"


def _remedy(run: Run) -> str:
    others = [] if run.config.node_id else _nodes_in_store(run)
    if not others:
        return ": train first with 'rl-swarm work'"
    shown = ", ".join(others[:MOST_NAMED]) + (", …" if len(others) > MOST_NAMED else "")
    return f"; the store has some of {shown}: name one with --node-id, or train first with 'rl-swarm work'"


def _nodes_in_store(run: Run) -> list[str]:
    numbers = checkpoint_rounds(run.store, run.layout, run.config.max_rounds)
    names = {node_of_checkpoint(name) for number in numbers for name in run.store.list(run.layout.checkpoint_folder(number))}
    return sorted(name for name in names if name is not None)


def _on_disk(run: Run) -> Iterator[Found]:
    for path in experiment_folder(run.config, run.experiment).glob("*/checkpoints/round_*.pt"):
        if (number := round_of(path)) is not None:
            yield Found(path.parent.parent.name, number, path)


def _read(run: Run, found: Found) -> tuple[Trained, Config]:
    """A checkpoint, and the settings that it was made with."""
    model = remembered_model(experiment_folder(run.config, run.experiment) / found.node_id)
    if found.path is not None:
        return _trained(run, found, read(found.path, found.round), model)
    try:
        config = _config(run, found, model, 0)
    except ConfigError as error:
        raise CheckpointError(str(error)) from None
    shape = shape_of(config, this_device(config.cpu_only))
    limit = most_bytes(4 * shape.parameters)  # as if all of it were trained
    with tempfile.TemporaryDirectory(prefix="rl-swarm-") as scratch:
        path = Path(scratch, Checkpoints.name(found.round))
        run.store.get_file(run.layout.checkpoint(found.round, found.node_id), path, limit=limit)
        trained, config = _trained(run, found, read(path, found.round, limit), model)  # stays mapped when the file is gone
    if config.lora_rank > shape.hidden:
        raise CheckpointError(f"its adapter has rank {config.lora_rank}, and the model is only {shape.hidden} wide")
    return trained, config


def _trained(run: Run, found: Found, saved: Saved, model: str | None) -> tuple[Trained, Config]:
    weights = tensors_by_name(saved.trainer.get("model") if isinstance(saved.trainer, dict) else None)
    if (rank := adapter_rank(weights)) > MOST_RANK:
        raise CheckpointError(f"its adapter has rank {rank}")
    return Trained(found.node_id, found.round, weights), _config(run, found, model, rank)


def _config(run: Run, found: Found, model: str | None, lora_rank: int) -> Config:
    """The settings with the model and the rank of LoRA that a checkpoint was made with; an explicit MODEL_NAME stays.

    What a store says of a node's model is not believed: it could name one that fills the disk.
    """
    flags = dict(run.flags) | {"lora_rank": str(lora_rank), "node_id": found.node_id}
    if model and not run.config.explicit("model"):
        flags["model"] = model
    config = configuration.load(run.environment, flags, run.experiment.settings)
    experiments.check_model(config, run.experiment)
    return config


def apply_weights(policy: Policy, trained: Trained) -> None:
    """Turn the base model into the trained one; raise CheckpointError, with nothing changed, if the checkpoint is of another."""
    _check(policy, trained)
    for name, parameter in trainable(policy.model).items():
        parameter.data.copy_(trained.tensors[name])


def _check(policy: Policy, trained: Trained) -> None:
    """Raise CheckpointError for what the model cannot become; whoever only asks it may do so in another DTYPE."""
    check_weights(trained.tensors, trainable(policy.model), policy.name, any_precision=True)


def ask(environment: Mapping[str, str], flags: Flags, question: str) -> Answers:
    """Answer a question greedily with the base model and with what the run has made of it."""
    if not question.strip():
        raise ConfigError(f"the question must not be empty, got {question!r}: write it in quotes")
    run = open_run(environment, flags)
    warm_up()
    config, policy, trained = load_trained(run)
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


def asked_examples(environment: Mapping[str, str], flags: Mapping[str, str | None]) -> list[Example]:
    """The first held-out question of each task, answered greedily by the base model and by this machine's node that came furthest.

    Loads a model. Raises ConfigError or CheckpointError where no trained one is to be had, ModelError where it cannot be loaded.
    """
    run = open_run(environment, flags)
    config, policy, trained = load_trained(run)
    tasks = Tasks(tasks_of(config), seed=config.seed, node_id=trained.node_id)
    try:
        questions = first_of_each_task(tasks.held_out())
        policy.check_fits(questions)
        before = policy.greedy(questions)
        apply_weights(policy, trained)
        after = policy.greedy(questions)
        names = f"the base model, {policy.name}", f"{trained.node_id} at round {trained.round}"
        return [
            Example(
                question.task or "",
                Answered(question.prompt, first, tasks.score(question, first), names[0]),
                Answered(question.prompt, second, tasks.score(question, second), names[1]),
            )
            for question, first, second in zip(questions, before, after, strict=True)
        ]
    finally:
        tasks.close()


def first_of_each_task(questions: Sequence[Question]) -> list[Question]:
    found: dict[str | None, Question] = {}
    for question in questions:
        found.setdefault(question.task, question)
    return list(found.values())


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
