"""Push a trained model to the Hugging Face hub while training goes on.

Each upload runs in a process of its own, because only a process can be ended while its client waits for a hub that hangs. A
failure is reported in one line and is never raised into training.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_swarm import __version__
from rl_swarm.errors import SwarmError
from rl_swarm.processes.children import python
from rl_swarm.processes.stopping import PUSH_KILL_SECONDS
from rl_swarm.tools.export import collect, write

if TYPE_CHECKING:
    from rl_swarm.learning.policy import Policy
    from rl_swarm.node.assembly import Node

UPLOAD_SECONDS = 3600.0
POLL_SECONDS = 0.1
LONGEST_NAME = 96  # of a repository on the hub
LONGEST_REASON = 500


class HubPusher:
    """Push a node's model as it is now. One upload runs at a time; of those that wait, only the newest stays.

    A push writes the export at once and uploads it in the background. Every call looks at the upload: it reports one that has
    ended, and starts the one that waits.
    """

    def __init__(self, node: "Node", policy: "Policy", token: str) -> None:
        self._node, self._policy, self._token = node, policy, token
        self._folder = node.local.path / "push"
        self._counted_from: int | None = None
        self._pushed: int | None = None
        self._repository: str | None = None  # asked for once: the hub limits how often
        self._waiting: int | None = None
        self._upload: _Upload | None = None
        shutil.rmtree(self._folder, ignore_errors=True)  # a killed process may have left exports behind

    def after_round(self, number: int) -> None:
        """Push if HUB_PUSH_INTERVAL rounds have passed since the last push. Call it after every round, with the next number."""
        self._look()
        if self._counted_from is None:
            self._counted_from = number - 1
        if 0 < self._node.config.hub_push_interval <= number - self._counted_from:
            self.push_now(number)

    def push_now(self, number: int) -> None:
        """Push now, unless the model of this round is already pushed or on its way."""
        self._look()
        if number == self._pushed:
            return
        self._pushed = self._counted_from = number
        try:
            self._write(number)
        except SwarmError as error:
            self._end(number, {"error": str(error)})
            return
        if self._waiting is not None:
            shutil.rmtree(self._export(self._waiting), ignore_errors=True)
        self._waiting = number
        self._look()

    def close(self, patience: Callable[[], float]) -> None:
        """Wait at most `patience()` seconds for uploads, then give up on them. A stop may shorten the patience meanwhile."""
        began = time.monotonic()
        try:
            while self._upload and time.monotonic() - began < patience():
                time.sleep(POLL_SECONDS)
                self._look()
        finally:
            if self._upload:
                self._upload.kill()
                self._end(self._upload.round, {"error": "not done when the node ended"})
            if self._waiting is not None:
                self._end(self._waiting, {"error": "not begun when the node ended"})
            shutil.rmtree(self._folder, ignore_errors=True)

    def _export(self, number: int) -> Path:
        return self._folder / f"round_{number:06d}"

    def _write(self, number: int) -> None:
        node, name = self._node, self._policy.name
        node.journal.flush()  # so that the card has the newest figures
        version = node.experiment.tasks_version
        figures = collect(node.config, node.record, node.local.node_id, number, model=name, tasks_version=version)
        write(self._export(number), self._policy, figures)

    def _look(self) -> None:
        if self._upload and (outcome := self._upload.outcome()):
            done, self._upload = self._upload.round, None
            self._end(done, outcome)
        if self._waiting is None or self._upload:
            return
        number, self._waiting = self._waiting, None
        name = self._repository or repository_name(self._node.config.experiment_name, self._node.local.node_id)
        try:
            self._upload = _Upload(number, self._export(number), name, self._token)
        except OSError as error:
            self._end(number, {"error": f"no process can be started for the upload: {error}"})

    def _end(self, number: int, outcome: dict[str, str]) -> None:
        shutil.rmtree(self._export(number), ignore_errors=True)
        if "error" in outcome:
            self._pushed = None if number == self._pushed else self._pushed
            line = f"the push of round {number} failed ({_one_line(outcome['error'], self._token)}); training is not affected"
        else:
            self._repository = outcome["repository"]
            line = f"pushed the model of round {number} to {outcome['url']}"
        self._node.journal.note("push", line)


class _Upload:
    """The process that uploads one export. It ends by itself at its time limit, even if the node was killed."""

    def __init__(self, number: int, folder: Path, repository: str, token: str) -> None:
        self.round, self._console = number, folder.with_suffix(".console")
        arguments = (str(folder), repository, f"Round {number}", str(UPLOAD_SECONDS))
        with self._console.open("wb") as console:
            self.process = subprocess.Popen(
                python("from rl_swarm.tools.push import main; main()", *arguments),
                stdin=subprocess.PIPE,
                stdout=console,
                stderr=console,
                env=os.environ | {"HF_HUB_DISABLE_PROGRESS_BARS": "1"},
                start_new_session=True,  # Ctrl-C asks the node to finish its work, and that includes the upload
            )
        assert self.process.stdin
        # The token goes through a pipe: others can read the arguments of a process, and its environment is inherited.
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(token.encode())

    def outcome(self) -> dict[str, str] | None:
        """The last line that the process wrote, or how it died; None while it runs."""
        if self.process.poll() is None:
            return None
        last = "it said nothing"
        with contextlib.suppress(OSError, IndexError):  # somebody may have deleted the file
            last = self._console.read_text("utf-8", "replace").strip().splitlines()[-1]
        if self.process.returncode == 0 and last.startswith("{"):
            outcome: dict[str, str] = json.loads(last)
            return outcome
        return {"error": f"the upload ended with code {self.process.returncode}: {last}"}

    def kill(self) -> None:
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(PUSH_KILL_SECONDS)


def make_pusher(node: "Node", policy: "Policy") -> HubPusher | None:
    """The pusher of a node's model, or None without a HUGGINGFACE_ACCESS_TOKEN."""
    return HubPusher(node, policy, node.config.hub_token) if node.config.hub_token else None


