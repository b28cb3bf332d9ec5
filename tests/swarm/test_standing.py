"""Who is muted, for how long, and that it ends."""

import json

import msgspec

from rl_swarm.swarm.protocol import Newsbox
from rl_swarm.swarm.standing import (
    FIRST_MUTE_ROUNDS,
    LONGEST_MUTE_ROUNDS,
    MOST_PEERS,
    MOST_TOLD,
    Mute,
    Standing,
    Standings,
)


def test_three_bad_files_mute_a_peer_for_a_while_and_it_is_told_once() -> None:
    news = Newsbox()
    standings = Standings(news.add)
    for number in (4, 5):
        standings.bad("evil", number, "checksum")
        assert not standings.muted("evil", number + 1)
    standings.bad("evil", 6, "prompt_mismatch")
    until = 7 + FIRST_MUTE_ROUNDS
    assert [standings.muted("evil", number) for number in (7, until - 1, until)] == [True, True, False]
    assert standings.mutes(7) == [Mute(**each.details) for each in news.take()] == [Mute("evil", "prompt_mismatch", until)]
    assert standings.mutes(until) == []
    assert not standings.muted("good", 7)


def test_a_mute_grows_to_a_limit_and_always_ends() -> None:
    standings, lengths, number = Standings(), [], 0
    for _ in range(10):
        while not standings.muted("evil", number + 1):
            standings.bad("evil", number, "checksum")
        lengths.append(standings.mutes(number + 1)[0].until - number - 1)
        number = standings.mutes(number + 1)[0].until
    assert lengths[:3] == [FIRST_MUTE_ROUNDS, 2 * FIRST_MUTE_ROUNDS, 4 * FIRST_MUTE_ROUNDS]
    assert lengths[-1] == LONGEST_MUTE_ROUNDS


def test_a_peer_that_is_mostly_good_is_never_muted_and_one_that_improves_starts_anew() -> None:
    standings = Standings()
    for number in range(100):
        standings.good("clumsy")
        standings.good("clumsy")
        standings.bad("clumsy", number, "checksum")
    assert standings.mutes(100) == [] and not standings.trusted("clumsy")
    for number in range(3):
        standings.bad("clumsy", number, "checksum")
    for _ in range(10):
        standings.good("clumsy")
    assert standings.trusted("clumsy")
    for _ in range(3):
        standings.bad("clumsy", 500, "checksum")
    assert standings.mutes(501)[0].until == 501 + FIRST_MUTE_ROUNDS, "the first mute is forgiven"


def test_standings_survive_a_restart_and_stay_small() -> None:
    standings = Standings()
    for number in range(MOST_PEERS + 50):
        standings.good("friend")
        for _ in range(3):
            standings.bad(f"made-up-{number}", 1, "checksum")
    again = Standings()
    again.restore(msgspec.convert(json.loads(json.dumps(standings.state())), dict[str, Standing]))
    assert again.mutes(2) == standings.mutes(2) and len(again.mutes(2)) == MOST_TOLD
    assert again.muted(f"made-up-{MOST_PEERS}", 2) and again.trusted("friend")
    assert len(again.state()) == MOST_PEERS
