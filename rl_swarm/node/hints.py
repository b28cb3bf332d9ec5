"""Notice when a node learns nothing, or little of what its peers send, and say what to set."""

from collections.abc import Iterator

from rl_swarm.config import Config
from rl_swarm.runs.advice import FRUITLESS_ROLLOUTS, remedy
from rl_swarm.runs.record import Round
from rl_swarm.swarm.protocol import News
from rl_swarm.text import counted

DISCOUNTED_ROUNDS = 20


class Hints:
    """Looks at the rounds of one node in turn. A hint that still holds comes again after twice as many rollouts."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._fruitless_rounds = self._fruitless_rollouts = self._discounted_rounds = 0
        self._patience = FRUITLESS_ROLLOUTS

    def after(self, row: Round) -> Iterator[News]:
        yield from self._fruitless(row)
        yield from self._discounted(row)

    def _fruitless(self, row: Round) -> Iterator[News]:
        if row.informative:
            self._fruitless_rounds, self._fruitless_rollouts, self._patience = 0, 0, FRUITLESS_ROLLOUTS
            return
        self._fruitless_rounds += 1
        self._fruitless_rollouts += row.own_wanted
        if self._fruitless_rollouts >= self._patience:
            self._patience = 2 * self._fruitless_rollouts
            rounds = counted(self._fruitless_rounds, "round")
            line = (
                f"nothing was informative for {rounds}: all completions of a question got the same reward, so there is no "
                f"gradient; {remedy(row.answered, row.truncated, self.config)}"
            )
            yield News("nothing_informative", line, {"round": row.round, "rounds": self._fruitless_rounds})

    def _discounted(self, row: Round) -> Iterator[News]:
        if row.external_weighed:  # a round without external completions says nothing about them
            self._discounted_rounds = self._discounted_rounds + 1 if row.external_discounted > row.external_weighed / 2 else 0
        if self._discounted_rounds == DISCOUNTED_ROUNDS:
            self._discounted_rounds = 0
            line = (
                f"most completions of peers counted for nothing for {DISCOUNTED_ROUNDS} rounds: this model finds them, or most "
                "text of their authors, absurd, or they are longer than MAX_NEW_TOKENS; 'external_ids' in the metrics names these"
            )
            yield News("external_discounted", line, {"round": row.round, "rounds": DISCOUNTED_ROUNDS})
