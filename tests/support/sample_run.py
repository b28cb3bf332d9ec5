"""A small run in a store, written by the shipped loop, journal and publisher with stand-in models, for tests of readers."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_swarm.config import Config, load
from rl_swarm.node.journal import Journal
from rl_swarm.node.worker import Learner, Worker
from rl_swarm.rollout import Completion, Question
from rl_swarm.store import Store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.membership import Membership
from rl_swarm.swarm.peers import Registration, register
from tests.support.clocks import VirtualClock
from tests.support.members import journal_of, member_of, worker_of
from tests.support.standins import StandInCheckpoints, StandInPolicy, StandInTasks, StandInTrainer

LAYOUT = Layout("trial")
ROUND_SECONDS = 2.0
HOSTILE = "<script>alert(1)</script>\x1b[2J[bold red]gone[/] \u202eevil <img src=x onerror=alert(2)>"


class Rising(StandInPolicy):
    """Right more often from round to round; wrong answers are hostile text."""

    def __init__(self, head_start: int) -> None:
        super().__init__()
        self.turn = head_start

    def answer(self, questions: Sequence[Question], group_size: int, seed: int) -> Iterator[tuple[Completion, ...]]:
        for slot, (question, group) in enumerate(zip(questions, super().answer(questions, group_size, seed), strict=True)):
            right = min(group_size - 1, (self.turn + slot) // 4)
            texts = [f"<answer>{question.answer}</answer>"] * right + [HOSTILE] * (group_size - right)
            yield tuple(replace(done, text=text) for done, text in zip(group, texts, strict=True))
        self.turn += 1


class SampleRun:
    """Workers that play each round in turn, and leave the files of a real swarm."""

    def __init__(self, store: Store, folder: Path, workers: Sequence[str] = ("w1", "w2", "w3"), external_count: int = 2) -> None:
        self.store = store
        self.clock = VirtualClock()
        config = load(
            {"MODEL_NAME": "nano", "MAX_ROUNDS": "16", "NUM_TRAIN_SAMPLES": "2", "NUM_TRANSPLANT_TREES": str(external_count)}
        )
        experiments.publish(store, LAYOUT, config, "stand-in 1", self.clock)
        self.folder, self.members = folder, list[Membership]()
        register(store, LAYOUT, Registration("boss", "coordinator", self.clock.wall(), "", "boss", "1", "s"))
        self.boss = self.journal("boss")
        self.boss.state("waiting for 3 workers", 0)
        self.workers = {name: self.worker(name, place, external_count) for place, name in enumerate(workers)}
        self.done = 0

    def journal(self, node_id: str) -> Journal:
        member = member_of(self.store, self.folder, node_id, self.clock)
        self.members.append(member)
        return journal_of(member, self.folder)

    def worker(self, node_id: str, place: int, external_count: int) -> Worker:
        register(self.store, LAYOUT, Registration(node_id, "worker", self.clock.wall(), "nano", node_id, "1", "s"))
        learner = Learner(StandInTasks(node_id), Rising(place), StandInTrainer())
        settings = Config(node_id=node_id, max_rounds=16, own_count=2, external_count=external_count, group_size=4)
        member = member_of(self.store, self.folder, node_id, self.clock)
        self.members.append(member)
        worker = worker_of(member, self.folder, settings, learner, StandInCheckpoints())
        member.share(LAYOUT.system_info(node_id), worker.journal.system_info(role="worker"))
        return worker

    def copy(self) -> None:
        """Copy all journals to the store."""
        for member in self.members:
            member.copies.bring(True)

    def evaluate(self, number: int, **figures: Any) -> None:
        for place, worker in enumerate(self.workers.values()):
            row = {"held_out": 0.1 * place + number / 40, "held_out_style_blind": 0.7 - number / 80, "held_out_questions": 80}
            row["held_out_in_form"] = 0.3 + number / 80
            worker.journal.event("evaluation", round=number, **(row | figures))

    def play(self, rounds: int) -> "SampleRun":
        for _ in range(rounds):
            for worker in self.workers.values():
                self.clock.sleep(ROUND_SECONDS / len(self.workers))
                worker.play(self.done)
            self.done += 1
        self.flush()
        return self

    def complete(self) -> "SampleRun":
        """Play all 16 rounds, with evaluations before, half-way and after."""
        self.evaluate(0)
        self.play(8)
        self.evaluate(8)
        self.play(8)
        self.evaluate(16)
        for worker in self.workers.values():
            worker.journal.state("complete", 15)
        self.flush()
        return self

    def flush(self) -> None:
        for journal in (self.boss, *(worker.journal for worker in self.workers.values())):
            journal.flush()
        self.copy()
