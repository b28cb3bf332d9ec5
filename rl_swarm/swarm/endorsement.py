"""A signed document beside a node's checkpoint in the store, with the checksum and size of the file.

With it, a node that lost its disk resumes from its own checkpoint and nobody else's. `learning/` checks the file itself.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from rl_swarm.document import SCHEMA, SMALL_BYTES, Count, seal, unseal
from rl_swarm.errors import BadDocument, CheckpointError, NotFound
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.signatures import Signatures


class Endorsement(msgspec.Struct, frozen=True):
    node_id: Annotated[str, Meta(max_length=64)]
    round: int
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    bytes: Count
    schema: int = SCHEMA


def endorse(layout: Layout, node_id: str, number: int, checksum: str, size: int, signatures: Signatures) -> bytes:
    key = layout.endorsement(number, node_id)
    return signatures.sign(key, seal(Endorsement(node_id, number, checksum, size)))


def endorsed(store: Store, layout: Layout, node_id: str, number: int, signatures: Signatures) -> Endorsement:
    """Read this node's endorsement of its checkpoint of a round; raise CheckpointError if it has not signed one."""
    key = layout.endorsement(number, node_id)
    try:
        data = store.get(key, limit=SMALL_BYTES, listed=True)
        found = unseal(data, Endorsement)
    except (NotFound, BadDocument) as error:
        raise CheckpointError(f"this node signs, and nothing signed says that the checkpoint is its own ({error})") from None
    if not signatures.mine(key, data):
        raise CheckpointError(f"{key} is not signed with this node's key")
    if (found.node_id, found.round) != (node_id, number):
        raise CheckpointError(f"{key} is of another checkpoint")
    return found
