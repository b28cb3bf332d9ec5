"""Signed documents: whose they are, and who may write what.

A signature covers the experiment's id, the document's key in the store and its bytes as they were written, so that it is good for
no other place. It stands at the end of the document, before the checksum; readers that know nothing of it are not disturbed.

Rounds are announced by the founder of the experiment and the keys that it names. Everything else belongs to a node, and a node's
name belongs to the key that the allow-list gives it, or else to the first key that this reader saw with it. Without a founder's
key, an allow-list or SWARM_REQUIRE_SIGNATURES, unsigned documents are taken as well.
"""

import contextlib
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from rl_swarm.document import SMALL_BYTES, body_of, close, unseal
from rl_swarm.errors import BadDocument
from rl_swarm.identity import INSTALL, Identity, can_check, signed_by
from rl_swarm.store import Store

T = TypeVar("T", bound=msgspec.Struct)

_SIGNED = re.compile(rb',"key":"([0-9a-f]{64})","signature":"([0-9a-f]{128})"\}')
_SIGNED_BYTES = len(b',"key":"","signature":""}') + 64 + 128
_CLAIM = re.compile(r"(\S{1,64}) ([0-9a-f]{64})")


def sign(identity: Identity, experiment_id: str, key: str, data: bytes) -> bytes:
    """The sealed document with a signature."""
    body = body_of(data, len(data))
    signature = identity.sign(_statement(experiment_id, key, body))
    return close(body[:-1] + f',"key":"{identity.public}","signature":"{signature}"}}'.encode())


def signer(experiment_id: str, key: str, data: bytes) -> str | None:
    """The public key that signed a sealed document, None if nobody did; raise BadDocument if the signature is wrong.

    Needs the library of the extra `signed` where there is a signature.
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
    """What is signed; neither an id nor a key can contain a line break."""
    return "\n".join(["rl-swarm 2", experiment_id, key, hashlib.sha256(body).hexdigest()]).encode()


def read_signed(store: Store, key: str, kind: type[T], node_id: str, signatures: "Signatures | None" = None) -> T:
    """A small document of a node; raise NotFound or BadDocument if there is none to be believed."""
    data = store.get(key, limit=SMALL_BYTES)
    found = unseal(data, kind)
    if signatures:
        signatures.check(key, data, node_id)
    return found


class Signatures:
    """Signs with `identity` if there is one, and checks what others wrote. `refused` counts by reason.

    `announcers` are the keys that may announce rounds; where there are none, anybody may. `allowed` maps the keys that may take
    part to the name that each may use, None for any. `book` is a local file of the keys that names belong to; it outlives the
    process.
    """

    def __init__(
        self,
        identity: Identity | None = None,
        *,
        experiment_id: str = "",
        announcers: frozenset[str] = frozenset(),
        required: bool = False,
        allowed: Mapping[str, str | None] | None = None,
        book: Path | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.identity = identity
        self.announcers = announcers
        self.required = required or allowed is not None or bool(announcers)
        self.allowed = allowed
        self.refused: Counter[str] = Counter()
        self._experiment_id = experiment_id
        self._book = book
        self._say = say
        self._can_check: bool | None = None
        self._told = False
        self._owners = _read(book) if book else {}
        self._owners |= {name: key for key, name in (allowed or {}).items() if name}

    def owner(self, node_id: str) -> str | None:
        """The key that a name belongs to."""
        return self._owners.get(node_id)

    def sign(self, key: str, data: bytes) -> bytes:
        """The sealed document with this node's signature; without an identity it stays as it is."""
        return data if self.identity is None else sign(self.identity, self._experiment_id, key, data)

    def signer(self, key: str, data: bytes) -> str | None:
        return signer(self._experiment_id, key, data)

    def mine(self, key: str, data: bytes) -> bool:
        """Whether a document is one that this node signed for this key."""
        if self.identity is None:
            return False
        try:
            return signer(self._experiment_id, key, data) == self.identity.public
        except BadDocument:
            return False

    def is_mine(self, public: str) -> bool:
        return self.identity is not None and self.identity.public == public

    def may_take(self, node_id: str, public: str) -> bool:
        """Whether a name that another key has signed for is this node's all the same: it had it before, it is the founder's or a
        coordinator's, or that key may not have it."""
        mine = self.identity.public if self.identity else None
        allowed = self.allowed is None or (public in self.allowed and self.allowed[public] in (None, node_id))
        return mine is not None and (public == mine or self.owner(node_id) == mine or mine in self.announcers or not allowed)

    def claim(self, node_id: str) -> None:
        """Remember that a name is this node's own."""
        if self.identity and self.owner(node_id) is None:
            self._claim(node_id, self.identity.public)

    def reclaims(self, key: str, data: bytes) -> bool:
        """Whether to insist on a document of this node's: where everybody signs, its name is registered to this node's key."""
        return self.required and self.mine(key, data)

    def check(self, key: str, data: bytes, node_id: str) -> None:
        """Raise BadDocument unless a sealed document may come from this node."""
        with self._counted():
            owner, public = self.owner(node_id), self._signer(key, data)
            if public is None:
                if owner:
                    raise BadDocument("impersonation", f"{node_id} signs with {owner}, {key} is not signed")
                if self.required:
                    raise BadDocument("unsigned", f"{node_id} does not sign")
            elif self.allowed is not None and (public not in self.allowed or self.allowed[public] not in (None, node_id)):
                raise BadDocument("key_not_allowed", f"{node_id} signs with {public}")
            elif owner is None:
                self._claim(node_id, public)
            elif owner != public:
                raise BadDocument("impersonation", f"{node_id} signs with {owner}, {key} is signed with {public}")

    def check_announcement(self, key: str, data: bytes) -> None:
        """Raise BadDocument unless whoever wrote this may announce rounds."""
        if self.announcers:
            with self._counted():
                public = self._signer(key, data)
                if public not in self.announcers:
                    raise BadDocument("unsigned" if public is None else "key_not_allowed", f"{key} is not the founder's")

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except BadDocument as error:
            self.refused[error.reason] += 1
            count = self.refused[error.reason]
            if str(count).rstrip("0") == "1":  # the first, the tenth, the hundredth …
                self._say(f"refused, {count} so far for this reason: {error}")
            raise

    def _signer(self, key: str, data: bytes) -> str | None:
        """Who signed; None also where that cannot be found out here and need not be known, which is said once."""
        if self._can_check is None:
            self._can_check = can_check()
        if self._can_check:
            return signer(self._experiment_id, key, data)
        if not self._told and _SIGNED.fullmatch(body_of(data, len(data))[-_SIGNED_BYTES:]):
            self._told = True
            self._say(f"peers sign what they publish, which cannot be checked here: {INSTALL}")
        return None

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
