"""Build the wheel as a release would, install it in a clean environment far from the repository, and run the demo there.

    make release-check

Nothing of the repository is on the path of the installed command, and its home is empty.
"""

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONSTRAINTS = [argument for name in ("libraries", "torch") for argument in ("-c", str(ROOT / "constraints" / f"{name}.txt"))]
ROUNDS = 5
WANTED = ("rl_swarm/py.typed", "rl_swarm/learning/models/nano/model.safetensors")


def run(*command: str | Path, **options: object) -> None:
    print("$", *command, flush=True)
    subprocess.run(list(map(str, command)), check=True, **options)  # type: ignore[call-overload]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="release-") as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--outdir", folder, ROOT)  # the source archive, and the wheel from it
        (wheel,) = folder.glob("*.whl")
        check_content(wheel)
        venv.create(folder / "venv", with_pip=True)
        python = folder / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *CONSTRAINTS, wheel)
        home = folder / "home"
        home.mkdir()
        clean = {"PATH": os.environ["PATH"], "HOME": str(home)}
        run(python.with_name("rl-swarm"), "demo", "--max-rounds", str(ROUNDS), cwd=home, env=clean)
        (page,) = home.glob("rl-swarm-data/experiments/demo/*.html")
        print(f"{wheel.name} works: {page.name} of {ROUNDS} rounds was written", flush=True)


def check_content(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    missing = [name for name in WANTED if name not in names]
    foreign = [name for name in names if not name.startswith(("rl_swarm/", "rgym_exp/", "rl_swarm-"))]
    if missing or foreign:
        sys.exit(f"the wheel lacks {missing} and has {foreign}, which does not belong in it")


if __name__ == "__main__":
    main()
