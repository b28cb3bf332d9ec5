"""The attacks of a hostile peer on the store. Each is a function whose first argument is the store's folder.

Forged documents have valid checksums. They are built from the structs that nodes use; any field may then be replaced,
even by a value that the struct does not allow. Nothing here has a key.
"""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rl_swarm.config import load, shared_settings
from rl_swarm.document import SCHEMA, close
from rl_swarm.rollout import GROUP_LIMITS, Bundle, Completion, Question, Rollout, encode
from rl_swarm.swarm.experiment import Experiment
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import Heartbeat, Registration
from rl_swarm.swarm.rounds import Announcement, Reward
from rl_swarm.tasks import Tasks, canonical, parse_tasks, tasks_version

LAYOUT = Layout("trial")
STRANGER = "stranger"
SHELL_CODE = "x; touch $HOME/pwned #"
ESCAPES = "\x1b]0;owned\x07\x1b[31m"

JOURNALS = ("metrics.jsonl", "training_events.jsonl", "stdout.log", "stderr.log")


# Names that are no documents


def link(store: Path, key: str, target: Path) -> Path:
    """A symbolic link in place of a document or a folder."""
    path = _free(store, key)
    path.symlink_to(target)
    return path


def pipe(store: Path, key: str) -> Path:
    """A pipe that nobody ever writes to: opening it blocks."""
    path = _free(store, key)
    os.mkfifo(path, 0o666)
    path.chmod(0o666)
    return path


def folder(store: Path, key: str) -> Path:
    path = _free(store, key)
    path.mkdir()
    return path


def file(store: Path, key: str, content: bytes = b"") -> Path:
    """A file, also where nodes want a folder."""
    path = _free(store, key)
    path.write_bytes(content)
    return path


def unreadable(store: Path, key: str) -> Path:
    path = file(store, key, b"not for you\n")
    path.chmod(0)
    return path


def divert(store: Path, key: str, target: Path) -> Path:
    """Put a link in the place of a folder that nodes already use, without removing what is in it."""
    path = store / key
    path.rename(path.with_name(f"{path.name}-aside"))
    return link(store, key, target)


def nobodys_round(store: Path, number: int) -> Path:
    """An empty folder of rewards, far ahead of the swarm."""
    return folder(store, f"{LAYOUT.rewards}/round_{number}")


def journals_of(node_id: str) -> list[str]:
    """Every journal of a node, by its documented name."""
    return [*(LAYOUT.log(node_id, name) for name in JOURNALS), LAYOUT.progress(node_id)]


def documents_of(node_id: str) -> list[str]:
    """Every other name that a node or its coordinator writes to in an early round."""
    return [
        LAYOUT.log(node_id, "system_info.json"),
        LAYOUT.peer(node_id),
        LAYOUT.heartbeat(node_id, 1),
        LAYOUT.heartbeat(node_id, 2),
        LAYOUT.reward(1, node_id),
        LAYOUT.bundle(1, node_id),
        LAYOUT.current_state,
    ]


# Code


def own_code(store: Path, marker: Path, name: str = "evil.py") -> str:
    """A task file in the shared folder that makes `marker` when it is run; returns its SHA-256."""
    path = _free(store, f"{LAYOUT.root}/{name}")
    path.write_text(task_source(marker))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def task_source(marker: Path) -> str:
    return (
        f'open({str(marker)!r}, "a").write("executed")\n\n\n'
        "def question(seed, index):\n"
        '    return f"What is {seed % 1000} + {index}?", str(seed % 1000 + index)\n'
    )


# Forged documents


def forge_experiment(store: Path, settings: Mapping[str, str] | None = None, *, version: str = "", **fields: Any) -> Path:
    """Write experiment.json, or change the one that is there; `settings` are added to its own, `fields` replaced."""
    path = store / LAYOUT.experiment
    said = _said(path) if path.exists() else msgspec.to_builtins(_experiment(version or tasks_version()))
    return _write(store, LAYOUT.experiment, said | {"settings": {**said["settings"], **(settings or {})}} | fields)


def _experiment(version: str) -> Experiment:
    config = load({"MODEL_NAME": "nano", "MAX_ROUNDS": "2", "NUM_TRAIN_SAMPLES": "2", "NUM_GENERATIONS": "4"})
    settings = shared_settings(config) | {"TASKS": canonical(parse_tasks("easy"))}
    return Experiment(
        schema=SCHEMA,
        experiment=LAYOUT.experiment_name,
        experiment_id="5afe" * 4,
        created_at=time.time(),
        created_by=STRANGER,
        settings=settings,
        tasks_version=version,
        group_limits=GROUP_LIMITS,
    )


def forge_announcement(store: Path, number: int, **fields: Any) -> Path:
    """A round opened by a stranger; a high `epoch` makes an honest coordinator stand down."""
    return _write(store, LAYOUT.round(number), Announcement(number, STRANGER, "f" * 16, 1, time.time(), [], []), **fields)


