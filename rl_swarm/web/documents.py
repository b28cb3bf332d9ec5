"""The response bodies of the web API. Text from strangers is already made safe to show."""

from dataclasses import dataclass

Point = tuple[float, float]  # round, value


@dataclass(frozen=True)
class Health:
    status: str
    version: str


@dataclass(frozen=True)
class ExperimentLine:
    """One experiment in a few figures.

    `status` is "unknown" until it was looked at, "refused" if it is not the founder's, and "silent" if no worker has given a sign
    of life for long.
    """

    name: str
    status: str
    rounds_done: int = 0
    max_rounds: int | None = None
    workers: int = 0
    reward: float | None = None  # mean of the workers' last rounds
    model: str = ""
    own_wanted: int | None = None
    external_wanted: int | None = None
    last_round_at: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class Experiments:
    experiments: list[ExperimentLine]
    default: str | None
    left_out: int


@dataclass(frozen=True)
class RoundAndStage:
    """Where a run stands. `reading` says that its journals are still being read; `trouble` why nothing new can be read."""

    experiment: str
    version: int
    status: str
    round: int | None
    stage: int
    rounds_done: int
    max_rounds: int | None
    opened_at: float | None
    last_round_at: float | None
    pace: float | None
    seconds_left: float | None
    tokens_per_s: float
    workers: int
    left_out: int
    model: str
    own_wanted: int | None
    external_wanted: int | None
    group_size: int | None
    tasks: str
    reading: bool
    trouble: str


@dataclass(frozen=True)
class Mute:
    peer: str
    until: int
    reason: str


@dataclass(frozen=True)
class Peer:
    """A node: what it is doing, since when, and its figures; `reward` is the mean of its last rounds."""

    id: str
    name: str
    role: str
    model: str
    doing: str
    since: float | None
    round: int | None
    last_sign: float | None
    silent_seconds: float | None
    ended: bool
    reward: float | None
    rounds: int
    own_used: int | None
    own_wanted: int | None
    external_used: int | None
    external_wanted: int | None
    external_age: float | None
    seconds: float | None
    tokens_per_s: float | None
    gave: int
    got: int
    own_trained: int
    tokens: int
    rejected: dict[str, int]
    muted: list[Mute]
    name_in_use: bool


@dataclass(frozen=True)
class Uses:
    """How often the learner trained on rollouts of the author."""

    learner: str
    author: str
    count: int


@dataclass(frozen=True)
class Peers:
    peers: list[Peer]
    total: int
    uses: list[Uses]
    remarks: list[str]


@dataclass(frozen=True)
class Leader:
    """A worker. `rounds_won` counts rounds with the highest own reward; nodes with the same reward share one."""

    rank: int
    id: str
    name: str
    reward: float | None
    reward_total: float
    rounds: int
    rounds_won: float


@dataclass(frozen=True)
class Leaderboard:
    leaders: list[Leader]
    total: int


@dataclass(frozen=True)
class Cumulative:
    rank: int
    id: str
    name: str
    reward_total: float
    points: list[Point]


@dataclass(frozen=True)
class CumulativeLeaderboard:
    leaders: list[Cumulative]
    total: int


@dataclass(frozen=True)
class NodeCurve:
    id: str
    name: str
    points: list[Point]


@dataclass(frozen=True)
class BandPoint:
    """A stretch of rounds: the mean of the nodes, and the lowest and highest of them."""

    round: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class RewardsHistory:
    """Means over stretches of `width` rounds; there are at most a few hundred stretches."""

    width: int
    mean: list[BandPoint]
    nodes: list[NodeCurve]
    left_out: int


@dataclass(frozen=True)
class HeldOut:
    """Held-out accuracy, mean of the nodes, as three readings, with the range that chance leaves to the first."""

    round: int
    held_out: float
    in_form: float
    style_blind: float
    low: float
    high: float
    questions: int


@dataclass(frozen=True)
class Advice:
    share: float | None  # of own rollouts in the last rounds that were uninformative
    line: str


@dataclass(frozen=True)
class Metrics:
    """Figures by stretch of rounds, mean of the nodes or of one node; None where a figure was not measured."""

    width: int
    rounds: list[float]
    figures: dict[str, list[float | None]]
    held_out: list[HeldOut]
    rejected: dict[str, int]
    uninformative: Advice
    notes: list["NoteLine"]


@dataclass(frozen=True)
class NoteLine:
    at: float
    node: str
    kind: str
    line: str


@dataclass(frozen=True)
class CompletionView:
    text: str
    cut: bool
    parsed: str | None
    reward: float
    advantage: float
    verdict: str
    tokens: int
    finish: str


@dataclass(frozen=True)
class Learner:
    id: str
    name: str
    round: int


@dataclass(frozen=True)
class RolloutView:
    id: str
    node: str
    name: str
    round: int
    stage: int
    slot: int
    task: str
    prompt: str
    cut: bool
    expected: str | None
    reward: float
    informative: bool
    completions: list[CompletionView]
    trained_by: list[Learner]


@dataclass(frozen=True)
class Rollouts:
    """`next` is the value of `start` for the page after this one."""

    rollouts: list[RolloutView]
    next: str | None
    tasks: list[str]
    newest_round: int | None


@dataclass(frozen=True)
class Gossip:
    at: float
    node: str
    name: str
    round: int
    task: str
    rollout: str
    prompt: str
    text: str
    reward: float
    verdict: str


@dataclass(frozen=True)
class Gossips:
    completions: list[Gossip]


@dataclass(frozen=True)
class NameAndIds:
    name: str
    ids: list[str]


@dataclass(frozen=True)
class IdAndName:
    id: str
    name: str


@dataclass(frozen=True)
class Problem:
    """Why there is no answer, and what to do."""

    detail: str