def repository_name(experiment: str, node_id: str) -> str:
    """`{experiment}-{node_id}`, or the nearest name that the hub takes, with a hash that keeps nodes apart."""
    wanted = f"{experiment}-{node_id}"
    allowed = re.sub(r"([-.])[-.]+", r"\1", wanted).strip("-.")
    if allowed == wanted and len(wanted) <= LONGEST_NAME and not wanted.endswith(".git"):
        return wanted
    mark = hashlib.sha256(wanted.encode()).hexdigest()[:8]
    return f"{allowed[: LONGEST_NAME - 9].strip('-.') or 'run'}-{mark}"


def main() -> None:
    """Run one upload as a process of its own: read the token from stdin, write the outcome as JSON in the last line."""
    folder, repository, message, seconds = sys.argv[1:]
    late = {"error": f"not done within {float(seconds):g} s: check the connection to the hub"}
    timer = threading.Timer(float(seconds), _exit_with, [late])
    timer.daemon = True
    timer.start()
    _exit_with(upload(folder, repository, message, sys.stdin.read()))


def _exit_with(outcome: dict[str, str]) -> None:
    print(f"\n{json.dumps(outcome)}", flush=True)
    os._exit(0)  # at once: nothing is printed after the outcome, and no thread of a client that hangs is waited for


def upload(folder: str, repository: str, message: str, token: str) -> dict[str, str]:
    """Upload a folder with the hub's own client. Return the repository and its address, or an error of one line.

    A repository without an owner is one of the token's account.
    """
    from huggingface_hub import HfApi

    api = HfApi(token=token, library_name="rl-swarm", library_version=__version__)
    try:
        repository = repository if "/" in repository else f"{api.whoami()['name']}/{repository}"
        url = api.create_repo(repository, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
    except Exception as error:  # the client's errors have no common base class; the report names each
        return {"error": hub_reason(error, token)}
    return {"repository": repository, "url": str(url)}


def hub_reason(error: BaseException, token: str) -> str:
    """Say in one line, without the token, why the hub or the connection failed and what to do about it."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    refused: Any = next((each for each in chain if getattr(each, "response", None) is not None), None)
    if refused is None:
        unreached = isinstance(error, OSError) or type(error).__module__.startswith("httpx")
        remedy = ": check the connection to the hub" if unreached else ""
        return f"{type(error).__name__}: {_one_line(str(error), token)}{remedy}"
    status = refused.response.status_code
    said = _one_line(str(getattr(refused, "server_message", None) or refused), token).rstrip(".")
    if status in (401, 403):
        return f"HTTP {status}: {said}: check that HUGGINGFACE_ACCESS_TOKEN is valid and may write"
    return f"HTTP {status}: {said}" + (": the hub may have recovered by the next push" if status >= 500 else "")


def _one_line(text: str, token: str) -> str:
    """Remove the token before cutting, so that no part of it stays."""
    return " ".join(text.replace(token, "(token)").split())[:LONGEST_REASON]
