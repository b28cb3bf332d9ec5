"""Exports load in `transformers` as the model that was trained; pushes arrive at a hub, and their failures never reach training."""

import contextlib
import io
import json
import os
import re
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import snapshot_download
from huggingface_hub.utils import validate_repo_id
from transformers import AutoModelForCausalLM, AutoTokenizer

from rl_swarm.config import load
from rl_swarm.errors import ConfigError, ModelError
from rl_swarm.learning.models.loading import add_lora
from rl_swarm.learning.policy import Policy
from rl_swarm.processes.children import python
from rl_swarm.rollout import Question
from rl_swarm.runs.record import Evaluated
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.layout import Layout
from rl_swarm.tools import push
from rl_swarm.tools.export import EXAMPLE, MARKER, Figures, card, collect, earlier_files, export_run, merged, write
from rl_swarm.tools.opening import open_run
from rl_swarm.tools.push import hub_reason, make_pusher, repository_name, upload
from tests.support.hub_stub import TOKEN, HubStub, hub, point_at
from tests.support.tiny_models import policy
from tests.tools.test_ask import Trial

FIGURES = Figures(
    experiment="trial",
    node_id="w1",
    base_model="Qwen/Qwen3-0.6B",
    base_on_hub=True,
    round=60,
    rounds_recorded=58,
    own_count="2 to 4",
    external_count="3",
    group_size=8,
    external_used=170,
    tasks="gcd,chain_sum:max_digits=2",
    tasks_version="reasoning-gym 0.1.25",
    reward_rounds=10,
    reward_first=0.0125,
    reward_last=0.25,
    held_out_before=Evaluated(0, 0.05, 0.4, 0.2, 80, {"gcd": 0.1}),
    held_out_after=Evaluated(60, 0.35, 0.45, 0.4, 80, {"gcd": 0.5}),
    versions={"rl-swarm": "0.1.0"},
)
IDS = torch.tensor([[5, 80, 33, 7, 120, 64, 2, 9]])


