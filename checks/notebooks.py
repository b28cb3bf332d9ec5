"""Make the notebooks of notebooks/ from the parts in notebooks/source/, and run them.

    python -m checks.notebooks write            write all, keeping the outputs of those that did not change
    python -m checks.notebooks run [NAME ...]   run those whose name begins so, or all, and keep their outputs

A part is Markdown in which each Python block becomes a cell, and $words are filled in. Notebooks are run one after the other in one
folder, as a user would run them: the monitoring and the analysis show the runs of the others, and the worker joins the coordinator.
"""

import argparse
import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from string import Template

import nbformat
from nbclient import NotebookClient

from rl_swarm.swarm.layout import Layout

FOLDER = Path(__file__).parents[1] / "notebooks"
CELL_SECONDS = 3600
RUN = ("settings", "checks", "train", "results", "keep")  # parts of a notebook that trains
MINUTES = (
    "a few minutes on two cores with nano, as in the outputs below. It was not run on a GPU: there the live view tells the time "
    "left after a few rounds."
)
ROUNDS, FEW_ROUNDS, MANY_ROUNDS = ({"CPU": rounds, "T4": 200, "A100": 2000} for rounds in (60, 20, 300))
_QWEN = '{{"MODEL_NAME": "Gensyn/Qwen2.5-0.5B-Instruct", "DTYPE": "{}", "LORA_RANK": {}, "LEARNING_RATE": "1e-4"}}'
_GPT2 = '{"MODEL_NAME": "openai-community/gpt2", "DTYPE": "float32", "EVAL_INTERVAL": 0}'
QWEN = {"t4": _QWEN.format("float16", 16), "a100": _QWEN.format("bfloat16", 32)}
GPT2 = {"t4": _GPT2, "a100": _GPT2}
FIVE_NODES = {"a": ("4/0", "Baseline"), "b": ("3/1", "Config1"), "c": ("2/2", "Config2"), "d": ("1/3", "Config3")}


@dataclass(frozen=True)
class Notebook:
    """`names` are those of its files, without the ending."""

    names: tuple[str, ...]
    parts: Sequence[str]
    words: Mapping[str, object]
    beside: str = ""  # a notebook that runs at the same time


def swarm(
    name: str,
    title: str,
    about: str,
    experiment: str,
    split: str,
    *,
    workers: Mapping[str, int],
    rounds: Mapping[str, int] = ROUNDS,
    models: Mapping[str, str] = QWEN,
    other_names: tuple[str, ...] = (),
    more: tuple[str, ...] = (),
) -> Notebook:
    own, external = split.split("/")
    words = {
        "title": title,
        "about": about,
        "time": MINUTES,
        "experiment": experiment,
        "own": own,
        "external": external,
        "rounds": dict(rounds),
        "workers": dict(workers),
        "command": '"swarm", "--workers", str(WORKERS[here])',
        **models,
    }
    return Notebook((name, *other_names), (*RUN, *more), words)


def make_all() -> list[Notebook]:
    """All notebooks, in the order in which a user would run them."""
    return [*for_everybody(), *paper_splits(), *on_one_gpu(), *checks_and_results()]


def for_everybody() -> list[Notebook]:
    return [
        Notebook(
            ("00_start_here",),
            ("start_here", "results", "use", "next"),
            {
                "title": "Start here",
                "about": "Four small models learn to answer puzzles together, and you watch. At the end you have a curve, "
                "and a model to talk to.",
                "time": "five minutes on two cores; no GPU is needed.",
            },
        ),
        swarm(
            "EX12.00.RL_Swarm_Coordinator",
            "Coordinator",
            "Begin a swarm here: a coordinator, which announces the rounds, and a worker. Others join it with `EX12.01`.",
            "friends",
            "4/12",
            workers={"CPU": 1, "T4": 1, "A100": 1},
            rounds=MANY_ROUNDS,
            other_names=("colab_coordinator",),
            more=("use",),
        ),
        Notebook(
            ("EX12.01.RL_Swarm_Worker", "colab_worker"),
            ("worker", "train", "together", "results", "keep", "use"),
            {
                "title": "Worker",
                "about": "Join a swarm that somebody began with `EX12.00`, or go on alone until others come. Model, tasks "
                "and rounds are the swarm's.",
                "time": MINUTES,
                "rounds": MANY_ROUNDS,
                "command": '"work"',
                **QWEN,
            },
            beside="EX12.00.RL_Swarm_Coordinator",
        ),
        Notebook(
            ("EX12.02.RL_Swarm_Monitoring",),
            ("monitoring",),
            {
                "title": "Monitoring",
                "about": "Watch any run in the shared folder, from any machine: who is doing what, since when, and what the "
                "models write. It changes nothing in the run.",
                "time": "as long as you watch; it ends with the run.",
            },
        ),
    ]


