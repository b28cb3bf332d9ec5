"""Any model loads by its MODEL_NAME or is refused with one clear line, and nothing is chosen that this machine cannot do."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from rl_swarm import config as configuration
from rl_swarm.errors import ConfigError, ModelError
from rl_swarm.extras import install_command
from rl_swarm.learning.models import choose_device, choose_dtype, choose_model, hardware, load, loading
from rl_swarm.learning.models.loading import locate
from rl_swarm.learning.policy import Policy
from rl_swarm.node.learner import load_policy
from rl_swarm.processes import threads
from rl_swarm.rollout import Question
from rl_swarm.swarm.experiment import public_model
from tests.support import tiny_models
from tests.support.clocks import VirtualClock
from tests.support.hub_stub import TOKEN, point_at
from tests.support.hub_stub import hub as stub_hub

torch.set_num_threads(1)


@pytest.fixture
def gpt2_folder(tmp_path: Path) -> Path:
    """Like GPT-2's: no pad token, no chat template, transposed weights, dropout."""
    return save(tmp_path / "gpt2", tiny_models.gpt2(300), tiny_models.plain_tokenizer())


@pytest.fixture
def llama_folder(tmp_path: Path) -> Path:
    return save(tmp_path / "llama", tiny_models.llama(320), tiny_models.chat_tokenizer())


