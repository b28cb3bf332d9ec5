"""The rows of a node's journals, in the only form in which they are written or read.

`Round` is a line of metrics.jsonl. Every figure is of that round alone, unless its name ends in `_total`: those count since the
node began, also across restarts if they are part of its checkpoint (`rejected_total`), else since its process did. Anyone may have
written a journal, so everything has bounds; readers skip a row that does not fit, and ignore names that they do not know.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from rl_swarm.config import MOST_ROUNDS
from rl_swarm.document import Count, Label
from rl_swarm.swarm.rounds import RoundNumber
from rl_swarm.swarm.standing import Mute

VERSION = 1

Finite = Annotated[float, Meta(ge=-1e12, le=1e12)]
Share = Annotated[float, Meta(ge=0, le=1)]

Row = TypeVar("Row", bound=msgspec.Struct)


class Round(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    timestamp: Finite  # seconds since 1970 on the node's own clock, at the end of the round
    node_id: Label = ""
    experiment: Label = ""
    round: RoundNumber
    stage: Count = 0

    # The node's own completions, informative or not; lengths are in tokens
    reward: Finite  # their mean; those of peers would raise it without any learning
    reward_std: Finite = 0.0
    reward_by_task: dict[Label, Finite] = {}
    tokens: Count = 0
    tokens_per_s: Finite = 0.0  # generated, per second of generating
    length_min: Count = 0
    length_mean: Finite = 0.0
    length_max: Count = 0
    truncated: Share = 0.0  # share of completions cut at MAX_NEW_TOKENS
    answered: Share = 0.0  # share of completions with an <answer>, which is all that a verifier reads

    # The batch of the update, with ids (node/round/stage/slot) from which anyone can recompute who learnt from whom
    own_wanted: Count = 0  # I
    own_used: Count = 0  # the informative ones
    own_ids: tuple[Label, ...] = ()
    external_wanted: Count = 0  # J
    external_used: Count = 0  # given to the update; with ROLLOUT_CHOICE=uniform also uninformative ones
    external_ids: tuple[Label, ...] = ()
    external_age: Finite | None = None  # their mean age in rounds
    external_reward: Finite | None = None  # as scored here
    group_size: Count = 0  # G

    # Measured by the update; None where there was nothing to measure
    informative: Finite = 0.0  # rollouts trained on, own and external
    too_long: Finite = 0.0  # rollouts whose prompts do not fit the model's context
    tokens_trained: Finite = 0.0
    loss: Finite | None = None
    grad_norm: Finite | None = None
    learning_rate: Finite | None = None
    entropy: Finite | None = None  # nats a token
    weight_mean: Finite | None = None  # over external completions
    weight_mean_negative: Finite | None = None  # over those of them with a negative advantage
    external_weighed: Finite = 0.0  # external completions that could count
    external_discounted: Finite = 0.0  # those of them that counted for nothing
    policy_version: Count = 0  # updates so far

    # Greedy pass@1 on the held-out questions after this round, if it was evaluated
    held_out: Share | None = None
    held_out_style_blind: Share | None = None
    held_out_in_form: Share | None = None  # with the completion made to begin with <answer>
    held_out_by_task: dict[Label, Share] = {}
    held_out_questions: Count = 0

    seconds: dict[Label, Finite] = {}  # by phase: generate, score, store, train
    muted: tuple[Mute, ...] = ()  # peers that are muted now
    pending: Count = 0  # documents that wait for the store now
    rejected_total: dict[Label, Count] = {}  # of peers' files and rollouts, by reason
    tasks_total: dict[Label, Count] = {}  # failures with questions and answers
    store_total: dict[Label, Count] = {}  # operations, bytes, retries, and fates of documents


class Evaluated(msgspec.Struct, frozen=True):
    """The data of an `evaluation` event: accuracy on the held-out questions before a round."""

    round: RoundNumber
    held_out: Share
    held_out_style_blind: Share
    held_out_in_form: Share
    held_out_questions: Count = 0
    held_out_by_task: dict[Label, Share] = {}


class Doing(msgspec.Struct, frozen=True):
    doing: str
    round: Annotated[int, Meta(ge=-1, lt=MOST_ROUNDS)]  # -1 before the first


class State(msgspec.Struct, frozen=True):
    """The event that says what a node is doing from now on."""

    timestamp: Finite
    event_type: Literal["state"]
    data: Doing


class Event(msgspec.Struct, frozen=True):
    """Any row of training_events.jsonl; its data is decoded by those who know its type."""

    timestamp: Finite = 0.0
    event_type: Any = None
    data: msgspec.Raw = msgspec.Raw(b"null")


class Started(msgspec.Struct, frozen=True):
    round: Annotated[int, Meta(ge=-1, lt=MOST_ROUNDS)]  # the first that it may play


class Start(msgspec.Struct, frozen=True):
    """The event that a node is about to play, from nothing or from a checkpoint."""

    timestamp: Finite
    event_type: Literal["started"]
    data: Started


def valid(rows: Iterable[Any], kind: type[Row]) -> list[Row]:
    """Return the rows of this kind."""
    found = []
    for row in rows:
        try:
            found.append(msgspec.convert(row, kind))
        except (msgspec.ValidationError, UnicodeEncodeError):  # the latter for half a surrogate pair in a text
            continue
    return found


def decoded(lines: Iterable[str | msgspec.Raw], kind: type[Row]) -> Iterator[Row]:
    """Yield the lines that are of this kind. The last line of a killed node may be half a line."""
    decoder = msgspec.json.Decoder(kind)
    for line in lines:
        try:
            yield decoder.decode(line)
        except (msgspec.DecodeError, UnicodeError, RecursionError):  # the last for brackets nested thousands deep
            continue


def by_round(records: Iterable[Round]) -> dict[int, Round]:
    """Return one record a round, in order. A killed node may have played a round again: the last record counts."""
    found = {each.round: each for each in records}
    return {number: found[number] for number in sorted(found)}


def stamped(timestamp: float, line: str) -> str:
    """A line of a console as `stdout.log` and `stderr.log` have it, after its time."""
    moment = datetime.fromtimestamp(timestamp, timezone.utc).isoformat(timespec="milliseconds")
    return f"{moment.removesuffix('+00:00')}Z {line}"


def unstamped(line: str) -> tuple[float | None, str]:
    """The time of a line and the line itself; no time if none was written."""
    said, _, rest = line.partition(" ")
    try:
        return datetime.strptime(said, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc).timestamp(), rest
    except ValueError:
        return None, line
