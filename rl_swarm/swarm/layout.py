"""The sole owner of keys: where every document of an experiment lies in the store, and what its name says."""

import re
from dataclasses import dataclass

EXPERIMENTS = "experiments"

# Only ASCII: \d would also match the digits of other scripts, and such a name is no key.
_ROUND_FILE = re.compile(r"round_([0-9]{1,15})\.json")
_ROUND_FOLDER = re.compile(r"round_([0-9]{1,15})/")
_NODE_FILE = re.compile(r"(?P<node>[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}?)(?:\.(?P<slot>[0-9]{1,6}))?\.json")
_CHECKPOINT_FILE = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]{0,63})\.pt")
_SEQUENCE_FILE = re.compile(r"([0-9]{1,15})\.json[l]?")


@dataclass(frozen=True)
class Layout:
    experiment_name: str

    @property
    def root(self) -> str:
        return f"{EXPERIMENTS}/{self.experiment_name}"

    @property
    def experiment(self) -> str:
        return f"{self.root}/experiment.json"

    @property
    def summary(self) -> str:
        return f"{self.root}/summary.json"

    def report(self, name: str) -> str:
        return f"{self.root}/{name}"

    @property
    def current_state(self) -> str:
        return f"{self.root}/state/current_state.json"

    @property
    def states(self) -> str:
        return f"{self.root}/state"

    def round(self, number: int) -> str:
        return f"{self.root}/state/round_{number:06d}.json"

    @property
    def peers(self) -> str:
        return f"{self.root}/peers"

    def peer(self, node_id: str) -> str:
        return f"{self.root}/peers/{node_id}.json"

    def heartbeats(self, node_id: str) -> str:
        return f"{self.root}/peers/{node_id}"

    def heartbeat(self, node_id: str, sequence: int) -> str:
        return f"{self.root}/peers/{node_id}/{sequence:06d}.json"

    @property
    def rewards(self) -> str:
        return f"{self.root}/rewards"

    def rewards_of(self, number: int, stage: int = 0) -> str:
        return f"{self.root}/rewards/round_{number}/stage_{stage}"

    def reward(self, number: int, node_id: str, stage: int = 0) -> str:
        return f"{self.rewards_of(number, stage)}/{node_id}.json"

    @property
    def rollouts(self) -> str:
        return f"{self.root}/rollouts"

    def rollouts_of(self, number: int, stage: int = 0) -> str:
        return f"{self.root}/rollouts/round_{number}/stage_{stage}"

    def bundle(self, number: int, node_id: str, slot: int | None = None, stage: int = 0) -> str:
        name = node_id if slot is None else f"{node_id}.{slot}"
        return f"{self.rollouts_of(number, stage)}/{name}.json"

    @property
    def checkpoints(self) -> str:
        return f"{self.root}/checkpoints"

    def checkpoint_folder(self, number: int) -> str:
        return f"{self.root}/checkpoints/round_{number}"

    def checkpoint(self, number: int, node_id: str) -> str:
        return f"{self.checkpoint_folder(number)}/{node_id}.pt"

    @property
    def logs(self) -> str:
        return f"{self.root}/logs"

    def endorsement(self, number: int, node_id: str) -> str:
        """What a node that signs says of its checkpoint."""
        return f"{self.checkpoint_folder(number)}/{node_id}.json"

    def log(self, node_id: str, name: str) -> str:
        return f"{self.logs}/{node_id}/{name}"

    def system_info(self, node_id: str) -> str:
        return self.log(node_id, "system_info.json")

    def journals(self, node_id: str) -> tuple[str, ...]:
        """Everything that a node writes about itself and that grows."""
        names = ("metrics.jsonl", "training_events.jsonl", "stdout.log", "stderr.log")
        return (*(self.log(node_id, name) for name in names), self.progress(node_id))

    def progress(self, node_id: str) -> str:
        return f"{self.root}/progress_{node_id}.jsonl"

    @staticmethod
    def segments(key: str) -> str:
        """The folder of numbered segments that stand for a journal where appending in place cannot be trusted."""
        return key.rpartition(".")[0]

    @staticmethod
    def segment(key: str, sequence: int) -> str:
        return f"{Layout.segments(key)}/{sequence:06d}.jsonl"


def round_of_file(name: str) -> int | None:
    """The round that a name in `state/` announces."""
    match = _ROUND_FILE.fullmatch(name)
    return int(match[1]) if match else None


def round_of_folder(name: str) -> int | None:
    """The round of a folder in `rewards/`, `rollouts/` or `checkpoints/`."""
    match = _ROUND_FOLDER.fullmatch(name)
    return int(match[1]) if match else None


def node_of_file(name: str) -> str | None:
    """The node that a file in `peers/`, `rewards/…` or `rollouts/…` belongs to, or None for foreign files."""
    match = _NODE_FILE.fullmatch(name)
    return match["node"] if match else None


def slot_of_file(name: str) -> int:
    """The slot in the name of a file in `rollouts/…`, -1 for one that has none: a node's whole stage, or foreign."""
    match = _NODE_FILE.fullmatch(name)
    return int(match["slot"]) if match and match["slot"] else -1


def node_of_checkpoint(name: str) -> str | None:
    """The node that a file in `checkpoints/round_N/` belongs to, or None for foreign files such as a Drive's `w1 (1).pt`."""
    match = _CHECKPOINT_FILE.fullmatch(name)
    return match[1] if match else None


def sequence_of_file(name: str) -> int | None:
    """The number of a heartbeat or a journal segment."""
    match = _SEQUENCE_FILE.fullmatch(name)
    return int(match[1]) if match else None
