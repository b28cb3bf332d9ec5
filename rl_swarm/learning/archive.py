"""Judge a file of `torch.save` before torch opens it: the places of its members, and the calls in its pickle.

Refuses everything that `torch.save` does not write: packed or overlapping members, names that mean something else to torch, calls
other than those that make a tensor. Unpacks and executes nothing. Knows nothing about checkpoints.
"""

import io
import pickletools
import re
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from rl_swarm.errors import CheckpointError

MOST_STRUCTURE_BYTES = 32 << 20  # of the pickle, and of the directory: a model of ten thousand tensors needs 10 MB
MOST_PICKLE_STEPS = 2_000_000  # the same model needs 1.2 million; torch takes a few seconds for so many
MOST_NOTE_BYTES = 64  # of the small members that say how the rest is stored
ALIGNMENT = 64  # of tensors, which are used where they lie in the file

_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_END = struct.Struct("<4s4H2LH")
_ENDING_BYTES = _END64.size + _LOCATOR.size + _END.size
_LARGE = 0xFFFFFFFF  # stands for a number that is in the extra field
_LARGE_FIELD = 1

_PICKLE = "archive/data.pkl"
_TENSOR = re.compile(r"archive/data/\d{1,9}", re.ASCII)
_NOTES = {f"archive/{name}" for name in (".format_version", ".storage_alignment", "byteorder", "version", ".data/serialization_id")}

