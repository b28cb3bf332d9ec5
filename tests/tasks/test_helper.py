"""The helper process: what it survives, what it costs, who shares it and when it ends."""

import dataclasses
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from checks.hostile_run import children_of
from rl_swarm.errors import BadRollout, ConfigError
from rl_swarm.rollout import Completion, Question, Rollout
from rl_swarm.tasks import Tasks, helper, parse_tasks

ROOT = Path(__file__).parents[2]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits what a process allocates")

# An answer names what the verifier does.
ACTOR = """
import os, sys, time
kept = []
print("loading \\x1b[31m")


def question(seed, index):
    print("asking \\x1b[31m", file=sys.stderr)
    return f"Say {seed} {index}", "yes"


def score(question, text):
    what, _, amount = text.partition(" ")
    if what == "sleep":
        time.sleep(float(amount))
    if what == "hang":
        while True:
            pass
    if what == "die":
        os._exit(3)
    if what == "take":
        bytes(int(amount) << 20)  # memory that is allocated and never touched: the limit counts it, and the test is quick
    if what == "keep":
        kept.append(bytes(int(amount) << 20))
    if what == "pid":
        return os.getpid() / 2**32
    if what == "limit":
        import resource
        return resource.getrlimit(resource.RLIMIT_DATA)[0] / 2**50
    if what == "print":
        print("scoring \\x1b[31m")
        os.system("echo child")
        return float(input("more? ") == "")
    return float(text in ("yes", "sleep 0"))
"""


def tagged(answer: str) -> str:
    return f"<answer>{answer}</answer>"


def published(question: Question, *answers: str) -> Rollout:
    return Rollout(question, tuple(Completion(tagged(answer)) for answer in answers), "peer", 3)


@pytest.fixture
def actor_file(tmp_path: Path) -> Path:
    (tmp_path / "actor.py").write_text(ACTOR)
    return tmp_path / "actor.py"


@pytest.fixture
def actor(actor_file: Path) -> Tasks:
    return make(actor_file)


def make(file: Path) -> Tasks:
    return Tasks(parse_tasks(str(file)), seed=1, node_id="a", held_out=1)


