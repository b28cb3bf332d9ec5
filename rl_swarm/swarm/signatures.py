"""Signed documents: what this node publishes carries its key, and a peer's name belongs to the first key that was seen with it.

A signature covers the experiment, the round, the node and the bytes of the document as they were written, so that it is good for
no other place. It stands at the end of the document, before the checksum; readers that know nothing of it are not disturbed.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from rl_swarm.document import body_of, close
from rl_swarm.errors import BadDocument
from rl_swarm.identity import INSTALL, Identity, can_check, signed_by

_SIGNED = re.compile(rb',"key":"([0-9a-f]{64})","signature":"([0-9a-f]{128})"\}')
_SIGNED_BYTES = len(b',"key":"","signature":""}') + 64 + 128
_CLAIM = re.compile(r"(\S{1,64}) ([0-9a-f]{64})")


def statement(experiment: str, round_number: int, node_id: str, body: bytes) -> bytes:
    """What is signed; none of the names can contain a line break."""
    return "\n".join(["rl-swarm rollouts 1", experiment, str(round_number), node_id, hashlib.sha256(body).hexdigest()]).encode()


class Signatures:
    """Signs with `identity` if there is one. `book` is a local file of the keys that names belong to; it outlives the process."""

    def __init__(
        self,
        identity: Identity | None = None,
        *,
        required: bool = False,
        allowed: frozenset[str] | None = None,
        book: Path | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.identity = identity
        self.required = required or allowed is not None
        self.allowed = allowed
        self._book = book
        self._say = say
        self._can_check: bool | None = None
        self._owners = _read(book) if book else {}

    def owner(self, node_id: str) -> str | None:
        """The key that a name belongs to."""
        return self._owners.get(node_id)

    def sign(self, data: bytes, experiment: str, round_number: int, node_id: str) -> bytes:
        """The sealed document with this node's signature; without an identity it stays as it is."""
        if self.identity is None:
            return data
        body = body_of(data, len(data))
        signature = self.identity.sign(statement(experiment, round_number, node_id, body))
        return close(body[:-1] + f',"key":"{self.identity.public}","signature":"{signature}"}}'.encode())

    def check(self, data: bytes, experiment: str, round_number: int, node_id: str) -> None:
        """Raise BadDocument unless a sealed document may come from this node."""
        body = body_of(data, len(data))
        found = _SIGNED.fullmatch(body[-_SIGNED_BYTES:])
        owner = self.owner(node_id)
        if found is None:
            if owner:
                raise BadDocument("impersonation", f"{node_id} signs with {owner}, this is not signed")
            if self.required:
                raise BadDocument("unsigned", f"{node_id} does not sign")
            return
        if not self._ready():
            return
        key, signature = found[1].decode(), found[2].decode()
        if not signed_by(key, signature, statement(experiment, round_number, node_id, body[:-_SIGNED_BYTES] + b"}")):
            raise BadDocument("bad_signature", f"{node_id} did not sign this with {key}")
        if self.allowed is not None and key not in self.allowed:
            raise BadDocument("key_not_allowed", f"{node_id} signs with {key}")
        if owner is None:
            self._claim(node_id, key)
        elif owner != key:
            raise BadDocument("impersonation", f"{node_id} signs with {owner}, this is signed with {key}")

    def _ready(self) -> bool:
        """Whether signatures can be checked here; if not, that is said once."""
        if self._can_check is None:
            self._can_check = can_check()
            if not self._can_check:
                self._say(f"peers sign their rollouts, which cannot be checked here: {INSTALL}")
        return self._can_check

    def _claim(self, node_id: str, key: str) -> None:
        self._owners[node_id] = key
        if self._book:
            with contextlib.suppress(OSError), self._book.open("a") as file:  # a full disk forgets a name, and takes no harm
                file.write(f"\n{node_id} {key}")  # the line break first: it also ends a line that a killed process left half
                file.flush()
                os.fsync(file.fileno())


def _read(book: Path) -> dict[str, str]:
    try:
        lines = book.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return {}
    claims = [(match[1], match[2]) for match in map(_CLAIM.fullmatch, lines) if match]
    return dict(reversed(claims))  # the first claim counts
