"""I own and J external rollouts a round: how people write them, and how an adaptive node changes them together.

Pure. The shipped worker has a fixed split; an experiment that adapts gives it another one between two rounds.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rl_swarm.errors import ConfigError

LOOKED_BACK = 10  # rounds over which a node measures how often its own rollouts are informative
LEAST_OWN = 2  # fewer would leave a node without an own opinion of how it is doing


@dataclass(frozen=True, order=True)
class Split:
    own: int
    external: int

    def __str__(self) -> str:
        return f"{self.own}/{self.external}"

    @property
    def total(self) -> int:
        return self.own + self.external


def parse_split(text: str) -> Split:
    found = re.fullmatch(r"\s*([0-9]{1,3})/([0-9]{1,3})\s*", text)
    if not found or int(found[1]) < 1:
        raise ConfigError(f"a split is written I/J with I at least 1, got {text!r}: for instance 4/4")
    return Split(int(found[1]), int(found[2]))


def parse_splits(text: str) -> tuple[Split, ...]:
    """The splits to be compared; the one without sharing comes first, whoever is named first."""
    splits = tuple(dict.fromkeys(parse_split(part) for part in text.split(",")))
    baselines = [split for split in splits if split.external == 0]
    if len(baselines) != 1:
        raise ConfigError(f"--splits needs exactly one split without sharing to compare with, got {text!r}: for instance 8/0,4/4")
    return (*baselines, *(split for split in splits if split.external))


def adapted(split: Split, informative: Sequence[float], peers: int) -> Split:
    """The next split of a node whose own rollouts were informative at these shares in the last rounds.

    I is as small as it can be for the swarm to find what it takes: I · share · peers = J. While almost nothing is informative every
    node explores; when much is, it leaves most of the writing to its peers. I + J stays what it was.
    """
    if not informative or not peers:
        return split
    recent = informative[-LOOKED_BACK:]
    share = sum(recent) / len(recent)
    own = round(split.total / (1 + peers * share))
    own = min(max(own, LEAST_OWN), split.total)
    return Split(own, split.total - own)
