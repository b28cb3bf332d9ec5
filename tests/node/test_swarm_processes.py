"""The shipped loops in real processes on one folder, killed and restarted."""

import signal
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import pytest

from rl_swarm.document import seal
from rl_swarm.rollout import decode
from rl_swarm.runs.progress import events, kept_rounds, records
from rl_swarm.swarm.rounds import Announcement, Rounds
from tests.support.processes import LocalSwarm

ROUNDS = 15
Make = Callable[..., LocalSwarm]


def check_rewards(swarm: LocalSwarm, workers: list[str]) -> None:
    """No reward lost or doubled: the store holds exactly what each node's journal says it submitted."""
    stored = swarm.rewards()
    for node_id in workers:
        rows = swarm.metrics(node_id)
        assert rows, f"{node_id} recorded nothing"
        for row in rows:
            assert stored[row["round"], node_id] == row["reward"]


def check_sharing(swarm: LocalSwarm, names: list[str], *late: str) -> None:
    """Every node trained on rollouts of every other, each published and none of them twice in the rounds that it kept."""
    published = set()
    for path in (swarm.folder / swarm.layout.rollouts).rglob("*.json"):
        published |= {rollout.id for rollout in decode(path.read_bytes()).rollouts}
    for name in (*names, *late):
        rows = kept_rounds(records(swarm.store, swarm.layout, name), events(swarm.store, swarm.layout, name))
        used = [rollout_id for row in rows for rollout_id in row.external_ids]
        assert len(used) == len(set(used)), "an external rollout was used twice"
        assert set(used) <= published
        assert {rollout_id.split("/")[0] for rollout_id in used} >= set(names) - {name}
        assert sum(row.external_used for row in rows) == len(used)