def pid_of(tasks: Tasks) -> int:
    return round(tasks.score(tasks.draw(1)[0], tagged("pid")) * 2**32)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until(fact: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not fact() and time.monotonic() < deadline:
        time.sleep(0.02)
    return fact()


# What a verifier may do to it


def test_a_group_has_a_deadline_for_each_completion(actor: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "JUDGE_SECONDS", 0.6)
    (question,) = actor.draw(1)
    began = time.monotonic()
    assert actor.score_all(question, [tagged("sleep 0.2")] * 6 + [tagged("yes")]) == [0.0] * 6 + [1.0]
    assert time.monotonic() - began > 1.2
    assert actor.counters == {}
    answers = ["yes", "hang", "yes", "die", "no", "hang", "yes", "yes"]
    scores = actor.score_all(question, [tagged(answer) for answer in answers])
    assert scores == [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], "after the second hang the rest is not read"
    assert actor.counters == {"scorer_timeout": 4, "scorer_raised": 1}
    assert actor.score(question, tagged("yes")) == 1.0


def test_groups_are_scored_in_one_request_unless_an_answer_hangs(actor: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "JUDGE_SECONDS", 0.6)
    questions, asked = actor.draw(3), []
    request = actor._helper._request
    monkeypatch.setattr(actor._helper, "_request", lambda jobs, deadline: asked.append(len(jobs)) or request(jobs, deadline))
    texts = [[tagged("yes"), "no tag"], ["none at all"], [tagged("no"), tagged("yes")]]
    assert actor.score_groups(list(zip(questions, texts, strict=True))) == [[1.0, 0.0], [0.0], [0.0, 1.0]]
    assert asked == [2], "a group without an answer is not asked about"
    told: list[str] = []
    hanging = [(questions[0], [tagged("hang"), tagged("yes")]), (questions[1], [tagged("yes")])]
    assert actor.score_groups(hanging, lambda: told.append("go on")) == [[0.0, 1.0], [1.0]]
    assert asked == [2, 2, 2] and told == ["go on"]
    unknown = dataclasses.replace(questions[0], task="unheard_of")
    assert actor.score_groups([(unknown, [tagged("yes")]), (questions[1], [tagged("yes")])]) == [[0.0], [1.0]]
    assert actor.counters["unknown_question"] == 1


@LINUX
def test_memory_is_limited_to_a_gib_above_what_loading_takes(actor: Tasks) -> None:
    (question,) = actor.draw(1)
    assert 1 < actor.score(question, tagged("limit")) * 2**20 < 3
    assert actor.score_all(question, list(map(tagged, ("take 700", "take 1100", "yes")))) == [0.0, 0.0, 1.0]
    assert actor.counters == {"scorer_memory": 1}


@LINUX
@pytest.mark.timeout(60)
def test_a_task_that_takes_gigabytes_when_it_is_loaded_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text("taken = bytearray(3 << 30)\ndef question(seed, index):\n    return 'a', 'b'\n")
    with pytest.raises(ConfigError, match="MemoryError") as refused:
        Tasks(parse_tasks(str(tmp_path / "greedy.py")), seed=1, node_id="a")
    assert "\n" not in str(refused.value)


@LINUX
def test_a_helper_that_keeps_memory_is_replaced_before_others_lack_it(actor: Tasks) -> None:
    (question,) = actor.draw(1)
    before = pid_of(actor)
    assert actor.score_all(question, [tagged("keep 300"), tagged("yes")]) == [0.0, 1.0]
    assert pid_of(actor) == before
    assert actor.score_all(question, [tagged("keep 300"), tagged("yes")]) == [0.0, 1.0]
    assert pid_of(actor) != before
    assert actor.score_all(question, [tagged("take 700"), tagged("yes")]) == [0.0, 1.0]
    assert actor.counters == {}
    answers = ["keep 600", "keep 600", "yes", "take 700"]
    assert actor.score_all(question, list(map(tagged, answers))) == [0.0, 0.0, 1.0, 0.0]
    assert actor.counters == {"scorer_memory": 1}


def test_nothing_that_a_task_prints_leaves_it_and_nothing_it_reads_is_a_request(
    actor: Tasks, capfd: pytest.CaptureFixture[str]
) -> None:
    (question,) = actor.draw(1)
    assert actor.score_all(question, [tagged("print"), tagged("yes")]) == [0.0, 1.0]
    assert actor.counters == {"scorer_raised": 1}, "there is nothing to read"
    assert capfd.readouterr() == ("", "")


def test_a_verifier_of_reasoning_gym_that_prints_is_not_heard(capfd: pytest.CaptureFixture[str]) -> None:
    tasks = Tasks(parse_tasks("tower_of_hanoi"), seed=1, node_id="a", held_out=0)
    (question,) = tasks.draw(1)
    tasks.score(question, tagged("Move disk 1 from Peg 99 to \x1b[31mPeg 2"))
    tasks.score(question, tagged("Move disk 1 from Peg 99 to Peg 2"))
    assert capfd.readouterr() == ("", "")


def test_a_question_that_is_never_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "ITEM_SECONDS", 0.5)
    (tmp_path / "slow.py").write_text(
        "def question(seed, index):\n    while index == 3:\n        pass\n    return f'{seed} {index}', 'a'\n"
    )
    tasks = make(tmp_path / "slow.py")
    assert len({question.text_id for question in tasks.draw(6)}) == 6
    assert tasks.counters == {"question_timeout": 1}
    never = dataclasses.replace(tasks.draw(1)[0], index=3)
    assert tasks.score_all(never, [tagged("a"), "", tagged("a")]) == [0.0] * 3
    with pytest.raises(BadRollout, match="unverifiable"):
        tasks.verify(published(never, "a"), math.inf)


