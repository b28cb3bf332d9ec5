"""The report of any run: where it goes, which examples it takes, and that it never changes the outcome of a run."""

import errno
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from rl_swarm.config import ALONE, load
from rl_swarm.errors import ConfigError
from rl_swarm.node.local import claim, experiment_folder
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.tools import report as reporting
from rl_swarm.tools.report import report, report_after
from tests.support.clocks import VirtualClock
from tests.support.processes import ROOT
from tests.support.sample_run import LAYOUT, SampleRun
from tests.tools.test_ask import Trial

AGAIN = "rl-swarm report trial --gdrive-path ./store --rl-swarm-home ./home"
BESIDE = ("store/experiments/trial/report.html", "store/experiments/trial/report.png")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SampleRun:
    """A run that may still be going on, seen from the folder above its store."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store").mkdir()
    return SampleRun(FolderStore(tmp_path / "store", VirtualClock(), local=True), tmp_path).play(5)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw nothing: only what runs in processes of its own makes real pictures here."""
    made = {"report.html": b"a page of ", "report.png": b"a picture of "}
    monkeypatch.setattr(
        reporting, "make_report", lambda summary, _: {name: data + b"%d rounds" % summary.rounds for name, data in made.items()}
    )


def settings_of(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"GDRIVE_PATH": str(tmp_path / "store"), "EXPERIMENT_NAME": "trial", "RL_SWARM_HOME": str(tmp_path / "home"), **more}


