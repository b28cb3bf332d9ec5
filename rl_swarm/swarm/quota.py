"""What one peer may cost a reader in one round, whatever it has put into the store."""

from dataclasses import dataclass

FILES = 32
UNREADY = 4  # files that were not there or not whole: each costs the store's retries
BYTES = 16 << 20
ROLLOUTS = 128
CHECKING_SECONDS = 10.0  # kept inside a rollout, too: one that takes longer than what is left is given up


@dataclass
class Allowance:
    """What is left of it for one peer."""

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