def loaded(folder: Path | str) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(input_ids=IDS).logits


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_an_export_loads_as_the_very_model_that_was_trained(architecture: str, tmp_path: Path) -> None:
    trained = policy(architecture, seed=3)
    before, generator = logits(trained.model), torch.get_rng_state()
    write(tmp_path / "made" / "export", trained, FIGURES)
    assert torch.equal(logits(loaded(tmp_path / "made" / "export")), before)
    assert torch.equal(logits(trained.model), before) and torch.equal(torch.get_rng_state(), generator), (
        "training goes on as before"
    )
    stops_at = loaded(tmp_path / "made" / "export").generation_config.eos_token_id
    assert stops_at == trained.end_id and trained.model.generation_config.eos_token_id is None
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "made" / "export")
    again = Policy(loaded(tmp_path / "made" / "export"), tokenizer, max_new_tokens=12)
    questions = [Question("What is 18 + 24?"), Question("naïve 数 <|im_end|>?")]
    assert [again.prompt_ids(each.prompt) for each in questions] == [trained.prompt_ids(each.prompt) for each in questions]
    assert again.greedy(questions) == trained.greedy(questions)
    names = files(tmp_path / "made" / "export")
    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md", MARKER} <= names
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pkl"))]


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_an_adapter_is_merged_into_a_copy(architecture: str, tmp_path: Path) -> None:
    trained = policy(architecture)
    trained.model = add_lora(trained.model, rank=4)
    for name, parameter in trained.model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(generator=torch.Generator().manual_seed(1))
    before, weights = logits(trained.model), {name: value.clone() for name, value in trained.model.state_dict().items()}
    write(tmp_path / "export", trained, FIGURES)
    exported = loaded(tmp_path / "export")
    torch.testing.assert_close(logits(exported), before, rtol=1e-4, atol=1e-4)
    with trained.model.disable_adapter():
        assert not torch.allclose(logits(exported), logits(trained.model), rtol=1e-2, atol=1e-2)
    assert not [name for name, _ in exported.named_parameters() if "lora" in name]
    assert torch.equal(logits(exported), logits(merged(trained.model)))
    after = trained.model.state_dict()
    assert after.keys() == weights.keys() and all(torch.equal(value, weights[name]) for name, value in after.items())
    assert torch.equal(logits(trained.model), before)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_the_program_in_the_card_asks_as_training_does(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = policy(architecture, seed=5, max_new_tokens=24)
    write(tmp_path, trained, FIGURES)
    program = re.search(r"```python\n(.*?)```", (tmp_path / "README.md").read_text(), re.DOTALL)
    assert program and "max_new_tokens=256" in program[1]
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(program[1].replace("256", "24"), {})
    assert printed.getvalue() == trained.greedy([Question(EXAMPLE)])[0] + "\n"


def test_the_card_states_the_run() -> None:
    text = card(FIGURES, "prompt\n")
    front = yaml.safe_load(text.split("---\n")[1])
    assert (front["library_name"], front["pipeline_tag"], front["base_model"]) == (
        "transformers",
        "text-generation",
        "Qwen/Qwen3-0.6B",
    )
    for line in (
        "| experiment, node | `trial`, `w1` |",
        "| rounds | 58, all before round 60 of the swarm |",
        "| I: own rollouts per round | 2 to 4 |",
        "| J: rollouts of peers per round | 3 wanted, 170 used in all rounds |",
        "| G: completions per question | 8 |",
        "| tasks | `gcd,chain_sum:max_digits=2` (`reasoning-gym 0.1.25`) |",
        "| mean reward, first 10 rounds | 0.013 |",
        "| mean reward, last 10 rounds | 0.250 |",
        "|  | before round 0 | before round 60 |",
        "| all, as the verifier reads | 0.050 | 0.350 |",
        "| all, in the form (begun with `<answer>`) | 0.200 | 0.400 |",
        "| all, in any form | 0.400 | 0.450 |",
        "| `gcd` | 0.100 | 0.500 |",
    ):
        assert line in text.splitlines(), line


def journals(rows: list[dict[str, Any]], events: list[dict[str, Any]]) -> MemoryStore:
    store, layout = MemoryStore(), Layout("trial")
    for name, lines in (("metrics.jsonl", rows), ("training_events.jsonl", events)):
        store.put(layout.log("w1", name), "".join(json.dumps({"timestamp": 1.0} | line) + "\n" for line in lines).encode())
    return store


def evaluation(number: Any, passed: Any) -> dict[str, Any]:
    data = {
        "round": number,
        "held_out": passed,
        "held_out_style_blind": 0.5,
        "held_out_in_form": 0.25,
        "held_out_by_task": {"gcd": passed},
    }
    return {"event_type": "evaluation", "data": data | {"held_out_questions": 80}}


def collected(store: MemoryStore, number: int, model: str = "nano", **environment: str) -> Figures:
    config = load({"EXPERIMENT_NAME": "trial", "NUM_TRANSPLANT_TREES": "3"} | environment)
    return collect(config, store, "w1", number, model=model, tasks_version="reasoning-gym 0.1.25")


def test_figures_are_those_of_the_rounds_that_the_weights_have_learnt_from() -> None:
    rows = [{"round": number, "reward": number / 100, "external_used": 2} for number in range(50)]
    events = [evaluation(0, 0.1), evaluation(20, 0.9), evaluation(20, 0.2), evaluation(40, 0.3), {"event_type": "state"}]
    figures = collected(journals(rows, events), 30)
    assert (figures.rounds_recorded, figures.external_used, figures.external_count) == (30, 60, "3")
    assert (figures.reward_rounds, figures.reward_first, figures.reward_last) == (10, pytest.approx(0.045), pytest.approx(0.245))
    assert figures.held_out_before and (figures.held_out_before.round, figures.held_out_before.held_out) == (0, 0.1)
    assert figures.held_out_after and (figures.held_out_after.round, figures.held_out_after.held_out) == (20, 0.2)


def test_a_run_of_few_rounds_or_none_has_a_card_too() -> None:
    few = collected(journals([{"round": number, "reward": 0.1 * number} for number in range(3)], [evaluation(0, 0.1)]), 3)
    assert (few.reward_rounds, few.reward_first, few.reward_last) == (1, 0.0, pytest.approx(0.2))
    assert few.held_out_after is None and "| all, as the verifier reads | 0.100 |" in card(few, "")
    none = collected(MemoryStore(), 0)
    assert none.reward_first is None and "| mean reward, last 0 rounds | – |" in card(none, "")


def test_nothing_that_a_store_or_a_machine_holds_gets_into_a_card_unasked(tmp_path: Path) -> None:
    hostile = [
        {"round": 0, "reward": "</td>"},
        {"round": 1, "reward": float("nan")},
        {"round": 2, "reward": 0.9, "external_used": "x"},
        {"round": 3, "reward": 0.5},
    ]
    events = [evaluation(0, 0.1), evaluation("1", 0.2), evaluation(1, "high"), {"event_type": "evaluation", "data": 3}]
    events[0]["data"]["held_out_by_task"] = {"`|<script>\n# title": 1.0}
    folder = tmp_path / "private" / "my-model"
    folder.mkdir(parents=True)
    figures = collected(journals(hostile, events), 9, str(folder), TASKS=f"gcd,{tmp_path}/own.py,basic_arithmetic:operators=[+,/]")
    text = card(figures, "")
    assert (figures.reward_rounds, figures.reward_last) == (1, 0.5)
    assert "| `??<script>?# title` | 1.000 |" in text
    assert str(tmp_path) not in text + json.dumps(figures.versions) and "`my-model` (a local folder)" in text
    assert figures.tasks == "gcd,own.py,basic_arithmetic:operators=[+,/]"
    assert "base_model" not in yaml.safe_load(text.split("---\n")[1])


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("nano", ("nano", False)),
        ("gpt2", ("gpt2", True)),
        ("Qwen/Qwen3-0.6B", ("Qwen/Qwen3-0.6B", True)),
        ("/data/models/mine", ("mine", False)),
        ("./mine", ("mine", False)),
        ("~/models/mine", ("mine", False)),
        ("a/b/mine", ("mine", False)),
    ],
)
def test_only_a_name_that_the_hub_may_know_is_called_the_base_model(name: str, shown: tuple[str, bool]) -> None:
    figures = collected(MemoryStore(), 0, name)
    assert (figures.base_model, figures.base_on_hub) == shown


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty and not an earlier export"):
        write(tmp_path, policy(), FIGURES)
    assert files(tmp_path) == {"thesis.txt"}
    with pytest.raises(ConfigError, match="is not empty and not an earlier export"):
        write(tmp_path / "thesis.txt", policy(), FIGURES)
    for content in ("[]", "{}", "3", '{"files": 3}', '{"files": [3]}', "{"):
        (tmp_path / MARKER).write_text(content)
        with pytest.raises(ConfigError, match="is not empty and not an earlier export"):
            write(tmp_path, policy(), FIGURES)
    with pytest.raises(ModelError, match=r"the model cannot be written to .*Not a directory"):
        write(tmp_path / "thesis.txt" / "export", policy(), FIGURES)


