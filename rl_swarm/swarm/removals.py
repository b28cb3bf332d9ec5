"""Documents that say which rollouts were removed on purpose, so that nobody takes them for lost.

Each is written once, before anything is removed, and says that rollouts of rounds before its own may be gone.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from rl_swarm.document import SCHEMA, SMALL_BYTES, seal, unseal
from rl_swarm.errors import BadDocument, NotFound
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout, recognised, round_of_file
from rl_swarm.swarm.peers import NodeName
from rl_swarm.swarm.rounds import RoundNumber
from rl_swarm.swarm.signatures import Signatures

KEPT = 2  # of each author
BY_HAND = "by-hand"  # the author where somebody runs `rl-swarm prune`


class Removal(msgspec.Struct, frozen=True):
    """Rollouts of rounds before this one may be gone: those of its author, or everyone's."""

    peer_id: NodeName
    before: RoundNumber
    everyone: bool
    archived: bool
    removed_at: Annotated[float, Meta(ge=-1e12, le=1e12)]
    schema: int = SCHEMA


def write_removal(store: Store, layout: Layout, removal: Removal, signatures: Signatures) -> None:
    """Write a document, and remove all but the newest of this author."""
    key = layout.removal(removal.peer_id, removal.before)
    store.put(key, signatures.sign(key, seal(removal)))
    for number in sorted(_numbers(store, layout, removal.peer_id))[:-KEPT]:
        store.delete(layout.removal(removal.peer_id, number))


def removed_before(store: Store, layout: Layout, nodes: Sequence[str], signatures: Signatures) -> dict[str, int]:
    """For each node the round before which its rollouts may have been removed: by itself, or by one that cleans for everyone.

    Where rounds are signed, only those who may announce them clean for everyone.
    """
    found = dict.fromkeys(nodes, 0)
    for by in (*nodes, BY_HAND):
        for number in sorted(_numbers(store, layout, by), reverse=True)[:KEPT]:
            removal = _read(store, layout, by, number, signatures)
            if removal:
                concerned = nodes if removal.everyone else [by]
                found |= {node: max(found[node], number) for node in concerned if node in found}
                break
    return found


def _numbers(store: Store, layout: Layout, by: str) -> set[int]:
    return recognised(round_of_file, store.list(layout.removals_of(by)))


def _read(store: Store, layout: Layout, by: str, number: int, signatures: Signatures) -> Removal | None:
    key = layout.removal(by, number)
    try:
        data = store.get(key, limit=SMALL_BYTES)
        removal = unseal(data, Removal)
        if removal.everyone:
            signatures.check_announcement(key, data)
        else:
            signatures.check(key, data, by)
    except (NotFound, BadDocument):
        return None
    return removal if (removal.peer_id, removal.before) == (by, number) else None