def reported(
    environment: dict[str, str],
    flags: dict[str, str | None] | None = None,
    output: Path | None = None,
    *,
    ask: bool = False,
    program: str = "rl-swarm",
) -> str:
    console = Console(file=io.StringIO(), width=80)
    report(environment, flags or {}, output, ask, program, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_it_lies_beside_the_run_which_may_be_going_on(run: SampleRun, tmp_path: Path) -> None:
    text = reported(settings_of(tmp_path), program=str(tmp_path / ".venv" / "bin" / "rl-swarm"))
    assert "RL Swarm trial: 3 workers, 5 of 16 rounds, 10 s\n" in text
    for line, path in zip(("report   ./", "picture  ./"), BESIDE, strict=True):
        assert f"  {line}{path}\n" in text and (tmp_path / path).read_bytes().endswith(b" of 5 rounds")
    assert "    ./.venv/bin/rl-swarm status --gdrive-path ./store --experiment trial --rl-swarm-home ./home\n" in text
    before = (tmp_path / BESIDE[0]).read_bytes()
    run.play(1)
    assert "6 of 16 rounds" in reported(settings_of(tmp_path)) and (tmp_path / BESIDE[0]).read_bytes() != before


def test_it_goes_where_it_is_told(run: SampleRun, tmp_path: Path) -> None:
    text = reported(settings_of(tmp_path), output=tmp_path / "out" / "here")
    assert "report   ./out/here/trial-report.html\n" in text and "picture  ./out/here/trial-report.png\n" in text
    assert {path.name for path in (tmp_path / "out" / "here").iterdir()} == {"trial-report.html", "trial-report.png"}
    assert not any((tmp_path / path).exists() for path in BESIDE)
    with pytest.raises(ConfigError, match="must not lie in the shared folder"):
        reported(settings_of(tmp_path), output=tmp_path / "store" / "out")


def test_of_a_read_only_share_it_goes_to_this_folder_and_says_so(
    run: SampleRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: FolderStore, key: str, data: bytes) -> None:
        with self._translated(key, writing=True):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(FolderStore, "_rewrite", refuse)
    text = reported(settings_of(tmp_path))
    assert "The report goes to this folder, since the experiment cannot be written: " in text and "no permission" in text
    assert "report   ./trial-report.html\n" in text and (tmp_path / "trial-report.html").exists()
    monkeypatch.chdir(tmp_path / "store")
    with pytest.raises(ConfigError, match="must not lie in the shared folder"):
        reported(settings_of(tmp_path))


def test_a_run_without_a_store_has_one_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {
        "PYTHONPATH": str(ROOT),
        "RL_SWARM_HOME": str(tmp_path),
        "NODE_ID": "me",
        "STANDIN_SECONDS": "0",
        "MAX_ROUNDS": "3",
    }
    subprocess.run(
        [sys.executable, "-m", "tests.support.standin_node"], env=environment, check=True, capture_output=True, timeout=60
    )
    text = reported(environment)
    assert f"report   ./{ALONE}/{Layout(ALONE).report('report.html')}\n" in text and "1 worker, 3 rounds" in text


def test_a_run_without_a_round_and_one_of_somebody_else_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with pytest.raises(ConfigError, match="there is no experiment 'trial'"):
        reported(settings_of(tmp_path))
    run = SampleRun(FolderStore(tmp_path / "store", VirtualClock(), local=True), tmp_path)
    with pytest.raises(ConfigError, match="'trial' has no round to report"):
        reported(settings_of(tmp_path))
    run.play(1)
    with pytest.raises(ConfigError, match="the founder that you named"):
        reported(settings_of(tmp_path, SWARM_FOUNDER="ab" * 32))


def test_models_are_asked_unless_a_node_is_at_work_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("rl_swarm.tools.ask.asked_examples", lambda *_: asked.append("yes") or [])
    (tmp_path / "store").mkdir()
    run = SampleRun(FolderStore(tmp_path / "store", VirtualClock(), local=True), tmp_path).play(2)
    environment = settings_of(tmp_path, NODE_ID="w1", MODEL_NAME="nano")
    assert "loading libraries" not in reported(environment, ask=True), "this machine has no checkpoint"
    experiment = experiments.read(run.store, LAYOUT)
    assert experiment is not None
    (experiment_folder(load(environment), experiment) / "w1" / "checkpoints").mkdir(parents=True)
    (experiment_folder(load(environment), experiment) / "w1" / "checkpoints" / "round_2.pt").touch()
    assert "loading libraries" in reported(environment, ask=True) and asked == ["yes"]
    assert "loading libraries" not in reported(environment, ask=False) and asked == ["yes"]
    held = claim(load(environment), experiment)
    try:
        assert "loading libraries" not in reported(environment, ask=True) and asked == ["yes"]
    finally:
        held.lock.close()


def test_where_there_is_no_model_to_ask_published_texts_are_shown(run: SampleRun, tmp_path: Path) -> None:
    text = reported(settings_of(tmp_path, MODEL_NAME="nano"), {"node_id": "w1"}, ask=True)
    assert "completions of the first and the last round" in text and "w1, round 4: " in text


def test_where_libraries_do_not_fit_published_texts_are_shown(
    run: SampleRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_swarm.learning.engine.libraries.installed", lambda name: "1.0")
    monkeypatch.setattr("rl_swarm.tools.ask.asked_examples", lambda *_: pytest.fail("a library that does not fit was used"))
    assert "completions of the first and the last round" in reported(settings_of(tmp_path), {"node_id": "w1"}, ask=True)


def test_the_node_id_of_the_environment_chooses_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(tmp_path, MAX_NEW_TOKENS="4")
    trial.save("w2", 30, trial.policy(1))
    given: list[dict[str, str]] = []
    monkeypatch.setattr("rl_swarm.tools.ask.asked_examples", lambda environment, flags, step: given.append(dict(environment)) or [])
    run = reporting.open_run(trial.environment | {"NODE_ID": "w1"}, {})
    reporting.make_examples(run, reporting.summarise(run.store, run.layout), True)
    assert "NODE_ID" not in given[0]


class Attempts:
    """Takes the place of `python`: children that run other programs."""

    def __init__(self, *programs: str) -> None:
        self.programs, self.arguments = list(programs), list[tuple[str, ...]]()

    def __call__(self, program: str, *arguments: str) -> Sequence[str]:
        self.arguments.append(arguments)
        return [sys.executable, "-c", self.programs.pop(0)]


FAILS, WORKS = "raise MemoryError('all is full')", "print('a card')"


@pytest.mark.parametrize(
    ("outcome", "programs", "arguments", "expected"),
    [
        ("complete", [WORKS], [("report",)], []),
        ("complete", [FAILS, WORKS], [("report",), ("report", "--no-model")], []),
        (
            "complete",
            [FAILS, FAILS],
            [("report",), ("report", "--no-model")],
            [f"no report (MemoryError: all is full); this makes one: {AGAIN}"],
        ),
        ("stopped", [WORKS], [("report", "--no-model")], []),
        (
            "stopped",
            ["import sys; print('rl-swarm: no round', file=sys.stderr); sys.exit(2)"],
            [("report", "--no-model")],
            ["no report: no round"],
        ),
    ],
)
def test_a_report_that_fails_is_one_line_and_changes_no_outcome(
    outcome: str,
    programs: list[str],
    arguments: list[tuple[str, ...]],
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    attempts, said = Attempts(*programs), list[str]()
    monkeypatch.setattr(reporting, "python", attempts)
    report_after(outcome, settings_of(tmp_path), "rl-swarm", said.append)
    assert (attempts.arguments, said) == (arguments, expected)


@pytest.mark.parametrize(("seconds", "expected"), [(1.0, 0), (60.0, 1)])
def test_ctrl_c_does_not_undo_a_report_that_is_all_but_done(
    seconds: float, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    monkeypatch.setattr(reporting, "python", Attempts(f"import time; time.sleep({seconds})"))
    monkeypatch.setattr(reporting, "GRACE_SECONDS", 2.0 if expected == 0 else 0.1)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        report_after("stopped", settings_of(tmp_path), "rl-swarm", said.append)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(said) == expected and all(line.startswith("no report (stopped); this makes one: ") for line in said)


def test_the_end_of_a_swarm_reports_in_a_process_of_its_own(
    run: SampleRun, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bin" / "rl-swarm"), "swarm"])
    environment = {**os.environ, **settings_of(tmp_path)}
    report_after("stopped", environment, "rl-swarm", said.append)
    text = capfd.readouterr().out
    assert said == [] and "report   ./store/experiments/trial/report.html\n" in text and "./bin/rl-swarm ask " in text
    assert all((tmp_path / path).exists() for path in BESIDE)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", ["swarm", "demo"])
def test_a_run_that_is_stopped_with_ctrl_c_ends_with_its_report(tmp_path: Path, command: str) -> None:
    environment = {**os.environ, **settings_of(tmp_path), "MODEL_NAME": "nano", "OMP_NUM_THREADS": "1", "EVAL_INTERVAL": "0"}
    program = [sys.executable, "-m", "rl_swarm.cli", command, "--workers", "1"]
    process = subprocess.Popen(program, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    metrics = tmp_path / "store" / LAYOUT.log("worker_1", "metrics.jsonl")
    try:
        deadline = time.monotonic() + 120
        while not (metrics.exists() and metrics.read_text().count("\n") >= 3) and time.monotonic() < deadline:
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, text
    assert "report   ./store/experiments/trial/report.html" in text and all((tmp_path / path).exists() for path in BESIDE)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_long_run_of_many_nodes_is_reported_quickly_and_in_little_memory(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    run = SampleRun(FolderStore(tmp_path / "store", VirtualClock(), local=True), tmp_path).play(1)
    root = tmp_path / "store" / LAYOUT.root
    line = (root / "logs" / "w1" / "metrics.jsonl").read_text()
    for place in range(64):
        run.worker(f"n{place}", place, 2)
        lines = (line.replace('"round":0,', f'"round":{number},') for number in range(2000))
        (root / "logs" / f"n{place}").mkdir(exist_ok=True)
        (root / "logs" / f"n{place}" / "metrics.jsonl").write_text("".join(lines))
    # Not ru_maxrss, which begins with the memory of the process that has forked it.
    measure = "print('peak', re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])"
    code = f"import re\nfrom pathlib import Path\nfrom rl_swarm.cli import main\ntry: main()\nfinally: {measure}"
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, "report", "--no-model"],
        env={**os.environ, **settings_of(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    seconds, peak = time.perf_counter() - began, int(done.stdout.rpartition("peak ")[2]) >> 10
    size = sum(path.stat().st_size for path in root.rglob("metrics.jsonl")) >> 20
    print(f"{size} MB of metrics, 67 nodes: {seconds:.1f} s, {peak} MB")
    assert done.returncode == 0 and "67 workers, 2000 " in done.stdout, done.stderr
    assert seconds < 60 and peak < 600
