from rl_swarm.runs.names import ANIMALS, DOING, HOW, readable_name


def test_names_are_three_words_that_follow_from_the_id() -> None:
    assert readable_name("worker_1") == readable_name("worker_1") != readable_name("worker_2")
    how, doing, animal = readable_name("worker_1").split()
    assert how in HOW and doing in DOING and animal in ANIMALS
    assert [len(set(words)) for words in (HOW, DOING, ANIMALS)] == [64, 64, 64]


def test_names_of_many_nodes_differ() -> None:
    assert len({readable_name(f"node-{number}") for number in range(256)}) >= 254
