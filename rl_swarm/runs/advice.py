"""What to change when nothing is learnt. Most small models fail at the form of an answer first."""

from rl_swarm.config import Config

FRUITLESS_ROLLOUTS = 40  # own ones in a row without a gradient; if one in ten had one, that would happen once in seventy times
RARELY_ANSWERED = 0.05  # a share of completions with an <answer> below which the form is what is missing


def remedy(answered: float, truncated: float, config: Config) -> str:
    """Say what to set when no rollout is informative; `answered` and `truncated` are shares of the completions."""
    if answered >= RARELY_ANSWERED:
        return "run 'rl-swarm probe' to find tasks that this model can learn from"
    remedies = {
        "PROMPT_EXAMPLES=3": not config.prompt_examples,
        "COMPLETION_PREFIX=answer": config.prefix == "none",
        "FORMAT_REWARD=0.1": not config.format_reward and answered > 0,
        "a higher MAX_NEW_TOKENS": truncated > 0.5,
    }
    ways = [way for way, useful in remedies.items() if useful] or ["another MODEL_NAME"]
    return (
        f"{answered:.0%} of the completions have an <answer>, which is all that is read: set {' or '.join(ways)}; "
        "'rl-swarm probe' tries them"
    )