def paper_splits() -> list[Notebook]:
    made = []
    for number, split in zip(range(10, 14), ("8/0", "6/2", "4/4", "2/6"), strict=True):
        own, external = split.split("/")
        made.append(
            swarm(
                f"EX12.{number}.SAPO_Experiment_{own}loc{external}ext",
                f"The paper's split {split}",
                f"A swarm in which every node trains on {own} rollouts of its own and {external} of its peers. `EX12.20` "
                "compares the four splits; 8/0, which shares nothing, is the baseline.",
                f"ex12_{number}_{own}loc{external}ext",
                split,
                workers={"CPU": 4, "T4": 2, "A100": 4},
            )
        )
    return made


def on_one_gpu() -> list[Notebook]:
    """Eight GPT-2 workers, and the documents' five nodes, of which one is the coordinator."""
    made = [
        swarm(
            "EX12.14.SAPO_8Node_SingleGPU_gpt2",
            "Eight nodes on one GPU",
            "Eight GPT-2 workers share one A100 with 80 GB. Without a GPU, eight copies of nano show the same on a CPU.",
            "ex12_14_8nodes",
            "4/28",
            workers={"CPU": 8, "T4": 1, "A100": 8},
            rounds=FEW_ROUNDS,
            models=GPT2,
            more=("memory",),
        ),
    ]
    for letter, (split, name) in FIVE_NODES.items():
        own, external = split.split("/")
        made.append(
            swarm(
                f"EX12.14{letter}.SAPO_gpt2_{name}_{own}loc{external}ext",
                f"Five nodes, split {split}",
                f"A coordinator and four GPT-2 workers on one GPU. Each worker trains on {own} rollouts of its own and "
                f"{external} of its peers. Without a GPU, nano takes the place of GPT-2.",
                f"ex12_14{letter}_{own}loc{external}ext",
                split,
                workers={"CPU": 4, "T4": 1, "A100": 4},
                rounds=FEW_ROUNDS,
                models=GPT2,
            )
        )
    return made


def checks_and_results() -> list[Notebook]:
    return [
        Notebook(
            ("EX12.20.SAPO_Results_Analysis",),
            ("analysis",),
            {
                "title": "Results",
                "about": "Compare the runs of `EX12.10` to `EX12.13` with the *measured* run without sharing. The paper's figures "
                "stand beside them, marked as the paper's.",
                "time": "a few seconds.",
            },
        ),
        Notebook(
            ("TEST_MODE",),
            ("test_mode",),
            {
                "title": "Test mode",
                "about": "Three rounds with two workers, and a check of everything they left: rounds, rollouts, logs. Run it first "
                "in a new place.",
                "time": "about a minute.",
            },
        ),
    ]


def cells(part: str, words: Mapping[str, object]) -> list[nbformat.NotebookNode]:
    """The cells of a part: its Python blocks, and the Markdown between them."""
    text = Template((FOLDER / "source" / f"{part}.md").read_text("utf-8")).substitute(
        {name: str(value) for name, value in words.items()}
    )
    found = []
    for place, piece in enumerate(re.split(r"```python\n(.*?)\n```", text, flags=re.DOTALL)):
        if piece.strip():
            found.append(nbformat.v4.new_code_cell(piece) if place % 2 else nbformat.v4.new_markdown_cell(piece.strip()))
    return found


def as_file(notebook: Notebook) -> nbformat.NotebookNode:
    """The notebook without outputs. Cells are numbered, so that writing it again gives the same file."""
    made = nbformat.v4.new_notebook()
    made.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made.cells = [cell for part in ("heading", "install", "folder", *notebook.parts) for cell in cells(part, notebook.words)]
    for number, cell in enumerate(made.cells):
        cell["id"] = f"cell-{number}"
    return made


