"""Secrets stay on their machine: tokens and keys reach no store, log, report or process list, and no process listens."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rl_swarm.cli import main
from rl_swarm.identity import load_identity
from tests.support.hub_stub import TOKEN, hub
from tests.support.processes import ROOT, descendants

LISTENING = "0A"


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def listening(pid: int) -> list[str]:
    """Addresses at which a process accepts connections."""
    try:
        sockets = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}
        rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]]
    except OSError:
        return []
    return [row[1] for row in rows if row[3] == LISTENING and f"socket:[{row[9]}]" in sockets]


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")
def test_a_token_and_a_key_reach_no_store_log_report_or_process_list_and_nobody_listens(tmp_path: Path) -> None:
    key = tmp_path / "secret" / "swarm.pem"
    load_identity(str(key), tmp_path / "store")
    pem = key.read_bytes().splitlines()[1]
    with hub() as stub:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "HOME": str(tmp_path / "user"),
            "HF_HOME": str(tmp_path / "user" / "hf"),
            "HF_ENDPOINT": stub.url,
            "HUGGINGFACE_ACCESS_TOKEN": TOKEN,
            "SWARM_IDENTITY": str(key),
            "GDRIVE_PATH": str(tmp_path / "store"),
            "RL_SWARM_HOME": str(tmp_path / "home"),
            "OMP_NUM_THREADS": "1",
            "MAX_ROUNDS": "2",
            "EVAL_INTERVAL": "0",
        }
        command = [sys.executable, "-m", "rl_swarm.cli", "demo", "--workers", "1"]
        with (tmp_path / "console.log").open("wb") as console:
            process = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=console, stderr=console)
        seen: set[bytes] = set()
        listeners: list[str] = []
        try:
            while process.poll() is None:
                for pid in descendants(process.pid):
                    seen.add(command_line(pid))
                    listeners += listening(pid)
                time.sleep(0.05)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 0, (tmp_path / "console.log").read_text()
        assert stub.repositories, "the token was used"
    assert any(b"rl_swarm.tools.push" in line for line in seen) and any(
        b"rl_swarm.cli" in line and b"\0node" in line for line in seen
    )
    assert not [line for line in seen if TOKEN.encode() in line or pem in line]
    assert listeners == []
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != key]
    assert {"metrics.jsonl", "report.html", "stdout.log", "console.log"} <= {path.name for path in files}
    assert any("/rollouts/" in path.as_posix() for path in files)
    for path in files:
        data = path.read_bytes()
        assert TOKEN.encode() not in data and pem not in data, path


def test_a_secret_is_no_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["config", "--huggingface-access-token", "hf_x"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "rl-swarm: --huggingface-access-token is no flag, since everybody on this machine can read command lines: "
        "set HUGGINGFACE_ACCESS_TOKEN instead\n"
    )
