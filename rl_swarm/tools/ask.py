"""Find a node's newest checkpoint, and ask: the base model and the trained one answer the same question.

Looking at a run changes nothing in it: nothing is published, no lock is taken, and the checkpoints of a running node stay as they
are. Only one model is in memory; the trained weights replace those of the base model.
"""

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from rl_swarm import config as configuration
from rl_swarm.config import Config
from rl_swarm.errors import CheckpointError, ConfigError, NotFound, OtherModel
from rl_swarm.learning.checkpoint import most_bytes, read, saved_in
from rl_swarm.learning.policy import Policy
from rl_swarm.learning.weights import adapter_rank, check_weights, tensors_by_name, trainable
from rl_swarm.node.learner import MOST_TRIED, checkpoint_rounds, load_policy, stored_rounds
from rl_swarm.node.local import remembered_model, remembered_task_files
from rl_swarm.rollout import Question
from rl_swarm.runs.examples import Answered, Example
from rl_swarm.show.formats import EMPTY
from rl_swarm.show.steps import Step, unseen
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import node_of_checkpoint
from rl_swarm.tasks import Tasks, tasks_of
from rl_swarm.text import counted, visible
from rl_swarm.tools.memory import shape_of, this_device
from rl_swarm.tools.opening import Flags, Run, open_run

MOST_NAMED = 10  # nodes in one line


@dataclass(frozen=True)
class Found:
    """A file that should be a checkpoint; `path` is None if only the store has it."""

    node_id: str
    round: int
    path: Path | None = None


@dataclass(frozen=True)
class Trained:
    """A base model, and the trained tensors of a node before a round, which fit it; of an adapter only the adapter's."""

    node_id: str
    round: int
    config: Config
    policy: Policy
    tensors: dict[str, Any]

    def apply(self) -> None:
        """Turn the base model into the trained one."""
        for name, parameter in trainable(self.policy.model).items():
            parameter.data.copy_(self.tensors[name])

    def answer(self, questions: Sequence[Question]) -> list[tuple[str, str]]:
        """Answer greedily with the base model and with the trained one, which the policy is from then on."""
        self.policy.check_fits(questions)
        before = self.policy.greedy(questions)
        self.apply()
        return list(zip(before, self.policy.greedy(questions), strict=True))


@dataclass(frozen=True)
class Answers:
    """The answers of the base model, if it was asked, and of the trained one."""

    question: str
    model: str
    node_id: str
    round: int
    base: str | None
    trained: str


def load_trained(run: Run, step: Step = unseen) -> Trained:
    """Load the newest usable checkpoint of NODE_ID, from this disk or the store; without it, of this machine's furthest node.

    Raise ConfigError if there is none, CheckpointError if none can be used.
    """
    wanted, experiment = run.config.node_id, f"the experiment {run.config.experiment_name!r}"
    whose = f"node {wanted!r} in {experiment}" if wanted else f"{experiment} on this machine"
    found, refused = _candidates(run), list[str]()
    if not found:
        raise ConfigError(f"no checkpoint of {whose}{_others(run)} train first with 'rl-swarm work'")
    of_other_model: OtherModel | None = None
    policy, loaded = None, None
    for each in found:
        try:
            config, tensors = _read(run, each)
            if policy is None or loaded != (config.model, config.lora_rank):
                step(f"loading {config.model}")
                policy = None  # one model in memory is enough
                policy, loaded = load_policy(config), (config.model, config.lora_rank)
            check_weights(tensors, trainable(policy.model), policy.name, any_precision=True)  # DTYPE may differ: nothing is trained
            return Trained(each.node_id, each.round, config, policy, tensors)
        except OtherModel as error:
            of_other_model = of_other_model or OtherModel(f"the checkpoint of {each.node_id} at round {each.round}: {error}")
        except (CheckpointError, ConfigError, NotFound) as error:
            refused.append(f"round {each.round}: {error}")
        except OSError as error:
            refused.append(f"round {each.round}: {error.strerror}")
    raise of_other_model or CheckpointError(
        f"{counted(len(found), 'checkpoint')} of {whose}, and none can be used ({refused[0]}): wait for the next one, or train "
        "again with 'rl-swarm work'"
    )


def _candidates(run: Run) -> list[Found]:
    """List checkpoints, newest first; of one round, those on this disk first. The store's are listed only for a named node."""
    wanted = run.config.node_id
    folders = run.home.glob(f"{wanted or '*'}/checkpoints")
    found = [Found(folder.parent.name, number, path) for folder in folders for number, path in saved_in(folder)]
    if wanted:
        stored = stored_rounds(run.store, run.layout, wanted, run.config.max_rounds)
        found += [Found(wanted, number) for number in itertools.islice(stored, MOST_TRIED)]
    return sorted(found, key=lambda each: (-each.round, each.path is None, each.node_id))