def test_an_earlier_export_is_replaced_and_what_lies_beside_it_stays(tmp_path: Path) -> None:
    folder = tmp_path / "export"
    write(folder, policy("llama"), FIGURES)
    (folder / "notes.txt").write_text("mine")
    (folder / ".writing-abc").mkdir()
    (folder / ".writing-abc" / "half").write_text("left by a killed process")
    outside = tmp_path / "outside.txt"
    outside.write_text("mine too")
    marker = json.loads((folder / MARKER).read_text())
    (folder / MARKER).write_text(json.dumps(marker | {"files": [*marker["files"], "../outside.txt", str(outside)]}))
    assert "chat_template.jinja" in files(folder)
    second = policy("gpt2", seed=7)
    write(folder, second, FIGURES)
    assert torch.equal(logits(loaded(folder)), logits(second.model))
    assert "chat_template.jinja" not in files(folder), "a template of the model before would be taken for this one's"
    assert (folder / "notes.txt").read_text() == "mine" and outside.exists()
    assert not list(folder.glob(".writing-*"))


def test_a_killed_export_does_not_bar_the_next(tmp_path: Path) -> None:
    (tmp_path / ".writing-abc").mkdir()
    write(tmp_path, policy(), FIGURES)
    assert not (tmp_path / ".writing-abc").exists()


def test_a_disk_that_refuses_is_one_line_and_an_earlier_export_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = policy()
    write(tmp_path, first, FIGURES)
    before = files(tmp_path)
    second = policy(seed=9)

    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(second.tokenizer, "save_pretrained", full)
    with pytest.raises(ModelError, match=r"cannot be written to .*No space left on device\): free some space"):
        write(tmp_path, second, FIGURES)
    assert files(tmp_path) == before and torch.equal(logits(loaded(tmp_path)), logits(first.model))


