import errno
import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_swarm.cli import main
from rl_swarm.config import SETTINGS, load
from rl_swarm.runs.following import look_once
from rl_swarm.runs.validate import Expected, validate
from rl_swarm.store.folder import FolderStore
from rl_swarm.store.guard import Folder
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import MOST_LOOKED_AT, Registration, register
from rl_swarm.tools.launch import Launcher
from tests.support.processes import LocalSwarm

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command in this process, with this environment alone."""

    def call(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        for name in set(os.environ) - {"PYTEST_CURRENT_TEST"}:
            monkeypatch.delenv(name)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as done:
            main(list(arguments))
        shown = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, int(done.value.code or 0), shown.out, shown.err)

    return call


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "rl_swarm.cli", *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_config_prints_every_setting_with_value_source_and_meaning(call: Command) -> None:
    shown = call("config", "--json", "--num-train-samples", "3", MODEL_NAME="nano", HUGGINGFACE_ACCESS_TOKEN="hf_secret")
    rows = {row["variable"]: row for row in json.loads(shown.stdout)}
    assert rows.keys() == {setting.variable for setting in SETTINGS.values()}
    assert (rows["NUM_TRAIN_SAMPLES"]["value"], rows["NUM_TRAIN_SAMPLES"]["source"]) == (3, "command line")
    assert (rows["TASKS"]["value"], rows["TASKS"]["source"]) == ("easy", "MODEL_NAME=nano")
    assert all(row["meaning"] for row in rows.values())
    table = call("config", HUGGINGFACE_ACCESS_TOKEN="hf_secret", NUM_GENERATION="3", COLUMNS="200")
    assert "NUM_TRANSPLANT_TREES" in table.stdout and "did you mean NUM_GENERATIONS?" in table.stderr
    assert "hf_secret" not in shown.stdout + table.stdout


def test_config_shows_the_values_of_an_experiment_and_breaks_no_name(tmp_path: Path, call: Command) -> None:
    store = FolderStore(tmp_path)
    settings = {"MODEL_NAME": "nano", "MAX_ROUNDS": "77", "NUM_TRANSPLANT_TREES": "12"}
    experiments.publish(store, Layout("trial"), load(settings), "reasoning-gym", store.clock)
    named = {"GDRIVE_PATH": str(tmp_path), "EXPERIMENT_NAME": "trial", "HOME": str(tmp_path)}
    rows = {row["variable"]: row for row in json.loads(call("config", "--json", "--max-rounds", "5", **named).stdout)}
    assert (rows["NUM_TRANSPLANT_TREES"]["value"], rows["NUM_TRANSPLANT_TREES"]["source"]) == (12, "experiment")
    assert (rows["MAX_ROUNDS"]["value"], rows["MAX_ROUNDS"]["source"]) == (5, "command line")
    lines = call("config", **named, COLUMNS="80").stdout.splitlines()
    assert max(map(len, lines)) <= 80 and "docs/settings.md" in lines[-1]
    for variable in rows:
        assert any(line.startswith(f"{variable} ") for line in lines), variable
    for other in ({"EXPERIMENT_NAME": "new"}, {"GDRIVE_PATH": str(tmp_path / "none")}):
        found = call("config", "--json", **(named | other))
        assert found.returncode == 0 and '"experiment"' not in found.stdout and found.stderr == ""
    refused = call("config", "--json", **named, SWARM_FOUNDER="ab" * 32)
    assert refused.returncode == 0 and "warning: the experiment's settings are not shown: " in refused.stderr


def test_the_flag_of_an_experiment_is_shown_in_one_spelling(tmp_path: Path, call: Command) -> None:
    for flag in ("--experiment", "--experiment-name"):
        rows = json.loads(call("config", "--json", flag, "first", HOME=str(tmp_path)).stdout)
        assert rows[1]["value"] == "first"
    assert "give --experiment\n" in call("status", GDRIVE_PATH=str(tmp_path), HOME=str(tmp_path)).stderr


def test_status_of_a_finished_swarm(local_swarm: Callable[..., LocalSwarm]) -> None:
    swarm = local_swarm(MAX_ROUNDS=3, COORDINATOR_ROUND_INTERVAL=3, NUM_TRAIN_SAMPLES=2)
    for process in (swarm.start("boss", "coordinator"), swarm.start("w1")):
        assert swarm.wait(process) == 0
    environment = {"GDRIVE_PATH": str(swarm.folder), "EXPERIMENT_NAME": "trial"}
    status = json.loads(run("status", "--json", **environment).stdout)
    assert (status["round"], status["status"]) == (2, "complete")
    nodes = {node["node_id"]: node for node in status["nodes"]}
    assert (nodes["boss"]["role"], nodes["boss"]["doing"]) == ("coordinator", "complete")
    assert (nodes["w1"]["role"], nodes["w1"]["doing"], nodes["w1"]["round"], nodes["w1"]["reward"]) == (
        "worker",
        "complete",
        2,
        0.5,
    )
    table = run("status", **environment, COLUMNS="160").stdout
    assert "trial: complete, 3 of 3 rounds" in table and "w1" in table


def test_status_of_an_experiment_that_nobody_has_joined_is_no_error(tmp_path: Path, call: Command) -> None:
    (tmp_path / "experiments" / "new" / "state").mkdir(parents=True)
    shown = call("status", "--json", GDRIVE_PATH=str(tmp_path), EXPERIMENT_NAME="new")
    assert (shown.returncode, json.loads(shown.stdout)["status"]) == (0, "empty")


@pytest.mark.parametrize(
    "command",
    ["status", "status --watch", "report", "ask 1+1", "validate", "export {tmp}/model", "analyze dmeo --output {tmp}/out"],
)
def test_a_mistyped_experiment_is_one_line_with_the_nearest_names(command: str, tmp_path: Path, call: Command) -> None:
    store = tmp_path / "store"
    for name in ("demo", "demo-2", "other"):
        (store / "experiments" / name / "state").mkdir(parents=True)
    done = call(*command.format(tmp=tmp_path).split(), GDRIVE_PATH=str(store), EXPERIMENT_NAME="dmeo", HOME=str(tmp_path))
    says = f"rl-swarm: there is no experiment 'dmeo' in '{store}': did you mean 'demo' or 'demo-2'?\n"
    assert (done.returncode, done.stderr, done.stdout) == (2, says, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"], "nothing is written"


def test_a_name_like_no_other_is_answered_with_all_of_them(tmp_path: Path, call: Command) -> None:
    place = {"GDRIVE_PATH": str(tmp_path), "EXPERIMENT_NAME": "xyz", "HOME": str(tmp_path)}
    first = "; its founder must start it first, with 'rl-swarm coordinate' or 'rl-swarm work'\n"
    assert f"none has begun there{first}" in call("status", **place).stderr
    for name, says in (("demo", "there is only demo"), ("other", "there are demo, other")):
        (tmp_path / "experiments" / name / "state").mkdir(parents=True)
        assert f"'{tmp_path}': {says}{first}" in call("status", **place).stderr
        assert f"'{tmp_path}': {says}{first}" in call("join", str(tmp_path / "xyz"), HOME=str(tmp_path)).stderr


def test_validate_writes_into_the_experiment_and_follows_no_link(
    tmp_path: Path, call: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, notes = tmp_path / "store" / "experiments" / "e", tmp_path / "notes"
    (folder / "state").mkdir(parents=True)
    notes.write_text("keep")
    (folder / "test_results.json").symlink_to(notes)
    monkeypatch.chdir(tmp_path)
    done = call("validate", GDRIVE_PATH=str(tmp_path / "store"), EXPERIMENT_NAME="e")
    assert (done.returncode, done.stderr) == (1, "") and "nobody trained" in done.stdout
    assert json.loads((folder / "test_results.json").read_text())["passed"] is False
    assert notes.read_text() == "keep" and {path.name for path in tmp_path.iterdir()} == {"store", "notes"}


def test_validate_of_a_share_that_cannot_be_written_says_so_and_answers(
    tmp_path: Path, call: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "experiments" / "e" / "state").mkdir(parents=True)

    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(FolderStore, "first_pause_seconds", 0.0)
    monkeypatch.setattr(Folder, "creating", read_only)
    done = call("validate", GDRIVE_PATH=str(tmp_path), EXPERIMENT_NAME="e")
    assert done.returncode == 1 and "nobody trained" in done.stdout
    assert done.stderr == (
        f"warning: the findings are not written to experiments/e/test_results.json ({tmp_path} is mounted read-only: mount it for "
        "writing): name a file with --output\n"
    )


def test_a_node_whose_settings_contradict_the_experiment_is_told_which_and_why(local_swarm: Callable[..., LocalSwarm]) -> None:
    swarm = local_swarm(MAX_ROUNDS=1, NUM_TRAIN_SAMPLES=2, TASKS="easy")
    assert swarm.wait(swarm.start("w1")) == 0
    assert swarm.wait(swarm.start("w2", TASKS="paper")) == 2
    assert "TASKS contradicts the experiment 'trial', which has 'basic_arithmetic:" in swarm.console("w2")
    assert "got 'paper': leave TASKS out" in swarm.console("w2")
    assert swarm.wait(swarm.start("w1", TASKS="easy", MAX_ROUNDS=2)) == 0
    del swarm.environment["TASKS"]
    assert swarm.wait(swarm.start("w3")) == 0


def test_one_name_runs_once_on_a_machine_and_unnamed_nodes_keep_theirs(local_swarm: Callable[..., LocalSwarm]) -> None:
    swarm = local_swarm(MAX_ROUNDS=100, NUM_TRAIN_SAMPLES=2)
    first = swarm.start("w1")
    swarm.wait_for_round(0)
    assert swarm.wait(swarm.start("w1")) == 2
    assert "already running on this machine" in swarm.console("w1")
    first.terminate()
    assert swarm.wait(first) == 0


def test_an_unnamed_node_is_named_once_per_machine_and_experiment(tmp_path: Path) -> None:
    from rl_swarm.config import load
    from rl_swarm.node.local import claim
    from rl_swarm.swarm.experiment import Experiment

    config = load({"RL_SWARM_HOME": str(tmp_path)})
    experiment = Experiment(1, "trial", "0123456789abcdef", 0.0, "", {}, "", (2, 256))
    first, second = claim(config, experiment), claim(config, experiment)
    assert first.node_id != second.node_id
    first.lock.close()
    again = claim(config, experiment)
    assert again.node_id == first.node_id
    begun_anew = claim(config, Experiment(1, "trial", "ffff456789abcdef", 0.0, "", {}, "", (2, 256)))
    assert begun_anew.path != first.path
    for folder in (second, again, begun_anew):
        folder.lock.close()


def test_workers_that_run_on_this_machine_are_counted_over_all_experiments(tmp_path: Path) -> None:
    from rl_swarm.config import load
    from rl_swarm.node.local import claim, workers_here
    from rl_swarm.swarm.experiment import Experiment

    config, other = load({"RL_SWARM_HOME": str(tmp_path)}), load({"RL_SWARM_HOME": str(tmp_path), "NODE_ROLE": "coordinator"})
    experiments = [Experiment(1, name, "0123456789abcdef", 0.0, "", {}, "", (2, 256)) for name in ("a", "b")]
    claimed = [claim(config, each) for each in experiments] + [claim(other, experiments[0])]
    assert workers_here(config) == 2, "a coordinator computes nothing"
    for running, folder in zip((1, 0, 0), claimed, strict=True):
        folder.lock.close()
        assert workers_here(config) == running
    (claimed[0].path / "lock").write_text("")
    assert workers_here(config) == 0


NO_TEXT = "\udcff"  # as Python keeps a byte of the command line that is no UTF-8

WRONG_ARGUMENTS = [
    (
        ("validate", "--output", "/nonexistent/x"),
        "--output lies in a folder that does not exist, got '/nonexistent/x': make the folder",
    ),
    (("validate", "--output", "{folder}"), "--output is a folder, got"),
    (("validate", "--rounds", "-5"), "--rounds must be at least 1, got '-5'"),
    (("validate", "--rounds", "9" * 30), "--rounds must be at most 1,000,000, got"),
    (("validate", "--nodes", "-5"), "--nodes must be at least 0, got '-5'"),
    (("validate", "--transplants", "-5"), "--transplants must be at least 0, got '-5'"),
    (("analyze", "../a"), "EXPERIMENT... is not a valid name, got '../a': use 1 to 64 letters"),
    (("analyze", "a", "--output", "{file}"), "--output is, or lies below, a file, got"),
    (("analyze", "a", "--output", "{file}/below"), "--output is, or lies below, a file, got"),
    (("reproduce", "--output", "{file}"), "--output is, or lies below, a file, got"),
    (("memory", "nano", "--gpu-gb", "1e308"), "--gpu-gb must be at most 10,000, got '1e308'"),
    (("memory", "nano", "--gpu-gb", "nan"), "--gpu-gb must be a finite number, got 'nan'"),
    (("memory", "nano", "--prompt-tokens", "9" * 30), "--prompt-tokens must be at most 1,000,000, got"),
    (("probe", "--seconds", "inf"), "--seconds must be a finite number, got 'inf'"),
    (("swarm", "--preset", "gpt3"), "--preset is not known, got 'gpt3': use gpt2-5 or gpt2-8 or qwen-4 or qwen-8"),
    (("swarm", "--workers", "65"), "--workers must be at most 64, got '65'"),
    (("config", "--max-new-tokens", "9" * 23), "MAX_NEW_TOKENS must be at most 1,000,000, got"),
    (("config", "--max-new-tokens", "9" * 5000), "MAX_NEW_TOKENS must be a whole number, got '999"),
    (("ask", "  "), "QUESTION must not be empty, got '  ': write it in quotes"),
    (("ask", NO_TEXT), "an argument is not valid UTF-8, got '\\udcff'"),
    (("config", "--model-name", NO_TEXT), "an argument is not valid UTF-8"),
    (("export", f"x{NO_TEXT}"), "an argument is not valid UTF-8"),
    ((NO_TEXT,), "an argument is not valid UTF-8"),
    (("stauts",), "No such command 'stauts'"),
    (("status", "--wacth"), "No such option '--wacth'"),
    (("status", "--watch", "x"), "Got unexpected extra argument (x): see rl-swarm status --help"),
    (("export",), "Missing argument 'FOLDER'"),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG_ARGUMENTS, ids=[" ".join(words)[:40] for words, _ in WRONG_ARGUMENTS])
def test_a_wrong_argument_is_one_line_and_exit_code_2(arguments: tuple[str, ...], says: str, tmp_path: Path, call: Command) -> None:
    (tmp_path / "file").write_text("")
    given = [word.format(folder=tmp_path, file=tmp_path / "file") for word in arguments]
    done = call(*given, GDRIVE_PATH=str(tmp_path), EXPERIMENT_NAME="e", RL_SWARM_HOME=str(tmp_path))
    assert done.returncode == 2, done.stderr
    assert says in done.stderr and done.stderr.count("\n") == 1 and done.stdout == ""
    assert len(done.stderr) < 600


def test_the_environment_wins_over_a_preset(call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[dict[str, str], int]] = []

    def make_launcher(environment: dict[str, str], workers: int, **options: object) -> Launcher:
        started.append((environment, workers))
        return Launcher([])

    monkeypatch.setattr("rl_swarm.tools.launch.make_launcher", make_launcher)
    monkeypatch.setattr("rl_swarm.tools.memory.refuse_if_too_large", lambda *_: ["it is tight"])
    monkeypatch.setattr("rl_swarm.tools.report.report_after", lambda outcome, *_: print(f"a report of what is {outcome}"))
    done = call("swarm", "--preset", "gpt2-5", GDRIVE_PATH=str(tmp_path / "store"), HOME=str(tmp_path), MAX_ROUNDS="7")
    [(environment, workers)] = started
    assert (workers, environment["MAX_ROUNDS"], environment["NUM_TRAIN_SAMPLES"]) == (4, "7", "2")
    assert "gpt2-5: MODEL_NAME=openai-community/gpt2" in done.stdout and done.stdout.endswith(
        "swarm complete\na report of what is complete\n"
    )
    assert (done.returncode, done.stderr) == (0, "warning: it is tight\n")


WRONG_PLACES = [
    (
        "status",
        {"GDRIVE_PATH": "~nouser/x"},
        "GDRIVE_PATH begins with a home folder that is not known here, got '~nouser/x': write",
    ),
    ("doctor", {"GDRIVE_PATH": "~nouser/x"}, "GDRIVE_PATH begins with a home folder"),
    ("swarm", {"GDRIVE_PATH": "~nouser/x"}, "GDRIVE_PATH begins with a home folder"),
    ("coordinate", {"RL_SWARM_HOME": "~nouser/x"}, "RL_SWARM_HOME begins with a home folder"),
    ("coordinate", {"SWARM_IDENTITY": "~nouser/x"}, "SWARM_IDENTITY begins with a home folder"),
    ("coordinate", {"SWARM_ALLOWED_KEYS": "~nouser/x"}, "SWARM_ALLOWED_KEYS begins with a home folder"),
    ("work", {"MODEL_NAME": "~nouser/x"}, "MODEL_NAME begins with a home folder"),
    ("coordinate", {"TASKS": "~nouser/x.py"}, "TASKS begins with a home folder"),
    ("swarm", {"RL_SWARM_HOME": "/proc/nothing", "MODEL_NAME": "nano"}, "RL_SWARM_HOME cannot be used"),
    ("status", {"GDRIVE_PATH": NO_TEXT}, "GDRIVE_PATH is not valid UTF-8, got '\\udcff': type it again"),
]


@pytest.mark.parametrize(
    ("command", "settings", "says"), WRONG_PLACES, ids=[f"{word} {list(each)}" for word, each, _ in WRONG_PLACES]
)
def test_a_place_that_cannot_be_is_one_line(
    command: str, settings: dict[str, str], says: str, tmp_path: Path, call: Command
) -> None:
    place = {"GDRIVE_PATH": str(tmp_path / "store"), "EXPERIMENT_NAME": "e", "RL_SWARM_HOME": str(tmp_path)}
    done = call(command, **place | settings)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr and done.stderr.count("\n") == 1


@pytest.fixture
def homeless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment without HOME, for a user that the system does not know."""

    def nobody(*_: object) -> None:
        raise KeyError("no such user")

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.setattr(pwd, "getpwnam", nobody)
    return {"GDRIVE_PATH": str(tmp_path), "EXPERIMENT_NAME": "e", "MODEL_NAME": "nano"}


