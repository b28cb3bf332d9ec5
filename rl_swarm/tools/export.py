"""Write a trained model as a folder that `transformers` loads, with a card that states the run's figures.

Writing changes nothing in the model, which may be in training, and refuses a folder that holds anything but an earlier export.
"""

import contextlib
import copy
import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec

from rl_swarm import __version__
from rl_swarm.config import Config, model_folder
from rl_swarm.errors import ConfigError, ModelError
from rl_swarm.runs import progress
from rl_swarm.runs.progress import data_of
from rl_swarm.runs.record import Evaluated, valid
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout

if TYPE_CHECKING:
    from rl_swarm.learning.policy import Policy

MARKER = "rl_swarm.json"  # the figures, for programs; a folder that has it is an earlier export
UNFINISHED = ".writing-"
REWARD_ROUNDS = 10
EXAMPLE = "What is 12 + 30?"


@dataclass(frozen=True)
class Figures:
    """What a run has come to, as its card states it. `round` is the first that the weights have not learnt from."""

    experiment: str
    node_id: str
    base_model: str
    base_on_hub: bool
    round: int
    rounds_recorded: int
    own_count: int
    external_count: int
    group_size: int
    external_used: int
    tasks: str
    tasks_version: str
    reward_rounds: int
    reward_first: float | None
    reward_last: float | None
    held_out_before: Evaluated | None
    held_out_after: Evaluated | None
    versions: dict[str, str]


