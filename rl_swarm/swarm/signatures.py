"""Signed documents: who signed them, and who may write what.

A signature covers the experiment's id, the document's key in the store and its bytes as written, so it is valid in one place only.
It stands at the end of the document, before the checksum; readers that know nothing of signatures are not disturbed.

The founder of the experiment and the public keys that it names announce rounds. Everything else belongs to a node. A node's name
belongs to the public key that the allow-list gives it, or else to the first one that this reader saw with it. Without a founder's
key, an allow-list or SWARM_REQUIRE_SIGNATURES, unsigned documents are accepted too.
"""

import contextlib
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from rl_swarm.document import SMALL_BYTES, body_of, close, unseal
from rl_swarm.errors import BadDocument, NotFound
from rl_swarm.extras import install_command
from rl_swarm.identity import Identity, can_check, signed_by
from rl_swarm.packing import unpacked
from rl_swarm.rollout import BUNDLE_BYTES
from rl_swarm.store import Store

T = TypeVar("T", bound=msgspec.Struct)

_SIGNED = re.compile(rb',"key":"([0-9a-f]{64})","signature":"([0-9a-f]{128})"\}')
_SIGNED_BYTES = len(b',"key":"","signature":""}') + 64 + 128
_CLAIM = re.compile(r"(\S{1,64}) ([0-9a-f]{64})")


def sign(identity: Identity, experiment_id: str, key: str, data: bytes) -> bytes:
    """Add a signature to a sealed document."""
    body = body_of(data, len(data))
    signature = identity.sign(_statement(experiment_id, key, body))
    return close(body[:-1] + f',"key":"{identity.public}","signature":"{signature}"}}'.encode())


def signer(experiment_id: str, key: str, data: bytes) -> str | None:
    """The public key that signed a sealed document, or None; raise BadDocument if the signature is wrong.

    Checking a signature needs the library of the extra `signed`.
    """
    body = body_of(data, len(data))
    found = _SIGNED.fullmatch(body[-_SIGNED_BYTES:])
    if found is None:
        return None
    public = found[1].decode()
    if not signed_by(public, found[2].decode(), _statement(experiment_id, key, body[:-_SIGNED_BYTES] + b"}")):
        raise BadDocument("bad_signature", f"{key} was not signed with {public}")
    return public


def _statement(experiment_id: str, key: str, body: bytes) -> bytes:
    """The bytes to sign; neither an id nor a store key can contain a line break."""
    return "\n".join(["rl-swarm 2", experiment_id, key, hashlib.sha256(body).hexdigest()]).encode()


def read_signed(store: Store, key: str, kind: type[T], node_id: str, signatures: "Signatures | None" = None) -> T | None:
    """Read a small document of a node; None if there is none to be believed. Without `signatures` they are not checked."""
    with contextlib.suppress(NotFound, BadDocument):
        data = store.get(key, limit=SMALL_BYTES)
        found = unseal(data, kind)
        if signatures:
            signatures.check(key, data, node_id)
        return found
    return None