def _others(run: Run) -> str:
    """Name the nodes with checkpoints in the store to a user who has named none."""
    numbers = checkpoint_rounds(run.store, run.layout, run.config.max_rounds) if run.config.node_id is None else []
    names = {node_of_checkpoint(name) for number in numbers for name in run.store.list(run.layout.checkpoint_folder(number))}
    nodes = sorted(name for name in names if name is not None)
    shown = ", ".join(nodes[:MOST_NAMED]) + (", …" if len(nodes) > MOST_NAMED else "")
    return f"; the store has some of {shown}: name one with --node-id, or" if nodes else ":"


def _read(run: Run, found: Found) -> tuple[Config, dict[str, Any]]:
    """Read the weights of a checkpoint, and the settings that it was made with."""
    if found.path is not None:
        return _opened(run, found, found.path)
    config = _config(run, found)
    shape = shape_of(config, this_device(config.cpu_only))
    limit = most_bytes(4 * shape.parameters)  # as if all of it were trained
    with tempfile.TemporaryDirectory(prefix="rl-swarm-") as scratch:
        path = Path(scratch, "checkpoint")
        run.store.get_file(run.layout.checkpoint(found.round, found.node_id), path, limit=limit)
        config, tensors = _opened(run, found, path, limit)  # they stay mapped when the file is gone
    if config.lora_rank > shape.hidden:
        raise CheckpointError(f"its adapter has rank {config.lora_rank}, and the model is only {shape.hidden} wide")
    return config, tensors


def _opened(run: Run, found: Found, path: Path, limit: int | None = None) -> tuple[Config, dict[str, Any]]:
    _, trainer = read(path, found.round, limit)
    tensors = tensors_by_name(trainer.get("model") if isinstance(trainer, dict) else None)
    return _config(run, found, adapter_rank(tensors)), tensors


def _config(run: Run, found: Found, lora_rank: int = 0) -> Config:
    """The settings with the model and the rank of LoRA that a checkpoint was made with; an explicit MODEL_NAME stays.

    The model and the task files are those that this disk remembers. A stranger's word in the store could name a model that fills
    the disk, or code; of a file, the hash must be the experiment's.
    """
    flags = dict(run.flags) | {"lora_rank": str(lora_rank), "node_id": found.node_id}
    model = remembered_model(run.home / found.node_id)
    if model and not run.config.explicit("model"):
        flags["model"] = model
    files = remembered_task_files(run.home / found.node_id)
    if files and not run.config.explicit("task_files"):
        flags["task_files"] = files
    config = configuration.load(run.environment, flags, run.experiment.settings)
    experiments.check_model(config, run.experiment)
    return config


def ask(run: Run, question: str, step: Step = unseen) -> Answers:
    """Answer a question greedily with the base model and with the trained one."""
    trained = load_trained(run, step)
    step("asking the base model and the trained one")
    [(before, after)] = trained.answer([Question(question)])
    return Answers(question, trained.policy.name, trained.node_id, trained.round, before, after)


def asked_examples(environment: Mapping[str, str], flags: Flags, step: Step = unseen) -> list[Example]:
    """Ask the first held-out question of each task, of the base model and of this machine's node that came furthest.

    Raise ConfigError or CheckpointError if no trained model is found, ModelError if it cannot be loaded.
    """
    trained = load_trained(open_run(environment, flags), step)
    step("making held-out questions")
    tasks = Tasks(tasks_of(trained.config), seed=trained.config.seed, node_id=trained.node_id)
    first: dict[str, Question] = {}
    for question in tasks.held_out():
        first.setdefault(question.task or "", question)

    def scored(question: Question, text: str, by: str) -> Answered:
        return Answered(question.prompt, text, tasks.score(question, text), by, question.answer)

    step("asking the model before and after training")
    base, after_training = f"the base model, {trained.policy.name}", f"{trained.node_id} at round {trained.round}"
    asked = zip(first.items(), trained.answer(list(first.values())), strict=True)
    return [
        Example(task, scored(question, before, base), scored(question, after, after_training))
        for (task, question), (before, after) in asked
    ]


def show(answers: Answers, console: Console) -> None:
    """Show the question and both answers. A model's text takes no effect."""
    if console.is_terminal:
        console.print(Text(visible(answers.question)))
    side_by_side(answers, console)
    if not answers.trained.strip():
        console.print("The model was trained on its tasks alone, and knows little else: 'rl-swarm chat' names them", soft_wrap=True)


def side_by_side(answers: Answers, console: Console) -> None:
    """Show both answers side by side on a terminal, one after the other elsewhere."""
    parts = [
        (visible(f"base: {answers.model}"), visible(answers.base or "") or EMPTY),
        (visible(f"trained: {answers.node_id}, round {answers.round}"), visible(answers.trained) or EMPTY),
    ]
    if not console.is_terminal:
        for title, text in parts:
            console.print(Text(f"{title}\n{text}\n"), soft_wrap=True)
        return
    table = Table.grid(Column(ratio=1), Column(ratio=1), expand=True, padding=(0, 1))
    table.add_row(*(Panel(Text(text), title=Text(title)) for title, text in parts))
    console.print(table)
