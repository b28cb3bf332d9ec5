"""Authors whose completions are mostly absurd lose the trust of a policy, and can win it back."""

from itertools import pairwise

import pytest

from rl_swarm.errors import CheckpointError
from rl_swarm.learning import trust
from rl_swarm.learning.trust import LEAST_JUDGED, MOST_AUTHORS, Trust, check_evidence


def update(found: Trust, author: str, plausible: int, absurd: int) -> None:
    found.begin()
    for each in [True] * plausible + [False] * absurd:
        found.note(author, each)
    found.finish()


def test_an_author_is_trusted_until_most_of_what_it_wrote_was_absurd() -> None:
    found = Trust()
    assert found.trusted("stranger")
    update(found, "mixed", plausible=8, absurd=8)
    update(found, "bad", plausible=7, absurd=9)
    assert found.trusted("mixed") and not found.trusted("bad")


def test_a_few_absurd_completions_are_no_evidence() -> None:
    found = Trust()
    update(found, "peer", plausible=0, absurd=int(LEAST_JUDGED) - 1)
    assert found.trusted("peer")
    update(found, "peer", plausible=0, absurd=2)
    assert not found.trusted("peer")


def test_evidence_of_an_update_counts_from_the_next_one_on() -> None:
    found = Trust()
    found.begin()
    for _ in range(20):
        found.note("bad", False)
        assert found.trusted("bad"), "or the order of a batch would matter"
    found.begin()  # the update is done again, for want of memory
    found.finish()
    assert found.trusted("bad") and not found.evidence


def test_trust_can_be_won_back_and_evidence_fades() -> None:
    found = Trust()
    update(found, "peer", plausible=0, absurd=16)
    rounds = 0
    while not found.trusted("peer"):
        update(found, "peer", plausible=4, absurd=0)
        rounds += 1
    assert 2 <= rounds <= 10
    evidence = []
    while "peer" in found.evidence:
        evidence.append(found.evidence["peer"][0])
        update(found, "other", plausible=1, absurd=0)
    assert all(later < earlier for earlier, later in pairwise(evidence)) and len(evidence) < 1000


def test_an_author_who_is_seldom_read_loses_trust_too_and_silence_does_not_mend_it_soon() -> None:
    found = Trust()
    for number in range(40):
        update(found, "seldom" if number % 3 == 0 else "other", plausible=0, absurd=1)
    assert not found.trusted("seldom")
    for _ in range(20):
        update(found, "third", plausible=1, absurd=0)
    assert not found.trusted("other")


def test_only_so_many_authors_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "MOST_AUTHORS", 3)
    found = Trust()
    found.begin()
    for number in range(9):
        for _ in range(number + 1):
            found.note(f"peer_{number}", False)
    found.finish()
    assert sorted(found.evidence) == ["peer_6", "peer_7", "peer_8"], "those with the most evidence"


def test_evidence_survives_a_checkpoint() -> None:
    found, restored = Trust(), Trust()
    update(found, "peer", plausible=1, absurd=10)
    restored.evidence = check_evidence(dict(found.evidence))
    assert restored.evidence == found.evidence and not restored.trusted("peer")


@pytest.mark.parametrize(
    "evidence",
    [
        None,
        {1: (1.0, 1.0)},
        {"peer": [1.0, 1.0]},
        {"peer": (1.0,)},
        {"peer": (1, 1)},
        {"peer": (1.0, 2.0)},
        {"peer": (1.0, -1.0)},
        {"peer": (float("nan"), 0.0)},
        {"peer": (float("inf"), 0.0)},
        {"peer": (1e300, 0.0)},
        {str(number): (1.0, 1.0) for number in range(MOST_AUTHORS + 1)},
    ],
)
def test_evidence_that_cannot_be_is_refused(evidence: object) -> None:
    with pytest.raises(CheckpointError, match="evidence"):
        check_evidence(evidence)
