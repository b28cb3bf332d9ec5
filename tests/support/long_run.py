"""A run of any length, written straight into a folder: registrations, journals as nodes write them, and the newest rollouts.

python -m tests.support.long_run FOLDER NAME ROUNDS NODES
"""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rl_swarm.config import load
from rl_swarm.rollout import Bundle, Completion, Question, Rollout, encode
from rl_swarm.runs.record import Round
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import Registration, register
from tests.support.clocks import VirtualClock

BEGAN = 1_700_000_000.0
HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>\x1b[2J\u202eevil\u202c\x07 <answer>7</answer>"


def row_of(node: str, number: int, place: int, names: Sequence[str]) -> Round:
    """A plausible record: rewards rise and wobble, seconds and tokens are about those of nano."""
    reward = min(1.0, 0.15 + 0.6 * (1 - math.exp(-number / 60)) + 0.05 * math.sin(number * (place + 1)))
    others = [name for name in names if name != node]
    age = number % 3
    used = [f"{others[(number + turn) % len(others)]}/{max(0, number - age)}/0/{turn % 4}" for turn in range(4)] if others else []
    return Round(
        timestamp=BEGAN + 2.0 * number + 0.1 * place,
        node_id=node,
        round=number,
        reward=reward,
        reward_std=0.4,
        reward_by_task=dict.fromkeys(("basic_arithmetic", "chain_sum", "gcd", "spell_backward"), reward),
        tokens=700,
        tokens_per_s=900.0,
        length_mean=11.0,
        answered=min(1.0, 0.2 + number / 100),
        own_wanted=4,
        own_used=3,
        own_ids=tuple(f"{node}/{number}/0/{slot}" for slot in range(3)),
        external_wanted=4,
        external_used=len(used),
        external_ids=tuple(used),
        external_age=float(age) if used else None,
        external_reward=reward if used else None,
        group_size=4,
        informative=3.0 + len(used),
        loss=0.1,
        grad_norm=0.5,
        learning_rate=1e-4,
        entropy=max(0.1, 1.5 - number / 500),
        policy_version=number + 1,
        seconds={"generate": 1.1, "score": 0.1, "store": 0.05, "train": 0.6},
        rejected_total={"stale": number // 10},
    )


def rollouts_of(node: str, number: int) -> list[Rollout]:
    """Two rollouts: an ordinary one, and one whose texts are hostile."""
    asked = Question("What is 3 + 4?", "7", "chain_sum", {"size": 1}, 1, number)
    good = tuple(Completion(f"<answer>{6 + turn}</answer>", float(turn == 1), "stop", 5) for turn in range(4))
    bad = (Completion(HOSTILE, 0.0, "stop", 5), Completion("<answer>7</answer>", 1.0, "stop", 5))
    return [Rollout(asked, good, node, number), Rollout(Question(HOSTILE, "7", "gcd", {}, 1, 2), bad, node, number, 0, 1)]


class LongRun:
    """Write `rounds` rounds at once, and further ones with `play`."""

    def __init__(self, folder: Path, name: str, rounds: int, nodes: int, **settings: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.store, self.layout, self.done = FolderStore(folder), Layout(name), 0
        self.names = [f"worker_{place + 1}" for place in range(nodes)]
        usual = {"MODEL_NAME": "nano", "MAX_ROUNDS": str(rounds + 10), "NUM_TRAIN_SAMPLES": "4", "NUM_TRANSPLANT_TREES": "4"}
        experiments.publish(self.store, self.layout, load(usual | settings), "stand-in 1", VirtualClock())
        for node in self.names:
            register(self.store, self.layout, Registration(node, "worker", BEGAN, "nano", node, "1", "s"))
        self.play(rounds)

    def play(self, rounds: int) -> None:
        for place, node in enumerate(self.names):
            numbers = range(self.done, self.done + rounds)
            rows = [row_of(node, number, place, self.names) for number in numbers]
            self._append(node, "metrics.jsonl", [msgspec.json.encode(row) for row in rows])
            self._append(node, "training_events.jsonl", [line for row in rows for line in _events(row)])
            for number in list(numbers)[-3:]:
                bundle = Bundle(self.layout.experiment_name, node, number, tuple(rollouts_of(node, number)))
                self.store.put(self.layout.bundle(number, node), encode(bundle))
        self.done += rounds

    def _append(self, node: str, name: str, lines: Sequence[bytes]) -> None:
        if lines:
            self.store.append(self.layout.log(node, name), b"\n".join(lines) + b"\n")


def _events(row: Round) -> list[bytes]:
    states = ("drawing questions", "answering", "waiting for rollouts of peers", "training", "waiting for the next round")
    rows = [
        {"timestamp": row.timestamp - 1 + turn / 10, "event_type": "state", "data": {"doing": doing, "round": row.round}}
        for turn, doing in enumerate(states)
    ]
    if row.round % 100 == 0:
        share = min(0.9, row.reward)
        figures = {"held_out": share, "held_out_style_blind": 0.8, "held_out_in_form": 0.7, "held_out_questions": 400}
        rows.append({"timestamp": row.timestamp, "event_type": "evaluation", "data": {"round": row.round, **figures}})
    return [json.dumps(each).encode() for each in rows]


if __name__ == "__main__":
    LongRun(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
