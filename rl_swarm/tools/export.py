"""Write a trained model as a folder that `transformers` loads, with a card that states the run's figures.

Writing leaves the model as it is, since it may be in training. Refuses a folder that holds anything but an earlier export.
"""

import copy
import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec

from rl_swarm import __version__
from rl_swarm.config import Config, model_folder
from rl_swarm.errors import ConfigError, ModelError
from rl_swarm.learning.models.loading import quiet
from rl_swarm.runs import progress
from rl_swarm.runs.progress import data_of
from rl_swarm.runs.record import Evaluated, valid
from rl_swarm.show.steps import Step, unseen
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout
from rl_swarm.text import counted
from rl_swarm.tools.opening import Run

if TYPE_CHECKING:
    from rl_swarm.learning.policy import Policy

MARKER = "rl_swarm.json"  # the figures, for programs; a folder that has it is an earlier export
UNFINISHED = ".writing-"
REWARD_ROUNDS = 10
EXAMPLE = "What is 12 + 30?"

CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
{front}tags:
- rl-swarm
- reinforcement-learning
- grpo
---

# {title}

{base} after reinforcement learning on verifiable tasks, as node {node} of the experiment {experiment}. \
Trained with RL Swarm: nodes share questions and completions as text, never weights or gradients \
(Swarm sAmpling Policy Optimization, [arXiv:2509.08721](https://arxiv.org/abs/2509.08721)).

## Run

{run}

The reward of a round is the mean over the node's own completions, as the task's verifier pays them.

{held_out}## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

name = "."  # this folder, or the name of this repository on the hub
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name)
prompt = {prompt}
inputs = tokenizer(prompt, add_special_tokens=False, return_tensors="pt", return_token_type_ids=False)
ids = model.generate(**inputs, max_new_tokens=256, do_sample=False)
answer = tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
print(answer)
```
"""


@dataclass(frozen=True)
class Figures:
    """The results of a run, as its card states them. `round` is the first that the weights have not learnt from."""

    experiment: str
    node_id: str
    base_model: str
    base_on_hub: bool
    round: int
    rounds_recorded: int
    own_count: str
    external_count: str
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
    """Read the figures of a node's run up to a round from its journals."""
    layout = Layout(config.experiment_name)
    rows = [row for row in progress.records(store, layout, node_id) if row.round < number]
    rewards = [row.reward for row in rows]
    count = min(REWARD_ROUNDS, max(1, len(rewards) // 2)) if rewards else 0
    events = valid(data_of(progress.events(store, layout, node_id), "evaluation"), Evaluated)
    evaluated = {each.round: each for each in events if each.round <= number}  # of a round done twice the last counts
    first, last = min(evaluated, default=-1), max(evaluated, default=-1)
    base_model, on_hub = _base(model)
    wanted = [(row.own_wanted, row.external_wanted) for row in rows if row.own_wanted]
    wanted = wanted or [(config.own_count, config.external_count)]
    return Figures(
        experiment=config.experiment_name,
        node_id=node_id,
        base_model=base_model,
        base_on_hub=on_hub,
        round=number,
        rounds_recorded=len(rows),
        own_count=_span([own for own, _ in wanted]),
        external_count=_span([external for _, external in wanted]),
        group_size=config.group_size,
        external_used=sum(row.external_used for row in rows),
        tasks=re.sub(r"[^,]*/(?=[^,/]*\.py)", "", config.tasks),  # a file with own tasks is named without its folder
        tasks_version=tasks_version,
        reward_rounds=count,
        reward_first=fmean(rewards[:count]) if rewards else None,
        reward_last=fmean(rewards[-count:]) if rewards else None,
        held_out_before=evaluated.get(first),
        held_out_after=evaluated[last] if last > first else None,
        versions={"rl-swarm": __version__, "python": platform.python_version()}
        | {name: version(name) for name in ("torch", "transformers")},
    )


def _span(counts: list[int]) -> str:
    """One number, or the lowest and the highest if rounds differ (ADAPTIVE_IJ)."""
    low, high = min(counts), max(counts)
    return str(high) if low == high else f"{low} to {high}"


def _base(name: str) -> tuple[str, bool]:
    """The public name of the base model, and whether the hub knows it by that name. A folder is named without its path."""
    path = model_folder(name)
    if name == "nano":
        return name, False
    if path.is_dir() or path.is_absolute() or not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", name, re.ASCII):
        return path.name, False
    return name, True


def card(figures: Figures, prompt: str) -> str:
    """README.md: front matter for the hub, the figures, and a program that asks the model in the way it was trained."""
    rounds = counted(figures.reward_rounds, "round")
    evaluated = [each for each in (figures.held_out_before, figures.held_out_after) if each]
    base, node, experiment = map(_code, (figures.base_model, figures.node_id, figures.experiment))
    base += "" if figures.base_on_hub or figures.base_model == "nano" else " (a local folder)"
    run = [
        ("base model", base),
        ("experiment, node", f"{experiment}, {node}"),
        ("rounds", f"{figures.rounds_recorded}, all before round {figures.round} of the swarm"),
        ("I: own rollouts per round", figures.own_count),
        ("J: rollouts of peers per round", f"{figures.external_count} wanted, {figures.external_used} used in all rounds"),
        ("G: completions per question", str(figures.group_size)),
        ("tasks", f"{_code(figures.tasks)} ({_code(figures.tasks_version)})"),
        (f"mean reward, first {rounds}", _share(figures.reward_first)),
        (f"mean reward, last {rounds}", _share(figures.reward_last)),
        ("written with", ", ".join(f"{name} {number}" for name, number in figures.versions.items())),
    ]
    return CARD.format(
        front=f"base_model: {json.dumps(figures.base_model)}\n" if figures.base_on_hub else "",
        title=f"{figures.experiment}-{figures.node_id}",
        base=base,
        node=node,
        experiment=experiment,
        run=_table(("", ""), run),
        held_out=_held_out(evaluated) if evaluated else "",
        prompt=json.dumps(prompt),
    )


def _held_out(evaluated: list[Evaluated]) -> str:
    rows = [
        ("all, as the verifier reads", *(_share(each.held_out) for each in evaluated)),
        ("all, in the form (begun with `<answer>`)", *(_share(each.held_out_in_form) for each in evaluated)),
        ("all, in any form", *(_share(each.held_out_style_blind) for each in evaluated)),
    ]
    for task in sorted(evaluated[0].held_out_by_task):
        rows.append((_code(task), *(_share(each.held_out_by_task.get(task)) for each in evaluated)))
    table = _table(["", *(f"before round {each.round}" for each in evaluated)], rows)
    count = evaluated[0].held_out_questions
    asked = counted(count, "question") if count else "questions"
    return f"## Held-out questions\n\nGreedy pass@1 on {asked} that nobody trains on.\n\n{table}\n\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _code(text: str) -> str:
    """Escape text so that it cannot become markup or end a table cell."""
    return "`" + "".join(letter if letter.isprintable() and letter not in "`|" else "?" for letter in text) + "`"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def export_run(run: Run, folder: Path, step: Step = unseen) -> Figures:
    """Write the newest model of NODE_ID, or of the node that came furthest on this machine."""
    from rl_swarm.tools.ask import load_trained

    trained = load_trained(run, step)
    trained.apply()
    step("writing the model")
    name, tasks_version = trained.policy.name, run.experiment.tasks_version
    figures = collect(trained.config, run.store, trained.node_id, trained.round, model=name, tasks_version=tasks_version)
    write(folder, trained.policy, figures)
    return figures


def write(folder: Path, policy: "Policy", figures: Figures) -> None:
    """Write model, tokenizer, card and figures. Merge an adapter (LoRA) into the weights.

    All files are complete before the first of them appears. An earlier export is replaced; other files beside it stay. Raise
    ConfigError for a folder with other content, ModelError if the disk refuses.
    """
    from safetensors import SafetensorError

    earlier = earlier_files(folder)
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


def earlier_files(folder: Path) -> set[str]:
    """List the files of an earlier export, without its marker. Raise ConfigError for a folder that holds anything else."""
    if not folder.exists() or (folder.is_dir() and all(path.name.startswith(UNFINISHED) for path in folder.iterdir())):
        return set()
    try:
        names = [Path(name) for name in json.loads((folder / MARKER).read_text("utf-8"))["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{folder} is not empty and not an earlier export (it has no readable {MARKER}): name a new or empty folder"
        ) from None
    return {str(name) for name in names if not name.is_absolute() and ".." not in name.parts}


def _write_files(folder: Path, policy: "Policy", figures: Figures) -> list[str]:
    """Return the names of the files. The marker is last: a folder that has it may be written to again."""
    model = merged(policy.model)
    with quiet():  # a progress bar would break into the lines of a node
        model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
    generation = copy.deepcopy(model.generation_config)
    if generation.eos_token_id is None:  # without it `generate` would go on where the policy stops
        generation.eos_token_id = policy.end_id
        generation.save_pretrained(folder)
    prompt = policy.tokenizer.decode(policy.context_ids(EXAMPLE, policy.prompting.prefix), clean_up_tokenization_spaces=False)
    (folder / "README.md").write_text(card(figures, prompt), "utf-8")
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    (folder / MARKER).write_text(json.dumps(msgspec.to_builtins(figures) | {"files": names}, indent=1) + "\n", "utf-8")
    return [*names, MARKER]


def merged(model: Any) -> Any:
    """The model without adapters: itself, or a copy on the CPU with the adapters merged."""
    if not hasattr(model, "merge_and_unload"):
        return model
    # Merging in place, and undoing it, would round the weights that are being trained.
    copies = {id(own): type(own)(own.detach().to("cpu", copy=True), requires_grad=False) for own in model.parameters()}
    copies |= {id(own): own.detach().to("cpu", copy=True) for own in model.buffers()}
    return copy.deepcopy(model, copies).merge_and_unload()
