"""Push a trained model to the Hugging Face hub while training goes on.

The upload runs in a process of its own, since a client that waits for a hanging hub can be ended in no other way. Whatever goes
wrong with it is reported in one line and counted; nothing of it is raised into training.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
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
LONGEST_NAME = 96  # of a repository on the hub
LONGEST_REASON = 500


class HubPusher:
    """Pushes the model as it is now; one upload at a time, and of those that wait only the newest.

    `write(folder, round)` writes the export before a call returns; the upload goes on in the background. `report` is given a line
    for each push, done or failed, always in the thread that calls; `counters` has `pushed`, `failed` and `replaced`.
    """

    def __init__(
        self,
        write: Callable[[Path, int], None],
        *,
        name: str,
        token: str,
        folder: Path,
        report: Callable[[str], None],
        interval: int = 0,
        limit_seconds: float = UPLOAD_SECONDS,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._write, self._name, self._token, self._folder, self._report = write, name, token, folder, report
        self._interval, self._limit_seconds = interval, limit_seconds
        self._counted_from: int | None = None
        self._pushed: int | None = None
        self._repository: str | None = None  # asked for once: the hub limits how often
        self._outcomes: deque[tuple[int, dict[str, str]]] = deque()
        self._lock = threading.Lock()  # guards what follows
        self._waiting: tuple[int, Path] | None = None
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[str] | None = None
        self._given_up = False
        shutil.rmtree(folder, ignore_errors=True)  # what a killed process left behind

    def after_round(self, number: int) -> None:
        """To be called after every round, with the number of the next: push when the interval has passed since the last push."""
        self._tell()
        if self._counted_from is None:
            self._counted_from = number - 1
        if self._interval and number - self._counted_from >= self._interval:
            self(number)

    def __call__(self, round_number: int) -> None:
        """Push now, unless the model of this very round is pushed or on its way."""
        self._tell()
        if round_number == self._pushed:
            return
        self._pushed = self._counted_from = round_number
        folder = self._folder / f"round_{round_number:06d}"
        try:
            self._write(folder, round_number)
        except SwarmError as error:
            shutil.rmtree(folder, ignore_errors=True)
            self._outcomes.append((round_number, {"error": str(error)}))
            self._tell()
            return
        with self._lock:
            replaced, self._waiting = self._waiting, (round_number, folder)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="push", daemon=True)
                self._thread.start()
        if replaced:
            self.counters["replaced"] += 1
            shutil.rmtree(replaced[1], ignore_errors=True)

    def close(self, patience: Callable[[], float]) -> None:
        """Wait for what is being pushed, so many seconds at most; what is not done then is given up.

        `patience` is asked again every second: who stops the node meanwhile waits less long.
        """
        began = time.monotonic()
        try:
            while (thread := self._thread) is not None and (left := began + patience() - time.monotonic()) > 0:
                thread.join(min(1.0, left))
                self._tell()
        finally:
            self._give_up()
            self._tell()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _give_up(self) -> None:
        with self._lock:
            self._given_up = True
            dropped, self._waiting = self._waiting, None
            thread = self._thread
            if self._process is not None:
                self._process.kill()
        if thread is not None:
            thread.join(PUSH_KILL_SECONDS)
        if dropped:
            self._outcomes.append((dropped[0], {"error": "not begun when the node ended"}))

    def _work(self) -> None:
        while True:
            with self._lock:
                job, self._waiting = self._waiting, None
                if job is None:
                    self._thread = None
                    return
            number, folder = job
            self._outcomes.append((number, self._upload(number, folder)))
            shutil.rmtree(folder, ignore_errors=True)

    def _upload(self, number: int, folder: Path) -> dict[str, str]:
        request = {
            "folder": str(folder),
            "name": self._name,
            "repository": self._repository,
            "token": self._token,  # through a pipe: others can read the arguments of a process, and its environment is inherited
            "message": f"Round {number}",
            "seconds": self._limit_seconds + PUSH_KILL_SECONDS,
        }
        try:
            with self._lock:
                if self._given_up:
                    return {"error": "not begun when the node ended"}
                process = self._process = _start_upload()
        except OSError as error:
            return {"error": f"no process can be started for the upload: {error}"}
        try:
            out, errors = process.communicate(json.dumps(request), timeout=self._limit_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return {"error": f"not done within {self._limit_seconds:g} s: check the connection to the hub"}
        if self._given_up and process.returncode < 0:
            return {"error": "not done when the node ended"}
        return _outcome(out, errors, process.returncode)

    def _tell(self) -> None:
        """Count and report what came of uploads; here, not in their thread, since a journal is written by one thread."""
        while self._outcomes:
            number, outcome = self._outcomes.popleft()
            if "error" in outcome:
                self._pushed = None if number == self._pushed else self._pushed
                self.counters["failed"] += 1
                reason = _one_line(outcome["error"], self._token)
                self._report(f"the push of round {number} failed ({reason}); training is not affected")
            else:
                self._repository = outcome["repository"]
                self.counters["pushed"] += 1
                self._report(f"pushed the model of round {number} to {outcome['url']}")


def make_pusher(node: "Node", policy: "Policy") -> HubPusher | None:
    """What pushes a node's model, or None without a HUGGINGFACE_ACCESS_TOKEN."""
    config, node_id = node.config, node.local.node_id
    if config.hub_token is None:
        return None

    def write_export(folder: Path, number: int) -> None:
        node.journal.flush()  # so that the card has the newest figures
        tasks_version = node.experiment.tasks_version
        write(folder, policy, collect(config, node.record, node_id, number, model=policy.name, tasks_version=tasks_version))

    return HubPusher(
        write_export,
        name=repository_name(config.experiment_name, node_id),
        token=config.hub_token,
        folder=node.local.path / "push",
        report=partial(node.journal.note, "push"),
        interval=config.hub_push_interval,
    )


