"""Read what `strace -ff -y` wrote, and find every system call that touches a path below the store without the guard.

The guard opens the store's root by its own path, as a folder and not through a link. From there each step is one name relative to
the handle of its folder, and no step follows a link. So a call that names a path below the root is right only if it

- is given a handle, not an absolute path and not the current folder,
- has one name, without a slash and not `..`,
- says that a link is not to be followed, where it could follow one.

The root itself may be looked at; opened, it must be opened as a folder and not through a link. What lies above it, and calls that
have only a handle, are of no interest.
"""

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

TRACED = "%file"  # every call that takes a name
_CALL = re.compile(r"(?P<name>\w+)\((?P<rest>.*)", re.DOTALL)
_HANDLE = re.compile(r"(?P<number>AT_FDCWD|-?\d+)(?:<(?P<path>.*)>)?(?:\(deleted\))?", re.DOTALL)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|[0-7]{1,3}|.)", re.DOTALL)
_SHORT = {"n": "\n", "t": "\t", "r": "\r", "v": "\v", "f": "\f", "a": "\a", "b": "\b"}

# Where the folder's handle and the name stand among the arguments; None for a call that has no handle and so cannot be right.
_PAIRS: dict[str, tuple[tuple[int | None, int], ...]] = {
    **dict.fromkeys(
        (
            *("openat", "openat2", "newfstatat", "fstatat64", "statx", "faccessat", "faccessat2", "mkdirat", "mknodat", "unlinkat"),
            *("readlinkat", "fchmodat", "fchmodat2", "fchownat", "utimensat", "futimesat", "name_to_handle_at", "execveat"),
        ),
        ((0, 1),),
    ),
    **dict.fromkeys(("renameat", "renameat2", "linkat"), ((0, 1), (2, 3))),
    "symlinkat": ((1, 2),),
    **dict.fromkeys(("rename", "link"), ((None, 0), (None, 1))),
    "symlink": ((None, 1),),
    "inotify_add_watch": ((None, 1),),
}
_OPENS = {"open", "creat", "openat", "openat2"}
_NEVER_FOLLOW = {"mkdirat", "mknodat", "unlinkat", "readlinkat", "renameat", "renameat2", "symlinkat"}
_NOFOLLOW = ("O_NOFOLLOW", "AT_SYMLINK_NOFOLLOW", "RESOLVE_NO_SYMLINKS")
_ONE_NAME = {"execve", "readlink", "getxattr", "setxattr", "lgetxattr", "lsetxattr", "removexattr", "lremovexattr"}


class Call(NamedTuple):
    name: str
    arguments: list[str]


class Name(NamedTuple):
    """A name that a call was given; `folder` is what it is relative to, and `handled` whether that is an open handle."""

    text: str
    folder: str
    handled: bool

    @property
    def path(self) -> str:
        return os.path.normpath(os.path.join(self.folder, self.text))


@dataclass(frozen=True)
class Violation:
    reason: str
    path: str
    line: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}: {self.line}"


def violations(lines: Iterable[str], root: str | Path, cwd: str | Path = "/") -> Iterator[Violation]:
    """Calls of one process, in order, that touch what is below `root` without the guard; `cwd` is where the process began."""
    top, here = str(root), str(cwd)
    for line in lines:
        call = parse(line)
        if call is None:
            continue
        for name in _names(call, here):
            if reason := _judge(call, name, top):
                yield Violation(reason, name.path, line.strip())
                break  # a call is counted once
        if call.name == "chdir" and line.rstrip().endswith("= 0"):
            here = next(_names(call, here)).path


def parse(line: str) -> Call | None:
    """A call with its arguments as they are printed; None for a line that tells of no call."""
    found = _CALL.match(line)
    return Call(found["name"], _split(found["rest"])) if found else None


def _split(text: str) -> list[str]:
    """Arguments up to the closing bracket; commas in quotes, brackets and the paths of handles do not count."""
    parts, start, depth, quoted, place = [], 0, 0, False, 0
    while place < len(text):
        letter = text[place]
        if quoted:
            place += letter == "\\"
            quoted = letter != '"'
        elif letter == '"':
            quoted = True
        elif letter == "<" and _opens_a_path(text, place):
            place = text.find(">", place)
            if place < 0:
                break
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            if depth == 0:
                return [*parts, text[start:place].strip()]
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
        place += 1
    return [*parts, text[start:].partition("<unfinished")[0].strip()]  # a process that was killed in the middle of a call


