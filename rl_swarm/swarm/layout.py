"""The sole owner of store keys: where every document of an experiment lies, and what file names mean."""

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

EXPERIMENTS = "experiments"
ARCHIVES = "archives"  # the default of ROLLOUT_ARCHIVE_PATH
SEGMENT_STEP = 10  # between the numbers of two journal segments: in between is room for those that replace them
ERRORS = "stderr.log"
JOURNALS = ("metrics.jsonl", "training_events.jsonl", "stdout.log", ERRORS)

# ASCII only: \d would also match the digits of other scripts, and such a name is no key.
_ROUND_FILE = re.compile(r"round_([0-9]{1,15})\.json")
_ROUND_FOLDER = re.compile(r"round_([0-9]{1,15})/")
_STAGE_FOLDER = re.compile(r"stage_([0-9]{1,6})/")
_NODE_FILE = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]{0,63}?)(?:\.([0-9]{1,6}))?\.json")
_CHECKPOINT_FILE = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]{0,63})\.pt")
_SEQUENCE_FILE = re.compile(r"([0-9]{1,15})\.json[l]?")


class Layout:
    """The keys of one experiment. Names in the plural, and those that end in `_of`, are folders."""

    def __init__(self, experiment_name: str) -> None:
        self.experiment_name = experiment_name
        self.root = root = f"{EXPERIMENTS}/{experiment_name}"
        self.experiment = f"{root}/experiment.json"
        self.summary = f"{root}/summary.json"
        self.states = f"{root}/state"
        self.current_state = f"{root}/state/current_state.json"
        self.peers = f"{root}/peers"
        self.rewards = f"{root}/rewards"
        self.rollouts = f"{root}/rollouts"
        self.checkpoints = f"{root}/checkpoints"
        self.logs = f"{root}/logs"
        self.removals = f"{root}/retention"
        self.archived = f"{ARCHIVES}/{experiment_name}/rollouts"  # unless ROLLOUT_ARCHIVE_PATH names another place

    def report(self, name: str) -> str:
        return f"{self.root}/{name}"

    def round(self, number: int) -> str:
        return f"{self.states}/round_{number:06d}.json"

    def peer(self, node_id: str) -> str:
        return f"{self.peers}/{node_id}.json"

    def heartbeats(self, node_id: str) -> str:
        return f"{self.peers}/{node_id}"

    def heartbeat(self, node_id: str, sequence: int) -> str:
        return f"{self.peers}/{node_id}/{sequence:06d}.json"

    def rewards_of(self, number: int, stage: int = 0) -> str:
        return f"{self.rewards}/round_{number}/stage_{stage}"

    def reward(self, number: int, node_id: str, stage: int = 0) -> str:
        return f"{self.rewards_of(number, stage)}/{node_id}.json"

    def rollouts_of_round(self, number: int) -> str:
        return f"{self.rollouts}/round_{number}"

    def rollouts_of(self, number: int, stage: int = 0) -> str:
        return f"{self.rollouts_of_round(number)}/stage_{stage}"

    def archived_of(self, number: int, stage: int = 0) -> str:
        return f"{self.archived}/round_{number}/stage_{stage}"

    def bundle(self, number: int, node_id: str, slot: int | None = None, stage: int = 0) -> str:
        name = node_id if slot is None else f"{node_id}.{slot}"
        return f"{self.rollouts_of(number, stage)}/{name}.json"

    def removals_of(self, node_id: str) -> str:
        return f"{self.removals}/{node_id}"

    def removal(self, node_id: str, before: int) -> str:
        """The document that says which rollouts a node has removed."""
        return f"{self.removals_of(node_id)}/round_{before:06d}.json"

    def checkpoint_folder(self, number: int) -> str:
        return f"{self.checkpoints}/round_{number}"

    def checkpoint(self, number: int, node_id: str) -> str:
        return f"{self.checkpoint_folder(number)}/{node_id}.pt"

    def endorsement(self, number: int, node_id: str) -> str:
        """The signed document beside a checkpoint."""
        return f"{self.checkpoint_folder(number)}/{node_id}.json"

    def log(self, node_id: str, name: str) -> str:
        return f"{self.logs}/{node_id}/{name}"

    def how_to_read(self, node_id: str) -> str:
        return self.log(node_id, "HOW_TO_READ.txt")

    def system_info(self, node_id: str) -> str:
        return self.log(node_id, "system_info.json")

    def progress(self, node_id: str) -> str:
        return f"{self.root}/progress_{node_id}.jsonl"

    def journals(self, node_id: str) -> tuple[str, ...]:
        """Every growing file that a node writes about itself."""
        return (*(self.log(node_id, name) for name in JOURNALS), self.progress(node_id))

    @staticmethod
    def segments(key: str) -> str:
        """The folder of numbered segments that replace a journal where appending in place cannot be trusted."""
        return key.rpartition(".")[0]

    @staticmethod
    def segment(key: str, sequence: int) -> str:
        return f"{Layout.segments(key)}/{sequence:06d}.jsonl"


def is_rollouts(key: str) -> bool:
    """Whether a key is of a file in `rollouts/`, of whatever experiment."""
    return key.split("/")[2:3] == ["rollouts"]


def recognised(meaning: Callable[[str], T | None], names: Iterable[str]) -> set[T]:
    """What the names in a listing mean, by one of the functions below; foreign files are left out."""
    return {found for found in map(meaning, names) if found is not None}


def round_of_file(name: str) -> int | None:
    """The round that a name in `state/` announces, or before which a name in `retention/…` says that rollouts were removed."""
    return _number(_ROUND_FILE, name)


def round_of_folder(name: str) -> int | None:
    """The round of a folder in `rewards/`, `rollouts/` or `checkpoints/`."""
    return _number(_ROUND_FOLDER, name)


def stage_of_folder(name: str) -> int | None:
    """The stage of a folder in `rewards/round_N/` or `rollouts/round_N/`."""
    return _number(_STAGE_FOLDER, name)


def sequence_of_file(name: str) -> int | None:
    """The number of a heartbeat or a journal segment."""
    return _number(_SEQUENCE_FILE, name)


def is_put_together(name: str) -> bool:
    """Whether a journal segment replaces those before it: its number lies between those of two other segments."""
    return (sequence_of_file(name) or 0) % SEGMENT_STEP > 0


def node_of_file(name: str) -> str | None:
    """The node that a file in `peers/`, `rewards/…` or `rollouts/…` belongs to; None for foreign files."""
    match = _NODE_FILE.fullmatch(name)
    return match[1] if match else None


def slot_of_file(name: str) -> int:
    """The slot in the name of a file in `rollouts/…`; -1 for a node's whole stage, or a foreign file."""
    match = _NODE_FILE.fullmatch(name)
    return int(match[2]) if match and match[2] else -1


def node_of_checkpoint(name: str) -> str | None:
    """The node that a file in `checkpoints/round_N/` belongs to; None for foreign files such as a Drive's `w1 (1).pt`."""
    match = _CHECKPOINT_FILE.fullmatch(name)
    return match[1] if match else None


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.fullmatch(name)
    return int(match[1]) if match else None
