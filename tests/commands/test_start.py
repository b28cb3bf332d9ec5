"""What a node prints from its start to its end, and that the commands it prints do what they say."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rl_swarm.cli import main
from rl_swarm.commands.common import found_here
from rl_swarm.commands.start import refuse_if_complete
from rl_swarm.config import load
from rl_swarm.errors import ConfigError
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.rounds import CurrentState, Rounds


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


@pytest.mark.parametrize("key", ["abc", "", "ab" * 32 + "-", "zz" * 32])
def test_a_wrong_key_is_told_where_it_was_typed(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["join", f"{tmp_path}/trial#{key}"])
    said = capsys.readouterr().err
    assert said.startswith(f"rl-swarm: KEY, after the # of the address, is no founder's key, got {key!r}: copy what follows the #")


def test_a_run_that_is_complete_is_not_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store").mkdir()
    store, layout = FolderStore(tmp_path / "store"), Layout("trial")
    config = load({"MODEL_NAME": "nano", "MAX_ROUNDS": "5"})
    published = experiments.publish(store, layout, config, "reasoning-gym", store.clock)
    refuse_if_complete(store, layout, published, config)
    Rounds(store, layout).write_current(CurrentState(4, 0.0, "boss", "trial", "complete"))
    with pytest.raises(ConfigError, match="'trial' is complete, after 5 rounds: look at it with 'rl-swarm report'"):
        refuse_if_complete(store, layout, published, config)
    refuse_if_complete(store, layout, published, load({"MODEL_NAME": "nano", "MAX_ROUNDS": "9"}))


def test_a_run_in_the_default_folder_is_found_without_naming_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GDRIVE_PATH", "EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    assert found_here({"experiment": "first"}) == {"experiment": "first"}
    (tmp_path / "rl-swarm-data" / "experiments" / "first").mkdir(parents=True)
    assert found_here({"experiment": "first"}) == {"experiment": "first", "store": "./rl-swarm-data"}
    assert found_here({"experiment": "other"}) == {"experiment": "other"}
    with pytest.raises(ConfigError, match=r"EXPERIMENT_NAME is not set: name one with --experiment; .* has first"):
        found_here({"home": str(tmp_path / "home")})
    (tmp_path / "home" / "alone").mkdir(parents=True)
    assert found_here({"home": str(tmp_path / "home")}) == {"home": str(tmp_path / "home")}
    assert found_here({"experiment": "first", "store": "there"}) == {"experiment": "first", "store": "there"}


def test_a_report_of_a_run_in_the_default_folder_needs_its_name_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GDRIVE_PATH", raising=False)
    (tmp_path / "rl-swarm-data" / "experiments" / "first").mkdir(parents=True)
    with pytest.raises(SystemExit):
        main(["report", "first"])
    assert "GDRIVE_PATH" not in capsys.readouterr().err, "the folder is found; there is only no run in it yet"