def repository_name(experiment: str, node_id: str) -> str:
    """`{experiment}-{node_id}`; where the hub refuses such a name, the nearest that it takes, with a hash to keep nodes apart."""
    wanted = f"{experiment}-{node_id}"
    allowed = re.sub(r"([-.])[-.]+", r"\1", wanted).strip("-.")
    if allowed == wanted and len(wanted) <= LONGEST_NAME and not wanted.endswith(".git"):
        return wanted
    mark = hashlib.sha256(wanted.encode()).hexdigest()[:8]
    return f"{allowed[: LONGEST_NAME - 9].strip('-.') or 'run'}-{mark}"


def _start_upload() -> "subprocess.Popen[str]":
    return subprocess.Popen(
        python("from rl_swarm.tools.push import main; main()"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=os.environ | {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "PYTHONIOENCODING": "utf-8"},
        start_new_session=True,  # Ctrl-C asks the node to finish what it does, and that includes this
    )


def _outcome(out: str, errors: str, code: int) -> dict[str, str]:
    """What the uploading process says, or how it died."""
    try:
        outcome: dict[str, str] = json.loads(out.splitlines()[-1])
    except (ValueError, IndexError):
        last = (errors.strip().splitlines() or ["it said nothing"])[-1]
        return {"error": f"the upload ended with code {code}: {last}"}
    return outcome


def upload(request: dict[str, Any]) -> dict[str, str]:
    """Upload a folder with the hub's own client; returns the repository and its address, or in one line why there is none."""
    from huggingface_hub import HfApi

    api = HfApi(token=request["token"], library_name="rl-swarm", library_version=__version__)
    try:
        repository = request["repository"] or f"{api.whoami()['name']}/{request['name']}"
        url = api.create_repo(repository, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=request["folder"], commit_message=request["message"])
    except Exception as error:  # the client's errors have no common base class; whatever it was, it goes into the report
        return {"error": hub_reason(error, request["token"])}
    return {"repository": repository, "url": str(url)}


def hub_reason(error: BaseException, token: str) -> str:
    """Why the hub or the way to it failed, and what to do about it, in one line without the token."""
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
    """Without the token, of which a cut must not leave a part either."""
    return " ".join(text.replace(token, "(token)").split())[:LONGEST_REASON]


def main() -> None:
    """One upload as a process of its own: the request comes in, and what came of it goes out, as JSON."""
    request = json.load(sys.stdin)
    orphaned = threading.Timer(request["seconds"], os._exit, [1])  # a node that was killed no longer ends us when the hub hangs
    orphaned.daemon = True
    orphaned.start()
    print(json.dumps(upload(request)))
