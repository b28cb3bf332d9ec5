"""A swarm that shares a store: its nodes announce rounds, publish rollouts and rewards, and read peers' rollouts there."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl_swarm.config import Config
from rl_swarm.document import seal
from rl_swarm.rollout import Rollout
from rl_swarm.swarm.choice import pick
from rl_swarm.swarm.exchange import Exchange
from rl_swarm.swarm.membership import Membership
from rl_swarm.swarm.pace import Pace
from rl_swarm.swarm.protocol import News, Swarm
from rl_swarm.swarm.rounds import Reward, Rounds


class StoreSwarm(Swarm):
    def __init__(
        self,
        member: Membership,
        config: Config,
        verify: Callable[[Rollout, float], Rollout],
        secret: str = "",
        quarantine: Path | None = None,
    ) -> None:
        self.member = member
        self.rounds = Rounds(member.store, member.layout, config.max_rounds, member.signatures)
        self.pace = Pace(self.rounds, member.clock, member.news.add, member.node_id, config.round_interval)
        self.exchange = Exchange(member, config, verify, secret, quarantine)

    def first_round(self, resumed_at: int) -> int:
        return self.pace.first(resumed_at)

    def next_round(self, done: int, waiting: Callable[[], None]) -> int:
        publisher = self.member.publisher

        def wait() -> None:
            publisher.check()
            waiting()
            if not publisher.background:
                publisher.pump()

        return self.pace.following(done, wait)

    def prepare(self, number: int, stage: int, count: int, chooser: random.Random) -> None:
        self.exchange.look_ahead(number, stage, count, chooser)

    def publish(self, rollout: Rollout, policy_version: int) -> None:
        self.exchange.offer(rollout, policy_version)

    def gather(self, number: int, stage: int, count: int, chooser: random.Random) -> list[Rollout]:
        self.exchange.end_stage()
        pool = self.exchange.gather(number, stage, count, chooser)
        picked = pick(pool, count, chooser, self.exchange.config.external_choice)
        self.exchange.mark_used(picked)
        return picked

    def submit(self, number: int, stage: int, reward: float, completions: int) -> None:
        member = self.member
        document = Reward(member.node_id, number, reward, completions, member.clock.wall(), stage)
        key = member.layout.reward(number, member.node_id, stage)
        member.publisher.put(key, member.signatures.sign(key, seal(document)))
        self.exchange.end_round()
        member.retention.reached(number)

    def news(self) -> list[News]:
        self.member.publisher.check()
        return self.member.news.take()

    def figures(self, number: int) -> dict[str, Any]:
        """Counters since this node joined the experiment; seconds since the last call."""
        exchange, publisher = self.exchange, self.member.publisher
        return {
            "rejected_total": dict(exchange.rejected),
            "muted": tuple(exchange.standings.mutes(number + 1)),
            "store_total": {**self.member.store.counts, **publisher.counters},
            "pending": publisher.pending,
            "checking_seconds": exchange.take_verify_seconds(),
        }

    def state(self) -> dict[str, Any]:
        return self.exchange.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.exchange.restore(state)
