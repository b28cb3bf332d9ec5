"""The shape of the package: who may import whom, what stays free of torch, and how fast it starts."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "rl_swarm"

# A module may import from its own level and from those before it; nothing reaches back.
LEVELS = [
    {"errors", "clock", "randomness", "text", "stopping", "libraries", "children"},
    {"document"},
    {"config", "identity", "rollout", "store"},
    {
        "tasks",
        "swarm",
        "selection",
        "grpo",
        "grid",
        "attention",
        "lean",
        "architecture",
        "sampling",
        "forward",
        "policy",
        "models",
        "journal",
        "progress",
        "measures",
    },
    {"archive", "weights", "trainer", "checkpoint", "evaluation"},
    {"worker", "coordinator", "local"},
    {
        "node",
        "learner",
        "probe",
        "ask",
        "export",
        "push",
        "doctor",
        "memory",
        "launch",
        "view",
        "experiments",
        "notebook",
        "options",
    },
    {"cli"},
]
LEVEL = {module: number for number, modules in enumerate(LEVELS) for module in modules}
TORCH = {
    "memory",
    "models",
    "policy",
    "grpo",
    "grid",
    "attention",
    "lean",
    "architecture",
    "sampling",
    "forward",
    "weights",
    "trainer",
    "checkpoint",
}


def imports(path: Path) -> set[str]:
    """Top-level packages and, for our own, the part directly below rl_swarm."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "rl_swarm" else [node.module]
        for name in names:
            head, _, rest = name.partition(".")
            found.add(f"rl_swarm.{rest.split('.')[0]}" if head == "rl_swarm" and rest else head)
    return found


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.name != "__init__.py")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    mine = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert mine in LEVEL, f"{mine} has no place in the layout: add it to LEVELS and to docs/tour.md"
    for name in imports(path):
        other = name.removeprefix("rl_swarm.")
        if name != other and other in LEVEL:
            assert LEVEL[other] <= LEVEL[mine], f"{mine} must not import {other}"
    assert mine in TORCH or "torch" not in imports(path)


def test_keys_are_known_to_the_layout_alone() -> None:
    for path in modules():
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
    (tmp_path / "store").mkdir()
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
    (tmp_path / "store").mkdir()
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
        "    from rl_swarm.journal import memory_gb\n"
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
