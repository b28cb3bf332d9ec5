"""Commands to paste: they do what they say in any terminal."""

import os
import shlex

import pytest

from rl_swarm.cli import main
from rl_swarm.commands.typed import resuming, what_next
from rl_swarm.config import load


@pytest.fixture(autouse=True)
def typed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(os.environ) - {"PYTEST_CURRENT_TEST", "PATH"}:
        monkeypatch.delenv(name)
    monkeypatch.setattr("sys.argv", ["/somewhere/rl-swarm", "work", "--seed", "7"])
    monkeypatch.setattr("shutil.which", lambda name: "/somewhere/rl-swarm")


def resume(flags: dict[str, str | None], agreed: dict[str, str], **environment: str) -> str:
    os.environ.update(environment)
    [_, line] = resuming(load(os.environ, {"node_id": "w1"} | flags), agreed)
    return line.strip()


def test_a_node_goes_on_with_what_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resume({}, {}) == "NODE_ID=w1 rl-swarm work --seed 7", "its name, since others may be free on this machine"
    monkeypatch.setattr("sys.argv", ["/somewhere/rl-swarm", "work", "--node-id=w1"])
    assert resume({}, {}) == "rl-swarm work --node-id=w1"
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert resume({}, {}) == "/somewhere/rl-swarm work --node-id=w1"
    monkeypatch.setattr("sys.argv", ["/x/swarm_launcher.py"])
    monkeypatch.setattr("sys.orig_argv", ["python", "-m", "rgym_exp.runner.swarm_launcher"])
    assert resume({}, {}) == "NODE_ID=w1 python -m rgym_exp.runner.swarm_launcher"


def test_variables_are_repeated_unless_the_experiment_has_them_or_they_are_secret() -> None:
    settings = {"GDRIVE_PATH": "/a b", "MAX_ROUNDS": "60", "MODEL_NAME": "nano", "HUGGINGFACE_ACCESS_TOKEN": "hf_secret"}
    line = resume({}, {"MAX_ROUNDS": "60", "MODEL_NAME": "gpt2"}, **settings)
    assert line == "GDRIVE_PATH='/a b' MODEL_NAME=nano NODE_ID=w1 rl-swarm work --seed 7"


@pytest.mark.parametrize("role", ["worker", "coordinator"])
def test_every_command_for_a_finished_run_can_be_pasted(role: str) -> None:
    flags = {"store": "/a b", "experiment": "trial", "node_id": "w1", "role": role}
    lines = [shlex.split(line) for line in list(what_next(load({}, flags)))[1:]]
    assert [words[1] for words in lines] == ["status", "report", *(["ask", "chat"] if role == "worker" else [])]
    for words in lines:
        context = main.commands[words[1]].make_context(words[1], words[2:])
        assert (context.params["store"], context.params["experiment"]) == ("/a b", "trial")
    alone = [line.strip() for line in what_next(load({}, {"node_id": "w1"}))]
    assert alone[1] == "rl-swarm status" and alone[3].endswith("--node-id w1")