def collect(config: Config, store: Store, node_id: str, number: int, *, model: str, tasks_version: str) -> Figures:
    """The figures of a node's run up to a round, from its journals; of those it changes nothing."""
    layout = Layout(config.experiment_name)
    rows = [row for row in progress.records(store, layout, node_id) if row.round < number]
    rewards = [row.reward for row in rows]
    count = min(REWARD_ROUNDS, max(1, len(rewards) // 2)) if rewards else 0
    before, after = _evaluations(progress.events(store, layout, node_id), number)
    base_model, on_hub = _base(model)
    return Figures(
        experiment=config.experiment_name,
        node_id=node_id,
        base_model=base_model,
        base_on_hub=on_hub,
        round=number,
        rounds_recorded=len(rows),
        own_count=config.own_count,
        external_count=config.external_count,
        group_size=config.group_size,
        external_used=sum(row.external_used for row in rows),
        tasks=re.sub(r"[^,]*/(?=[^,/]*\.py)", "", config.tasks),  # of a file with own tasks only its name is told
        tasks_version=tasks_version,
        reward_rounds=count,
        reward_first=fmean(rewards[:count]) if rewards else None,
        reward_last=fmean(rewards[-count:]) if rewards else None,
        held_out_before=before,
        held_out_after=after,
        versions={"rl-swarm": __version__, "python": platform.python_version()}
        | {name: version(name) for name in ("torch", "transformers")},
    )


def _evaluations(events: Sequence[dict[str, Any]], number: int) -> tuple[Evaluated | None, Evaluated | None]:
    """The first and the last held-out evaluation up to a round, if there were two; of a round done twice the last counts."""
    found = {each.round: each for each in valid(data_of(events, "evaluation"), Evaluated) if each.round <= number}
    if not found:
        return None, None
    first, last = min(found), max(found)
    return found[first], found[last] if last > first else None


def _base(name: str) -> tuple[str, bool]:
    """How the base model is called in public, and whether the hub knows it by that name: of a folder only the last part is told."""
    path = model_folder(name)
    if name == "nano":
        return name, False
    if path.is_dir() or path.is_absolute() or not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", name, re.ASCII):
        return path.name, False
    return name, True


def card(figures: Figures, prompt: str) -> str:
    """README.md: front matter that the hub reads, the figures, and a program that asks the model in the way it was trained."""
    title = f"{figures.experiment}-{figures.node_id}"
    named = _code(figures.base_model) + ("" if figures.base_on_hub or figures.base_model == "nano" else " (a local folder)")
    sections = [
        _front_matter(figures),
        f"# {title}",
        f"{named} after reinforcement learning on verifiable tasks, as node {_code(figures.node_id)} of the experiment "
        f"{_code(figures.experiment)}. Trained with RL Swarm: nodes share questions and completions as text, never weights or "
        "gradients (Swarm sAmpling Policy Optimization, [arXiv:2509.08721](https://arxiv.org/abs/2509.08721)).",
        "## Run\n\n" + _table(("", ""), _run_rows(figures, named)),
        "The reward of a round is the mean over the node's own completions, as the task's verifier pays them.",
        *_held_out_section(figures),
        f"## Use\n\n```python\n{_program(prompt)}```",
    ]
    return "\n\n".join(sections) + "\n"


def _front_matter(figures: Figures) -> str:
    lines = ["library_name: transformers", "pipeline_tag: text-generation"]
    if figures.base_on_hub:
        lines.append(f"base_model: {json.dumps(figures.base_model)}")
    return "\n".join(["---", *lines, "tags:", "- rl-swarm", "- reinforcement-learning", "- grpo", "---"])


def _run_rows(figures: Figures, named: str) -> list[tuple[str, str]]:
    count = figures.reward_rounds
    return [
        ("base model", named),
        ("experiment, node", f"{_code(figures.experiment)}, {_code(figures.node_id)}"),
        ("rounds", f"{figures.rounds_recorded}, all before round {figures.round} of the swarm"),
        ("I: own rollouts per round", str(figures.own_count)),
        ("J: rollouts of peers per round", f"{figures.external_count} wanted, {figures.external_used} used in all rounds"),
        ("G: completions per question", str(figures.group_size)),
        ("tasks", f"{_code(figures.tasks)} ({_code(figures.tasks_version)})"),
        (f"mean reward, first {count} rounds", _share(figures.reward_first)),
        (f"mean reward, last {count} rounds", _share(figures.reward_last)),
        ("written with", ", ".join(f"{name} {number}" for name, number in figures.versions.items())),
    ]


def _held_out_section(figures: Figures) -> list[str]:
    before, after = figures.held_out_before, figures.held_out_after
    if before is None:
        return []
    measured = [before, after] if after else [before]
    head = ["", *(f"before round {each.round}" for each in measured)]
    rows = [
        ("all, as the verifier reads it", *(_share(each.held_out) for each in measured)),
        ("all, in whatever style", *(_share(each.held_out_style_blind) for each in measured)),
        *(
            (_code(task), *(_share(each.held_out_by_task.get(task)) for each in measured))
            for task in sorted(before.held_out_by_task)
        ),
    ]
    questions = f"{before.held_out_questions} " if before.held_out_questions else ""
    return [f"## Held-out questions\n\nGreedy pass@1 on {questions}questions that nobody trains on.\n\n" + _table(head, rows)]


def _program(prompt: str) -> str:
    return (
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        'name = "."  # this folder, or the name of this repository on the hub\n'
        "tokenizer = AutoTokenizer.from_pretrained(name)\n"
        "model = AutoModelForCausalLM.from_pretrained(name)\n"
        f"prompt = {json.dumps(prompt)}\n"
        'inputs = tokenizer(prompt, add_special_tokens=False, return_tensors="pt", return_token_type_ids=False)\n'
        "ids = model.generate(**inputs, max_new_tokens=256, do_sample=False)\n"
        'answer = tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)\n'
        "print(answer)\n"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _code(text: str) -> str:
    """Text that nothing in it makes markup, nor the end of a table's cell."""
    return "`" + "".join(letter if letter.isprintable() and letter not in "`|" else "?" for letter in text) + "`"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def export_run(environment: Mapping[str, str], flags: Mapping[str, str | None], folder: Path) -> Figures:
    """Write the newest model of NODE_ID, or of this machine's node that came furthest. A wrong folder is refused before anything is
    loaded."""
    _earlier_files(folder)
    from rl_swarm.tools.ask import apply_weights, load_trained, open_run

    run = open_run(environment, flags)
    config, policy, trained = load_trained(run)
    apply_weights(policy, trained)
    version_of_tasks = run.experiment.tasks_version
    figures = collect(config, run.store, trained.node_id, trained.round, model=policy.name, tasks_version=version_of_tasks)
    write(folder, policy, figures)
    return figures


def write(folder: Path, policy: "Policy", figures: Figures) -> None:
    """Write model, tokenizer, card and figures; an adapter (LoRA) is merged into the weights.

    The files are complete before the first of them appears. An earlier export is replaced, other files beside it stay. Raises
    ConfigError for a folder that must not be written to, ModelError where the disk refuses.
    """
    from safetensors import SafetensorError

    earlier = _earlier_files(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in folder.glob(f"{UNFINISHED}*"):
            shutil.rmtree(left_over)
        with tempfile.TemporaryDirectory(dir=folder, prefix=UNFINISHED) as part:
            names = _write_files(Path(part), policy, figures)
            for name in earlier - set(names):
                (folder / name).unlink(missing_ok=True)
            for name in names:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(Path(part, name), folder / name)
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"the model cannot be written to {folder} ({reason}): free some space or choose another folder") from error


def _earlier_files(folder: Path) -> set[str]:
    """What an earlier export left in a folder, but for the marker; raise ConfigError for a folder with anything else in it."""
    if not folder.exists() or (folder.is_dir() and all(path.name.startswith(UNFINISHED) for path in folder.iterdir())):
        return set()
    try:
        names = [Path(name) for name in json.loads((folder / MARKER).read_text("utf-8"))["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{folder} is not empty and no earlier export (it has no readable {MARKER}): name a new or empty folder"
        ) from None
    return {str(name) for name in names if not name.is_absolute() and ".." not in name.parts}


def _write_files(folder: Path, policy: "Policy", figures: Figures) -> list[str]:
    """Their names, the marker last: while a folder has it, it may be written to again."""
    model = merged(policy.model)
    with _quiet():
        model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
    generation = copy.deepcopy(model.generation_config)
    if generation.eos_token_id is None:  # without it `generate` would go on where the policy stops
        generation.eos_token_id = policy.end_id
        generation.save_pretrained(folder)
    prompt = policy.tokenizer.decode(policy.prompt_ids(EXAMPLE), clean_up_tokenization_spaces=False)
    (folder / "README.md").write_text(card(figures, prompt), "utf-8")
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    (folder / MARKER).write_text(json.dumps(msgspec.to_builtins(figures) | {"files": names}, indent=1) + "\n", "utf-8")
    return [*names, MARKER]


def merged(model: Any) -> Any:
    """The model without adapters: itself, or a copy on the CPU with them merged. Merging in place, and undoing it, would round the
    weights that are being trained."""
    if not hasattr(model, "merge_and_unload"):
        return model
    copies = {id(own): type(own)(own.detach().to("cpu", copy=True), requires_grad=False) for own in model.parameters()}
    copies |= {id(own): own.detach().to("cpu", copy=True) for own in model.buffers()}
    return copy.deepcopy(model, copies).merge_and_unload()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bar in the middle of a node's own lines."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