def forge_reward(store: Path, number: int, node_id: str, **fields: Any) -> Path:
    return _write(store, LAYOUT.reward(number, node_id), Reward(node_id, number, 1.0, 8, time.time()), **fields)


def forge_registration(store: Path, node_id: str, **fields: Any) -> Path:
    registration = Registration(node_id, "worker", time.time(), "nano", node_id, "0.1.0", "f" * 16)
    return _write(store, LAYOUT.peer(node_id), registration, **fields)


def forge_heartbeat(store: Path, node_id: str, sequence: int, **fields: Any) -> Path:
    beat = Heartbeat(node_id, sequence, time.time(), "generating", 0)
    return _write(store, LAYOUT.heartbeat(node_id, sequence), beat, **fields)


def forge_rollouts(store: Path, number: int, node_id: str, question: Question, texts: Iterable[str]) -> Path:
    """A bundle that keeps to the rules, with these texts as completions of one true question."""
    rollout = Rollout(question, tuple(Completion(text) for text in texts), node_id, number)
    bundle = Bundle(LAYOUT.experiment_name, node_id, number, (rollout,), timestamp=time.time(), tasks_version=tasks_version())
    return file(store, LAYOUT.bundle(number, node_id), encode(bundle))


def crowd(store: Path, count: int) -> None:
    """Registrations of so many nodes that do not exist."""
    registration = msgspec.to_builtins(Registration("", "worker", time.time(), "nano", "", "0.1.0", "f" * 16))
    _free(store, LAYOUT.peer("crowd"))
    for number in range(count):
        name = f"crowd-{number}"
        (store / LAYOUT.peer(name)).write_bytes(close(msgspec.json.encode(registration | {"peer_id": name, "name": name})))


# Checkpoints


def forge_checkpoint(store: Path, number: int, node_id: str, document: Mapping[str, Any], *, deflated: bool = False) -> Path:
    """A whole checkpoint with a right checksum; deflated, zeros take a thousandth of their size."""
    import torch

    with tempfile.TemporaryDirectory(prefix="rl-swarm-forge-") as folder:
        archive = Path(folder, "checkpoint")
        with archive.open("wb") as output:  # a file of ours, not a path: the names inside are those that a node's own have
            torch.save({**document, "round": number}, output)
        archive = _deflated(archive) if deflated else archive
        return file(store, LAYOUT.checkpoint(number, node_id), _with_checksum(archive.read_bytes()))


def read_checkpoint(path: Path) -> dict[str, Any]:
    import torch

    document: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return document


def with_weights(document: Mapping[str, Any], value: float) -> dict[str, Any]:
    """The same checkpoint with every weight of its model replaced."""
    import torch

    model = {name: torch.full_like(tensor, value) for name, tensor in document["trainer"]["model"].items()}
    return {**document, "trainer": {**document["trainer"], "model": model}}


def _deflated(archive: Path) -> Path:
    """The same archive, compressed; what is in it may be too large to be held in memory."""
    packed = archive.with_suffix(".packed")
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target:
        for name in source.namelist():
            with source.open(name) as record, target.open(name, "w") as copy:
                shutil.copyfileobj(record, copy, 1 << 20)
    return packed


def _with_checksum(archive: bytes) -> bytes:
    """The archive with its SHA-256 as the comment that a zip file may end with: its last two bytes are the comment's length."""
    label = b"sha256:"
    body = archive[:-2] + (len(label) + 64).to_bytes(2, "little")
    return body + label + hashlib.sha256(body).hexdigest().encode()


# Answers that cost the verifier dearly


def true_question(tasks: str) -> Question:
    """A question that the experiment allows and every node makes again."""
    return Tasks(parse_tasks(tasks), seed=7, node_id=STRANGER).draw(1)[0]


def answer(text: str) -> str:
    return f"<answer>{text}</answer>"


def many_names(count: int = 58) -> str:
    """A formula over so many names that all are made of the letters P and Q: 2^58 assignments in under 300 characters."""
    words = ("".join(letters) for length in itertools.count(1) for letters in itertools.product("PQ", repeat=length))
    return "∨".join(itertools.islice(words, count))


# Helpers


def _free(store: Path, key: str) -> Path:
    """The path of a key, with its folders made and whatever was there removed."""
    path = store / key
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    return path


def _said(path: Path) -> dict[str, Any]:
    """What a sealed document says, without its seal and its signature."""
    said: dict[str, Any] = json.loads(path.read_bytes())
    return {name: value for name, value in said.items() if name not in ("sha256", "key", "signature")}


def _write(store: Path, key: str, document: msgspec.Struct | Mapping[str, Any], **fields: Any) -> Path:
    said = msgspec.to_builtins(document) if isinstance(document, msgspec.Struct) else document
    return file(store, key, close(msgspec.json.encode({**said, **fields})))
