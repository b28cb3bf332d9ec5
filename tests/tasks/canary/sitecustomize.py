"""Watch the helper under test: Python imports this by its name at start, where this folder is on PYTHONPATH.

An audit hook reports, to the file named by HOSTILE_REPORT, what no verifier has to do while it judges an answer: write, start a
process, open a socket, load a library, change the environment, read a file outside Python's own folders.
"""

import os
import sys

_FORBIDDEN = (
    "builtins.breakpoint",
    "builtins.input",
    "ctypes.",
    "ftplib.",
    "http.",
    "mmap.",
    "os.chmod",
    "os.chown",
    "os.exec",
    "os.fork",
    "os.kill",
    "os.link",
    "os.mkdir",
    "os.posix_spawn",
    "os.putenv",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.spawn",
    "os.symlink",
    "os.system",
    "os.truncate",
    "os.unsetenv",
    "pickle.",
    "pty.",
    "shutil.",
    "signal.",
    "smtplib.",
    "socket.",
    "sqlite3.",
    "subprocess.",
    "sys.addaudithook",
    "tempfile.",
    "urllib.",
    "webbrowser.",
)
_LIBRARIES = tuple({os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, *sys.path) if path})
_descriptor = os.open(os.environ["HOSTILE_REPORT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_looking = False


def report(text: str) -> None:
    os.write(_descriptor, text.encode(errors="replace")[:500] + b"\n")


def _judging() -> bool:
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "judge" and frame.f_code.co_filename.endswith("tasks/bench.py"):
            return True
        frame = frame.f_back
    return False


def _suspicious(event: str, arguments: tuple) -> bool:
    if event != "open":
        return event.startswith(_FORBIDDEN)
    path, _, flags = arguments
    if isinstance(path, int):
        return False
    writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    return bool(writes) or not os.path.realpath(os.fsdecode(path)).startswith(_LIBRARIES)


def _watch(event: str, arguments: tuple) -> None:
    global _looking
    if _looking or not (event == "open" or event.startswith(_FORBIDDEN)):
        return
    _looking = True  # looking raises events of its own
    try:
        if _judging() and _suspicious(event, arguments):
            report(f"{event} {arguments!r}")
    finally:
        _looking = False


sys.addaudithook(_watch)
