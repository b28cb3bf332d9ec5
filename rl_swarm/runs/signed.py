"""Find whose figures are signed: one key must have signed the worker's registration and every reward that its journal states.

Journals themselves are not signed. Rewards are, and vouch for the figures that agree with them.
"""

from collections.abc import Mapping

from rl_swarm.document import SMALL_BYTES, unseal
from rl_swarm.errors import BadDocument, NotFound
from rl_swarm.extras import install_command
from rl_swarm.identity import can_check
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.rounds import Reward
from rl_swarm.swarm.signatures import signer

RoundStage = tuple[int, int]


def key_of(store: Store, layout: Layout, experiment_id: str, node_id: str, rewards: Mapping[RoundStage, float]) -> str | None:
    """Return the key that signed a worker's rewards, or None if anything is unsigned, different or unreadable."""
    try:
        key = layout.peer(node_id)
        public = signer(experiment_id, key, store.get(key, limit=SMALL_BYTES))
        for (number, stage), reward in rewards.items():
            key = layout.reward(number, node_id, stage)
            data = store.get(key, limit=SMALL_BYTES)
            if signer(experiment_id, key, data) != public or unseal(data, Reward).reward != reward:
                return None
    except (NotFound, BadDocument):
        return None
    return public


def signed_line(store: Store, layout: Layout, experiment_id: str, workers: Mapping[str, Mapping[RoundStage, float]]) -> str:
    """Say in one line which workers' figures are signed, and with which keys."""
    if not can_check():
        return f"signatures cannot be checked here: {install_command('signed')}"
    keys = {node: key_of(store, layout, experiment_id, node, rewards) for node, rewards in workers.items()}
    signed = [f"{node} with {key[:16]}" for node, key in keys.items() if key]
    if not signed:
        return "no worker's figures are signed"
    others = [node for node, key in keys.items() if not key]
    return f"signed: {', '.join(signed)}" + (f"; not signed: {', '.join(others)}" if others else "")