def test_a_question_of_many_megabytes_does_not_reach_the_node(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("def question(seed, index):\n    return 'x' * (10**8 if index == 3 else 9), 'a'\n")
    tasks = make(tmp_path / "long.py")
    with pytest.raises(BadRollout, match="question_too_long"):
        tasks.verify(published(Question("x", "a", tasks.specs[0].name, {}, 1, 3), "a"))


def test_questions_are_drawn_and_rollouts_verified_in_one_request_each(actor: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    actor.held_out()
    sent: list[bytes] = []
    send = helper._Child.send
    monkeypatch.setattr(helper._Child, "send", lambda child, request: sent.append(request) or send(child, request))  # type: ignore[func-returns-value]
    questions = actor.draw(8)
    assert len(sent) == 1
    assert actor.verify(published(questions[0], "yes", "no")).rewards == [1.0, 0.0]
    assert len(sent) == 2


def test_nothing_is_judged_under_another_question(actor: Tasks) -> None:
    (question,) = actor.draw(1)
    other = dataclasses.replace(question, prompt="another one")
    assert actor.score_all(other, [tagged("yes")]) == [0.0]
    assert actor.counters == {"question_differs": 1}


# The time that a caller has


def test_a_rollout_that_takes_longer_than_the_caller_has_is_refused_as_a_whole(actor: Tasks) -> None:
    (question,) = actor.draw(1)
    began = time.monotonic()
    with pytest.raises(BadRollout) as caught:
        actor.verify(published(question, "yes", *["sleep 0.2"] * 24), 0.5)
    assert caught.value.reason == "slow_to_check"
    assert 0.5 <= time.monotonic() - began < 2.0
    assert actor.counters == {}
    assert actor.verify(published(question, "yes", "sleep 0.2", "no"), 5.0).rewards == [1.0, 0.0, 0.0]
    with pytest.raises(BadRollout, match="slow_to_check"):
        actor.verify(published(question, "hang"), 0.2)
    with pytest.raises(BadRollout, match="slow_to_check"):
        actor.verify(published(question, "yes"), 0.0)
    assert actor.verify(published(question, "yes"), 1.0).rewards == [1.0]


def test_making_the_question_counts(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(
        "import time\ndef question(seed, index):\n    time.sleep(9 * (index == 3))\n    return f'{index}', 'a'\n"
    )
    tasks = make(tmp_path / "late.py")
    with pytest.raises(BadRollout, match="slow_to_check"):
        tasks.verify(published(Question("3", "a", tasks.specs[0].name, {}, 1, 3), "a"), 0.5)


# Starting


def run_script(tmp_path: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in `tmp_path`. The script has its own folder, because Python puts that folder first on its path."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "script.py").write_text(textwrap.dedent(script))
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, str(tmp_path / "scripts" / "script.py")]
    return subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=120)


def test_the_node_imports_neither_reasoning_gym_nor_anything_in_the_current_folder(tmp_path: Path) -> None:
    """That folder may be the shared one, where strangers can write."""
    for name in ("random", "decimal", "reasoning_gym", "sympy", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("open('trace', 'w')")
    script = """
        import sys
        from rl_swarm.tasks import Tasks, parse_tasks
        tasks = Tasks(parse_tasks("arc_1d,binary_matrix,countdown"), seed=1, node_id="a", held_out=2)
        question = tasks.held_out()[0]
        tasks.score_all(question, ["<answer>1</answer>"] * 4)
        tasks.draw(5)
        print({"reasoning_gym", "sympy", "numpy"} & set(sys.modules))
    """
    done = run_script(tmp_path, script)
    assert (done.stdout, done.stderr) == ("set()\n", "")
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("raise RuntimeError('no \\x1b[31m gym today')", "RuntimeError: no \\x1b[31m gym today"),
        ("import os; os.kill(os.getpid(), 9)", "exit code -9"),
        ("raise ModuleNotFoundError('nothing', name='reasoning_gym')", "pip install reasoning-gym"),
    ],
)
def test_a_failure_to_start_is_explained_in_one_line(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "reasoning_gym.py").write_text(content)
    script = """
        from rl_swarm.errors import ConfigError
        from rl_swarm.tasks import Tasks, parse_tasks
        try:
            Tasks(parse_tasks("gcd"), seed=1, node_id="a")
        except ConfigError as error:
            print(error)
    """
    done = run_script(tmp_path, script, PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path / 'first'}")
    assert says in done.stdout
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_a_wrong_task_is_reported_when_it_is_loaded() -> None:
    with pytest.raises(ConfigError, match="did you mean 'gcd'"):
        Tasks(parse_tasks("gdc"), seed=1, node_id="a")


def test_the_order_of_sets_is_the_same_on_every_node(tmp_path: Path) -> None:
    (tmp_path / "hash.py").write_text("def question(seed, index):\n    return str(hash('word')), 'a'\n")
    command = [sys.executable, "-c", "print(hash('word'))"]
    done = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=True)
    tasks = Tasks(parse_tasks(str(tmp_path / "hash.py")), seed=1, node_id="a", held_out=0)
    assert tasks.draw(1)[0].prompt == done.stdout.strip()


