"""This node's opinion of its peers, from the files it has read: whose rollouts were good, and who is muted for a while.

A bad file is a fault; two good files make up for one. A peer with three faults is not read for some rounds, and for twice as many
each further time. Every mute ends by itself. Peers can see the opinion in the metrics and need not share it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rl_swarm.document import Count

FAULT = 2  # a good file takes away 1
MOST_FAULTS = 3 * FAULT
FIRST_MUTE_ROUNDS = 8
LONGEST_MUTE_ROUNDS = 256
MOST_PEERS = 2048  # remembered; the least recently read is forgotten first
MOST_TOLD = 20  # mutes in one row of metrics


class Standing(msgspec.Struct, forbid_unknown_fields=True):
    """A muted peer is read again in round `until`; `reason` is why its last bad file was refused."""

    good: bool = False
    faults: Annotated[int, Meta(ge=0, le=MOST_FAULTS)] = 0
    mutes: Annotated[int, Meta(ge=0, lt=10**6)] = 0  # twice to this power
    until: Count = 0
    reason: Annotated[str, Meta(max_length=64)] = ""


@dataclass(frozen=True)
class Mute:
    peer: Annotated[str, Meta(max_length=64)]
    reason: Annotated[str, Meta(max_length=64)]
    until: Annotated[int, Meta(ge=0, lt=10**15)]


class Standings:
    """`tell` is given every mute that begins, as an event with a line for people."""

    def __init__(self, tell: Callable[..., None] = lambda event, line, **details: None) -> None:
        self._tell = tell
        self._peers: dict[str, Standing] = {}  # the most recently read comes last

    def muted(self, peer: str, round_number: int) -> bool:
        return peer in self._peers and round_number < self._peers[peer].until

    def trusted(self, peer: str) -> bool:
        """Whether this peer's last judged file was good."""
        return peer in self._peers and self._peers[peer].good

    def all_trusted(self) -> list[str]:
        return [peer for peer, standing in self._peers.items() if standing.good]

    def good(self, peer: str) -> None:
        standing = self._touch(peer)
        standing.good = True
        standing.faults = max(0, standing.faults - 1)
        if standing.faults == 0:
            standing.mutes = 0

    def bad(self, peer: str, round_number: int, reason: str) -> None:
        standing = self._touch(peer)
        standing.good, standing.reason = False, reason
        standing.faults += FAULT
        if standing.faults >= MOST_FAULTS:
            standing.until = round_number + 1 + min(FIRST_MUTE_ROUNDS * 2**standing.mutes, LONGEST_MUTE_ROUNDS)
            standing.mutes += 1
            standing.faults = MOST_FAULTS - FAULT  # after the mute, the next bad file is enough
            why = f"it keeps sending bad files, the last was refused as {reason}"
            line = f"{peer} is muted until round {standing.until}: {why}"
            self._tell("muted", line, peer=peer, reason=reason, until=standing.until)

    def mutes(self, round_number: int) -> list[Mute]:
        """Peers muted in this round, newest first, at most MOST_TOLD."""
        found = [Mute(peer, each.reason, each.until) for peer, each in self._peers.items() if round_number < each.until]
        return found[-MOST_TOLD:][::-1]

    def state(self) -> dict[str, Any]:
        return {peer: msgspec.structs.asdict(standing) for peer, standing in self._peers.items()}

    def restore(self, peers: dict[str, Standing]) -> None:
        self._peers = dict(peers)

    def _touch(self, peer: str) -> Standing:
        self._peers[peer] = self._peers.pop(peer, Standing())
        if len(self._peers) > MOST_PEERS:
            del self._peers[next(iter(self._peers))]
        return self._peers[peer]
