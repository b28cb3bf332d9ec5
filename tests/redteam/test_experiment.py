"""Points 1 and 4: what experiment.json may make a node execute, write and spend."""

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.redteam import attacks
from tests.redteam.arena import NANO, Arena, assert_refused, says
from tests.support.processes import descendants

COORDINATE = ("coordinate", "--round-advance", "timer")
QUICK: dict[str, Any] = {"NODE_ID": "boss", "MAX_ROUNDS": 2, "COORDINATOR_ROUND_INTERVAL": 0.2}
SMALL: dict[str, Any] = {name: value for name, value in NANO.items() if name not in ("MODEL_NAME", "TASKS")}


def code_in_the_folder(arena: Arena, form: str) -> str:
    """Plant code in the shared folder and name it in experiment.json; return its hash."""
    digest: str = arena.plant(attacks.own_code, arena.marker)
    path = arena.folder / attacks.LAYOUT.root / "evil.py"
    named = {"absolute": str(path), "with its hash": f"{path}@{digest[:16]}", "relative": f"./evil.py@{digest[:16]}"}[form]
    arena.plant(attacks.forge_experiment, {"TASKS": named})
    return digest


# 1. Code


def test_join_runs_no_code_that_the_experiment_names(arena: Arena) -> None:
    digest = code_in_the_folder(arena, "with its hash")
    done = arena.run("join", f"{arena.folder}/trial", NODE_ID="w1", EXPERIMENT_NAME=None, **SMALL)
    assert not arena.marker.exists(), "code from the shared folder was executed"
    assert_refused(done, "evil.py", digest[:8], "TASK_FILES")
    arena.assert_contained()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["absolute", "relative"])
@pytest.mark.parametrize("command", ["join", "work"])
def test_no_spelling_of_its_path_makes_code_run(plain: Arena, command: str, form: str) -> None:
    """Not even for a user who starts the command inside the shared folder, where `./evil.py` is the stranger's."""
    digest = code_in_the_folder(plain, form)
    arguments = ("join", f"{plain.folder}/trial") if command == "join" else ("work",)
    done = plain.run(*arguments, cwd=plain.folder / attacks.LAYOUT.root, NODE_ID="w1", **SMALL)
    assert not plain.marker.exists(), "code from the shared folder was executed"
    assert_refused(done, "evil.py", digest[:8] if form == "relative" else "hash none")  # a path alone has no hash
    plain.assert_contained()


@pytest.mark.slow
def test_ask_and_doctor_run_no_code_that_the_experiment_names(plain: Arena, finished: Callable[[Arena], None]) -> None:
    finished(plain)
    code_in_the_folder(plain, "with its hash")
    for arguments in (("ask", "What is 1 + 1?"), ("doctor",)):
        plain.run(*arguments, cwd=plain.folder / attacks.LAYOUT.root, **SMALL)
        assert not plain.marker.exists(), f"{arguments[0]} executed code from the shared folder"
    plain.assert_contained()


@pytest.mark.slow
def test_a_restart_after_the_experiment_was_replaced_runs_no_code(plain: Arena) -> None:
    settings = {
        "MODEL_NAME": "nano",
        "MAX_ROUNDS": 500,
        "SWARM_REQUIRE_SIGNATURES": "true",
        "SWARM_IDENTITY": plain.home() / "key.pem",
    }
    launcher = plain.launch("swarm", "swarm", "--workers", "1", **SMALL | settings)
    plain.wait_for_round(1, 90)
    code_in_the_folder(plain, "with its hash")
    for pid in descendants(launcher.pid) - {launcher.pid}:  # as if it had run out of memory
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"rl_swarm.cli" in command and command.endswith(b"\0node\0"):
            os.kill(pid, signal.SIGKILL)
    before = len(plain.rounds_of("worker_1"))
    plain.wait_until(
        lambda: launcher.poll() is not None or len(plain.rounds_of("worker_1")) > before + 1 or plain.marker.exists(),
        "the worker goes on, or the launcher says why not",
        60,
    )
    code = plain.stop(launcher, 60)
    assert not plain.marker.exists(), "code from the shared folder was executed"
    assert code == 0 or says(plain.console("swarm"), "evil.py") or says(plain.console("swarm"), "experiment.json")
    plain.assert_contained()