def _opens_a_path(text: str, place: int) -> bool:
    return re.search(r"(?:\b\d+|AT_FDCWD)$", text[:place]) is not None


def _names(call: Call, cwd: str) -> Iterator[Name]:
    pairs = _PAIRS.get(call.name)
    if pairs is None:  # stat, mkdir, truncate, chdir, execve … and calls that this table does not know
        pairs = tuple((None, place) for place, each in enumerate(call.arguments) if each.startswith('"'))
        pairs = pairs[:1] if call.name in _ONE_NAME else pairs
    for handle, place in pairs:
        text = _text(call.arguments[place]) if place < len(call.arguments) else None
        if text is not None:
            yield Name(text, cwd, False) if handle is None else Name(text, *_folder(call.arguments[handle], cwd))


def _judge(call: Call, name: Name, root: str) -> str:
    """What is wrong with one name of a call, or an empty text."""
    flags = " ".join(each for each in call.arguments if '"' not in each and "<" not in each)  # words in names are no flags
    follows = not any(word in flags for word in _NOFOLLOW)
    if name.text == "" and "AT_EMPTY_PATH" in flags:  # fstat: the handle and nothing else
        return ""
    if name.text == ".":  # an open folder itself, which is no link
        return ""
    if name.path == root:
        return "the root is opened through links" if call.name in _OPENS and (follows or "O_DIRECTORY" not in flags) else ""
    if not name.path.startswith(root.rstrip("/") + "/"):
        return ""
    if not name.handled or name.text.startswith("/"):
        return "no handle of its folder"
    if "/" in name.text or name.text == "..":
        return "more than one step"
    if call.name == "linkat":
        return "a link would be followed" if "AT_SYMLINK_FOLLOW" in flags else ""
    return "a link would be followed" if follows and call.name not in _NEVER_FOLLOW else ""


def _folder(argument: str, cwd: str) -> tuple[str, bool]:
    """The path behind a handle, and whether it is one: the current folder is none."""
    found = _HANDLE.fullmatch(argument)
    if not found or found["path"] is None:
        return cwd, False
    return _plain(found["path"]), found["number"] != "AT_FDCWD"


def _text(argument: str) -> str | None:
    """A quoted argument as it was given to the call; None for NULL or an address."""
    return _plain(argument.rstrip(".")[1:-1]) if argument.startswith('"') else None


def _plain(text: str) -> str:
    """Text without C's escapes, which strace uses for everything that is not ASCII."""

    def byte(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] == "x" and len(code) == 3:
            return chr(int(code[1:], 16))
        return chr(int(code, 8)) if code.isdigit() else _SHORT.get(code, code)

    return _ESCAPE.sub(byte, text).encode("latin-1", "replace").decode("utf-8", "surrogateescape")


def command(output: Path, program: Sequence[str]) -> list[str]:
    """`program` under strace; each of its processes and threads writes a file of its own, so that no call is cut in two."""
    return ["strace", "-ff", "-y", "-qq", "-s", "4096", "--seccomp-bpf", "-f", "-e", f"trace={TRACED}", "-o", str(output), *program]


def read(output: Path, root: str | Path, cwd: str | Path) -> list[Violation]:
    """The violations of everything that ran under `command(output, …)`."""
    found: list[Violation] = []
    for path in sorted(output.parent.glob(f"{output.name}.*")):
        with path.open(encoding="latin-1") as lines:
            found += violations(lines, root, cwd)
    return found


def touched(output: Path, root: str | Path) -> bool:
    """Whether the trace has any call with a handle or a path below the root: a trace that is empty proves nothing."""
    return any(str(root) in path.read_text(encoding="latin-1") for path in output.parent.glob(f"{output.name}.*"))


def problem() -> str:
    """Why strace cannot be used here, or an empty text."""
    try:
        done = subprocess.run(["strace", "-qq", "-e", "trace=none", "true"], capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        return "strace is not installed: apt-get install strace"
    return f"strace is not permitted here: {done.stderr.strip()}" if done.returncode else ""
