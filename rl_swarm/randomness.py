"""Random generators seeded by their purpose, so that nothing depends on global state or on the order of calls."""

import hashlib
import random


def stream_seed(*parts: object) -> int:
    """Hash the parts to a 63-bit seed: neighbouring parts give unrelated seeds, which adding would not."""
    joined = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(joined.encode()).digest()[:8], "big") >> 1


def generator(*parts: object) -> random.Random:
    return random.Random(stream_seed(*parts))
