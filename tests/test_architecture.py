"""The shape of the package: who may import whom, what stays free of torch, and how fast it starts."""

import ast
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.imports import PACKAGE, TOUR, cycle, drawing, folders, module_files, modules

# Torch takes seconds to import: only what computes with tensors may, all others ask for it where they need it.
TORCH = "learning."


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert not (found := cycle(modules())), " → ".join(found)


def test_no_folder_imports_itself_by_way_of_others() -> None:
    assert not (found := cycle(folders())), " → ".join(found)


def test_a_cycle_would_be_found() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) and not cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()})


def test_the_root_holds_values_configuration_and_the_command_line() -> None:
    at_root = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    values = {"clock", "randomness", "text", "document", "identity", "packing", "rollout"}
    assert at_root == values | {"errors", "values", "config", "extras", "cli"}
    assert [name for name, others in modules().items() if "cli" in others] == [], "only people use the command line"


def test_the_tour_shows_the_folders_as_they_are() -> None:
    assert drawing() in TOUR.read_text(), "run 'make tour'"


@pytest.mark.parametrize("name", sorted(module_files()))
def test_torch_is_imported_by_what_computes_with_tensors(name: str) -> None:
    top_level = [node for node in ast.parse(module_files()[name].read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in top_level if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in top_level if isinstance(node, ast.ImportFrom)}
    assert name.startswith(TORCH) or not any(each.split(".")[0] == "torch" for each in names)


WALK = re.findall(r"`([\w/]+\.py)::([\w.]+)`", TOUR.read_text())


@pytest.mark.parametrize(("file", "name"), WALK, ids=lambda part: part)
def test_every_step_of_the_tour_is_where_it_says(file: str, name: str) -> None:
    found: list[ast.stmt] = ast.parse((PACKAGE / file).read_text()).body
    for part in name.split("."):
        [step] = [node for node in found if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == part]
        found = step.body
    assert len(WALK) > 20


def test_keys_are_known_to_the_layout_alone() -> None:
    for path in module_files().values():
        if path.name not in {"layout.py"}:
            for word in ("rollouts/round_", "rewards/round_", "current_state.json", "experiments/"):
                code = [
                    node.value
                    for node in ast.walk(ast.parse(path.read_text()))
                    if isinstance(node, ast.Constant) and isinstance(node.value, str)
                ]
                offending = [text for text in code if word in text and "\n" not in text and " " not in text]
                assert not offending, f"{path.name} knows a key: {offending}"


@pytest.mark.parametrize("arguments", [["status", "--json"], ["config"], ["config", "--json"], ["--help"]])
def test_light_commands_never_import_torch(arguments: list[str], tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['rl-swarm'] + sys.argv[1:]\n"
        "from rl_swarm.cli import main\n"
        "try: main()\n"
        "except SystemExit as done: assert not done.code, done.code\n"
        "heavy = {'torch', 'transformers', 'reasoning_gym', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    (tmp_path / "store" / "experiments" / "e" / "state").mkdir(parents=True)
    environment = {"GDRIVE_PATH": str(tmp_path / "store"), "EXPERIMENT_NAME": "e", "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_coordinator_never_imports_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['rl-swarm', 'coordinate', '--round-advance', 'timer']\n"
        "from rl_swarm.cli import main\n"
        "try: main()\n"
        "except SystemExit as done: assert not done.code, done.code\n"
        "heavy = {'torch', 'transformers', 'reasoning_gym', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    environment = {
        "GDRIVE_PATH": str(tmp_path / "store"),
        "EXPERIMENT_NAME": "e",
        "HOME": str(tmp_path),
        "MAX_ROUNDS": "3",
        "COORDINATOR_ROUND_INTERVAL": "0.1",
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "coordinator complete at round 2" in done.stdout


def test_starting_takes_at_most_five_times_what_the_command_line_library_takes(tmp_path: Path) -> None:
    (tmp_path / "store" / "experiments" / "e" / "state").mkdir(parents=True)
    environment = {"GDRIVE_PATH": str(tmp_path / "store"), "EXPERIMENT_NAME": "e", "HOME": str(tmp_path)}

    def seconds(arguments: list[str]) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, *arguments], env=environment, check=True, capture_output=True)
        return time.perf_counter() - began

    pairs = [(seconds(["-c", "import click"]), seconds(["-m", "rl_swarm.cli", "status", "--json"])) for _ in range(5)]
    bare, status = (min(column) for column in zip(*pairs, strict=True))
    assert status <= 5 * bare, f"status takes {status / bare:.1f} times as long as bare Python with click"


@pytest.mark.slow
def test_the_coordinator_stays_under_80_mb_over_10_000_rounds(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['rl-swarm', 'coordinate', '--round-advance', 'timer']\n"
        "from rl_swarm.cli import main\n"
        "try: main()\n"
        "finally:\n"
        "    from rl_swarm.node.journal import memory_gb\n"
        "    print('peak', round(memory_gb() * 1024))\n"
    )
    environment = {
        "GDRIVE_PATH": str(tmp_path / "store"),
        "EXPERIMENT_NAME": "e",
        "HOME": str(tmp_path),
        "MAX_ROUNDS": "10000",
        "COORDINATOR_ROUND_INTERVAL": "0.0001",
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=280)
    assert "coordinator complete at round 9999" in done.stdout, done.stderr
    peak = int(done.stdout.rpartition("peak ")[2])
    print(f"peak {peak} MB")
    assert peak < 80
