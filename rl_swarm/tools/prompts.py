"""Ways to prompt a model: example turns and prefilled tags, tried on the same questions, to find one that can teach.

Most small models fail at the form first: without an `<answer>` every reward is 0, and nothing is learnt.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl_swarm.config import PREFIXES, Config
from rl_swarm.errors import ConfigError
from rl_swarm.tasks import Tasks, TaskSpec
from rl_swarm.text import counted

if TYPE_CHECKING:
    from rl_swarm.learning.policy import Policy

EXAMPLES = 3  # one does little for a small model, and each makes every prompt longer
THINKING_TOKENS = 64  # completions that are cut earlier leave no room to think
NEARLY_AS_GOOD = 0.8  # of the best share of informative rollouts: a plainer way is taken


@dataclass(frozen=True)
class Way:
    """A value of PROMPT_EXAMPLES and one of COMPLETION_PREFIX."""

    examples: int = 0
    prefix: str = "none"

    @property
    def shown(self) -> str:
        parts = [counted(self.examples, "example")] if self.examples else []
        parts += [f"begun with {PREFIXES[self.prefix]}"] if self.prefix != "none" else []
        return ", ".join(parts) or "plain"

    @property
    def settings(self) -> dict[str, str]:
        """The variables to set; those that have their default already are left out."""
        examples = {"PROMPT_EXAMPLES": str(self.examples)} if self.examples else {}
        return examples | ({"COMPLETION_PREFIX": self.prefix} if self.prefix != "none" else {})


def ways_to_try(config: Config) -> list[Way]:
    """The plainest first; only the user's own if one was set."""
    if config.explicit("prompt_examples") or config.explicit("prefix"):
        return [Way(config.prompt_examples, config.prefix)]
    found = [Way(), Way(EXAMPLES), Way(0, "answer"), Way(EXAMPLES, "answer")]
    return found + ([Way(0, "think")] if config.max_new_tokens >= THINKING_TOKENS else [])


def prompted(policy: "Policy", ways: Sequence[Way], named: Sequence[TaskSpec]) -> dict[Way, "Policy"]:
    """The model behind each of the prompts, with examples of the tasks that can be loaded."""
    from rl_swarm.learning.policy import Prompting

    examples, wanted = list[tuple[str, str]](), max(way.examples for way in ways)
    for spec in named if wanted else ():
        with contextlib.suppress(ConfigError):  # the probe names it among those that it skips
            examples += Tasks([spec], seed=0, node_id="probe", held_out=0).examples(math.ceil(wanted / len(named)))
    return {way: policy.prompted(Prompting(tuple(examples[: way.examples]), PREFIXES[way.prefix])) for way in ways}


def plainest(estimates: Mapping[Way, float]) -> Way:
    """The first way that is nearly as good as the best."""
    best = max(estimates.values())
    return next(way for way, estimate in estimates.items() if estimate >= NEARLY_AS_GOOD * best)
