"""The loop of a node: Algorithm 1 of Swarm sAmpling Policy Optimization (arXiv:2509.08721, section 3), with everything it needs as
arguments, so that it imports no torch and a simulation runs this very loop.

It departs from the paper in that rounds are labels: a node never waits for a peer, takes external rollouts from a window of
rounds, and goes on alone when there is no coordinator or no store.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from rl_swarm.clock import Clock
from rl_swarm.document import Count, typed
from rl_swarm.errors import CheckpointError
from rl_swarm.node.journal import Journal
from rl_swarm.processes.stopping import PUSH_SECONDS, Stop
from rl_swarm.randomness import generator, stream_seed
from rl_swarm.rollout import Completion, Question, Rollout
from rl_swarm.runs.measures import Stopwatch, batch_figures, own_figures, rewards_of
from rl_swarm.runs.record import Round
from rl_swarm.swarm.protocol import Swarm

BARREN_ROUNDS = 20
DISCOUNTED_ROUNDS = 20
LAST_SAVE_SECONDS, LAST_SAVE_PAUSE = 60.0, 5.0  # that the last checkpoint waits for room on the disk, and between two tries
LAST_PUSH_SECONDS = 1800.0  # for the model of a run that is complete; who stops a node waits no longer than PUSH_SECONDS
STAGE = 0  # the only one that is played today


class Tasks(Protocol):
    counters: Counter[str]

    def draw(self, count: int) -> list[Question]: ...
    def score_all(self, question: Question, texts: Sequence[str]) -> list[float]: ...
    def verify(self, rollout: Rollout, seconds: float) -> Rollout: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...


class Policy(Protocol):
    def answer(self, questions: Sequence[Question], group_size: int, seed: int) -> Iterable[tuple[Completion, ...]]: ...


class Trainer(Protocol):
    @property
    def policy_version(self) -> int: ...
    def update(self, batch: Sequence[Rollout]) -> dict[str, float]: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...


class Checkpoints(Protocol):
    def save(self, round: int, node_state: dict[str, Any], trainer_state: dict[str, Any]) -> object: ...
    def restore(self, apply: Callable[[int, dict[str, Any], dict[str, Any]], None]) -> int | None: ...


class Evaluate(Protocol):
    def __call__(self, round_number: int) -> dict[str, Any]: ...


class Push(Protocol):
    """Shares the model as it is now. It reports its failures itself, raises none of them, and only `close` waits.

    `patience` says how many seconds in all, and may say less when it is asked again.
    """

    def after_round(self, number: int) -> None: ...
    def __call__(self, round_number: int) -> None: ...
    def close(self, patience: Callable[[], float]) -> None: ...


@dataclass(frozen=True)
class Learner:
    """What learns: without `evaluate`, nothing is held out."""

    tasks: Tasks
    policy: Policy
    trainer: Trainer
    evaluate: Evaluate | None = None


@dataclass(frozen=True)
class WorkerSettings:
    node_id: str
    seed: int = 42
    max_rounds: int = 2000
    own_count: int = 8
    external_count: int = 0
    group_size: int = 8
    checkpoint_interval: int = 10
    eval_interval: int = 0


class NodeState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything but the weights that a node is between two rounds."""

    tasks: dict[str, Any]
    swarm: dict[str, Any]
    totals: dict[Annotated[str, Meta(max_length=64)], Count]
    barren: Annotated[int, Meta(ge=0, lt=BARREN_ROUNDS)]
    evaluated_at: Count


class Stopped(Exception):
    """Leaves a round that was asked to stop; the round counts as not begun."""