@pytest.mark.parametrize("command", ["coordinate", "work", "swarm", "demo"])
def test_without_a_home_one_is_asked_for(homeless: dict[str, str], command: str, call: Command) -> None:
    done = call(command, **homeless)
    assert done.returncode == 2, done.stderr
    says = "rl-swarm: RL_SWARM_HOME begins with a home folder that is not known here, got '~/.rl-swarm': write the whole path, from"
    assert done.stderr.startswith(says) and done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["config", "status"])
def test_what_needs_no_home_does_without(homeless: dict[str, str], command: str, tmp_path: Path, call: Command) -> None:
    (tmp_path / "experiments" / "e" / "state").mkdir(parents=True)
    done = call(command, **homeless)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_ascii_terminal_shows_question_marks_and_ends_nothing(local_swarm: Callable[..., LocalSwarm], tmp_path: Path) -> None:
    swarm = local_swarm(MAX_ROUNDS=1, NUM_TRAIN_SAMPLES=2)
    assert swarm.wait(swarm.start("w1")) == 0
    place = {"GDRIVE_PATH": str(swarm.folder), "EXPERIMENT_NAME": "trial", "RL_SWARM_HOME": str(tmp_path)}
    for command, ascii_only in (
        (("config",), {"PYTHONIOENCODING": "ascii", "TASKS": "größe"}),
        (("config",), {"PYTHONIOENCODING": "ascii:strict", "TASKS": "größe"}),
        (("status",), {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}),
        (("validate", "--output", str(tmp_path / "out")), {"PYTHONIOENCODING": "ascii"}),
        (("--help",), {"PYTHONIOENCODING": "ascii"}),
    ):
        done = run(*command, **place, **ascii_only)
        assert done.returncode in (0, 1) and done.stderr == "", done.stderr
        assert done.stdout.isascii() and done.stdout


