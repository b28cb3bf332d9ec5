"""Limits on the work that peers can cause a reader in one round, whatever they put into the store."""

from collections import Counter, defaultdict
from dataclasses import dataclass

FILES = 32
UNREADY = 4  # missing or incomplete files: each costs the store's retries
BYTES = 16 << 20
POOL_BYTES = 64 << 20  # text kept for later rounds, all peers together
ROLLOUTS = 128
LARGE_GROUP = 32  # completions that a peer's rollout may always have, however few this node generates
CHECKING_SECONDS = 10.0  # a rollout that takes longer than what is left is given up
CHECKING_SHARE = 1 / 15  # of the time for fetching: checking may always take this long, all peers together


@dataclass
class Allowance:
    """What is left of one peer's quota."""

    files: int = FILES
    unready: int = UNREADY
    bytes: int = BYTES
    rollouts: int = ROLLOUTS
    seconds: float = CHECKING_SECONDS

    @property
    def spent(self) -> bool:
        return self.files <= 0 or self.unready <= 0 or self.bytes <= 0 or self.checked_enough

    @property
    def checked_enough(self) -> bool:
        return self.rollouts <= 0 or self.seconds <= 0


@dataclass
class Budget:
    """What is left in a round: for each peer, and seconds of checking for all together. `peers` have had no turn yet.

    `places` limits the rollouts `taken` of one peer and round, so that many true ones cannot crowd out everybody else's.
    """

    round: int
    wanted: int
    seconds: float
    places: int
    peers: set[str]
    taken: Counter[tuple[str, int]]

    def __post_init__(self) -> None:
        # Enough to take all that is wanted from one peer, even if each rollout is a file.
        files, rollouts = max(FILES, self.wanted), max(ROLLOUTS, self.wanted)
        self.of_peer: defaultdict[str, Allowance] = defaultdict(lambda: Allowance(files=files, rollouts=rollouts))

    def reserve(self, peer: str) -> float:
        """The seconds that this peer must leave to peers that have had no turn yet."""
        self.peers.discard(peer)
        return self.seconds * len(self.peers) / (len(self.peers) + 1)
