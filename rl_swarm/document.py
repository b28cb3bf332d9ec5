"""Seal and open the JSON documents that nodes exchange, so that no reader trusts half a file or a flipped byte.

A sealed document is one line of JSON whose last member is the SHA-256 of everything before it. The checksum covers the bytes as
written, so a reader needs no canonical form. It guards against storage errors; signatures are in swarm/signatures.py. Never
touches a store.
"""

import hashlib
from typing import Annotated, TypeVar

import msgspec

from rl_swarm.errors import BadDocument, CheckpointError, Incomplete

SCHEMA = 1
SMALL_BYTES = 1 << 20  # limit for everything but rollouts: the largest is a round that names a few thousand nodes

_OPEN = b',"sha256":"'
_CLOSE = b'"}\n'
_TAIL = len(_OPEN) + 64 + len(_CLOSE)

T = TypeVar("T", bound=msgspec.Struct)
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
Label = Annotated[str, msgspec.Meta(max_length=200)]


class _Header(msgspec.Struct):
    schema: int


def seal(document: msgspec.Struct) -> bytes:
    return close(msgspec.json.encode(document))


def close(body: bytes) -> bytes:
    """Append its checksum to a JSON object, as the last member."""
    return body[:-1] + _OPEN + hashlib.sha256(body).hexdigest().encode() + _CLOSE


def unseal(data: bytes, kind: type[T], limit: int = SMALL_BYTES) -> T:
    """Return the document; raise Incomplete (look again later) or BadDocument (never look again)."""
    return parse(body_of(data, limit), kind)


def body_of(data: bytes, limit: int) -> bytes:
    """The sealed JSON object as it was written; verifies the checksum."""
    if len(data) > limit:
        raise BadDocument("too_large", f"{len(data)} bytes, the limit is {limit}")
    tail = data[-_TAIL:]
    if len(data) <= _TAIL or not tail.startswith(_OPEN) or not tail.endswith(_CLOSE):
        raise Incomplete("incomplete", "the closing checksum is missing")
    body = data[:-_TAIL] + b"}"
    if hashlib.sha256(body).hexdigest().encode() != tail[len(_OPEN) : -len(_CLOSE)]:
        raise BadDocument("checksum", "the content does not match its checksum")
    return body


def parse(body: bytes, kind: type[T]) -> T:
    """Decode JSON of our schema into `kind`, checking every type and range."""
    try:
        schema = msgspec.json.decode(body, type=_Header).schema
        if schema != SCHEMA:
            raise BadDocument("schema", f"schema {schema}, this version reads {SCHEMA}")
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadDocument("malformed", str(error)) from None


def typed(state: object, kind: type[T]) -> T:
    """Convert a checkpoint's state into `kind`, checking every type and range; raise CheckpointError if it is something else."""
    try:
        found = msgspec.convert(state, kind)
        msgspec.json.encode(found)  # finds lone surrogates, which no journal could write
    except (msgspec.ValidationError, UnicodeEncodeError, RecursionError, OverflowError, TypeError) as error:
        raise CheckpointError(f"its state is no {kind.__name__}: {error}") from None
    return found
