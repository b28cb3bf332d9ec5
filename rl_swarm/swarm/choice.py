"""Choose which of the peers' files to read, and J of the rollouts in them.

A rule (ROLLOUT_CHOICE) chooses the rollouts:

    informative   uniformly among the informative ones: the paper's rule, and the default
    uniform       uniformly among all, which wastes places on rollouts without a gradient; for comparison
    matched       by difficulty: about half of the completions right, where a comparison says most

The rules see rewards that were scored here, never a peer's claim, and not who wrote a rollout.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from statistics import fmean
from typing import NamedTuple

from rl_swarm.randomness import stream_seed
from rl_swarm.rollout import Rollout


class File(NamedTuple):
    """A file with rollouts of a peer, by its name."""

    key: str
    node_id: str
    round: int
    stage: int
    slot: int


def in_turn(files: Iterable[File], trusted: Callable[[str], bool], most_peers: int, most_files: int, salt: str) -> list[File]:
    """Put every peer's first file before anyone's second, so that no peer crowds out the others with many files.

    Trusted peers alternate with the others, so that a flood of made-up names can take at most half of the reads. Of one peer's
    files, those that it publishes first come first: strangers may have put a thousand beside them under its name.

    Every place in the order is drawn separately, so that a file which appears later seldom moves another: files read ahead are
    then mostly those that `gather` wants.
    """
    by_peer: dict[str, list[File]] = {}
    for file in sorted(files, key=lambda file: (file.slot, stream_seed(salt, file.key))):
        by_peer.setdefault(file.node_id, []).append(file)
    peers = sorted(by_peer, key=lambda peer: stream_seed(salt, peer))  # by name: many files make a peer no likelier
    known, others = [peer for peer in peers if trusted(peer)], [peer for peer in peers if not trusted(peer)]
    turns = [peer for pair in zip_longest(known, others) for peer in pair if peer is not None][:most_peers]
    rows = zip_longest(*(by_peer[peer][:most_files] for peer in turns))
    return [file for row in rows for file in row if file is not None]


def eligible(rollout: Rollout, choice: str) -> bool:
    """Whether the rule would ever take this rollout."""
    return choice == "uniform" or rollout.informative


def mismatch(rollout: Rollout) -> float:
    """The distance from being half right. Peers learn at about the same pace, so what is hard for them is hard here."""
    return abs(fmean(rollout.rewards) - 0.5)


def pick(pool: Sequence[Rollout], count: int, chooser: random.Random, choice: str = "informative") -> list[Rollout]:
    """Sort the candidates first, so that the choice depends on the generator alone."""
    candidates = sorted((rollout for rollout in pool if eligible(rollout, choice)), key=lambda rollout: rollout.id)
    if choice == "matched":
        chooser.shuffle(candidates)  # among equals, chance decides
        return sorted(candidates, key=mismatch)[:count]
    return chooser.sample(candidates, min(count, len(candidates)))