def test_a_second_ctrl_c_is_one_line_that_names_the_last_checkpoint(local_swarm: Make) -> None:
    swarm = local_swarm(MAX_ROUNDS=1000, NUM_TRAIN_SAMPLES=2, CHECKPOINT_INTERVAL=1000, STANDIN_STOP_SECONDS=50)
    swarm.environment["PYTHONUNBUFFERED"] = "1"
    process = swarm.start("w1")
    swarm.wait_for_round(1)
    process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + 30
    while "pushing the model" not in swarm.console("w1"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert swarm.wait(process) == 1
    saved = swarm.metrics("w1")[-1]["round"] + 1
    *others, last = swarm.console("w1").splitlines()
    assert last == f"ended at once, as asked; the last checkpoint is of round {saved}"
    assert not any("Traceback" in line for line in others)
    assert [row["data"]["doing"] for row in events(swarm.store, swarm.layout, "w1") if row["event_type"] == "state"][
        -1
    ] == "stopped"


def test_swarm_survives_kills_and_a_late_node(local_swarm: Make) -> None:
    began = time.monotonic()
    swarm = local_swarm(
        MAX_ROUNDS=ROUNDS, NUM_TRANSPLANT_TREES=2, COORDINATOR_ROUND_INTERVAL=3, NUM_TRAIN_SAMPLES=4, CHECKPOINT_INTERVAL=2
    )
    coordinator = swarm.start("boss", "coordinator")
    workers = {name: swarm.start(name) for name in ("w1", "w2", "w3")}
    swarm.wait_for_round(4)
    workers["w1"].send_signal(signal.SIGKILL)
    workers["w1"].wait()
    workers["w1"] = swarm.start("w1")
    swarm.wait_for_round(8)
    workers["late"] = swarm.start("late")
    coordinator.send_signal(signal.SIGKILL)
    coordinator.wait()
    coordinator = swarm.start("boss", "coordinator")

    for name, process in {**workers, "boss": coordinator}.items():
        assert swarm.wait(process) == 0, swarm.console(name)
    assert time.monotonic() - began < 60
    assert swarm.announced() == list(range(ROUNDS))
    check_rewards(swarm, list(workers))
    assert {ROUNDS - 1} == {max(row["round"] for row in swarm.metrics(name)) for name in workers}
    assert min(row["round"] for row in swarm.metrics("late")) >= 8
    check_sharing(swarm, ["w1", "w2", "w3"], "late")


def test_swarm_without_a_coordinator(local_swarm: Make) -> None:
    began = time.monotonic()
    swarm = local_swarm(
        MAX_ROUNDS=10, NUM_TRANSPLANT_TREES=2, COORDINATOR_ROUND_INTERVAL=3, NUM_TRAIN_SAMPLES=4, CHECKPOINT_INTERVAL=2
    )
    workers = {name: swarm.start(name) for name in ("w1", "w2")}
    swarm.wait_for_round(4)
    workers["w1"].send_signal(signal.SIGKILL)
    workers["w1"].wait()
    workers["w1"] = swarm.start("w1")
    for name, process in workers.items():
        assert swarm.wait(process) == 0, swarm.console(name)
    assert time.monotonic() - began < 60
    assert swarm.announced() == []
    check_rewards(swarm, list(workers))
    for name in workers:
        waits = [row for row in events(swarm.store, swarm.layout, name) if row["event_type"] == "went_on_alone"]
        assert waits == [], "a worker that never heard of a coordinator waited for one"


def test_a_signal_leaves_a_state_that_resumes(local_swarm: Make) -> None:
    swarm = local_swarm(MAX_ROUNDS=1000, COORDINATOR_ROUND_INTERVAL=1, NUM_TRAIN_SAMPLES=2)
    coordinator, worker = swarm.start("boss", "coordinator"), swarm.start("w1")
    swarm.wait_for_round(3)
    worker.send_signal(signal.SIGTERM)
    assert swarm.wait(worker) == 0
    coordinator.send_signal(signal.SIGINT)
    assert swarm.wait(coordinator) == 0
    last = max(row["round"] for row in swarm.metrics("w1"))
    assert events(swarm.store, swarm.layout, "w1")[-1]["data"]["doing"] == "stopped"

    worker = swarm.start("w1", MAX_ROUNDS=last + 5)
    assert swarm.wait(worker) == 0
    assert [row["round"] for row in swarm.metrics("w1")] == list(range(last + 5))
    check_rewards(swarm, ["w1"])


def test_a_crash_exits_non_zero_with_an_error_event(local_swarm: Make) -> None:
    swarm = local_swarm(MAX_ROUNDS=5, NUM_TRAIN_SAMPLES=2)
    worker = swarm.start("w1", STANDIN_SECONDS=-1)
    assert swarm.wait(worker) == 1
    assert "ValueError" in swarm.console("w1")
    failure = [row for row in events(swarm.store, swarm.layout, "w1") if row["event_type"] == "error"]
    assert failure[0]["data"]["error"] == "ValueError"
    assert "ValueError" in (swarm.folder / swarm.layout.log("w1", "stderr.log")).read_text()


@pytest.mark.slow
def test_what_a_stranger_makes_up_does_not_move_the_swarm(local_swarm: Make) -> None:
    """Folders of rewards, announcements beyond the last round, and one with an impossible epoch, before and while it runs."""
    swarm = local_swarm(MAX_ROUNDS=8, COORDINATOR_ROUND_INTERVAL=2, NUM_TRAIN_SAMPLES=2, STANDIN_SECONDS=0.3)
    for number in (5, 7, 777777):
        (swarm.folder / swarm.layout.rewards_of(number)).mkdir(parents=True)
    (swarm.folder / swarm.layout.states).mkdir()
    forged = Announcement(5, "stranger", "s", 10**15 - 1, 0.0, [], [])
    (swarm.folder / swarm.layout.round(5)).write_bytes(seal(forged))
    (swarm.folder / swarm.layout.round(999_999)).write_bytes(seal(Announcement(999_999, "stranger", "s", 1, 0.0, [], [])))
    processes = [swarm.start("boss", "coordinator"), swarm.start("w1"), swarm.start("w2")]
    swarm.wait_for_reward(2)
    (swarm.folder / swarm.layout.rewards_of(6)).mkdir(parents=True, exist_ok=True)
    for process in processes:
        assert swarm.wait(process) == 0
    for name in ("w1", "w2"):
        assert [row["round"] for row in swarm.metrics(name)][:5] == [0, 1, 2, 3, 4]
        assert swarm.metrics(name)[-1]["round"] == 7
    assert swarm.console("boss").count("is taken by a file that cannot be used") == 1
    assert "coordinator complete at round 7" in swarm.console("boss")


def lasted(swarm: LocalSwarm, first: int, last: int) -> list[float]:
    """Seconds that rounds were open, on the coordinator's clock."""
    rounds = Rounds(swarm.store, swarm.layout)
    return [after - before for before, after in pairwise(rounds.read(number).opened_at for number in range(first, last + 2))]


@pytest.mark.alone
def test_no_round_waits_for_who_stopped_fell_silent_or_still_loads(local_swarm: Make) -> None:
    own_round = 4.0
    swarm = local_swarm(MAX_ROUNDS=1000, COORDINATOR_ROUND_INTERVAL=30, NUM_TRAIN_SAMPLES=2, STANDIN_SECONDS=own_round)
    names = ("w1", "w2", "stops", "freezes", "dies")
    workers = {"boss": swarm.start("boss", "coordinator")} | {name: swarm.start(name) for name in names}
    swarm.wait_for_reward(5, 60)
    time.sleep(own_round / 2)  # all are in the next round
    workers["stops"].send_signal(signal.SIGTERM)
    workers["freezes"].send_signal(signal.SIGSTOP)
    workers["dies"].kill()
    swarm.start("loads", STANDIN_LOAD_SECONDS=1000)
    last = max(swarm.announced())
    swarm.wait_for_reward(last + 5, 300)
    before, after = lasted(swarm, 2, last - 1), lasted(swarm, last, last + 4)
    workers["freezes"].send_signal(signal.SIGCONT)
    figures = [" ".join(f"{seconds:.1f}" for seconds in some) for some in (before, after)]
    print(f"rounds of {own_round} s lasted {figures[0]}; after one stopped, two fell silent and one loads {figures[1]}")
    slack = 2.0  # for polls, on a busy machine
    assert median(before) < own_round + slack, "all are waited for, and nobody longer than needed"
    assert max(after) - median(before) < own_round + slack
    assert max(after[1:]) < own_round + slack, "once, and not again"
    assert "stops" not in Rounds(swarm.store, swarm.layout).read(last + 5).live
