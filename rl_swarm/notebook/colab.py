"""Where a notebook runs: in Colab with its Drive and secrets, or elsewhere; with which GPU, or none.

Everything works without Colab too: a local folder stands in for the Drive, the environment for the secrets.
"""

import os
import shutil
import subprocess
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType

from rl_swarm.errors import ConfigError

OLD, NEW = "T4", "A100"  # kinds of GPU: without and with bfloat16
NEW_CAPABILITY = 8.0  # from which a GPU computes in bfloat16
HOMES = ("MyDrive", "Shareddrives")  # inside a mounted Drive


def in_colab() -> bool:
    return _colab("drive") is not None


def _colab(part: str) -> ModuleType | None:
    try:
        return import_module(f"google.colab.{part}")
    except ImportError:
        return None


def shared_folder(drive_folder: str, local_folder: str) -> str:
    """Mount the Drive and return `drive_folder`; outside Colab return `local_folder`. Either is made if it is missing."""
    drive = _colab("drive")
    folder = Path(drive_folder if drive else local_folder)
    if drive:
        drive.mount(str(_mount_point(folder)))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"shared folder: {folder}" + ("" if drive else ", on this machine: there is no Colab here"))
    return str(folder)


def _mount_point(folder: Path) -> Path:
    for parent in folder.parents:
        if parent.name in HOMES:
            return parent.parent
    raise ConfigError(f"the folder on the Drive must be below MyDrive or Shareddrives, got {str(folder)!r}: see Colab's file panel")


def flush(drive_folder: str) -> None:
    """Wait until the Drive has uploaded everything, and mount it again, so that the next look shows what really arrived."""
    drive = _colab("drive")
    if not drive:
        print("nothing to flush: the folder is on this machine")
        return
    print("waiting until the Drive has uploaded everything; this can take minutes")
    drive.flush_and_unmount()
    drive.mount(str(_mount_point(Path(drive_folder))))


def use_secret(name: str) -> bool:
    """Put one of Colab's secrets into the environment, if there is one; its value is never shown. Return whether there is one."""
    userdata = _colab("userdata")
    if userdata and not os.environ.get(name):
        with suppress(userdata.SecretNotFoundError, userdata.NotebookAccessError):
            os.environ[name] = userdata.get(name)
    found = bool(os.environ.get(name))
    print(f"{name} is set" if found else f"{name} is not set, which is fine for public models")
    return found


def hardware() -> str:
    """Return CPU, T4 (a GPU without bfloat16) or A100 (a GPU with it), and say what was found."""
    gpu = _gpu()
    if gpu is None:
        print("no GPU here, so the small model nano is used. In Colab: Runtime, Change runtime type")
        return "CPU"
    name, memory, capability = gpu
    kind = NEW if capability >= NEW_CAPABILITY else OLD
    print(f"{name}, {memory}: using the settings for {'an' if kind == NEW else 'a'} {kind}")
    return kind


def _gpu() -> tuple[str, str, float] | None:
    """Name, memory and compute capability of the first GPU. Asks the driver: importing torch would take seconds and memory."""
    if not shutil.which("nvidia-smi"):
        return None
    query = ["nvidia-smi", "--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader"]
    asked = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    fields = [field.strip() for field in asked.stdout.partition("\n")[0].split(",")]
    if asked.returncode or len(fields) != 3:
        return None
    return fields[0], fields[1], float(fields[2])


def download(path: str) -> None:
    """Pack a folder into one file, and in Colab offer it for download."""
    packed = shutil.make_archive(path, "zip", path)
    files = _colab("files")
    if files:
        files.download(packed)
    print(f"packed: {os.path.relpath(packed)}")