class Worker:
    def __init__(
        self,
        settings: WorkerSettings,
        learner: Learner,
        swarm: Swarm,
        journal: Journal,
        checkpoints: Checkpoints,
        clock: Clock,
        stop: Stop,
        push: Push | None = None,
    ) -> None:
        self.settings = settings
        self.tasks, self.policy, self.trainer, self.evaluate = learner.tasks, learner.policy, learner.trainer, learner.evaluate
        self.swarm = swarm
        self.journal = journal
        self.checkpoints = checkpoints
        self.clock = clock
        self.stop = stop
        self.push = push
        self.totals: Counter[str] = Counter()
        self._barren = 0
        self._discounted = 0
        self._boundary: tuple[int, dict[str, Any]] = (0, {})
        self._saved_at = 0
        self._evaluated_at = 0

    def run(self) -> str:
        """Work until the swarm's round reaches the limit or a stop is asked for; return how it ended."""
        number = self._begin()
        self.journal.progress("training_started", number)
        try:
            while number < self.settings.max_rounds and not self.stop.requested:
                self.play(number)
                self._mark_boundary(number + 1)
                if number + 1 - self._saved_at >= self.settings.checkpoint_interval:
                    self._try_to_save()
                if self.push:
                    self.push.after_round(number + 1)
                number = self._next_round(number)
        except Stopped:
            pass
        outcome = "complete" if number >= self.settings.max_rounds else "stopped"
        self._finish(outcome, number)
        return outcome

    def play(self, number: int) -> None:
        """One round: draw, answer, publish, gather, update, submit, record."""
        watch = Stopwatch(self.clock)
        self.journal.progress("round_start", number)
        self._step("generating", number)
        self.swarm.prepare(number, STAGE, self.settings.external_count, self._chooser(number))
        own = self._answer(self.tasks.draw(self.settings.own_count), number, watch)

        self._step("gathering", number)
        external = self.swarm.gather(number, STAGE, self.settings.external_count, self._chooser(number))
        watch.lap("store")

        self._step("training", number)
        informative = [rollout for rollout in own if rollout.informative]
        learnt = self.trainer.update([*informative, *external])
        watch.lap("train")

        rewards = rewards_of(own)
        self.swarm.submit(number, STAGE, fmean(rewards), len(rewards))
        watch.lap("store")
        figures = own_figures(own) | batch_figures(informative, external, number)
        self._record(number, learnt | figures, dict(self.swarm.figures(number)), watch)

    def _chooser(self, number: int) -> random.Random:
        return generator(self.settings.seed, self.settings.node_id, number, "choose")

    def _answer(self, questions: list[Question], number: int, watch: Stopwatch) -> list[Rollout]:
        """Answer and score; each rollout is published as soon as it exists."""
        own = []
        seed = stream_seed(self.settings.seed, self.settings.node_id, number, "sample")
        for slot, completions in enumerate(self.policy.answer(questions, self.settings.group_size, seed)):
            watch.lap("generate")
            self._obey_stop()  # a group whose answers hang takes ten seconds
            question = questions[slot]
            scores = self.tasks.score_all(question, [done.text for done in completions])
            scored = tuple(replace(done, reward=score) for done, score in zip(completions, scores, strict=True))
            rollout = Rollout(question, scored, self.settings.node_id, number, STAGE, slot)
            watch.lap("score")
            self.swarm.publish(rollout, self.trainer.policy_version)
            watch.lap("store")
            own.append(rollout)
        return own

    def _record(self, number: int, measured: dict[str, Any], exchanged: dict[str, Any], watch: Stopwatch) -> None:
        settings = self.settings
        watch.move("store", "score", exchanged.pop("checking_seconds", 0.0))
        row = Round(
            **measured,
            **(self._evaluate(number + 1) if self._due(number + 1) else {}),
            **exchanged,
            timestamp=self.clock.wall(),
            node_id=settings.node_id,
            experiment=self.journal.layout.experiment_name,
            round=number,
            stage=STAGE,
            own_wanted=settings.own_count,
            external_wanted=settings.external_count,
            group_size=settings.group_size,
            policy_version=self.trainer.policy_version,
            tasks_total=dict(self.tasks.counters),
            seconds=watch.seconds,
            tokens_per_s=measured["tokens"] / max(watch.seconds["generate"], 1e-9),
        )
        completions = settings.own_count * settings.group_size
        self.totals.update(rounds=1, completions=completions, tokens=row.tokens, external_used=row.external_used)
        self.journal.round_done(row)
        self.journal.say(
            f"round {number}: reward {row.reward:.3f}, own {row.own_used}/{settings.own_count}, "
            f"external {row.external_used}/{settings.external_count}, {sum(watch.seconds.values()):.1f} s"
        )
        self._warn_if_barren(row.own_used + row.external_used, number)
        self._warn_if_discounted(row)
        self.journal.tell(self.swarm.news())

    def _warn_if_barren(self, used: int, number: int) -> None:
        self._barren = 0 if used else self._barren + 1
        if self._barren == BARREN_ROUNDS:
            self._barren = 0
            self.journal.event("nothing_informative", round=number, rounds=BARREN_ROUNDS)
            self.journal.say(
                f"nothing was informative for {BARREN_ROUNDS} rounds: all completions of a question got the same reward, so "
                "nothing is learnt; 'rl-swarm probe' finds tasks that this model can learn from"
            )

    def _warn_if_discounted(self, row: Round) -> None:
        """Say once when most completions of peers have counted for nothing for many rounds; rounds without any are no sign."""
        if not row.external_weighed:
            return
        self._discounted = self._discounted + 1 if row.external_discounted > row.external_weighed / 2 else 0
        if self._discounted == DISCOUNTED_ROUNDS:
            self.journal.event("external_discounted", round=row.round, rounds=DISCOUNTED_ROUNDS)
            self.journal.say(
                f"most completions of peers counted for nothing for {DISCOUNTED_ROUNDS} rounds: they are absurd to this model, or "
                "longer than MAX_NEW_TOKENS; 'external_ids' in the metrics says whose they are"
            )

    def _due(self, number: int) -> bool:
        interval = self.settings.eval_interval
        return bool(self.evaluate and interval and number - self._evaluated_at >= interval)

    def _evaluate(self, number: int) -> dict[str, Any]:
        assert self.evaluate is not None
        self.journal.state("evaluating", number)  # no place to stop: by now the update is done, or the round is not begun
        result = self.evaluate(number)
        self._evaluated_at = number
        self.journal.event("evaluation", round=number, **result)
        return result

    # Beginning, and going on

    def _begin(self) -> int:
        """Restore what this node was, and find the round to start with."""
        resumed = self.checkpoints.restore(self._resume)
        number = resumed or 0
        self._mark_boundary(number)
        self.journal.event("started", resumed=resumed is not None, round=number)
        if resumed is None and self.evaluate and self.settings.eval_interval:
            self._evaluate(0)
        return self.swarm.first_round(number)

    def _resume(self, number: int, node_state: dict[str, Any], trainer_state: dict[str, Any]) -> None:
        """Become what a checkpoint says that this node was; raise CheckpointError, with nothing changed, where that cannot be."""
        state = typed(node_state, NodeState)
        if state.evaluated_at > number:
            raise CheckpointError(f"it says that round {state.evaluated_at} was evaluated, which comes after its own")
        before = self.tasks.state(), self.swarm.state()
        try:
            self.tasks.restore(state.tasks)
            self.swarm.restore(state.swarm)
            self.trainer.restore(trainer_state)
        except CheckpointError:
            self.tasks.restore(before[0])
            self.swarm.restore(before[1])
            raise
        self.totals = Counter(state.totals)
        self._barren, self._evaluated_at, self._saved_at = state.barren, state.evaluated_at, number

    def _next_round(self, number: int) -> int:
        if number + 1 >= self.settings.max_rounds:
            return number + 1
        return self.swarm.next_round(number, lambda: self._step("waiting for the next round to be announced", number + 1))

    # Stopping and saving

    def _step(self, doing: str, number: int) -> None:
        """Between two steps of a round: a stop asked for by now ends the round here."""
        self._obey_stop()
        self.journal.tell(self.swarm.news())
        self.journal.state(doing, number)

    def _obey_stop(self) -> None:
        if self.stop.requested:
            raise Stopped

    def _mark_boundary(self, number: int) -> None:
        """Remember everything but the weights as it is between two rounds; a round that is left half-way counts as not begun."""
        node_state = {
            "tasks": self.tasks.state(),
            "swarm": self.swarm.state(),
            "totals": dict(self.totals),
            "barren": self._barren,
            "evaluated_at": self._evaluated_at,
        }
        self._boundary = (number, node_state)

    def _save(self) -> None:
        number, node_state = self._boundary
        self.journal.state("saving a checkpoint", number)
        self.checkpoints.save(number, node_state, self.trainer.state())
        self._saved_at = number

    def _try_to_save(self) -> None:
        """In mid-run a full disk is reported and costs nothing yet; the next round tries again, and the end insists."""
        try:
            self._save()
        except CheckpointError as error:
            self._tell(error)

    def _tell(self, error: CheckpointError) -> None:
        self.journal.event("checkpoint_failed", error=str(error))
        self.journal.say(str(error))

    def _save_at_last(self) -> None:
        """All that was learnt since the last checkpoint is at stake: wait a minute for room, unless a stop is asked for."""
        deadline = self.clock.monotonic() + LAST_SAVE_SECONDS
        while True:
            try:
                self._save()
                return
            except CheckpointError as error:
                if self.stop.requested or self.clock.monotonic() >= deadline:
                    raise
                self._tell(error)
            self.clock.sleep(LAST_SAVE_PAUSE)

    def _finish(self, outcome: str, number: int) -> None:
        self._save_at_last()
        if self.push:
            self.journal.state("pushing the model", self._boundary[0])
            self.journal.show(f"pushing the model, at most {self._push_patience():.0f} s")
            self.push(self._boundary[0])
            self.push.close(self._push_patience)
        if outcome == "complete":
            self.journal.progress("training_complete", number - 1)
        self.journal.event(outcome, round=number, totals=dict(self.totals))
        self.journal.state(outcome, min(number, self.settings.max_rounds - 1))

    def _push_patience(self) -> float:
        return PUSH_SECONDS if self.stop.requested else LAST_PUSH_SECONDS