def with_outputs(made: nbformat.NotebookNode, path: Path) -> nbformat.NotebookNode:
    """Keep the outputs in the file that is there if its code is the same: those of other code would be of another notebook."""
    codes, old = code_cells(made), code_cells(nbformat.read(path, as_version=4)) if path.exists() else []
    if [cell.source for cell in old] == [cell.source for cell in codes]:
        for cell, before in zip(codes, old, strict=True):
            cell.outputs, cell.execution_count = before.outputs, before.execution_count
    return made


def code_cells(made: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in made.cells if cell.cell_type == "code"]


def client_of(made: nbformat.NotebookNode, **constants: object) -> NotebookClient:
    """What runs a notebook, with other values for some of the constants in its cells."""
    for cell in made.cells:
        for name, value in constants.items():
            cell.source = re.sub(rf"(?m)^{name} = .*$", f"{name} = {value!r}", cell.source)
    return NotebookClient(made, timeout=CELL_SECONDS, kernel_name="python3")


def execute(made: nbformat.NotebookNode, folder: Path, environment: Mapping[str, str], **constants: object) -> None:
    """Run all cells in `folder`, and keep their outputs."""
    run_all(client_of(made, **constants), folder, environment)


def run_all(client: NotebookClient, folder: Path, environment: Mapping[str, str]) -> None:
    """Run all cells, in any thread: nbclient's own `execute` leaves an event loop open in each."""
    asyncio.run(client.async_execute(env={**os.environ, **environment}, cwd=str(folder)))


def joined(outputs: Sequence[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Lines that were printed one after the other as one output, in their place among the others."""
    found: list[nbformat.NotebookNode] = []
    for output in outputs:
        if found and output.output_type == "stream" and found[-1].get("name") == output.name:
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def tidy(made: nbformat.NotebookNode, folder: Path) -> None:
    """Remove what says nothing to a reader: when each cell ran, in which folder, with which Python, and trailing spaces."""

    def plain(text: str) -> str:
        text = re.sub(r" --rl-swarm-home \S+", "", text.replace(f"{folder}/", "").replace(str(folder), "."))
        return re.sub(r"(?m) +$", "", text.replace(sys.executable, "python"))

    for cell in made.cells:
        cell.metadata = nbformat.NotebookNode()
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
        for output in cell.get("outputs", []):
            for holder in (output, output.get("data", {})):
                for kind in ("text", "text/plain", "text/html"):
                    if isinstance(holder.get(kind), str):
                        holder[kind] = plain(holder[kind])
    made.metadata.pop("language_info", None)


def groups() -> list[list[Notebook]]:
    """Notebooks in the order in which a user would run them; those of a group at the same time."""
    found: list[list[Notebook]] = []
    for notebook in make_all():
        if notebook.beside:
            next(group for group in found if group[0].names[0] == notebook.beside).append(notebook)
        else:
            found.append([notebook])
    return found


def run_group(group: Sequence[Notebook], folder: Path, **constants: object) -> list[nbformat.NotebookNode]:
    """Run notebooks at the same time, each with a home of its own; return them with their outputs.

    One that runs beside another waits for the first round of that: nano may be done with all rounds before a friend has begun.
    """

    def run(notebook: Notebook) -> nbformat.NotebookNode:
        made = as_file(notebook)
        while notebook.beside and not first.done() and not any(folder.rglob(f"{Layout('friends').states}/*")):
            time.sleep(0.5)
        execute(made, folder, {"RL_SWARM_HOME": str(folder / f"home_{group.index(notebook)}")}, **constants)
        tidy(made, folder)
        return made

    with ThreadPoolExecutor(len(group)) as threads:
        first = threads.submit(run, group[0])
        others = [threads.submit(run, notebook) for notebook in group[1:]]
        return [each.result() for each in (first, *others)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("write", "run"))
    parser.add_argument("names", nargs="*")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        for group in groups():
            names = [notebook.names[0] for notebook in group]
            if options.what == "run" and (not options.names or any(map(names[0].startswith, options.names))):
                print(f"running {' and '.join(names)}", flush=True)
                made = run_group(group, folder)
            else:
                made = [with_outputs(as_file(notebook), FOLDER / f"{notebook.names[0]}.ipynb") for notebook in group]
            for notebook, file in zip(group, made, strict=True):
                for name in notebook.names:
                    nbformat.write(file, FOLDER / f"{name}.ipynb")
    return 0


if __name__ == "__main__":
    sys.exit(main())
