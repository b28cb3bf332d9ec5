"""Mistakes of earlier systems, and others as plausible, each as a patch on the shipped classes.

They prove that the simulation can see: if no invariant catches a mutation, the invariants are too weak.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from rl_swarm.document import seal
from rl_swarm.errors import BadDocument, StoreAway
from rl_swarm.node import coordinator as coordinator_module
from rl_swarm.node import worker as worker_module
from rl_swarm.node.coordinator import Coordinator
from rl_swarm.node.worker import Worker
from rl_swarm.runs.measures import batch_figures
from rl_swarm.store.base import Store
from rl_swarm.swarm import pace as pace_module
from rl_swarm.swarm import retention as retention_module
from rl_swarm.swarm.archive import Archive
from rl_swarm.swarm.attendance import Attendance
from rl_swarm.swarm.exchange import Exchange
from rl_swarm.swarm.pace import Pace
from rl_swarm.swarm.publisher import Publisher
from rl_swarm.swarm.retention import Policy, Retention
from rl_swarm.swarm.rounds import Announcement, Reward, Rounds
from rl_swarm.swarm.through_store import StoreSwarm

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutation:
    name: str
    what: str
    apply: Patch
    caught_by: frozenset[str]  # at least one of these invariants must object
    first_seed: int  # a small swarm that shows the mistake; the search goes on from there


def state_rewound(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(self: Coordinator) -> int:
        self.epoch = 1
        return self._announce(0)

    monkeypatch.setattr(Coordinator, "_begin", begin)


def state_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    def announce(self: Rounds, announcement: Announcement) -> Announcement:
        self.store.rewrite(self.layout.round(announcement.round), seal(announcement))
        return announcement

    monkeypatch.setattr(Rounds, "announce", announce)
    monkeypatch.setattr(Coordinator, "_begin", lambda self: self._announce(0))


def generator_reseeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "generator", lambda *parts: random.Random(42))


def same_seed_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "stream_seed", lambda seed, node_id, number, purpose: seed + number)


def same_round_only(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Exchange._plan

    def plan(self: Exchange, round_number: int, *rest: Any) -> Any:
        found = original(self, round_number, *rest)
        return found._replace(files=[file for file in found.files if file.round == round_number])

    monkeypatch.setattr(Exchange, "_plan", plan)


def swallowed_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Worker.play

    def play(self: Worker, number: int) -> None:
        try:
            original(self, number)
        except Exception as failure:
            self.journal.say(f"something went wrong: {failure}")

    monkeypatch.setattr(Worker, "play", play)


def failed_publishing_reported_as_success(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Store.put

    def put(self: Store, key: str, data: bytes) -> bool:
        try:
            return original(self, key, data)
        except StoreAway:
            return True

    monkeypatch.setattr(Store, "put", put)


def wrong_round_number(monkeypatch: pytest.MonkeyPatch) -> None:
    original = StoreSwarm.submit
    monkeypatch.setattr(StoreSwarm, "submit", lambda self, number, *rest: original(self, number + 1, *rest))


def every_second_round(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Pace.following
    monkeypatch.setattr(Pace, "following", lambda self, number, waiting: original(self, number, waiting) + 1)


def non_atomic_write(monkeypatch: pytest.MonkeyPatch) -> None:
    def put(self: Publisher, key: str, data: bytes) -> None:
        self.check()
        path = self.folder / f"{self._next:012d}"
        self._next += 1
        whole = key.encode() + b"\n" + data
        path.write_bytes(whole[: len(whole) // 2 + len(key)])
        self.clock.sleep(0.5)
        path.write_bytes(whole)
        with self._wake:
            self._queue.append(path)
            self._wake.notify()

    monkeypatch.setattr(Publisher, "put", put)


def half_written_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Publisher, "_settle", lambda self, *document: None)


def half_a_file_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Exchange._look_into

    def look_into(self: Exchange, file: Any, *rest: Any) -> bool:
        looked = original(self, file, *rest)
        self._done.add(file)
        return looked

    monkeypatch.setattr(Exchange, "_look_into", look_into)


def bad_file_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Exchange._open

    def opened(self: Exchange, data: bytes, file: Any) -> Any:
        try:
            return original(self, data, file)
        except BadDocument as error:
            raise ValueError("cannot read a peer's file") from error

    monkeypatch.setattr(Exchange, "_open", opened)


def endless_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_module, "PATIENCE_INTERVALS", float("inf"))


def coordinator_waits_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def waiting_for(self: Coordinator, done: set[str], open_seconds: float, since_first: float | None) -> str:
        return ", ".join(sorted(self.attendance.workers.keys() - done)) or ("" if done else "workers")

    monkeypatch.setattr(Coordinator, "_waiting_for", waiting_for)


def newcomers_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attendance, "awaited", Attendance.live)


def silence_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Attendance.opened

    def opened(self: Attendance, number: int) -> None:
        for worker in self.workers.values():
            worker.begins = math.inf
        original(self, number)

    monkeypatch.setattr(Attendance, "opened", opened)


def used_rollouts_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exchange, "mark_used", lambda self, rollouts: None)


def used_rollouts_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Exchange.state
    monkeypatch.setattr(Exchange, "state", lambda self: original(self) | {"used": {}, "trained": []})


def checkpoint_never_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Worker._begin

    def begin(self: Worker) -> int:
        restored = self.checkpoints.restore(lambda *state: None)
        self.checkpoints.restore = lambda apply: None  # type: ignore[method-assign]
        number = original(self)
        return max(number, restored or 0)

    monkeypatch.setattr(Worker, "_begin", begin)


def achieved_is_what_was_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    original = batch_figures

    def figures(*parts: Any) -> dict[str, Any]:
        return original(*parts) | {"external_used": 4}

    monkeypatch.setattr(worker_module, "batch_figures", figures)


def retention_too_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Worker.play

    def play(self: Worker, number: int) -> None:
        original(self, number)
        try:
            member = self.swarm.member  # type: ignore[attr-defined]
            member.store.delete(member.layout.bundle(number - 1, self.config.node_id))
        except StoreAway:
            return

    monkeypatch.setattr(Worker, "play", play)


def those_behind_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Retention, "_needs", lambda self, *node: False)


def window_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_module, "policy_of", lambda config: Policy(1, None, None, config.window, 1))


def archived_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(self: Archive, key: str, data: bytes) -> bool:
        self.store.put(self.place(key), data)
        return True

    monkeypatch.setattr(Archive, "keep", keep)


def removed_unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Retention, "_note", lambda self, before: None)


def rows_written_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    original = StoreSwarm.submit

    def submit(self: StoreSwarm, number: int, stage: int, reward: float, completions: int) -> None:
        original(self, number, stage, reward, completions)
        twice = Reward(self.member.node_id + ".again", number, reward, 1, self.member.clock.wall())
        self.member.publisher.put(self.member.layout.reward(number, twice.peer_id), seal(twice))

    monkeypatch.setattr(StoreSwarm, "submit", submit)


def rounds_beyond_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Coordinator._announce
    monkeypatch.setattr(coordinator_module.Coordinator, "_announce", lambda self, number: original(self, number + 1))


MUTATIONS = [
    Mutation("state_rewound", "a coordinator that is started again begins with round 0", state_rewound, frozenset({"rounds"}), 14),
    Mutation("state_overwritten", "starting again rewrites the state of a live run", state_overwritten, frozenset({"rounds"}), 14),
    Mutation(
        "generator_reseeded", "the choice of rollouts is seeded anew at every call", generator_reseeded, frozenset({"chance"}), 57
    ),
    Mutation(
        "same_seed_everywhere", "seeds made by adding: all nodes sample alike", same_seed_everywhere, frozenset({"chance"}), 1
    ),
    Mutation("same_round_only", "only this round's rollouts are looked for", same_round_only, frozenset({"heard"}), 1),
    Mutation(
        "swallowed_exception", "an exception in a round is logged and forgotten", swallowed_exception, frozenset({"outcome"}), 21
    ),
    Mutation(
        "failed_publishing",
        "publishing fails and reports success",
        failed_publishing_reported_as_success,
        frozenset({"handed_over", "rewards"}),
        57,
    ),
    Mutation("wrong_round_number", "rewards are published under the next number", wrong_round_number, frozenset({"rounds"}), 57),
    Mutation("every_second_round", "workers leave out every second round", every_second_round, frozenset({"rounds"}), 57),
    Mutation(
        "non_atomic_write",
        "the spool is written in two steps",
        non_atomic_write,
        frozenset({"handed_over", "rewards", "outcome"}),
        29,
    ),
    Mutation(
        "half_written_is_final", "what a killed process wrote half stays", half_written_is_final, frozenset({"handed_over"}), 25
    ),
    Mutation(
        "half_a_file_set_aside", "a file that is not all there yet is never read", half_a_file_is_set_aside, frozenset({"heard"}), 7
    ),
    Mutation(
        "bad_file_ends_the_run", "a peer's file that cannot be read ends the run", bad_file_ends_the_run, frozenset({"outcome"}), 1
    ),
    Mutation("endless_wait", "workers wait for the coordinator for ever", endless_wait, frozenset({"waiting"}), 33),
    Mutation(
        "waits_for_all", "the coordinator waits for every worker ever seen", coordinator_waits_for_all, frozenset({"waiting"}), 1
    ),
    Mutation(
        "newcomers_awaited", "the coordinator waits for who has never submitted", newcomers_awaited, frozenset({"held_up"}), 1
    ),
    Mutation("silence_forgiven", "a silent worker is waited for in every round", silence_forgiven, frozenset({"held_up"}), 1),
    Mutation("used_forgotten", "what was trained on is not remembered", used_rollouts_forgotten, frozenset({"twice"}), 1),
    Mutation("used_not_saved", "what was trained on is not in the checkpoint", used_rollouts_not_saved, frozenset({"twice"}), 1),
    Mutation(
        "checkpoint_never_loaded", "a checkpoint is saved and never loaded", checkpoint_never_loaded, frozenset({"resumed"}), 57
    ),
    Mutation(
        "achieved_is_wanted",
        "the journal says J instead of what was found",
        achieved_is_what_was_wanted,
        frozenset({"achieved"}),
        57,
    ),
    Mutation("retention_too_eager", "rollouts are removed a round later", retention_too_eager, frozenset({"retention"}), 56),
    Mutation(
        "those_behind_forgotten", "rollouts that slower nodes read are removed", those_behind_forgotten, frozenset({"retention"}), 5
    ),
    Mutation("window_removed", "rounds of the window are removed", window_removed, frozenset({"retention"}), 5),
    Mutation("archived_unread", "a file is removed without a look at its copy", archived_unread, frozenset({"retention"}), 16),
    Mutation("removed_unsaid", "rollouts are removed and no document says so", removed_unsaid, frozenset({"retention"}), 5),
    Mutation("submitted_twice", "a reward is submitted under two names", rows_written_twice, frozenset({"rounds", "rewards"}), 57),
    Mutation("beyond_the_last", "rounds are announced beyond the last", rounds_beyond_the_last, frozenset({"rounds"}), 1),
]
