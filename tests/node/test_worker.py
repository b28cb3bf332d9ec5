"""The worker loop in this process, on a memory store and a virtual clock."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rl_swarm.clock import Clock
from rl_swarm.config import Config
from rl_swarm.errors import CheckpointError
from rl_swarm.learning.schedule import rate_share
from rl_swarm.node.worker import LAST_SAVE_SECONDS, SAVED_SECONDS, Learner, Worker
from rl_swarm.processes.stopping import Stop
from rl_swarm.rollout import decode
from rl_swarm.runs import progress
from rl_swarm.store import Store
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.pace import PATIENCE_INTERVALS
from rl_swarm.swarm.peers import Pulse
from rl_swarm.swarm.rounds import Announcement, Rounds, read_reward
from tests.support.clocks import VirtualClock
from tests.support.members import member_of, worker_of
from tests.support.rows import metrics
from tests.support.standins import StandInCheckpoints, StandInPolicy, StandInTasks, StandInTrainer

LAYOUT = Layout("trial")
EVALUATED = {"held_out": 0.125, "held_out_style_blind": 0.5, "held_out_in_form": 0.25}


def make(store: Store, tmp_path: Path, clock: Clock, node_id: str = "me", **more: Any) -> Worker:
    parts = {name: more.pop(name, None) for name in ("policy", "trainer", "checkpoints", "stop", "evaluate", "cores_changed")}
    settings = replace(Config(node_id=node_id, max_rounds=5, own_count=2, group_size=4), **more)
    learner = Learner(
        StandInTasks(node_id),
        parts["policy"] or StandInPolicy(),
        parts["trainer"] or StandInTrainer(),
        parts["evaluate"],
        parts["cores_changed"] or (lambda: False),
    )
    checkpoints = parts["checkpoints"] or StandInCheckpoints()
    member = member_of(store, tmp_path, node_id, clock)
    return worker_of(member, tmp_path, settings, learner, checkpoints, stop=parts["stop"])


def finish(worker: Worker) -> list[dict[str, Any]]:
    worker.journal.flush()
    member = worker.swarm.member
    member.publisher.close(1.0)
    return metrics(member.store, LAYOUT, worker.config.node_id)


def announce(store: Store, number: int) -> None:
    Rounds(store, LAYOUT).announce(Announcement(number, "boss", "s", 1, 0.0, [], []))


def test_alone_it_never_waits_and_does_every_round(tmp_path: Path) -> None:
    store, clock = MemoryStore(), VirtualClock()
    began = clock.now
    worker = make(store, tmp_path, clock)
    assert worker.run() == "complete"
    rows = finish(worker)
    assert [row["round"] for row in rows] == [0, 1, 2, 3, 4]
    assert clock.now == began
    for row in rows:
        reward = read_reward(store, LAYOUT, row["round"], 0, "me")
        assert reward is not None
        assert reward.reward == row["reward"] == 0.5
        assert len(decode(store.get(LAYOUT.bundle(row["round"], "me"), limit=1 << 24)).rollouts) == 2


def test_the_reward_counts_own_rollouts_only(tmp_path: Path) -> None:
    class Hopeless(StandInPolicy):
        def answer(self, questions: Any, group_size: int, seed: int) -> Any:
            for group in super().answer(questions, group_size, seed):
                yield tuple(replace(done, text="no idea") for done in group)

    store, clock = MemoryStore(), VirtualClock()
    make(store, tmp_path, clock, node_id="clever").run()
    worker = make(store, tmp_path, clock, policy=Hopeless(), external_count=2)
    worker.run()
    rows = finish(worker)
    assert {row["reward"] for row in rows} == {0.0}
    assert sum(row["external_used"] for row in rows) > 0


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_node_writes_less_while_its_peers_write_enough_if_asked(adaptive: bool, tmp_path: Path) -> None:
    class Teaching(StandInTrainer):
        def update(self, batch: Any, rate_share: float = 1.0) -> dict[str, float]:
            return super().update(batch, rate_share) | {"external_weighed": 8.0, "external_discounted": 0.0}

    store, clock, saved = MemoryStore(), VirtualClock(), StandInCheckpoints()
    settings = {"own_count": 4, "external_count": 4, "adaptive": adaptive}
    me = make(store, tmp_path / "me", clock, checkpoints=saved, trainer=Teaching(), **settings)
    peers = [make(store, tmp_path / name, clock, name, own_count=4) for name in ("w1", "w2", "w3")]
    for number in range(4):
        for worker in (*peers, me):
            worker.play(number)
    me.save_before(4)
    rows = finish(me)
    assert [row["own_wanted"] for row in rows] == ([4, 3, 2, 2] if adaptive else [4, 4, 4, 4])
    assert [row["external_wanted"] for row in rows] == [8 - row["own_wanted"] for row in rows]
    again = make(store, tmp_path / "again", clock, checkpoints=saved, **settings)
    assert again.checkpoints.restore(again.resume) == 4
    assert again._counts() == me._counts() == ((2, 6) if adaptive else (4, 4))
    again.config = replace(again.config, external_count=0)
    assert again._counts() == (4, 0), "a node that is set to share nothing any more reads nothing"


def test_j_0_reads_nothing_of_peers_and_learns_the_same_as_without_a_swarm(tmp_path: Path) -> None:
    alone = make(MemoryStore(), tmp_path / "1", VirtualClock())
    alone.run()
    store = MemoryStore()
    make(store, tmp_path / "2", VirtualClock(), node_id="peer", max_rounds=1).run()
    among = make(store, tmp_path / "3", VirtualClock())
    among.run()
    assert among.trainer.state() == alone.trainer.state()


def test_it_follows_the_newest_announced_round(tmp_path: Path) -> None:
    store, clock = MemoryStore(), VirtualClock()
    for number in range(4):
        announce(store, number)
    worker = make(store, tmp_path, clock)
    worker.run()
    assert [row["round"] for row in finish(worker)] == [3, 4]


def test_a_missing_coordinator_costs_time_once(tmp_path: Path) -> None:
    store, clock = MemoryStore(), VirtualClock()
    announce(store, 0)
    began = clock.now
    worker = make(store, tmp_path, clock, round_interval=60.0)
    worker.run()
    waited = clock.now - began
    assert [row["round"] for row in finish(worker)] == [0, 1, 2, 3, 4]
    assert PATIENCE_INTERVALS * 60 <= waited < PATIENCE_INTERVALS * 60 + 2
    gone = [row for row in progress.events(store, LAYOUT, "me") if row["event_type"] == "went_on_alone"]
    assert [row["data"]["round"] for row in gone] == [1]


def test_a_coordinator_that_says_it_stopped_is_not_waited_for(tmp_path: Path) -> None:
    store, clock, said = MemoryStore(), VirtualClock(), list[str]()
    announce(store, 0)
    Pulse(store, LAYOUT, "boss", clock, "s").beat("stopped", 0)
    began = clock.now
    worker = make(store, tmp_path, clock, round_interval=60.0)
    worker.journal.console = said.append
    worker.run()
    assert [row["round"] for row in finish(worker)] == [0, 1, 2, 3, 4]
    assert clock.now - began < 10, "instead of 90 s"
    assert "the coordinator has left: going on alone with round 1" in said


def test_hearing_of_a_round_makes_it_wait_again(tmp_path: Path) -> None:
    store, clock = MemoryStore(), VirtualClock()
    announce(store, 0)

    class Announcing(StandInTrainer):
        def update(self, batch: Any, rate_share: float = 1.0) -> dict[str, float]:
            if self.policy_version == 2:
                announce(store, 1)
            return super().update(batch)

    worker = make(store, tmp_path, clock, trainer=Announcing())
    worker.run()
    finish(worker)
    gone = [row for row in progress.events(store, LAYOUT, "me") if row["event_type"] == "went_on_alone"]
    assert [row["data"]["round"] for row in gone] == [1, 3]


def test_a_stop_leaves_the_round_as_if_it_had_not_begun(tmp_path: Path) -> None:
    stop = Stop()

    class Stopping(StandInPolicy):
        def answer(self, questions: Any, group_size: int, seed: int) -> Any:
            if worker.trainer.policy_version == 3:
                stop.requested = True
            return super().answer(questions, group_size, seed)

    store, clock, checkpoints = MemoryStore(), VirtualClock(), StandInCheckpoints()
    worker = make(store, tmp_path, clock, policy=Stopping(), stop=stop, checkpoints=checkpoints)
    assert worker.run() == "stopped"
    finish(worker)
    again = make(store, tmp_path, clock, checkpoints=checkpoints)
    assert again.run() == "complete"
    straight = make(MemoryStore(), tmp_path / "straight", VirtualClock())
    straight.run()
    assert again.trainer.state() == straight.trainer.state()
    assert [row["round"] for row in finish(again)] == [0, 1, 2, 3, 4]


class Recording(StandInCheckpoints):
    """Appends the round of each checkpoint to `saved_rounds`."""

    def __init__(self, saved_rounds: list[int]) -> None:
        super().__init__()
        self.saved_rounds = saved_rounds

    def save(self, round: int, node_state: Any, trainer_state: Any) -> Path | None:
        self.saved_rounds.append(round)
        return super().save(round, node_state, trainer_state)


def test_a_change_of_threads_is_saved_at_once(tmp_path: Path) -> None:
    saved, changes = list[int](), iter([False, True, False, False, True])
    worker = make(
        MemoryStore(),
        tmp_path,
        VirtualClock(),
        checkpoints=Recording(saved),
        checkpoint_interval=3,
        cores_changed=lambda: next(changes),
    )
    worker.run()
    assert saved == [2, 5], "after the change, and at the end"


def test_checkpoints_and_evaluations_come_at_their_intervals_also_when_rounds_are_skipped(tmp_path: Path) -> None:
    saved, evaluated = [], []

    def evaluate() -> dict[str, float]:
        evaluated.append(worker.trainer.policy_version)
        return EVALUATED

    worker = make(
        MemoryStore(),
        tmp_path,
        VirtualClock(),
        checkpoints=Recording(saved),
        evaluate=evaluate,
        max_rounds=12,
        checkpoint_interval=4,
        eval_interval=5,
    )
    worker.run()
    assert saved == [4, 8, 12]
    assert evaluated == [0, 5, 10, 12], "also at the end"
    assert [row["round"] for row in finish(worker) if row["held_out"] is not None] == [4, 9, 11]


def test_a_bonus_for_the_form_trains_and_is_not_reported(tmp_path: Path) -> None:
    class Wrong(StandInPolicy):
        def answer(self, questions: Any, group_size: int, seed: int) -> Any:
            for group in super().answer(questions, group_size, seed):
                texts = ["<answer>?</answer>", *["no idea"] * (group_size - 1)]
                yield tuple(replace(done, text=text) for done, text in zip(group, texts, strict=True))

    for bonus, informative in ((0.0, 0), (0.1, 2)):
        worker = make(MemoryStore(), tmp_path / str(bonus), VirtualClock(), policy=Wrong(), max_rounds=1, format_reward=bonus)
        worker.run()
        [row] = finish(worker)
        assert (row["reward"], row["own_used"], row["answered"]) == (0.0, informative, 0.25)
        assert read_reward(worker.swarm.member.store, LAYOUT, 0, 0, "me").reward == 0.0


def test_a_stop_is_obeyed_between_two_groups_of_completions(tmp_path: Path) -> None:
    answered = 0

    class Slow(StandInPolicy):
        def answer(self, questions: Any, group_size: int, seed: int) -> Any:
            nonlocal answered
            for group in super().answer(questions, group_size, seed):
                answered, worker.stop.requested = answered + 1, True
                yield group

    worker = make(MemoryStore(), tmp_path, VirtualClock(), own_count=8, policy=Slow())
    assert worker.run() == "stopped"
    assert answered == 1
    assert finish(worker) == []


def test_a_stop_is_obeyed_between_two_requests_for_scores(tmp_path: Path) -> None:
    worker = make(MemoryStore(), tmp_path, VirtualClock(), own_count=8)

    def score_groups(groups: Any, go_on: Callable[[], None]) -> Any:
        worker.stop.requested = True
        go_on()
        raise AssertionError("it went on")

    worker.tasks.score_groups = score_groups  # type: ignore[method-assign]
    assert worker.run() == "stopped"
    assert finish(worker) == []


def test_a_full_disk_does_not_stop_training_but_the_end_insists(tmp_path: Path) -> None:
    class FullDisk(StandInCheckpoints):
        full = True

        def save(self, round: int, node_state: Any, trainer_state: Any) -> Path | None:
            if self.full:
                raise CheckpointError("no space left")
            return super().save(round, node_state, trainer_state)

    checkpoints, clock = FullDisk(), VirtualClock()
    worker = make(MemoryStore(), tmp_path, clock, checkpoints=checkpoints, checkpoint_interval=1)
    with pytest.raises(CheckpointError):
        worker.run()
    assert clock.monotonic() >= LAST_SAVE_SECONDS
    assert [row["round"] for row in finish(worker)] == [0, 1, 2, 3, 4]
    checkpoints.full = False
    make(MemoryStore(), tmp_path, VirtualClock(), checkpoints=checkpoints).run()
    assert checkpoints.saved is not None


@pytest.mark.parametrize("stopped", [False, True])
def test_the_last_checkpoint_waits_for_room_unless_a_stop_is_asked_for(tmp_path: Path, stopped: bool) -> None:
    stop, clock = Stop(), VirtualClock()

    class FullForAWhile(StandInCheckpoints):
        tries = 0

        def save(self, round: int, node_state: Any, trainer_state: Any) -> Path | None:
            self.tries += 1
            stop.requested = stopped
            if self.tries < 4:
                raise CheckpointError("no space left")
            return super().save(round, node_state, trainer_state)

    checkpoints = FullForAWhile()
    worker = make(MemoryStore(), tmp_path, clock, checkpoints=checkpoints, checkpoint_interval=100, stop=stop)
    if stopped:
        with pytest.raises(CheckpointError):
            worker.run()
        assert checkpoints.tries == 1
    else:
        assert worker.run() == "complete"
        assert checkpoints.tries == 4


def test_a_stop_during_the_update_still_evaluates_so_that_weights_and_round_agree(tmp_path: Path) -> None:
    stop, checkpoints = Stop(), StandInCheckpoints()

    class Stopping(StandInTrainer):
        def update(self, batch: Any, rate_share: float = 1.0) -> dict[str, float]:
            stop.requested = self.policy_version == 1
            return super().update(batch)

    def evaluate() -> dict[str, float]:
        return EVALUATED

    worker = make(
        MemoryStore(),
        tmp_path,
        VirtualClock(),
        trainer=Stopping(),
        stop=stop,
        checkpoints=checkpoints,
        evaluate=evaluate,
        eval_interval=2,
    )
    assert worker.run() == "stopped"
    restored = checkpoints.newest()
    assert restored is not None
    assert (restored[0], restored[2]["version"]) == (2, 2)


def test_a_stop_before_the_first_evaluation_is_no_failure(tmp_path: Path) -> None:
    stop = Stop()
    stop.requested = True
    worker = make(MemoryStore(), tmp_path, VirtualClock(), stop=stop, evaluate=lambda: EVALUATED, eval_interval=1)
    assert worker.run() == "stopped"


GOOD: dict[str, Any] = {
    "tasks": {"cursor": 8},
    "swarm": {"used": {"a/1/0/0": 1}, "trained": ["0f"], "standings": {}, "rejected": {"checksum": 2}, "counters": {}},
    "played": 3,
    "evaluated_at": 2,
    "max_rounds": 5,
    "own_count": 2,
}


def changed(**members: Any) -> dict[str, Any]:
    return {**GOOD, **members}


STANDING = {"good": True, "faults": 0, "mutes": 0, "until": 0, "reason": ""}
HOSTILE: dict[str, Any] = {
    "nothing": {},
    "no dictionary": [1, 2],
    "no words": None,
    "a member too few": {name: value for name, value in GOOD.items() if name != "swarm"},
    "a member too many": changed(more=1),
    "no swarm": changed(swarm={}),
    "a swarm with more": changed(swarm=GOOD["swarm"] | {"more": 1}),
    "rounds that are texts": changed(swarm=GOOD["swarm"] | {"used": {"a": "b"}}),
    "a standing that is none": changed(swarm=GOOD["swarm"] | {"standings": {"w1": {"good": 1}}}),
    "a power beyond reason": changed(swarm=GOOD["swarm"] | {"standings": {"w1": STANDING | {"mutes": 10**12}}}),
    "more peers than are remembered": changed(swarm=GOOD["swarm"] | {"standings": {str(n): STANDING for n in range(2049)}}),
    "a negative round": changed(evaluated_at=-1),
    "an evaluation to come": changed(evaluated_at=4),
    "truth for a number": changed(evaluated_at=True),
    "less than nothing to write": changed(own_count=-1),
}


class Shelf(StandInCheckpoints):
    """Two checkpoints, of which the newer one has been tampered with."""

    def __init__(self, node_state: Any) -> None:
        super().__init__()
        self.candidates = [(3, node_state), (2, changed(evaluated_at=0))]
        self.refused: list[str] = []

    def restore(self, apply: Any) -> int | None:
        for number, node_state in self.candidates:
            try:
                apply(number, node_state, {"version": number, "weights": number})
                return number
            except CheckpointError as error:
                self.refused.append(str(error))
        return None


@pytest.mark.parametrize("harm", HOSTILE)
def test_a_node_state_that_is_none_is_refused_and_the_one_before_is_taken(harm: str, tmp_path: Path) -> None:
    shelf = Shelf(HOSTILE[harm])
    worker = make(MemoryStore(), tmp_path, VirtualClock(), checkpoints=shelf)
    assert worker._begin() == 2
    assert len(shelf.refused) == 1 and "\n" not in shelf.refused[0]
    assert worker.trainer.state() == {"version": 2, "weights": 2}
    assert worker.swarm.exchange.used == {"a/1/0/0": 1}


@pytest.mark.parametrize("part", ["tasks", "swarm", "trainer"])
def test_a_checkpoint_that_is_refused_half_way_changes_nothing(part: str, tmp_path: Path) -> None:
    worker = make(MemoryStore(), tmp_path, VirtualClock())
    before = worker.tasks.state(), worker.swarm.exchange.state(), worker.trainer.state()
    restore = getattr(worker, part).restore

    def refuse(state: Any) -> None:
        getattr(worker, part).restore = restore
        raise CheckpointError("not this one")

    getattr(worker, part).restore = refuse
    with pytest.raises(CheckpointError, match="not this one"):
        worker.resume(3, GOOD, {"version": 9, "weights": 9})
    assert (worker.tasks.state(), worker.swarm.exchange.state(), worker.trainer.state()) == before
    assert worker._saved_at == 0


def lines_of(worker: Worker) -> list[str]:
    """Run a worker and return what it said, without the lines of its rounds."""
    said: list[str] = []
    worker.journal.console = said.append
    worker.run()
    finish(worker)
    return [line for line in said if not line.startswith("round ")]


def test_a_round_is_told_before_its_evaluation(tmp_path: Path) -> None:
    said: list[str] = []
    worker = make(MemoryStore(), tmp_path, VirtualClock(), evaluate=lambda: EVALUATED, eval_interval=2, max_rounds=2)
    worker.journal.console = said.append
    worker.run()
    told = [line.partition(":")[0] for line in said]
    assert told[-4:] == ["round 0", "round 1", "held-out accuracy at round 2", "complete"]


def test_it_says_what_happens_from_the_start_to_the_end_and_after_a_stop(tmp_path: Path) -> None:
    stop, store, checkpoints = Stop(), MemoryStore(), StandInCheckpoints(tmp_path / "saved")

    class Stopping(StandInPolicy):
        def answer(self, questions: Any, group_size: int, seed: int) -> Any:
            stop.requested = worker.trainer.policy_version == 3
            return super().answer(questions, group_size, seed)

    more = {"checkpoints": checkpoints, "evaluate": lambda: EVALUATED, "eval_interval": 100}
    worker = make(store, tmp_path, VirtualClock(), policy=Stopping(), stop=stop, **more)
    path = tmp_path / "saved" / "checkpoint.json"
    assert lines_of(worker) == [
        "begins a run of 5 rounds",
        "measuring accuracy on held-out questions before training",
        "held-out accuracy at round 0: 12.5%, in the form 25.0%, in any form 50.0%",
        f"saved at round 3: {path}",
        "stopped at round 3",
    ]
    again = make(store, tmp_path, VirtualClock(), **more)
    assert lines_of(again) == [
        "resumed at round 3 of 5",
        "held-out accuracy at round 5: 12.5%, in the form 25.0%, in any form 50.0%",
        f"saved at round 5: {path}",
        "complete: 5 rounds",
    ]
    started = [row["data"] for row in progress.events(store, LAYOUT, "me") if row["event_type"] == "started"]
    assert [(row["resumed"], row["round"]) for row in started] == [(False, 0), (True, 3)]


def test_of_many_checkpoints_it_tells_the_first_the_last_and_few_between(tmp_path: Path) -> None:
    clock = VirtualClock()

    class Slow(StandInTrainer):
        def update(self, batch: Any, rate_share: float = 1.0) -> dict[str, float]:
            clock.sleep(SAVED_SECONDS / 10)
            return super().update(batch)

    kept = StandInCheckpoints(tmp_path / "saved")
    worker = make(MemoryStore(), tmp_path, clock, trainer=Slow(), checkpoints=kept, max_rounds=25, checkpoint_interval=1)
    saved = [line.split(":")[0] for line in lines_of(worker) if line.startswith("saved")]
    assert saved == [f"saved at round {number}" for number in (1, 11, 21, 25)]


def test_a_latecomer_says_where_the_swarm_is(tmp_path: Path) -> None:
    store = MemoryStore()
    for number in range(4):
        announce(store, number)
    assert lines_of(make(store, tmp_path, VirtualClock()))[:2] == [
        "begins a run of 5 rounds",
        "the swarm is at round 3: going on there",
    ]


def test_a_latecomer_says_how_many_rounds_it_played_also_after_a_restart(tmp_path: Path) -> None:
    store, stop, checkpoints = MemoryStore(), Stop(), StandInCheckpoints(tmp_path / "saved")
    for number in range(3):
        announce(store, number)

    class Stopping(StandInTrainer):
        def update(self, batch: Any, rate_share: float = 1.0) -> dict[str, float]:
            stop.requested = True
            return super().update(batch)

    lines_of(make(store, tmp_path, VirtualClock(), trainer=Stopping(), stop=stop, checkpoints=checkpoints))
    assert (
        lines_of(make(store, tmp_path, VirtualClock(), checkpoints=checkpoints))[-1] == "complete: this node played 3 of 5 rounds"
    )


def test_the_rate_falls_with_the_rounds_of_the_swarm(tmp_path: Path) -> None:
    shares = list[float]()

    class Rates(StandInTrainer):
        def update(self, batch: Any, rate_share: float = 1.0) -> dict[str, float]:
            shares.append(rate_share)
            return super().update(batch)

    store = MemoryStore()
    announce(store, 3)  # a late joiner
    worker = make(store, tmp_path, VirtualClock(), trainer=Rates(), max_rounds=6, schedule="linear")
    worker.run()
    assert shares == [rate_share("linear", number, 6, updates) for updates, number in enumerate((3, 4, 5))]


def test_a_run_that_is_extended_says_what_happens_to_the_rate(tmp_path: Path) -> None:
    checkpoints = StandInCheckpoints()
    make(MemoryStore(), tmp_path / "1", VirtualClock(), checkpoints=checkpoints).run()
    again = make(MemoryStore(), tmp_path / "2", VirtualClock(), checkpoints=checkpoints, max_rounds=11)
    told = "MAX_ROUNDS is 11 instead of 5: the learning rate goes on at 51% of LEARNING_RATE instead of 2%"
    assert [line for line in lines_of(again) if line.startswith("MAX_ROUNDS")] == [f"{told}, and falls until the new end"]
    constant = make(MemoryStore(), tmp_path / "3", VirtualClock(), checkpoints=checkpoints, max_rounds=13, schedule="constant")
    assert not [line for line in lines_of(constant) if line.startswith("MAX_ROUNDS")]