_EMPTY = "collections OrderedDict"  # a tensor's hooks: always called without arguments
_GLOBALS = {_EMPTY, "torch._utils _rebuild_tensor_v2"} | {
    f"torch {kind}Storage" for kind in ("Float", "Double", "Half", "BFloat16", "Byte")
}
_PUT, _GET = {"BINPUT", "LONG_BINPUT"}, {"BINGET", "LONG_BINGET"}
_STEPS = {
    *("PROTO", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"),
    *("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("APPEND", "APPENDS", "SETITEM", "SETITEMS", "GLOBAL", "REDUCE", "BINPERSID"),
    *_PUT,
    *_GET,
}


class _Member(NamedTuple):
    header: int
    size: int
    name: str


def check_archive(file: BinaryIO, comment_bytes: int) -> None:
    """Raise CheckpointError unless the file is an archive as `torch.save` writes it, with a comment of this length at its end."""
    try:
        start, directory, count = _directory(file, comment_bytes)
        members = sorted(_members(directory))
        if len(members) != count:
            raise CheckpointError(f"the directory of its archive has {len(members)} members and says {count}")
        places = _places(file, members, start)
        begin, end = places[_PICKLE]
        file.seek(begin)
        _check_pickle(file.read(end - begin))
    except (struct.error, ValueError, KeyError) as error:
        raise CheckpointError(f"torch.save does not write such an archive ({type(error).__name__})") from error


def _directory(file: BinaryIO, comment_bytes: int) -> tuple[int, bytes, int]:
    """Start, content and count of the directory, which lies right before the three records at the end of an archive."""
    end = file.seek(0, io.SEEK_END) - comment_bytes - _ENDING_BYTES
    if end < 0:
        raise CheckpointError("it is too short for an archive")
    file.seek(end)
    mark64, _, _, _, _, _, here, count, directory_bytes, start = _END64.unpack(file.read(_END64.size))
    mark_locator, _, place, _ = _LOCATOR.unpack(file.read(_LOCATOR.size))
    mark, _, _, _, _, _, _, comment = _END.unpack(file.read(_END.size))
    if (mark64, mark_locator, mark) != (b"PK\6\6", b"PK\6\7", b"PK\5\6") or place != end or comment != comment_bytes:
        raise CheckpointError("its archive does not end like one of torch.save")
    if here != count or start + directory_bytes != end or directory_bytes > MOST_STRUCTURE_BYTES:
        raise CheckpointError("the directory of its archive is too large, or not where it should be")
    file.seek(start)
    return start, file.read(directory_bytes), count


def _members(directory: bytes) -> Iterator[_Member]:
    at = 0
    while at < len(directory):
        mark, _, _, _, method, _, _, _, packed, size, names, extras, comments, _, _, _, header = _ENTRY.unpack_from(directory, at)
        name_end = at + _ENTRY.size + names
        if mark != b"PK\1\2" or method != 0:
            raise CheckpointError("a member of its archive is packed: torch.save stores members as they are")
        if _LARGE in (size, packed, header):
            size, packed, header = _large(directory[name_end : name_end + extras], (size, packed, header))
        if packed != size:
            raise CheckpointError("a member of its archive would be longer unpacked than it is in the file")
        yield _Member(header, size, directory[at + _ENTRY.size : name_end].decode("ascii"))
        at = name_end + extras + comments


def _large(extra: bytes, numbers: tuple[int, int, int]) -> tuple[int, int, int]:
    """Take numbers beyond 32 bits from an extra field, which holds them in this order."""
    at = 0
    while at < len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == _LARGE_FIELD:
            values = iter(struct.unpack_from(f"<{length // 8}Q", extra, at + 4))
            size, packed, header = (next(values, _LARGE) if number == _LARGE else number for number in numbers)
            return size, packed, header
        at += 4 + length
    return numbers


def _places(file: BinaryIO, members: list[_Member], room: int) -> dict[str, tuple[int, int]]:
    """Where the content of each member begins and ends. Members must not overlap, nor reach beyond `room`."""
    places: dict[str, tuple[int, int]] = {}
    last = 0
    for header, size, name in members:
        if name in places or header < last:
            raise CheckpointError("two members of its archive have one name, or overlap")
        file.seek(header)
        mark, *_, name_bytes, extra_bytes = _LOCAL.unpack(file.read(_LOCAL.size))
        if mark != b"PK\3\4" or file.read(name_bytes) != name.encode():
            raise CheckpointError(f"its archive contradicts itself about the member {name[:80]!r}")
        start = header + _LOCAL.size + name_bytes + extra_bytes
        last = start + size
        if last > room:
            raise CheckpointError("a member of its archive is longer than the file")
        if _TENSOR.fullmatch(name):
            if start % ALIGNMENT:
                raise CheckpointError(f"the member {name} of its archive is not aligned")
        elif name not in {_PICKLE, *_NOTES} or size > (MOST_STRUCTURE_BYTES if name == _PICKLE else MOST_NOTE_BYTES):
            raise CheckpointError(f"its archive has a member {name[:80]!r} of {size} bytes: torch.save writes no such member")
        places[name] = (start, last)
    return places


def _check_pickle(data: bytes) -> None:
    """Raise CheckpointError for steps and calls that no file of tensors and plain values needs.

    torch's own reader allows more, including calls that fill the memory: `bytearray(10**12)`, or copies of copies of a dictionary.
    """
    empties: set[Any] = set()  # where the pickle remembers `_EMPTY`
    due = ""  # the step that must follow
    for number, (step, argument, _) in enumerate(pickletools.genops(data)):
        if step.name not in _STEPS or number >= MOST_PICKLE_STEPS:
            raise CheckpointError(f"its pickle has {number} steps and then {step.name}: torch.save writes no such file")
        if step.name == "PROTO" and argument != 2:
            raise CheckpointError(f"its pickle has protocol {argument}, torch.save's is 2")
        if step.name == "GLOBAL" and argument not in _GLOBALS:
            raise CheckpointError(f"its pickle names {str(argument)[:80]!r}, which no checkpoint needs")
        if due == "EMPTY_TUPLE" and step.name in _PUT:
            empties.add(argument)
        elif due:
            if step.name != due:
                raise CheckpointError("its pickle copies dictionaries, which no checkpoint needs")
            due = "REDUCE" if due == "EMPTY_TUPLE" else ""
        elif (step.name == "GLOBAL" and argument == _EMPTY) or (step.name in _GET and argument in empties):
            due = "EMPTY_TUPLE"
