"""Two Unix users for a session, who can run this interpreter and this checkout wherever they lie.

Both are often below a folder that only root may enter. Then the users' processes run in a mount namespace of their own, in which
the needed folders are visible and nothing else of the closed one is. Nothing changes for the rest of the machine.
"""

import grp
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import ROOT

NEEDED = (Path(sys.base_prefix), Path(sys.prefix), ROOT)
TOOLS = ("useradd", "userdel", "groupadd", "groupdel", "setpriv", "nsenter", "unshare")


class Unavailable(Exception):
    """This machine cannot provide what a test needs; the text says why."""


@dataclass(frozen=True)
class User:
    """A user who shares the store through the group `shared`; `view` is the process whose mount namespace shows what is needed."""

    name: str
    uid: int
    gid: int
    shared: int
    view: int | None = None

    def command(self, program: list[str | bytes], cwd: Path) -> list[str | bytes]:
        """Return the command that runs a program as this user, in one process: each wrapper executes the next."""
        enter = ["nsenter", "--target", str(self.view), "--mount"] if self.view else []
        become = ["setpriv", "--reuid", str(self.uid), "--regid", str(self.gid), "--groups", str(self.shared)]
        return [*enter, "env", f"--chdir={cwd}", *become, *program]


@contextmanager
def make_users() -> Iterator[tuple[User, User]]:
    """Two users with a group in common; they are removed at the end. Raises Unavailable."""
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if os.geteuid() != 0 or missing:
        raise Unavailable(f"only root can make users, with {', '.join(TOOLS)}")
    group = f"rlred{os.getpid()}"
    with ExitStack() as undo:
        subprocess.run(["groupadd", group], check=True, capture_output=True)
        undo.callback(subprocess.run, ["groupdel", group], check=False, capture_output=True)
        view = undo.enter_context(_view())
        users = []
        for name in (f"{group}a", f"{group}b"):
            command = ["useradd", "--no-create-home", "--user-group", "--groups", group, "--shell", "/usr/sbin/nologin", name]
            subprocess.run(command, check=True, capture_output=True)
            undo.callback(subprocess.run, ["userdel", name], check=False, capture_output=True)
            entry = pwd.getpwnam(name)
            users.append(User(name, entry.pw_uid, entry.pw_gid, grp.getgrnam(group).gr_gid, view))
            _check_can_import(users[-1])
        yield users[0], users[1]


@contextmanager
def _view() -> Iterator[int | None]:
    """A process that only waits, in whose mount namespace others may enter what is needed; None where they may anyway."""
    closed = sorted({folder for each in NEEDED if (folder := _closed(each))})
    if not closed:
        yield None
        return
    inside = [each for each in NEEDED if _closed(each)]
    inside = sorted(each for each in inside if not any(other in each.parents for other in inside))
    with tempfile.TemporaryDirectory(prefix="rl-swarm-view-") as stage:
        kept = [(each, Path(stage, str(number))) for number, each in enumerate(inside)]
        lines = [f"mkdir '{place}'; mount --rbind '{each}' '{place}'" for each, place in kept]
        lines += [f"mount -t tmpfs -o mode=755 none '{folder}'" for folder in closed]
        lines += [f"mkdir -p '{each}'; mount --rbind '{place}' '{each}'" for each, place in kept]
        script = "\n".join(["set -e", *lines, "echo ready", "exec sleep 100000"])
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                if process.stdout is None or process.stdout.readline() != "ready\n":
                    raise Unavailable(f"no mount namespace for other users: {process.communicate()[1].strip()}")
                yield process.pid
            finally:
                process.kill()
                process.communicate()


def _closed(path: Path) -> Path | None:
    """The highest folder on the way to a path that others may not enter."""
    way = [*reversed(path.resolve().parents), path.resolve()]
    return next((each for each in way if not each.stat().st_mode & stat.S_IXOTH), None)


def _check_can_import(user: User) -> None:
    command = user.command([sys.executable, "-c", "import rl_swarm.cli, tests.support.standin_node"], Path("/"))
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"other users cannot run this checkout: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}")
