"""Real documents of every kind that a run consists of, and a seeded way to damage them.

Damage is what disks and mounts do (cut, flipped, spliced) and what people do (values swapped, brackets nested, sealed again so that
the damage gets past the checksum). Nothing here reads a document.
"""

import hashlib
import json
import random
from typing import Any

import msgspec

from rl_swarm.document import seal
from rl_swarm.packing import METHODS, packed
from rl_swarm.reproduce.plan import Arm, Cell, Split
from rl_swarm.reproduce.results import CellResult
from rl_swarm.rollout import Bundle, Completion, Rollout, encode
from rl_swarm.runs.record import Round
from rl_swarm.swarm.experiment import Experiment
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import Heartbeat, Registration
from rl_swarm.swarm.removals import Removal
from rl_swarm.swarm.rounds import Announcement, CurrentState, Reward
from tests.support.standins import TASKS_VERSION, make_question

LAYOUT = Layout("trial")
METRICS = {"timestamp": 1.0, "node_id": "w1", "experiment": "trial", "round": 3, "reward": 0.5, "external_ids": ["w2/3/0/0"]}
STATE = {"timestamp": 1.0, "event_type": "state", "node_id": "w1", "experiment": "trial", "data": {"doing": "training", "round": 3}}
EVENTS = [
    STATE,
    STATE
    | {"event_type": "evaluation", "data": {"round": 0, "held_out": 0.1, "held_out_style_blind": 0.5, "held_out_in_form": 0.4}},
    STATE | {"event_type": "model_loaded", "data": {"model": "nano"}},
]
# fmt: off
WILD: list[Any] = [
    None, True, -1, 0, 2**63, 10**400, 1e308, -0.5, "", "x" * 300, "\ufffd", "\ud800", "../../x", "\x1b[31m<b>",
    [], {}, [[]], {"a": {}},
]
# fmt: on


def bundle() -> bytes:
    group = (Completion("<answer>4</answer>", 1.0, "stop", 5, -3.0), Completion("no", 0.0))
    rollouts = tuple(Rollout(make_question(7, slot), group, "w1", 3, slot=slot) for slot in range(2))
    return encode(Bundle("trial", "w1", 3, rollouts, timestamp=1.0, tasks_version=TASKS_VERSION))


def plain() -> bytes:
    document = {"peer_id": "w1", "round": 3, "stage": 0, "timestamp": 1.0}
    return json.dumps(document | {"rollouts": {"0": [{"prompt": "2 + 2", "response": "4", "reward": 1.0}]}}).encode()


SETTINGS = {"TASKS": "gcd", "MODEL_NAME": "nano", "NUM_GENERATIONS": "4", "MAX_ROUNDS": "9"}
DOCUMENTS: dict[str, bytes] = {
    LAYOUT.experiment: seal(Experiment(1, "trial", "ab" * 8, 1.0, "w1", SETTINGS, TASKS_VERSION, (2, 256))),
    LAYOUT.current_state: seal(CurrentState(3, 1.0, "boss", "trial", "running")),
    LAYOUT.round(3): seal(Announcement(3, "boss", "s", 1, 1.0, ["w1"], ["w1"])),
    LAYOUT.peer("w1"): seal(Registration("w1", "worker", 1.0, "nano", "w1", "1", "s")),
    LAYOUT.heartbeat("w1", 2): seal(Heartbeat("w1", 2, 1.0, "training", 3)),
    LAYOUT.reward(3, "w1"): seal(Reward("w1", 3, 0.5, 8, 1.0)),
    LAYOUT.bundle(3, "w1"): bundle(),
    LAYOUT.removal("w1", 2): seal(Removal("w1", 2, True, False, 1.0)),
    LAYOUT.log("w1", "metrics.jsonl"): b"".join(json.dumps(METRICS | {"round": number}).encode() + b"\n" for number in range(3)),
    LAYOUT.log("w1", "training_events.jsonl"): b"".join(json.dumps(event).encode() + b"\n" for event in EVENTS),
    LAYOUT.log("w1", "system_info.json"): b'{"rl_swarm": "0.1", "python": "3.11"}\n',
    LAYOUT.segment(LAYOUT.log("w1", "metrics.jsonl"), 5): json.dumps(METRICS | {"round": 4}).encode() + b"\n",
    LAYOUT.progress("w1"): b'{"timestamp": 1.0, "event": "round_start", "round": 3}\n',
}


# What a node keeps on its own disk, by kind.
CELL = Cell(Arm("4/4", Split(4, 4), 8), 1, 60, {"MODEL_NAME": "nano"}, {"torch": "2"})
SPOOLED, RESULT = "spool", "reproduce result"
LOCAL: dict[str, bytes] = {
    SPOOLED: LAYOUT.reward(3, "w1").encode() + b"\n" + DOCUMENTS[LAYOUT.reward(3, "w1")],
    RESULT: msgspec.json.encode(CellResult(CELL, (msgspec.convert(METRICS, Round),))),
}


class Fuzzer:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def damage(self, data: bytes) -> bytes:
        """Damage a document one to three times; seal it again half of the time, as a hostile peer would."""
        for _ in range(self.chance.randint(1, 3)):
            data = self.chance.choice((self._cut, self._flip, self._splice, self._swap_value, self._swap_value, self._nest))(data)
        return self._sealed_again(data) if self.chance.random() < 0.5 else data

    def packed(self, original: bytes, damaged: bytes) -> bytes:
        """Compress a document, damaged before or after it."""
        method = self.chance.choice(METHODS[1:])
        if self.chance.random() < 0.5:
            return packed(damaged, method)
        return self.chance.choice((self._cut, self._flip, self._splice))(packed(original, method))

    def _cut(self, data: bytes) -> bytes:
        return data[: self.chance.randrange(len(data) + 1)]

    def _flip(self, data: bytes) -> bytes:
        if not data:
            return b"\xff"
        at = self.chance.randrange(len(data))
        return data[:at] + bytes([self.chance.randrange(256)]) + data[at + 1 :]

    def _splice(self, data: bytes) -> bytes:
        other = self.chance.choice([*DOCUMENTS.values(), *LOCAL.values()])
        return data[: self.chance.randrange(len(data) + 1)] + other[self.chance.randrange(len(other)) :]

    def _swap_value(self, data: bytes) -> bytes:
        """Another value somewhere inside the JSON, of any type."""
        lines = data.splitlines() or [b"{}"]
        at = self.chance.randrange(len(lines))
        try:
            document = json.loads(lines[at])
        except (ValueError, RecursionError):
            return self._flip(data)
        lines[at] = json.dumps(self._swapped(document)).encode()
        return b"\n".join(lines) + b"\n"

    def _swapped(self, value: Any) -> Any:
        if isinstance(value, dict) and value and self.chance.random() < 0.9:
            name = self.chance.choice(list(value))
            return {**value, name: self._swapped(value[name])}
        if isinstance(value, list) and value and self.chance.random() < 0.9:
            at = self.chance.randrange(len(value))
            return [*value[:at], self._swapped(value[at]), *value[at + 1 :]]
        return self.chance.choice(WILD)

    def _nest(self, data: bytes) -> bytes:
        depth = self.chance.choice([10, 2_000, 100_000])
        opening, closing = self.chance.choice([(b"[", b"]"), (b'{"a":', b"}")])
        return opening * depth + data[: self.chance.randrange(50)] + closing * self.chance.choice([0, depth])

    def _sealed_again(self, data: bytes) -> bytes:
        body, found, _ = data.rpartition(b',"sha256":')
        body = (body if found else data.rstrip()[:-1]) + b"}"
        return body[:-1] + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'
