"""Generators keyed on what they are for, so that nothing depends on global state or on the order of calls."""

import hashlib
import random


def key(*parts: object) -> int:
    """A 63-bit seed from its parts by hashing: neighbouring parts give unrelated seeds, which adding would not."""
    joined = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(joined.encode()).digest()[:8], "big") >> 1


def generator(*parts: object) -> random.Random:
    return random.Random(key(*parts))
