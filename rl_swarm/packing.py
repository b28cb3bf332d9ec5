"""Compress documents, and unpack what anybody may have compressed, within a limit on the result.

A reader recognises the method by the first bytes, so a file keeps its name whatever its author has chosen. Unpacking stops at the
limit, before the rest of a bomb exists anywhere. Half a file yields half a document, which readers know by its missing checksum.
"""

import zlib

from rl_swarm.errors import BadDocument

METHODS = ("none", "gzip", "zstd")
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
SMALLEST = 19  # the level of zstd for files that are written once and kept for good
_GZIP_LEVEL, _ZSTD_LEVEL = 6, 3  # of a rollout file higher levels save less than 2 % more, and take several times as long
_GZIP_FORM = 16 + zlib.MAX_WBITS  # with the header of gzip, not of zlib
_WINDOW_BYTES = 8 << 20  # memory that a zstd file may ask for


def packed(data: bytes, method: str, zstd_level: int = _ZSTD_LEVEL) -> bytes:
    """Compress by one of METHODS."""
    if method == "gzip":
        compressor = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_FORM)
        return compressor.compress(data) + compressor.flush()
    if method == "zstd":
        from zstandard import ZstdCompressor

        return ZstdCompressor(level=zstd_level).compress(data)
    return data


def unpacked(data: bytes, limit: int) -> bytes:
    """Return data as it was before `packed`; raise BadDocument if it would have more than `limit` bytes, or is damaged."""
    if data.startswith(_GZIP):
        found = _gunzipped(data, limit + 1)
    elif data.startswith(_ZSTD):
        found = _unzstd(data, limit + 1)
    else:
        return data
    if len(found) > limit:
        raise BadDocument("too_large", f"it unpacks to more than {limit} bytes")
    return found


def _gunzipped(data: bytes, most: int) -> bytes:
    try:
        return zlib.decompressobj(_GZIP_FORM).decompress(data, most)
    except zlib.error as error:
        raise BadDocument("compression", str(error)) from None


def _unzstd(data: bytes, most: int) -> bytes:
    from zstandard import ZstdDecompressor, ZstdError

    try:
        return ZstdDecompressor(max_window_size=_WINDOW_BYTES).stream_reader(data).read(most)
    except ZstdError as error:
        raise BadDocument("compression", str(error)) from None
