from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import Liveness, Pulse, Registration, newest_heartbeat, read_heartbeat, register, registered
from tests.clocks import VirtualClock

LAYOUT = Layout("trial")


def registration(node_id: str, session: str = "a") -> Registration:
    return Registration(node_id, "worker", 1.0, "nano", node_id, "0.1", session)


def test_a_node_registers_once() -> None:
    store = MemoryStore()
    assert register(store, LAYOUT, registration("w1")).session == "a"
    assert register(store, LAYOUT, registration("w1", "b")).session == "a"
    store.put(f"{LAYOUT.peers}/README.txt", b"")
    assert registered(store, LAYOUT) == {"w1"}


def test_names_that_begin_like_others_are_counted() -> None:
    store = MemoryStore()
    for node_id in ("node_0", "node_01", "node"):
        register(store, LAYOUT, registration(node_id))
    assert registered(store, LAYOUT) == {"node_0", "node_01", "node"}


def test_heartbeats_are_numbered_on_and_old_ones_removed() -> None:
    store, clock = MemoryStore(), VirtualClock()
    for _ in range(2):  # the second life of the node goes on counting
        pulse = Pulse(store, LAYOUT, "w1", clock)
        for _ in range(3):
            pulse.beat("training", 4)
    assert newest_heartbeat(store, LAYOUT, "w1") == 6
    assert len(store.list(LAYOUT.heartbeats("w1"))) == 2
    beat = read_heartbeat(store, LAYOUT, "w1", 6)
    assert beat is not None
    assert (beat.doing, beat.round) == ("training", 4)


def test_only_something_new_is_a_sign_of_life() -> None:
    clock = VirtualClock()
    liveness = Liveness(clock, limit_seconds=10)
    liveness.sign("w1", "reward", 3)
    clock.sleep(6)
    liveness.sign("w1", "reward", 3)
    liveness.sign("w1", "reward", 2)
    assert liveness.live() == {"w1"} and liveness.silent() == {"w1"}
    clock.sleep(6)
    assert liveness.live() == set()
    liveness.sign("w1", "heartbeat", 0)
    assert liveness.live() == {"w1"} and liveness.silent() == set()