# Sharing and ending


def test_tasks_with_the_same_specs_share_a_helper_which_ends_with_the_last(actor_file: Path) -> None:
    one, other = make(actor_file), make(actor_file)
    pid = pid_of(one)
    assert pid_of(other) == pid
    del one
    assert pid_of(other) == pid
    del other
    assert wait_until(lambda: not alive(pid))
    again = make(actor_file)
    assert pid_of(again) != pid


def test_many_threads_share_one_helper(actor: Tasks) -> None:
    question, wrong = actor.draw(1)[0], []

    def ask(number: int) -> None:
        answers = ["yes" if (place + number) % 3 else "no" for place in range(20)]
        for _ in range(20):
            scores = actor.score_all(question, list(map(tagged, answers)))
            wrong.extend([scores] if scores != [float(answer == "yes") for answer in answers] else [])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_helper_or_a_loader_that_was_killed_is_replaced(actor: Tasks) -> None:
    (question,) = actor.draw(1)
    os.kill(pid_of(actor), signal.SIGKILL)
    time.sleep(0.1)
    assert actor.score(question, tagged("yes")) == 1.0
    assert helper._loader is not None
    helper._loader._process.kill()
    os.kill(pid_of(actor), signal.SIGKILL)
    time.sleep(0.1)
    assert actor.score_all(question, [tagged("yes")] * 3) == [1.0] * 3
    assert actor.counters == {}


WAITING = """
    import os, signal, sys, time
    from rl_swarm.tasks import Tasks, helper, parse_tasks
    helper.JUDGE_SECONDS = 60.0
    tasks = Tasks(parse_tasks({file!r}), seed=1, node_id="a")
    question = tasks.draw(1)[0]
    tasks.score(question, "<answer>yes</answer>")

    def ask(number, frame):
        signal.signal(signal.SIGTERM, stop)
        print("asked", flush=True)

    def stop(number, frame):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, ask)
    print(round(tasks.score(question, "<answer>pid</answer>") * 2**32), flush=True)
    try:
        tasks.score(question, "<answer>hang</answer>")
    except KeyboardInterrupt:
        print("stopped", tasks.score(question, "<answer>yes</answer>"), flush=True)
"""


# In the place of reasoning-gym, which these tests need not load.
NO_GYM = "raise ModuleNotFoundError('nothing', name='reasoning_gym')"
SHORT_DEADLINE = "from rl_swarm.tasks import serving\nserving.JUDGE_SECONDS = 0.5\n"


@pytest.fixture
def waiting(tmp_path: Path, actor_file: Path, request: pytest.FixtureRequest) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A process that waits for a hanging verifier, and the helper's process id. The loader executes the parameter."""
    (tmp_path / "waiting.py").write_text(textwrap.dedent(WAITING.format(file=str(actor_file))))
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "reasoning_gym.py").write_text(getattr(request, "param", "") + NO_GYM)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'first'}{os.pathsep}{ROOT}"}
    process = subprocess.Popen([sys.executable, str(tmp_path / "waiting.py")], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    time.sleep(0.3)
    yield process, pid
    process.kill()
    process.wait()
    process.stdout.close()


def test_signals_get_through_while_the_node_waits(waiting: tuple["subprocess.Popen[str]", int]) -> None:
    process, pid = waiting
    assert process.stdout is not None
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "stopped 1.0\n"
    assert process.wait(10) == 0
    assert time.monotonic() - began < 5
    assert wait_until(lambda: not alive(pid))


def test_a_helper_ends_soon_after_its_node_was_killed(waiting: tuple["subprocess.Popen[str]", int]) -> None:
    process, pid = waiting
    assert alive(pid)
    process.kill()
    assert wait_until(lambda: not alive(pid), 5.0)


@LINUX
@pytest.mark.parametrize("waiting", [SHORT_DEADLINE], ids=["short deadline"], indirect=True)
def test_a_helper_whose_loader_was_killed_too_ends_by_itself(waiting: tuple["subprocess.Popen[str]", int]) -> None:
    process, pid = waiting
    (loader,) = children_of(process.pid)
    os.kill(loader, signal.SIGKILL)
    process.kill()
    assert wait_until(lambda: not alive(pid), 10.0)
