"""What a node prints from its start to its end, and that the commands it prints do what they say."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def paste(line: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a printed command in a new terminal, which has none of the variables."""
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    return subprocess.run(line, shell=True, env=environment, cwd=folder, capture_output=True, text=True, timeout=250, check=False)


@pytest.mark.slow
def test_every_command_that_a_worker_prints_can_be_pasted_into_a_new_terminal(tmp_path: Path) -> None:
    program, root = tmp_path / "rl-swarm", Path(__file__).parents[2]
    program.write_text(
        f"#!{sys.executable}\nimport sys; sys.path.insert(0, {str(root)!r})\nfrom rl_swarm.cli import main\nmain()\n"
    )
    program.chmod(0o755)
    (tmp_path / "a store").mkdir()
    settings = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "GDRIVE_PATH": "./a store",
        "EXPERIMENT_NAME": "trial",
        "MODEL_NAME": "nano",
        "MAX_ROUNDS": "40",
        "CPU_ONLY": "1",
        "RL_SWARM_HOME": "home",
        "OMP_NUM_THREADS": "1",
    }
    console = tmp_path / "console"
    with console.open("wb") as output:
        command = [str(program), "work", "--eval-interval", "0"]
        node = subprocess.Popen(command, env=settings, cwd=tmp_path, stdout=output, stderr=output)
    deadline = time.monotonic() + 120
    while "round 2:" not in console.read_text():
        assert time.monotonic() < deadline and node.poll() is None, console.read_text()
        time.sleep(0.1)
    os.kill(node.pid, signal.SIGINT)
    assert node.wait(60) == 0
    lines = console.read_text().splitlines()
    assert "stopping after this step; a second Ctrl-C ends at once" in lines
    [saved] = [re.match(r"saved at round (\d+): (.*)", line) for line in lines if line.startswith("saved")]
    assert saved and Path(tmp_path, saved[2]).exists() and lines[-2] == "go on with:"
    again = paste(lines[-1], tmp_path)
    assert again.returncode == 0, again.stderr
    lines = again.stdout.splitlines()
    assert f"resumed at round {saved[1]} of 40" in lines and "complete: 40 rounds" in lines
    following = lines[lines.index("what next:") + 1 :]
    assert len(following) >= 3
    for line in following:
        done = paste(f"{line} < /dev/null", tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
