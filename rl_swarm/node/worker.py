"""The loop of a node: Algorithm 1 of Swarm sAmpling Policy Optimization (arXiv:2509.08721, section 3).

It departs from the paper: rounds are labels, so a node never waits for a peer, takes external rollouts from a window of rounds, and
continues alone without a coordinator or a store. Every part is an argument: the loop imports no torch, and a simulation runs it as
it is.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from rl_swarm.config import Config
from rl_swarm.document import Count, typed
from rl_swarm.errors import CheckpointError, EndedAtOnce
from rl_swarm.learning.schedule import rate_share
from rl_swarm.node.adaptive import next_own
from rl_swarm.node.hints import Hints
from rl_swarm.node.journal import Journal
from rl_swarm.processes.stopping import PUSH_SECONDS, Stop
from rl_swarm.randomness import generator, stream_seed
from rl_swarm.rollout import Question, Rollout
from rl_swarm.runs.measures import Stopwatch, batch_figures, own_figures, rewards_of
from rl_swarm.runs.record import Round
from rl_swarm.swarm.protocol import Swarm
from rl_swarm.tasks import Tasks, form_bonus
from rl_swarm.text import counted

if TYPE_CHECKING:  # both import torch
    from rl_swarm.learning.policy import Policy
    from rl_swarm.learning.trainer import Trainer

LAST_SAVE_SECONDS, LAST_SAVE_PAUSE = 60.0, 5.0  # how long the last checkpoint waits for disk space, and the pause between tries
SAVED_SECONDS = 600.0  # between two lines about checkpoints
LAST_PUSH_SECONDS = 1800.0  # for the model of a complete run; a node that is asked to stop waits PUSH_SECONDS at most
STAGE = 0  # every round has one stage today


class Checkpoints(Protocol):
    def save(self, round: int, node_state: dict[str, Any], trainer_state: dict[str, Any]) -> Path | None: ...
    def restore(self, apply: Callable[[int, dict[str, Any], dict[str, Any]], None]) -> int | None: ...


class Push(Protocol):
    """Share the current model. Reports its own failures and raises none.

    Only `close` waits, for `patience()` seconds in total, which may become fewer while it waits.
    """

    def after_round(self, number: int) -> None: ...
    def push_now(self, number: int) -> None: ...
    def close(self, patience: Callable[[], float]) -> None: ...


@dataclass(frozen=True)
class Learner:
    """Tasks, policy and trainer. `evaluate` measures held-out accuracy; without it nothing is held out.

    `cores_changed` adapts the trainer to the other workers on this machine and says whether a checkpoint is due for it.
    """

    tasks: Tasks
    policy: "Policy"
    trainer: "Trainer"
    evaluate: Callable[[], dict[str, Any]] | None = None
    cores_changed: Callable[[], bool] = lambda: False


class NodeState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a node between two rounds, without the weights."""

    tasks: dict[str, Any]
    swarm: dict[str, Any]
    played: Count
    evaluated_at: Count
    max_rounds: Count
    own_count: Count


class RoundLeft(Exception):
    """Raised inside a round when a stop is requested; the round counts as not begun."""


