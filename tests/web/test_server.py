"""The server: light, and its command says what is wrong in one line."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rl_swarm.cli import main
from tests.support.long_run import LongRun
from tests.support.processes import ROOT
from tests.support.web_server import served

CODE = """
import sys
from pathlib import Path
from fastapi.testclient import TestClient
from rl_swarm.store import open_store
from rl_swarm.web import server, telemetry
from rl_swarm.web.app import make_app
from rl_swarm.web.runs import Runs
with TestClient(make_app(Runs(open_store(sys.argv[1], writable=False))), base_url="http://127.0.0.1") as client:
    for path in client.get("/api/openapi.json").json()["paths"]:
        assert client.get(path, params={"once": True, "id": "worker_1", "name": "x"}).status_code in (200, 404, 422), path
heavy = {"torch", "transformers", "reasoning_gym", "numpy", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
"""


def test_the_server_never_imports_torch(run: LongRun, tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE, str(run.store.root)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_a_stop_ends_it_at_once_also_with_a_stream(run: LongRun, tmp_path: Path) -> None:
    with served(run.store.root, tmp_path) as server:
        listener = subprocess.Popen(
            [sys.executable, "-c", f"import urllib.request as u; u.urlopen('{server.url}/api/events').read()"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        server.process.terminate()
        assert server.process.wait(10) is not None
        listener.wait(10)
    assert "Traceback" not in server.console.read_text()


def test_ctrl_c_ends_it_quietly(run: LongRun, tmp_path: Path) -> None:
    with served(run.store.root, tmp_path) as server:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(10) == 0
    assert server.console.read_text() == f"showing {run.store.root} at {server.url}/ (Ctrl-C ends it)\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gdrive-path", "/nowhere/at/all"], "does not exist"),
        (["--port", "70000"], "--port must be at most"),
        (["--host", "no such host"], "name others with --host and --port"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SystemExit) as done:
        main(["web", *arguments])
    error = capsys.readouterr().err
    assert done.value.code == 2 and said in error and error.count("\n") == 1


def test_a_port_in_use_is_said(run: LongRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(run.store.root, tmp_path) as server, pytest.raises(SystemExit) as done:
        main(["web", "--gdrive-path", str(run.store.root), "--port", server.url.rpartition(":")[2]])
    assert done.value.code == 2 and "--port" in capsys.readouterr().err
