"""Whose figures are signed: the rewards that vouch for them lie beside their round and stage."""

from pathlib import Path

from rl_swarm.document import seal
from rl_swarm.identity import load_identity
from rl_swarm.runs.signed import signed_line
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.peers import Registration, register
from rl_swarm.swarm.rounds import Reward
from rl_swarm.swarm.signatures import Signatures
from tests.support.members import LAYOUT


def test_a_reward_vouches_for_its_own_stage(tmp_path: Path) -> None:
    store, identity = MemoryStore(), load_identity(str(tmp_path / "key.pem"), Path("/nowhere/shared"))
    signatures = Signatures(identity, experiment_id="x")
    register(store, LAYOUT, Registration("w1", "worker", 0.0, "nano", "w1", "0", "s"), signatures)
    for stage, reward in enumerate((0.25, 0.5)):
        key = LAYOUT.reward(3, "w1", stage)
        store.put(key, signatures.sign(key, seal(Reward("w1", 3, reward, 4, 0.0, stage))))
    assert signed_line(store, LAYOUT, "x", {"w1": {(3, 0): 0.25, (3, 1): 0.5}}) == f"signed: w1 with {identity.public[:16]}"
    for wrong in ({(3, 0): 0.5}, {(3, 1): 0.25}, {(3, 2): 0.5}):
        assert signed_line(store, LAYOUT, "x", {"w1": wrong}) == "no worker's figures are signed"