class Worker:
    def __init__(
        self,
        config: Config,
        learner: Learner,
        swarm: Swarm,
        journal: Journal,
        checkpoints: Checkpoints,
        stop: Stop,
        push: Push | None = None,
    ) -> None:
        self.config = config
        self.tasks, self.policy, self.trainer, self.evaluate = learner.tasks, learner.policy, learner.trainer, learner.evaluate
        self.cores_changed = learner.cores_changed
        self.swarm = swarm
        self.journal, self.clock = journal, journal.clock
        self.checkpoints = checkpoints
        self.stop = stop
        self.push = push
        self._hints = Hints(config)
        self._played = 0  # rounds, those before a checkpoint included
        self._own_count = config.own_count  # of the next round
        self._boundary: tuple[int, dict[str, Any]] = (0, {})
        self._saved_at = self._evaluated_at = 0
        self._next_word = 0.0  # when a checkpoint is worth a line again

    def run(self) -> str:
        """Play rounds until the swarm reaches the last one or a stop is requested; return "complete" or "stopped".

        Raise EndedAtOnce after a KeyboardInterrupt.
        """
        try:
            return self._run()
        except KeyboardInterrupt:
            kept = f"the last checkpoint is of round {self._saved_at}" if self._saved_at else "there is no checkpoint yet"
            raise EndedAtOnce(f"ended at once, as asked; {kept}") from None

    def _run(self) -> str:
        number = self._begin()
        self.journal.progress("training_started", number)
        try:
            while number < self.config.max_rounds and not self.stop.requested:
                self.play(number)
                self._played += 1
                self._mark_boundary(number + 1)
                due = self.cores_changed() or number + 1 - self._saved_at >= self.config.checkpoint_interval
                if due and number + 1 < self.config.max_rounds:  # the last one is saved at the end
                    self._save()
                if self.push:
                    self.push.after_round(number + 1)
                number = self._next_round(number)
        except RoundLeft:
            pass
        outcome = "complete" if number >= self.config.max_rounds else "stopped"
        self._finish(outcome, number if outcome == "complete" else self._boundary[0])  # a stopped node goes on where it has saved
        return outcome

    def play(self, number: int) -> None:
        """Play one round: draw, answer, publish, gather, update, submit, record."""
        watch, (own_count, external_count) = Stopwatch(self.clock), self._counts()
        self.journal.progress("round_start", number)
        self._step("generating", number)
        self.swarm.prepare(number, STAGE, external_count, self._chooser(number))
        own = self._answer(self.tasks.draw(own_count), number, watch)

        self._step("gathering", number)
        external = self.swarm.gather(number, STAGE, external_count, self._chooser(number))
        watch.lap("store")

        self._step("training", number)
        learnt = self.trainer.update([*own, *external], self._rate_share(number))
        watch.lap("train")

        rewards = rewards_of(own)
        self.swarm.submit(number, STAGE, fmean(rewards), len(rewards))
        watch.lap("store")
        wanted = {"own_wanted": own_count, "external_wanted": external_count}
        self._record(number, wanted | learnt | own_figures(own) | batch_figures(own, external, number), watch)

    def _counts(self) -> tuple[int, int]:
        """I and J of the next round."""
        most, external = self.config.own_count, self.config.external_count
        own = min(self._own_count, most) if self.config.adaptive and external else most  # who is set to J = 0 reads nothing
        return own, most + external - own

    def _rate_share(self, number: int) -> float:
        return rate_share(self.config.schedule, number, self.config.max_rounds, self.trainer.policy_version)

    def _chooser(self, number: int) -> random.Random:
        return generator(self.config.seed, self.config.node, number, "choose")

    def _answer(self, questions: list[Question], number: int, watch: Stopwatch) -> list[Rollout]:
        """Answer the questions, score all completions in one request, and publish each rollout."""
        groups, seed = [], stream_seed(self.config.seed, self.config.node, number, "sample")
        for completions in self.policy.answer(questions, self.config.group_size, seed):
            self._obey_stop()
            groups.append(completions)
        watch.lap("generate")
        texts = [[done.text for done in completions] for completions in groups]
        scores = self.tasks.score_groups(list(zip(questions, texts, strict=True)), self._obey_stop)
        watch.lap("score")
        own = []
        for slot, (question, completions, rewards) in enumerate(zip(questions, groups, scores, strict=True)):
            scored = tuple(
                replace(done, reward=reward, bonus=form_bonus(done.text, self.config.format_reward))
                for done, reward in zip(completions, rewards, strict=True)
            )
            own.append(Rollout(question, scored, self.config.node, number, STAGE, slot))
            self.swarm.publish(own[-1], self.trainer.policy_version)
        watch.lap("store")
        return own

    def _record(self, number: int, measured: dict[str, Any], watch: Stopwatch) -> None:
        config, exchange_figures = self.config, dict(self.swarm.figures(number))
        watch.move("store", "score", exchange_figures.pop("checking_seconds", 0.0))
        self.journal.say(
            f"round {number}: reward {measured['reward']:.3f}, own {measured['own_used']}/{measured['own_wanted']}, "
            f"external {measured['external_used']}/{measured['external_wanted']}, {sum(watch.seconds.values()):.1f} s"
        )
        row = Round(
            **measured,
            **self._evaluate(number + 1),
            **exchange_figures,
            timestamp=self.clock.wall(),
            node_id=config.node,
            experiment=self.journal.layout.experiment_name,
            round=number,
            stage=STAGE,
            group_size=config.group_size,
            policy_version=self.trainer.policy_version,
            tasks_total=dict(self.tasks.counters),
            seconds=watch.seconds,
            tokens_per_s=measured["tokens"] / max(watch.seconds["generate"], 1e-9),
        )
        self._own_count = next_own(row, config.own_count)
        self.journal.round_done(row)
        self.journal.tell([*self._hints.after(row), *self.swarm.news()])

    def _evaluate(self, number: int) -> dict[str, Any]:
        """Measure held-out accuracy if it is due after this many rounds, or if these are all.

        Does not obey a stop: the update is already done.
        """
        interval = self.config.eval_interval
        early = 0 < number < min(self._evaluated_at + interval, self.config.max_rounds)
        if not self.evaluate or not interval or early:
            return {}
        self.journal.state("evaluating", number)
        if not number:
            self.journal.say("measuring accuracy on held-out questions before training")
        result = self.evaluate()
        self._evaluated_at = number
        line = (
            f"held-out accuracy at round {number}: {result['held_out']:.1%}, in the form {result['held_out_in_form']:.1%}, "
            f"in any form {result['held_out_style_blind']:.1%}"
        )
        self.journal.note("evaluation", line, round=number, **result)
        return result

    # Starting and resuming

    def _begin(self) -> int:
        """Restore the newest checkpoint, and return the round to start with."""
        resumed = self.checkpoints.restore(self.resume)
        number = resumed or 0
        self._mark_boundary(number)
        line = (
            f"begins a run of {counted(self.config.max_rounds, 'round')}"
            if resumed is None
            else f"resumed at round {number} of {self.config.max_rounds}"
        )
        self.journal.note("started", line, resumed=resumed is not None, round=number)
        if resumed is None:
            self._evaluate(0)
        first = self.swarm.first_round(number)
        if first != number:
            self.journal.say(f"the swarm is at round {first}: going on there")
        return first

    def resume(self, number: int, node_state: dict[str, Any], trainer_state: dict[str, Any]) -> None:
        """Take over the state of a checkpoint; raise CheckpointError, with nothing changed, if it cannot be used."""
        state = typed(node_state, NodeState)
        if state.evaluated_at > number:
            raise CheckpointError(f"it was last evaluated at round {state.evaluated_at}, which comes after its own")
        before = self.tasks.state(), self.swarm.state()
        try:
            self.tasks.restore(state.tasks)
            self.swarm.restore(state.swarm)
            self.trainer.restore(trainer_state)
        except CheckpointError:
            self.tasks.restore(before[0])
            self.swarm.restore(before[1])
            raise
        self._played, self._evaluated_at, self._saved_at = state.played, state.evaluated_at, number
        self._own_count = max(1, state.own_count)
        self._tell_new_end(number, state.max_rounds)

    def _tell_new_end(self, number: int, former: int) -> None:
        """Say what happens to the learning rate if the run now ends at another round than when the checkpoint was made."""
        before, now = (rate_share(self.config.schedule, number, rounds) for rounds in (former, self.config.max_rounds))
        if before != now:
            self.journal.say(
                f"MAX_ROUNDS is {self.config.max_rounds} instead of {former}: the learning rate goes on at {now:.0%} of "
                f"LEARNING_RATE instead of {before:.0%}, and falls until the new end"
            )

    def _next_round(self, number: int) -> int:
        if number + 1 >= self.config.max_rounds:
            return number + 1
        return self.swarm.next_round(number, lambda: self._step("waiting for the next round to be announced", number + 1))

    # Stopping and saving

    def _step(self, doing: str, number: int) -> None:
        """Begin a step of a round, unless a stop is requested."""
        self._obey_stop()
        self.journal.tell(self.swarm.news())
        self.journal.state(doing, number)

    def _obey_stop(self) -> None:
        if self.stop.requested:
            raise RoundLeft

    def _mark_boundary(self, number: int) -> None:
        """Keep the state between two rounds, without the weights: a round that is left half-way counts as not begun."""
        node_state = {
            "tasks": self.tasks.state(),
            "swarm": self.swarm.state(),
            "played": self._played,
            "evaluated_at": self._evaluated_at,
            "max_rounds": self.config.max_rounds,
            "own_count": self._own_count,
        }
        self._boundary = (number, node_state)

    def _save(self, last: bool = False) -> None:
        """Save a checkpoint of the last boundary. A full disk is reported, and the next round tries again.

        The `last` one holds everything learnt since the checkpoint before: wait a minute for disk space, unless a stop is
        requested, then raise.
        """
        number, node_state = self._boundary
        deadline = self.clock.monotonic() + LAST_SAVE_SECONDS
        self.journal.state("saving a checkpoint", number)
        while True:
            try:
                path = self.checkpoints.save(number, node_state, self.trainer.state())
                self._saved_at = number
                self._tell_saved(number, path, last)
                return
            except CheckpointError as error:
                if last and (self.stop.requested or self.clock.monotonic() >= deadline):
                    raise
                self.journal.note("checkpoint_failed", str(error))
            if not last:
                return
            self.clock.sleep(LAST_SAVE_PAUSE)

    def save_before(self, number: int) -> None:
        """Save a checkpoint between two rounds: this one has not begun."""
        self._mark_boundary(number)
        self._save(last=True)

    def _tell_saved(self, number: int, path: Path | None, last: bool) -> None:
        """Say where the first and the last checkpoint are, and seldom that there is a newer one."""
        now = self.clock.monotonic()
        if path and (last or now >= self._next_word):
            self._next_word = now + SAVED_SECONDS
            self.journal.say(f"saved at round {number}: {path}")

    def _rounds_played(self) -> str:
        """A node that came late, or was away, has played fewer rounds than the swarm."""
        rounds = counted(self.config.max_rounds, "round")
        return rounds if self._played >= self.config.max_rounds else f"this node played {self._played} of {rounds}"

    def _finish(self, outcome: str, number: int) -> None:
        self._save(last=True)
        if self.push:

            def patience() -> float:
                return PUSH_SECONDS if self.stop.requested else LAST_PUSH_SECONDS

            self.journal.state("pushing the model", self._boundary[0])
            self.journal.show(f"pushing the model, at most {patience():.0f} s")
            self.push.push_now(self._boundary[0])
            self.push.close(patience)
        if outcome == "complete":
            self.journal.progress("training_complete", number - 1)
        line = f"complete: {self._rounds_played()}" if outcome == "complete" else f"stopped at round {self._boundary[0]}"
        self.journal.note(outcome, line, round=number)
        self.journal.state(outcome, min(number, self.config.max_rounds - 1))
