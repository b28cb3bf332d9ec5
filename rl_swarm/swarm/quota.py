"""What peers may cost a reader in one round, and bring it, whatever they have put into the store."""

from dataclasses import dataclass

FILES = 32
UNREADY = 4  # files that were not there or not whole: each costs the store's retries
BYTES = 16 << 20
POOL_BYTES = 64 << 20  # of text that is kept for later rounds, all peers together
ROLLOUTS = 128
CHECKING_SECONDS = 10.0  # kept inside a rollout, too: one that takes longer than what is left is given up
CHECKING_SHARE = 1 / 15  # of the time for fetching that checking may take, all peers together, however quick the node itself is


@dataclass
class Allowance:
    """What is left for one peer."""

    files: int = FILES
    unready: int = UNREADY
    bytes: int = BYTES
    rollouts: int = ROLLOUTS
    seconds: float = CHECKING_SECONDS

    @classmethod
    def of_round(cls, wanted: int) -> "Allowance":
        """Enough to have all that is wanted from one peer, also where each rollout is a file."""
        return cls(files=max(FILES, wanted), rollouts=max(ROLLOUTS, wanted))

    @property
    def spent(self) -> bool:
        return self.files <= 0 or self.unready <= 0 or self.bytes <= 0 or self.checked_enough

    @property
    def checked_enough(self) -> bool:
        return self.rollouts <= 0 or self.seconds <= 0


@dataclass
class Budget:
    """What is left for all peers together: seconds of checking, and who has had no turn yet; and the most of one peer's round.

    `places` bounds how many rollouts of one peer and round are taken, so that many true ones cannot crowd out everybody else's.
    """

    seconds: float
    places: int
    peers: set[str]

    def reserve(self, peer: str) -> float:
        """The seconds that this peer must leave to those who have had no turn yet."""
        self.peers.discard(peer)
        return self.seconds * len(self.peers) / (len(self.peers) + 1)

    def for_one(self, reserve: float) -> float:
        """The seconds that one rollout may take: its peer's, or half of all that is left, since ending one is dear."""
        return max(self.seconds - reserve, self.seconds / 2)