@pytest.fixture
def old_transformers(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """An environment in which transformers is of another version; what it lacks is missing, or is something else."""
    more = "def __getattr__(name): return object\n" if request.param == "something else" else ""
    (tmp_path / "libraries" / "transformers").mkdir(parents=True)
    (tmp_path / "libraries" / "transformers" / "__init__.py").write_text(f"__version__ = '4.51.3'\n{more}")
    place = {
        "GDRIVE_PATH": str(tmp_path / "store"),
        "EXPERIMENT_NAME": "e",
        "RL_SWARM_HOME": str(tmp_path / "home"),
        "MODEL_NAME": "nano",
    }
    return place | {"PYTHONPATH": str(tmp_path / "libraries"), "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("old_transformers", "command"),
    [
        ("something else", "memory nano"),
        *(
            pytest.param(kind, command, marks=pytest.mark.slow)
            for kind, command in [("missing", "work"), ("something else", "work"), ("missing", "probe")]
        ),
    ],
    indirect=["old_transformers"],
)
def test_another_version_of_transformers_is_one_line_with_the_remedy(old_transformers: dict[str, str], command: str) -> None:
    done = run(*command.split(), **old_transformers)
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1] == (
        "rl-swarm: libraries do not fit (transformers is 4.51.3): run pip install 'transformers>=5.0,<6' with "
        f"{sys.executable}, or use an environment of its own if something else needs other versions"
    )
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("old_transformers", ["missing"], indirect=True)
def test_the_doctor_names_another_version_of_transformers(old_transformers: dict[str, str]) -> None:
    shown = run("doctor", "--json", **old_transformers)
    found = {finding["check"]: finding for finding in json.loads(shown.stdout)["findings"]}
    assert shown.returncode == 1 and found["transformers"]["status"] == "failed"
    assert "4.51.3 does not work here: run pip install 'transformers>=5.0,<6'" in found["transformers"]["detail"]