@pytest.mark.slow
def test_code_that_the_user_named_still_runs(plain: Arena) -> None:
    """The other side of the promise: the user's own file with the experiment's hash does run."""
    own = plain.cwd / "mine.py"
    own.write_text(attacks.task_source(plain.marker))
    plain.settle()
    settings = {**NANO, "NUM_TRANSPLANT_TREES": 0, "MAX_ROUNDS": 1}
    assert plain.run("work", **settings | {"NODE_ID": "w1", "TASKS": str(own)}).code == 0
    assert plain.marker.exists()
    plain.marker.unlink()
    elsewhere = plain.run("join", f"{plain.folder}/trial", cwd=plain.base, NODE_ID="w2", **SMALL)
    assert not plain.marker.exists()
    assert_refused(elsewhere, "mine.py")
    own.write_text(own.read_text() + "\n# another file\n")
    changed = plain.run("join", f"{plain.folder}/trial", NODE_ID="w2", **SMALL | {"TASKS": str(own)})
    assert not plain.marker.exists()
    assert_refused(changed)


# 4. Names and numbers


@pytest.mark.parametrize("name", ["{elsewhere}/private", "../../private", "another"])
def test_a_name_in_experiment_json_moves_no_private_folder(plain: Arena, name: str) -> None:
    with tempfile.TemporaryDirectory(
        prefix="rt-", dir="/tmp"
    ) as elsewhere:  # an absolute name that is short enough for the document
        plain.plant(attacks.forge_experiment, experiment=name.format(elsewhere=elsewhere))
        done = plain.run(*COORDINATE, **QUICK)
        assert os.listdir(elsewhere) == []
    plain.assert_contained()
    assert_refused(done, "experiment")
    assert not list(plain.home().rglob("lock")), "a private folder was made for an experiment of another name"


def test_settings_that_are_nobody_elses_business_are_not_taken_from_experiment_json(plain: Arena) -> None:
    """The private folder, the key and the node's name are this machine's; a stranger's values have no effect or are refused."""
    places = {"RL_SWARM_HOME": str(plain.outside / "private"), "SWARM_IDENTITY": str(plain.outside / "swarm.pem")}
    plain.plant(attacks.forge_experiment, {**places, "NODE_ID": "chosen-by-a-stranger", "GDRIVE_PATH": str(plain.outside)})
    done = plain.run(*COORDINATE, **QUICK | {"NODE_ID": None, "RL_SWARM_HOME": None, "HOME": str(plain.home())})
    plain.assert_contained()
    assert done.code == 0 or says(done.err, "rl-swarm:", "experiment")
    assert not (plain.folder / attacks.LAYOUT.peer("chosen-by-a-stranger")).exists()


OUT_OF_BOUNDS = {
    "a billion rollouts": {"NUM_TRAIN_SAMPLES": "1000000000"},
    "a million completions": {"NUM_TRAIN_SAMPLES": "4000", "NUM_GENERATIONS": "256"},
    "fifty million terms": {"TASKS": "chain_sum:max_terms=50000000:min_terms=50000000"},
    "a billion from peers": {"NUM_TRANSPLANT_TREES": "1000000000"},
    "rounds beyond numbers": {"MAX_ROUNDS": "9" * 40},
    "an endless interval": {"COORDINATOR_ROUND_INTERVAL": "1e300"},
    "a giant name": {"MODEL_NAME": "x/" + "y" * 100_000},
}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(each, id=name, marks=[pytest.mark.slow] * (number > 0))
        for number, (name, each) in enumerate(OUT_OF_BOUNDS.items())
    ],
)
def test_join_refuses_what_is_out_of_bounds(plain: Arena, settings: dict[str, str]) -> None:
    plain.plant(attacks.forge_experiment, settings)
    process = plain.launch("join", "join", f"{plain.folder}/trial", NODE_ID="w1", CPU_ONLY="true", EVAL_INTERVAL=0)
    code = plain.finish(process, 90)
    assert code in (1, 2), f"exit code {code}: {plain.console('join')[-2000:]}"
    assert any(says(plain.console("join"), "rl-swarm:", variable) for variable in settings), plain.console("join")[-2000:]
    plain.assert_contained()