def save(folder: Path, model: Any, tokenizer: PreTrainedTokenizerFast) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def refusal(name: str | Path, **options: Any) -> str:
    with pytest.raises(ModelError) as caught:
        load(str(name), cpu_only=True, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


# Folders


def test_a_tokenizer_without_pad_token_gets_one_and_the_model_keeps_its_size(gpt2_folder: Path) -> None:
    loaded = load(str(gpt2_folder), cpu_only=True)
    assert loaded.tokenizer.pad_token_id == loaded.tokenizer.eos_token_id is not None
    assert loaded.tokenizer.chat_template is None
    assert loaded.model.get_input_embeddings().num_embeddings == 300
    assert (loaded.name, loaded.model.dtype, loaded.model.training) == (str(gpt2_folder), torch.float32, False)
    assert loaded.model.config._attn_implementation == "sdpa"
    answers = Policy(loaded.model, loaded.tokenizer, max_new_tokens=4).answer([Question("What is 1 + 1?")], 2, seed=0)
    assert len(next(answers)) == 2


def test_a_chat_model_keeps_its_pad_token_and_template(llama_folder: Path) -> None:
    loaded = load(str(llama_folder), cpu_only=True)
    assert loaded.tokenizer.pad_token == "<|pad|>"
    assert loaded.tokenizer.chat_template == tiny_models.CHAT_TEMPLATE


def test_weights_arrive_as_they_were_saved(llama_folder: Path) -> None:
    expected = tiny_models.llama(320).state_dict()
    found = load(str(llama_folder), cpu_only=True).model.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_folders_that_hold_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    assert "no config.json in" in refusal(tmp_path)
    for name in ("/no/such/folder", "./missing", "~/missing-model", "a/b/c", "file"):
        assert f"{name!r} is not a folder" in refusal(name)


def test_a_folder_here_with_the_name_of_a_model_on_the_hub_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may have put it there, where the folder in which a node is started is shared."""
    name = "Qwen/Qwen3-0.6B"
    save(tmp_path / name, tiny_models.gpt2(300), tiny_models.plain_tokenizer())
    monkeypatch.chdir(tmp_path)
    for refuse in (locate, public_model):
        with pytest.raises(
            ConfigError, match=f"of that name here, got '{name}': write ./{name} for the folder, or start elsewhere"
        ):
            refuse(name)
    assert locate(f"./{name}") == name and public_model(f"./{name}") == "./Qwen3-0.6B"


def test_a_checkpoint_that_lacks_weights_is_refused(llama_folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(llama_folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, llama_folder / "model.safetensors", metadata={"format": "pt"})
    assert "lacks 1 of its weights (model.layers.1.mlp.up_proj.weight" in refusal(llama_folder)


def test_damaged_or_pickled_weights_are_refused(llama_folder: Path) -> None:
    weights = llama_folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert f"cannot load {llama_folder}: SafetensorError" in refusal(llama_folder)
    weights.unlink()
    torch.save(tiny_models.llama(320).state_dict(), llama_folder / "pytorch_model.bin")
    assert "safetensors" in refusal(llama_folder)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "mixed", tiny_models.llama(200), tiny_models.chat_tokenizer())
    assert "tokens, its model 200" in refusal(folder)


def test_a_tokenizer_that_cannot_end_is_refused(tmp_path: Path) -> None:
    endless = PreTrainedTokenizerFast(tokenizer_object=tiny_models.byte_level([], 300))
    assert "no end-of-sequence token" in refusal(save(tmp_path / "endless", tiny_models.gpt2(300), endless))


TEMPLATES = {
    "it raises": "{{ raise_exception('no') }}",
    "undefined names": "{{ nobody.knows.this }}",
    "no syntax": "{% for %}",
    "it divides by zero": "{{ 1 // 0 }}",
    "it calls what is no function": "{{ messages(1) }}",
    "it asks for a file": "{% include '/etc/passwd' %}",
    "it looks around": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "more than a sandbox allows": "{% for i in range(10**9) %}x{% endfor %}",
    "nothing": "",
    "very long": "{{ 'x' * 10000000 }}",
    "only the question is too much": "{% if messages[-1]['role'] == 'user' %}{{ raise_exception('no') }}{% endif %}hello",
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_template_that_cannot_be_used_is_one_line_at_the_start(template: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "llama", tiny_models.llama(320), tiny_models.chat_tokenizer(TEMPLATES[template]))
    config = configuration.load({"MODEL_NAME": str(folder), "CPU_ONLY": "1"})
    with pytest.raises(ModelError, match=r"the chat template of the model's tokenizer .* choose another MODEL_NAME") as refused:
        load_policy(config)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", ["42", "true", '{"a": 1}', '[{"name": "other", "template": "x"}]', '["x"]'])
def test_a_chat_template_that_is_no_text_is_one_line_at_the_start(content: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "llama", tiny_models.llama(320), tiny_models.chat_tokenizer())
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": json.loads(content)}))
    config = configuration.load({"MODEL_NAME": str(folder), "CPU_ONLY": "1"})
    with pytest.raises(ModelError) as refused:
        load_policy(config)
    assert "\n" not in str(refused.value)


def test_a_missing_embedded_model_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "resolve_nano_folder", lambda: tmp_path / "gone")
    assert "install rl-swarm again" in refusal("nano")


# The hub


class _Hub(BaseHTTPRequestHandler):
    """Refuses as the hub does: the reason is in a header."""

    def do_HEAD(self) -> None:
        reason = next((reason for owner, reason in REASONS.items() if self.path.startswith(f"/{owner}/")), None)
        self.send_response({"GatedRepo": 403, "RepoNotFound": 404, "EntryNotFound": 404}.get(reason or "", 500))
        if reason:
            self.send_header("X-Error-Code", reason)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


REASONS = {"gated": "GatedRepo", "unknown": "RepoNotFound", "bare": "EntryNotFound"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    point_at(address, monkeypatch)
    yield address
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "gated/model",
            "is gated: accept its terms at https://huggingface.co/gated/model and set HF_TOKEN",
        ),
        ("unknown/model", "no model 'unknown/model' on the hub, or it is private"),
        ("bare/model", "bare/model has no config.json on the hub"),
        ("broken/model", "cannot reach the Hugging Face hub for broken/model (HfHubHTTPError"),
    ],
)
def test_what_the_hub_refuses(hub: str, name: str, line: str) -> None:
    assert line in refusal(name, token="hf_secret")


def test_a_hub_that_is_away_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    point_at("http://127.0.0.1:9", monkeypatch)
    began = time.monotonic()
    text = refusal("Gensyn/Qwen2.5-0.5B-Instruct")
    assert "cannot reach the Hugging Face hub" in text
    assert "set MODEL_NAME to nano or a folder" in text
    assert time.monotonic() - began < 5


def test_a_name_that_is_no_hub_id() -> None:
    assert "neither nano, auto, a folder nor a valid Hugging Face id" in refusal("two words")


# LoRA


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_lora_trains_adapters_alone(architecture: str, request: pytest.FixtureRequest) -> None:
    folder = str(request.getfixturevalue(f"{architecture}_folder"))
    plain, adapted = load(folder, cpu_only=True).model, load(folder, cpu_only=True, lora_rank=4).model
    trained = {name: value for name, value in adapted.named_parameters() if value.requires_grad}
    assert trained
    assert all("lora_" in name and 4 in value.shape for name, value in trained.items())
    ids = torch.arange(12).view(2, 6)
    assert torch.equal(adapted(ids).logits, plain(ids).logits), "adapters start as nothing"
    adapted(ids, labels=ids).loss.backward()
    assert all(value.grad.abs().sum() > 0 for name, value in trained.items() if "lora_B" in name)
    torch.rand(1)  # whatever the global generator does in between
    again = load(folder, cpu_only=True, lora_rank=4).model
    assert all(torch.equal(again.get_parameter(name), value) for name, value in trained.items()), "and start the same"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_weights_are_mapped_not_copied_so_that_nodes_of_a_machine_share_what_none_of_them_changes(llama_folder: Path) -> None:
    model = load(str(llama_folder), cpu_only=True, lora_rank=4).model
    mapped = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if str(llama_folder) in line]
    spans = [(int(first, 16), int(end, 16)) for first, end in mapped]
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    assert frozen
    assert all(any(first <= parameter.data_ptr() < end for first, end in spans) for parameter in frozen)


def test_lora_without_peft_says_what_to_install(llama_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    assert install_command("lora") in refusal(llama_folder, lora_rank=4)


# Hardware


def test_the_processor_is_taken_if_asked_for() -> None:
    assert choose_device(cpu_only=True) == "cpu"
    assert choose_dtype("cpu") == choose_dtype("cpu", "float32") == torch.float32


@pytest.mark.parametrize(
    ("program", "failure"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "a trial run was killed by SIGILL"),
        ("raise SystemExit('no such format')", "no such format"),
        ("raise SystemExit(3)", "exit code 3"),
        ("pass", None),
    ],
)
def test_a_number_format_that_kills_a_process_is_refused(
    program: str, failure: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "_PROBE", program)
    monkeypatch.setattr(hardware, "probe_dtype", hardware.probe_dtype.__wrapped__)  # without its cache
    assert hardware.probe_dtype("bfloat16") == failure
    if failure is None:
        assert choose_dtype("cpu", "bfloat16") == torch.bfloat16
    else:
        with pytest.raises(ModelError, match=rf"DTYPE=bfloat16 does not work on this CPU \({failure}\): use float32"):
            choose_dtype("cpu", "bfloat16")


def test_the_probe_computes_with_the_format_it_is_asked_for() -> None:
    exec(hardware._PROBE.format(dtype="float32"), {})
    with pytest.raises(AttributeError, match="no_such_format"):
        exec(hardware._PROBE.format(dtype="no_such_format"), {})


def test_formats_that_cannot_train_are_refused(llama_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "probe_dtype", lambda dtype: None)
    assert "set LORA_RANK" in refusal(llama_folder, dtype="float16")


def test_auto_takes_a_model_by_memory_and_seed() -> None:
    assert {choose_model(39.9, seed) for seed in range(40)} == set(hardware.SMALL_POOL)
    assert {choose_model(40.0, seed) for seed in range(40)} == set(hardware.LARGE_POOL)
    assert [choose_model(0, seed) for seed in range(9)] == [choose_model(0, seed) for seed in range(9)]


def test_naming_models_imports_no_torch() -> None:
    code = "import sys, rl_swarm.tasks.styles; assert not {'torch', 'transformers', 'peft'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("given", "saved", "cores", "used", "says"),
    [
        (None, 2, 4, 2, False),  # the same again, though this process would have chosen another number
        (None, 8, 4, 1, True),  # made on a larger machine
        ("1", 2, 4, 1, True),  # the user's own number wins
        ("1", 1, 4, 1, False),
    ],
)
def test_a_checkpoint_is_resumed_with_its_number_of_threads_or_the_change_is_announced(
    monkeypatch: pytest.MonkeyPatch, given: str | None, saved: int, cores: int, used: int, says: bool
) -> None:
    for variable in threads.VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    monkeypatch.setattr(threads, "cores", lambda: cores)
    said: list[str] = []
    try:
        hardware.resume_threads(saved, said.append)
        assert torch.get_num_threads() == used
    finally:
        torch.set_num_threads(1)
    assert said == ([f"threads: 1, until this checkpoint {saved}: sums may differ in their last bits"] if says else [])


def test_threads_follow_the_workers_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in threads.VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(threads, "cores", lambda: 4)
    clock, running, said = VirtualClock(), [1], list[str]()
    cores = hardware.SharedCores(lambda: running[0], clock, said.append)

    def after(workers: int, seconds: float) -> tuple[bool, int]:
        running[0] = workers
        clock.sleep(seconds)
        return cores.changed(), torch.get_num_threads()

    try:
        cores.begin()
        assert torch.get_num_threads() == 4
        assert after(2, 1) == (True, 2), "fewer at once"
        assert after(2, 1) == (False, 2)
        assert after(1, 1) == (False, 2), "the other one may restart"
        assert after(2, hardware.EMPTIER_SECONDS) == (False, 2), "and does"
        assert after(1, 1) == (False, 2)
        assert after(1, hardware.EMPTIER_SECONDS) == (True, 4)
        assert said == [
            "threads: 2 instead of 4; workers on the 4 cores of this machine: 2",
            "threads: 4 instead of 2; workers on the 4 cores of this machine: 1",
        ]
        monkeypatch.setenv("OMP_NUM_THREADS", "4")
        assert after(4, 1) == (False, 4), "the user's own number wins"
    finally:
        torch.set_num_threads(1)


def test_hf_token_serves_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    with stub_hub() as stub:
        stub.repositories["tester/model"] = {"config.json": b"{}"}
        point_at(stub.url, monkeypatch)
        monkeypatch.setenv("HF_TOKEN", "hf_wrong")
        with pytest.raises(ModelError):
            locate("tester/model")
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        assert locate("tester/model") == "tester/model"