@dataclass(eq=False)
class Signatures:
    """Signs with `identity`, if there is one, and checks what peers wrote. `refused` counts by reason.

    `announcers` are the public keys that may announce rounds; if there are none, anybody may. `allowed` maps the public keys that
    may take part to the one name that each may use, None for any. `book` is a local file with the owners of names; it outlives the
    process.
    """

    identity: Identity | None = None
    experiment_id: str = ""
    announcers: frozenset[str] = frozenset()
    required: bool = False
    allowed: Mapping[str, str | None] | None = None
    book: Path | None = None
    say: Callable[[str], None] = lambda line: None

    def __post_init__(self) -> None:
        self.required = self.required or self.allowed is not None or bool(self.announcers)
        self.refused: Counter[str] = Counter()
        self._told = False
        self._owners = _read(self.book) if self.book else {}
        self._owners |= {name: public for public, name in (self.allowed or {}).items() if name}

    @property
    def public(self) -> str | None:
        """This node's own public key."""
        return self.identity.public if self.identity else None

    def owner(self, node_id: str) -> str | None:
        """The public key that a name belongs to."""
        return self._owners.get(node_id)

    def sign(self, key: str, data: bytes) -> bytes:
        """Add this node's signature to a sealed document, if it has an identity."""
        return sign(self.identity, self.experiment_id, key, data) if self.identity else data

    def signer(self, key: str, data: bytes) -> str | None:
        return signer(self.experiment_id, key, data)

    def mine(self, key: str, data: bytes) -> bool:
        """Whether this node signed this document for this key."""
        with contextlib.suppress(BadDocument):
            return self.identity is not None and self.signer(key, data) == self.public
        return False

    def reclaims(self, key: str, data: bytes) -> bool:
        """Whether to insist on an own document, compressed or not: where everybody signs, its name is registered to this node's
        key."""
        with contextlib.suppress(BadDocument):
            return self.required and self.mine(key, unpacked(data, BUNDLE_BYTES))
        return False

    def may_take(self, node_id: str, public: str) -> bool:
        """Whether this node may take a name that another key has signed for: it owned the name before, it may announce rounds, or
        the other key may not use the name."""
        mine = self.public
        return mine is not None and (
            mine in (public, self.owner(node_id)) or mine in self.announcers or not self._may_use(node_id, public)
        )

    def claim(self, node_id: str) -> None:
        """Remember that a name is this node's own."""
        if self.public and self.owner(node_id) is None:
            self._claim(node_id, self.public)

    def check(self, key: str, data: bytes, node_id: str) -> None:
        """Raise BadDocument unless a sealed document may come from this node."""
        with self._counted():
            owner, public = self.owner(node_id), self._signer(key, data)
            if public is None:
                if owner:
                    raise BadDocument("impersonation", f"{node_id} signs with {owner}, {key} is not signed")
                if self.required:
                    raise BadDocument("unsigned", f"{node_id} does not sign")
            elif not self._may_use(node_id, public):
                raise BadDocument("key_not_allowed", f"{node_id} signs with {public}")
            elif owner is None:
                self._claim(node_id, public)
            elif owner != public:
                raise BadDocument("impersonation", f"{node_id} signs with {owner}, {key} is signed with {public}")

    def check_announcement(self, key: str, data: bytes) -> None:
        """Raise BadDocument unless the author of a document may announce rounds."""
        if self.announcers:
            with self._counted():
                public = self._signer(key, data)
                if public not in self.announcers:
                    raise BadDocument("unsigned" if public is None else "key_not_allowed", f"{key} is not the founder's")

    def _may_use(self, node_id: str, public: str) -> bool:
        return self.allowed is None or (public in self.allowed and self.allowed[public] in (None, node_id))

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except BadDocument as error:
            self.refused[error.reason] += 1
            count = self.refused[error.reason]
            if str(count).rstrip("0") == "1":  # the first, the tenth, the hundredth …
                self.say(f"refused, {count} so far for this reason: {error}")
            raise

    def _signer(self, key: str, data: bytes) -> str | None:
        """The public key that signed, or None. Without the library it is None too, which is said once."""
        if can_check():
            return self.signer(key, data)
        if not self._told and _SIGNED.fullmatch(body_of(data, len(data))[-_SIGNED_BYTES:]):
            self._told = True
            self.say(f"peers sign what they publish, which cannot be checked here: {install_command('signed')}")
        return None

    def _claim(self, node_id: str, public: str) -> None:
        self._owners[node_id] = public
        if self.book:
            with contextlib.suppress(OSError), self.book.open("a") as file:  # on a full disk the name is forgotten: no harm
                file.write(f"\n{node_id} {public}")  # the line break first: it ends a line that a killed process left half
                file.flush()
                os.fsync(file.fileno())


def _read(book: Path) -> dict[str, str]:
    try:
        lines = book.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return {}
    claims = [(match[1], match[2]) for match in map(_CLAIM.fullmatch, lines) if match]
    return dict(reversed(claims))  # the first claim counts
