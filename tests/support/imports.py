"""Who imports whom, read from the source: modules, and the folders that they lie in. `python -m tests.support.imports` draws the
folders into docs/tour.md."""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "rl_swarm"
TOUR = ROOT / "docs" / "tour.md"
BEGIN, END = "```mermaid\n", "```\n"

Graph = dict[str, set[str]]


def module_files() -> dict[str, Path]:
    """Every module by its name below rl_swarm, `store.base`; a folder's own file has the folder's name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        found[".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")] = path
    return found


def imported(path: Path) -> Iterator[str]:
    """Yield the dotted names of everything that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules() -> Graph:
    """Which of our modules each of our modules imports; a name taken from a folder's own file counts as an import of that file."""
    files = module_files()
    graph: Graph = {}
    for name, path in files.items():
        wanted = (each.removeprefix("rl_swarm").removeprefix(".") for each in imported(path) if each.split(".")[0] == "rl_swarm")
        graph[name] = {each if each in files else each.rpartition(".")[0] for each in wanted} - {name}
    return graph


def folder_of(module: str, files: Mapping[str, Path]) -> str:
    """The folder that a module lies in, `learning/engine`; a module at the root is alone under its own name."""
    folder = files[module].parent.relative_to(PACKAGE).as_posix()
    return module or "__init__" if folder == "." else folder


def folders() -> Graph:
    files = module_files()
    graph: Graph = {}
    for module, others in modules().items():
        home = folder_of(module, files)
        graph.setdefault(home, set()).update(folder_of(other, files) for other in others)
    return {folder: others - {folder} for folder, others in graph.items()}


def cycle(graph: Graph) -> list[str]:
    """Return one import cycle, if there is any."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def reduced(graph: Graph) -> Graph:
    """Remove the arrows that follow from others."""

    def reach(start: str) -> set[str]:
        return graph[start].union(*(reach(other) for other in graph[start]))

    return {name: others - set().union(*(reach(other) for other in others)) for name, others in graph.items()}


def drawing() -> str:
    """Draw the folders, without the modules at the root; an arrow points to the imported folder."""
    graph = folders()
    rooms = {folder for folder in graph if (PACKAGE / folder).is_dir()}
    kept = reduced({folder: (others & rooms) for folder, others in graph.items() if folder in rooms})
    lines = [f"    {folder} --> {other}" for folder, others in sorted(kept.items()) for other in sorted(others)]
    return "\n".join(["graph TD", *lines, ""])


def main() -> None:
    before, _, rest = TOUR.read_text().partition(BEGIN)
    TOUR.write_text(before + BEGIN + drawing() + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