def crowd(folder: Path, names: int) -> FolderStore:
    """Two honest nodes among many made-up registrations, every tenth unreadable; some of those have journals."""
    store, layout = FolderStore(folder), Layout("e")
    for node_id in ("worker_1", "zz_coordinator"):
        register(store, layout, Registration(node_id, node_id.split("_")[-1], 0.0, "m", node_id, "1", "s"))
        store.put(layout.log(node_id, "training_events.jsonl"), b"")
    data = store.get(layout.peer("worker_1"), limit=10_000)
    for number in range(names):
        (folder / layout.peer(f"made-up{number}")).write_bytes(b"junk" if number % 10 == 0 else data)
        if 0 < number <= MOST_LOOKED_AT:
            (folder / layout.log(f"made-up{number}", "metrics.jsonl")).parent.mkdir()
    for node_id in ("worker_1", "zz_coordinator"):
        store.put(layout.reward(0, node_id), b"")
    return store


def test_thousands_of_registrations_cost_status_and_validate_a_bounded_number_of_looks(tmp_path: Path, call: Command) -> None:
    store = crowd(tmp_path, 3_000)
    began = time.monotonic()
    status = look_once(store, Layout("e"))
    assert ([node.node_id for node in status.nodes], status.left_out) == (["worker_1", "zz_coordinator"], 3_000)
    findings = validate(store, Layout("e"), Expected())
    assert store.counts["get"] + store.counts["list"] < 20 * MOST_LOOKED_AT
    assert time.monotonic() - began < 30
    assert any(f"{3_002 - MOST_LOOKED_AT} more have registered and were left out" in finding.detail for finding in findings)
    shown = call("status", GDRIVE_PATH=str(tmp_path), EXPERIMENT_NAME="e", COLUMNS="200").stdout
    assert "and 3000 more registered: made up, or without a sign of life" in shown


