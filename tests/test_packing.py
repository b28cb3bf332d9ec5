"""Compressed documents: any method is read, half a file is half a document, and a bomb stops at its limit."""

import gzip
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zstandard import ZstdCompressionParameters, ZstdCompressor

from rl_swarm.errors import BadDocument
from rl_swarm.packing import METHODS, packed, unpacked

LIMIT = 1 << 20


@given(st.binary(max_size=2000), st.sampled_from(METHODS[1:]))
def test_what_was_packed_is_unpacked(data: bytes, method: str) -> None:
    assert packed(data, method) != data
    assert unpacked(packed(data, method), LIMIT) == data


@given(st.binary(max_size=2000), st.data())
def test_half_a_file_is_the_beginning_of_the_document(data: bytes, more: st.DataObject) -> None:
    """So its reader misses the checksum and looks again, as with a file that is not compressed."""
    whole = packed(data, more.draw(st.sampled_from(METHODS[1:])))
    part = whole[: more.draw(st.integers(4, len(whole) - 1))]
    assert data.startswith(unpacked(part, LIMIT))


def test_the_same_document_is_the_same_file_at_any_time() -> None:
    assert packed(b"x" * 100, "gzip") == packed(b"x" * 100, "gzip") and gzip.decompress(packed(b"x", "gzip")) == b"x"


def test_what_is_not_compressed_stays_as_it_is() -> None:
    for data in (b"", b"{}", b"\x1f", b"PK\x03\x04", b"x" * 10):
        assert unpacked(data, 5) is data


@pytest.mark.parametrize("bomb", [gzip.compress, lambda data: ZstdCompressor(level=19).compress(data)])
def test_a_bomb_stops_at_the_limit(bomb: Callable[[bytes], bytes]) -> None:
    data = bomb(bytes(256 << 20))
    assert len(data) < 300_000
    tracemalloc.start()
    with pytest.raises(BadDocument, match="more than 1048576 bytes") as error:
        unpacked(data, LIMIT)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error.value.reason == "too_large" and most < 8 * LIMIT


def test_a_file_that_asks_for_much_memory_is_refused() -> None:
    writer = ZstdCompressor(compression_params=ZstdCompressionParameters(window_log=27)).compressobj()
    with pytest.raises(BadDocument) as error:
        unpacked(writer.compress(b"{}") + writer.flush(), LIMIT)
    assert error.value.reason == "compression"


@pytest.mark.parametrize("method", METHODS[1:])
def test_a_damaged_file_is_refused_or_differs(method: str) -> None:
    data = bytes(range(256)) * 10
    whole, refused = packed(data, method), 0
    for at in range(len(whole)):
        try:
            unpacked(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :], LIMIT)
        except BadDocument as error:
            assert error.reason == "compression"
            refused += 1
    assert refused
