"""Hostile answers for the tasks of reasoning-gym, a few each; `make hostile` scores hundreds. Also tests the watch itself."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.hostile_run import GROWTH_MB, Watcher, all_tasks, attack, memory_mb, read_done, run, traces, watched
from rl_swarm.tasks import helper
from rl_swarm.tasks.spec import parse_tasks
from tests.tasks.hostile_answers import CANARY_FILE, CANARY_MODULE, CANARY_VARIABLE, FAMILIES, hostile_answers

REFUSED = {
    "composite": "cannot be configured in TASKS",
    "list_functions": "makes other questions of the same seed",
}

# The mistake that the gates prevent: a verifier that evaluates what it is given.
CARELESS = """
def question(seed, index):
    return "What?", "1"


def score(question, text):
    eval(text)
    return 0.0
"""


def test_answers_follow_from_the_seed_and_are_of_every_kind(tmp_path: Path) -> None:
    answers = hostile_answers("0 1\n1 2", 3, 700, tmp_path)
    assert answers == hostile_answers("0 1\n1 2", 3, 700, tmp_path)
    assert len(set(answers)) == 700
    assert set(answers) != set(hostile_answers("0 1\n1 2", 4, 700, tmp_path))
    assert len(hostile_answers("", 3, 700, tmp_path)) == 700
    assert len(FAMILIES) <= 20, "the first twenty answers are of every kind"
    assert "0 1\n1 2" not in answers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which hostile code would leave traces; helpers are forked by a loader that the canary watches."""
    path = tmp_path_factory.mktemp("watched")
    with watched(path):
        yield path


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    with contextlib.closing(Watcher()) as found:
        yield found


def test_twenty_hostile_answers_for_every_task(folder: Path, watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "JUDGE_SECONDS", 1.0)
    before = memory_mb()
    names = all_tasks()
    assert len(names) > 95
    outcomes = [attack(name, 20, seed, folder, watcher) for seed, name in enumerate(names)]
    assert [outcome.faults for outcome in outcomes if outcome.faults] == []
    assert {outcome.task for outcome in outcomes if outcome.refused} == REFUSED.keys()
    assert all(outcome.answers == 20 for outcome in outcomes if not outcome.refused)
    assert memory_mb() - before < GROWTH_MB


def test_answers_that_are_executed_leave_traces(folder: Path) -> None:
    file, report = folder / CANARY_FILE, folder / "report"
    codes = {
        f"__import__('{CANARY_MODULE}')": "imported hostile_canary",
        f"open('{file}', 'w')": f"open ('{file}'",
        f"__import__('os').system('touch {file}')": "os.system",
        f"__import__('subprocess').run(['touch', '{file}'])": "subprocess.Popen",
        "__import__('socket').create_connection(('127.0.0.1', 9))": "socket.connect",
        f"__import__('os').environ.update({CANARY_VARIABLE}='x')": "os.putenv",
        "open('/etc/passwd')": "open ('/etc/passwd'",
        "__import__('ctypes').CDLL(None)": "ctypes.dlopen",
    }
    (folder / "careless.py").write_text(CARELESS)
    careless = helper.Helper(parse_tasks(str(folder / "careless.py")))
    for code, seen in codes.items():
        report.write_text("")
        careless.do([helper.Job((0, 1, 0), "What?", [code])])
        assert seen in report.read_text(), code
    assert file.exists()
    assert f"{CANARY_FILE} was written" in traces(folder)


def test_a_helper_that_grows_or_is_slow_is_noticed(folder: Path, watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "greedy.py").write_text(
        "import time\n"
        "def question(seed, index):\n    return 'What?', '1'\n"
        "def score(question, text):\n    taken = b'x' * (200 << 20)\n    time.sleep(0.3)\n    return 0.0\n"
    )
    [spec] = parse_tasks(str(folder / "greedy.py"))
    monkeypatch.setattr("checks.hostile_run.TaskSpec", lambda name: spec)
    monkeypatch.setattr("checks.hostile_run.OVERHEAD_MB", -1200.0)  # of a limit of about 1,300
    monkeypatch.setattr("checks.hostile_run.SLACK_SECONDS", 0.2 - helper.JUDGE_SECONDS)
    outcome = attack("greedy", 3, 1, folder, watcher)
    assert " s for " in outcome.faults[0] and " its limit is " in outcome.faults[1] and len(outcome.faults) == 2
    assert outcome.peak_mb > 200


def test_a_run_goes_on_where_it_was_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checks.hostile_run.watched", lambda folder: (folder / "report").open("w"))  # needs no loader of its own
    output = tmp_path / "out" / "hostile.jsonl"
    run(["gcd"], 5, 1, output)
    assert set(run(["gcd", "list_functions"], 5, 1, output)) == {"gcd", "list_functions"}
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["gcd", "list_functions"]
    assert "0 min left" in lines[-1]
    assert len(output.read_text().splitlines()) == 2 and json.loads(output.read_text().splitlines()[0])["count"] == 5
    assert set(read_done(output, 1, 5)) == {"gcd", "list_functions"} and read_done(output, 2, 5) == {}
