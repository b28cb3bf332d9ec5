from rl_swarm.processes import threads


def test_workers_share_the_cores() -> None:
    assert [threads.share(workers, 8) for workers in (1, 2, 3, 8, 9)] == [8, 4, 2, 1, 1]
    assert threads.share(1) == threads.cores()


def test_a_number_that_the_user_has_chosen_wins() -> None:
    assert threads.shared_by(4, {}, 8) == {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    assert threads.shared_by(4, {"OMP_NUM_THREADS": ""}, 8) == threads.shared_by(4, {}, 8)
    for variable in threads.VARIABLES:
        assert threads.shared_by(4, {variable: "3"}, 8) == {}


def test_waiting_threads_soon_sleep_unless_the_user_wants_otherwise() -> None:
    for given, wanted in (
        ({}, {"GOMP_SPINCOUNT": threads.SPINS}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
        ({"GOMP_SPINCOUNT": "1000"}, {"GOMP_SPINCOUNT": "1000"}),
    ):
        environment = dict(given)
        threads.sleep_when_idle(environment)
        assert environment == wanted