def test_an_unreadable_registration_is_no_node(tmp_path: Path) -> None:
    store, layout = crowd(tmp_path, 1), Layout("e")
    found = [finding for finding in validate(store, layout, Expected(nodes=2)) if finding.check == "nodes"]
    assert found[0].detail == "2 registered (0 workers): nobody trained"
    assert (found[1].status, found[1].detail) == ("warning", "not counted, since their registrations cannot be read: made-up0")
    store.put(layout.log("made-up0", "metrics.jsonl"), b"")
    again = validate(store, layout, Expected(nodes=2))
    assert next(finding.status for finding in again if "made-up0" in finding.detail) == "failed"


def test_two_nodes_with_one_name_are_noticed_by_both_and_shown(local_swarm: Callable[..., LocalSwarm], tmp_path: Path) -> None:
    swarm = local_swarm(MAX_ROUNDS=1000, COORDINATOR_ROUND_INTERVAL=2, NUM_TRAIN_SAMPLES=2, STANDIN_SECONDS=2.5)
    consoles = [(tmp_path / name).open("w+b") for name in ("one", "two")]
    processes = []
    for console in consoles:
        environment = swarm.environment | {"NODE_ID": "w1", "RL_SWARM_HOME": f"{console.name}-home", "PYTHONUNBUFFERED": "1"}
        processes.append(subprocess.Popen([sys.executable, "-m", "tests.support.standin_node"], env=environment, stdout=console))
    swarm.processes += processes
    deadline = time.monotonic() + 60
    while not all(b"another process sends heartbeats as w1" in Path(console.name).read_bytes() for console in consoles):
        assert time.monotonic() < deadline, [Path(console.name).read_text() for console in consoles]
        assert all(process.poll() is None for process in processes), "it says so, and goes on"
        time.sleep(0.5)
    shown = run("status", GDRIVE_PATH=str(swarm.folder), EXPERIMENT_NAME="trial", COLUMNS="200").stdout
    assert "w1 says that another process uses its name: stop one of the two" in shown
    for console in consoles:
        console.close()


@pytest.mark.parametrize(
    "command", ["validate --output analysis/x.json", "validate --output away/x.json", "analyze e", "export models/w1"]
)
def test_nothing_is_written_to_the_shared_folder_where_links_may_wait(
    tmp_path: Path, command: str, call: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, private = tmp_path / "store", tmp_path / "private"
    for folder in (store / "analysis", store / "models", store / "experiments" / "e" / "state", private):
        folder.mkdir(parents=True)
    (private / "notes").write_text("keep")
    (store / "analysis" / "x.json").symlink_to(private / "notes")
    (store / "analysis" / "report.html").symlink_to(private / "notes")
    (store / "models" / "w1").symlink_to(private)
    (store / "away").symlink_to(private)
    monkeypatch.chdir(store)
    done = call(*command.split(), "--gdrive-path", ".", EXPERIMENT_NAME="e")
    assert done.returncode == 2 and "must not lie in the shared folder" in done.stderr and done.stderr.count("\n") == 1
    assert (private / "notes").read_text() == "keep" and len(list(private.iterdir())) == 1