@pytest.mark.parametrize("rank", [0, 2])
def test_the_newest_checkpoint_of_a_run_is_exported(rank: int, tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    trained = trial.policy(4, lora_rank=rank)
    trial.save("w1", 20, trained)
    trial.save("w2", 10, trial.policy(5))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        earlier_files(tmp_path / "taken")
    figures = export_run(open_run(trial.environment, {}), tmp_path / "export")
    assert (figures.node_id, figures.round, figures.base_model) == ("w1", 20, "llama")
    assert torch.equal(logits(loaded(tmp_path / "export")), logits(merged(trained.model)))
    assert json.loads((tmp_path / "export" / MARKER).read_text())["round"] == 20
    assert export_run(open_run(trial.environment, {"node_id": "w2"}), tmp_path / "export").node_id == "w2"


# Uploading, in this process


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStub]:
    with hub() as running:
        point_at(running.url, monkeypatch)
        for name, value in {"HF_ENDPOINT": running.url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "hf")}.items():
            monkeypatch.setenv(name, value)
        yield running


def uploaded(folder: Path, repository: str = "trial-w1", token: str = TOKEN) -> dict[str, str]:
    (folder / "model").mkdir()
    (folder / "model" / "README.md").write_text(card(FIGURES, ""))
    (folder / "model" / "model.safetensors").write_bytes(b"weights\0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the hub's client
        return upload(str(folder / "model"), repository, "Round 5", token)


def test_a_repository_that_is_known_is_not_asked_for_again(stub: HubStub, tmp_path: Path) -> None:
    """The hub limits how often somebody may ask who he is."""
    answer = {"repository": "tester/trial-w1", "url": f"{stub.url}/tester/trial-w1"}
    assert uploaded(tmp_path, repository="tester/trial-w1") == answer
    assert stub.messages == ["Round 5"] and not [request for request in stub.requests if "whoami" in request]


@pytest.mark.parametrize(
    ("misbehaviour", "request_", "told"),
    [
        ({}, {"token": "hf_wrong"}, "HTTP 401: Invalid user token: check that HUGGINGFACE_ACCESS_TOKEN is valid and may write"),
        ({"whoami": 500}, {}, "HTTP 500: the stub was told to fail (Bearer (token)): the hub may have recovered by the next push"),
        (
            {"/transfer/": 403},
            {},
            "HTTP 403: the stub was told to fail (None): check that HUGGINGFACE_ACCESS_TOKEN is valid and may write",
        ),
        ({"commit": 500}, {}, "HTTP 500: the stub was told to fail (Bearer (token)): the hub may have recovered by the next push"),
    ],
)
def test_what_the_hub_refuses_is_one_line_with_the_remedy(
    misbehaviour: dict[str, int], request_: dict[str, str], told: str, stub: HubStub, tmp_path: Path
) -> None:
    stub.fail = misbehaviour
    assert uploaded(tmp_path, **request_) == {"error": told}
    assert not stub.messages


def test_no_hub_at_all_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        point_at(f"http://127.0.0.1:{closed.getsockname()[1]}", monkeypatch)
        error = uploaded(tmp_path)["error"]
    assert error.startswith("ConnectError: ") and error.endswith(": check the connection to the hub")


def test_reasons_fit_in_a_line_without_any_part_of_the_token() -> None:
    for padding in range(470, 500):
        reason = hub_reason(ValueError("x" * padding + f"\n{TOKEN}\n" + "y" * 1000), TOKEN)
        assert len(reason) < 600 and "\n" not in reason
        assert TOKEN[:4] not in reason
        assert "check the connection" not in reason, "a card that the hub refuses is no matter of connection"
    assert hub_reason(ConnectionError("refused"), TOKEN) == "ConnectionError: refused: check the connection to the hub"


# Pushing: which model is uploaded when, in processes

# Writes what it is asked for to a log, and answers when no file tells it to hang.
STANDIN = """
import json, sys, time
from pathlib import Path
here = Path(sys.argv[1])
with (here / "log").open("a") as log:
    log.write(json.dumps([*sys.argv[2:], sys.stdin.read()]) + "\\n")
while (here / "hang").exists():
    time.sleep(0.01)
failed = (here / "fail").exists()
print(json.dumps({"error": "it is told to"} if failed else {"repository": "tester/found", "url": "http://hub/tester/found"}))
"""
DONE = "pushed the model of round {} to http://hub/tester/found"
FAILED = "the push of round {} failed ({}); training is not affected"


class Pushing:
    """The pusher of a node, with its reports; uploads run `program`, or the stand-in without one."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, program: str = "", trained: Policy | None = None) -> None:
        self.lines: list[str] = []
        self.folder, self.control = folder / "push", folder
        settings = {"EXPERIMENT_NAME": "trial", "HUGGINGFACE_ACCESS_TOKEN": TOKEN, "HUB_PUSH_INTERVAL": "10"}
        node: Any = SimpleNamespace(
            config=load(settings),
            local=SimpleNamespace(node_id="w1", path=folder),
            record=journals([{"round": 0, "reward": 0.5}], []),
            experiment=SimpleNamespace(tasks_version="reasoning-gym 0.1.25"),
            journal=SimpleNamespace(note=lambda kind, line: self.lines.append(line), flush=lambda: None),
        )
        command = python(program) if program else [sys.executable, "-I", "-S", "-c", STANDIN, str(folder)]
        monkeypatch.setattr(push, "python", lambda default, *arguments: [*command, *arguments])
        if trained is None:
            monkeypatch.setattr(push, "write", lambda folder, policy, figures: folder.mkdir(parents=True))
        pusher = make_pusher(node, trained or policy())
        assert pusher
        self.pusher = pusher

    @property
    def asked(self) -> list[list[str]]:
        """Export, repository, message, seconds and token of each upload."""
        log = self.control / "log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def wait(self, condition: Callable[[], Any]) -> None:
        while not condition():
            time.sleep(0.01)
            self.pusher._look()

    def close(self, seconds: float = 60.0) -> None:
        self.pusher.close(lambda: seconds)
        assert not self.folder.exists(), "no copy of a model stays behind"
        assert not [line for line in self.lines if TOKEN in line or "\n" in line]


def test_a_push_is_read_back_from_the_hub_and_loads(stub: HubStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = policy("llama", seed=3)
    pushing = Pushing(tmp_path, monkeypatch, "from rl_swarm.tools.push import main; main()", trained)
    at_the_push = logits(trained.model)
    pushing.pusher.push_now(60)
    for parameter in trained.model.parameters():  # training goes on while the upload runs
        parameter.data += 1.0
    pushing.close()
    assert pushing.lines == [f"pushed the model of round 60 to {stub.url}/tester/trial-w1"]
    assert stub.messages == ["Round 60"] and stub.uploaded_through_lfs == {"model.safetensors"}
    shown = stub.repositories["tester/trial-w1"]["README.md"].decode()
    assert "| rounds | 1, all before round 60 of the swarm |" in shown and "| mean reward, last 1 round | 0.500 |" in shown
    folder = Path(snapshot_download("tester/trial-w1", endpoint=stub.url, token=TOKEN, cache_dir=tmp_path / "cache"))
    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md", MARKER} <= files(folder)
    assert torch.equal(logits(loaded(folder)), at_the_push)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.encode("What is 1 + 1?") == trained.tokenizer.encode("What is 1 + 1?")


def test_a_node_pushes_only_with_a_token() -> None:
    node: Any = SimpleNamespace(config=load({"EXPERIMENT_NAME": "trial"}))
    assert make_pusher(node, policy()) is None


def test_later_pushes_go_to_the_same_repository_when_their_interval_has_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushing = Pushing(tmp_path, monkeypatch)
    for number in range(38, 59):  # as after a restart at round 37
        pushing.pusher.after_round(number)
        if number in (47, 57):
            pushing.wait(lambda number=number: DONE.format(number) in pushing.lines)
    pushing.pusher.push_now(57)  # the end of training, with nothing learnt since
    pushing.close()
    assert [each[1:3] for each in pushing.asked] == [["trial-w1", "Round 47"], ["tester/found", "Round 57"]]


HANGING = "import time; from rl_swarm.tools import push; push.upload = lambda *request: time.sleep(600); push.main()"


def test_a_hub_that_hangs_is_given_up_in_time_and_training_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "UPLOAD_SECONDS", 0.3)
    pushing = Pushing(tmp_path, monkeypatch, HANGING)
    began = time.monotonic()
    pushing.pusher.push_now(5)
    assert time.monotonic() - began < 1.0
    pushing.close()
    assert pushing.lines == [FAILED.format(5, "not done within 0.3 s: check the connection to the hub")]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks at processes as Linux shows them")
def test_the_upload_keeps_the_token_to_itself_and_is_not_ended_by_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hang").touch()
    pushing = Pushing(tmp_path, monkeypatch)
    pushing.pusher.push_now(5)
    pushing.wait(lambda: pushing.asked)
    assert pushing.asked[0][-1] == TOKEN
    assert pushing.pusher._upload
    process = pushing.pusher._upload.process
    for name in ("cmdline", "environ"):
        assert TOKEN.encode() not in Path(f"/proc/{process.pid}/{name}").read_bytes()
    assert os.getpgid(process.pid) != os.getpgid(0), "a terminal sends Ctrl-C to the node's group"
    pushing.close(0.0)
    assert process.returncode is not None


def test_the_end_of_a_node_waits_no_longer_than_it_was_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hang").touch()
    pushing = Pushing(tmp_path, monkeypatch)
    pushing.pusher.push_now(5)
    pushing.pusher.push_now(6)
    began = time.monotonic()
    pushing.close(0.2)
    assert time.monotonic() - began < 5.0
    assert pushing.lines == [
        FAILED.format(5, "not done when the node ended"),
        FAILED.format(6, "not begun when the node ended"),
    ]


def test_a_node_that_is_stopped_while_it_pushes_its_last_model_waits_less_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hang").touch()
    pushing = Pushing(tmp_path, monkeypatch)
    pushing.pusher.push_now(5)
    began = time.monotonic()
    pushing.pusher.close(lambda: 1800.0 if time.monotonic() - began < 0.3 else 0.5)
    assert time.monotonic() - began < 6.0
    assert pushing.lines == [FAILED.format(5, "not done when the node ended")]


def test_a_newer_push_takes_the_place_of_one_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hang").touch()
    pushing = Pushing(tmp_path, monkeypatch)
    for number in (5, 6, 7):
        pushing.pusher.push_now(number)
    assert sorted(path.name for path in pushing.folder.iterdir()) == ["round_000005", "round_000005.console", "round_000007"]
    (tmp_path / "hang").unlink()
    pushing.close()
    assert pushing.lines == [DONE.format(5), DONE.format(7)]


def test_what_failed_is_pushed_again_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fail").touch()
    pushing = Pushing(tmp_path, monkeypatch)
    pushing.pusher.push_now(5)
    pushing.wait(lambda: pushing.lines)
    (tmp_path / "fail").unlink()
    pushing.pusher.push_now(5)
    pushing.pusher.push_now(5)
    pushing.close()
    assert pushing.lines == [FAILED.format(5, "it is told to"), DONE.format(5)]


def test_an_export_that_cannot_be_written_is_reported_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "push").touch()
    pushing = Pushing(tmp_path, monkeypatch, trained=policy())
    (tmp_path / "push").touch()
    pushing.pusher.push_now(5)
    assert "the push of round 5 failed (the model cannot be written to " in pushing.lines[0]
    (tmp_path / "push").unlink()
    pushing.close()


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("raise SystemExit('the disk is gone')", "code 1: the disk is gone"),
        ("raise SystemExit('7')", "code 1: 7"),
        ("import os; os.kill(os.getpid(), 9)", "code -9: it said nothing"),
    ],
)
def test_an_upload_that_dies_is_reported(program: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushing = Pushing(tmp_path, monkeypatch, program)
    pushing.pusher.push_now(5)
    pushing.close()
    assert pushing.lines == [FAILED.format(5, f"the upload ended with {reason}")]


def test_an_upload_that_cannot_be_started_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushing = Pushing(tmp_path, monkeypatch)
    monkeypatch.setattr(push, "python", lambda *program: ["/no/such/program"])
    pushing.pusher.push_now(5)
    assert "failed (no process can be started for the upload: " in pushing.lines[0]
    pushing.close()


@pytest.mark.parametrize(
    ("experiment", "node_id", "expected"),
    [
        ("trial", "w1", r"trial-w1"),
        ("my.run_2", "worker-3f", r"my\.run_2-worker-3f"),
        ("-x-", "-y..z-", r"x-y\.z-[0-9a-f]{8}"),
        ("a" * 64, "b" * 64, r"a{64}-b{22}-[0-9a-f]{8}"),
        ("x", "y.git", r"x-y\.git-[0-9a-f]{8}"),
        ("---", "-", r"run-[0-9a-f]{8}"),
    ],
)
def test_repositories_have_names_that_the_hub_accepts(experiment: str, node_id: str, expected: str) -> None:
    name = repository_name(experiment, node_id)
    assert re.fullmatch(expected, name)
    validate_repo_id(f"tester/{name}")
    assert repository_name(experiment, node_id + "x") != name
    assert os.sep not in name
