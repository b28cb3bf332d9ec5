"""The estimate counts what a model really has, follows how batches are cut, and lies within a factor of two of what is measured."""

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from rich.console import Console
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen3Config

from rl_swarm.config import VARIABLES, load
from rl_swarm.errors import ModelError
from rl_swarm.learning.engine.architecture import packed_decoder
from rl_swarm.learning.engine.attention import HostedDecoder
from rl_swarm.learning.engine.forward import LOGIT_VALUES, PackedReader, Passage
from rl_swarm.learning.models import load as load_model
from rl_swarm.learning.policy import BATCH_TOKENS
from rl_swarm.learning.trainer import ACTIVATION_BYTES
from rl_swarm.tools import memory
from rl_swarm.tools.memory import Device, Fit, Parts, Shape, assumed_gpu, peak
from rl_swarm.tools.presets import GPU_PRESETS
from tests.support import tiny_models

ROOT = Path(__file__).parents[2]
CPU = Device("cpu", "2 cores", 8 * 10**9, 4 * 10**9)
GPU = assumed_gpu(80)
QWEN = Qwen2Config(
    vocab_size=151936,
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)
WORK = {"NUM_TRAIN_SAMPLES": "4", "NUM_TRANSPLANT_TREES": "4", "NUM_GENERATIONS": "8", "MAX_NEW_TOKENS": "10", "EVAL_INTERVAL": "0"}


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The configs of GPT-2 and Qwen2.5-0.5B, without their weights: all that an estimate may read."""
    found = {}
    for name, config in {"openai-community/gpt2": GPT2Config(), "Gensyn/Qwen2.5-0.5B-Instruct": QWEN}.items():
        folder = tmp_path_factory.mktemp("config")
        config.save_pretrained(folder)
        found[name] = str(folder)
    return found


def shape_of(model: str, device: Device = CPU, **settings: str) -> Shape:
    return memory.shape_of(load({"MODEL_NAME": model, **settings}), device)


def shape(**changes: Any) -> Shape:
    """A model of round numbers: 2 layers, 320 values of activations a layer."""
    usual = Shape("m", "float32", 4, 1000, 4000, 4000, 2, 10, 20, 1, 2560, 100, None, False, False)
    return replace(usual, **changes)


def estimate(of: Shape, kind: str = "cpu", smallest: bool = False, **settings: str) -> dict[str, int]:
    """The parts by name, of prompts of 30 tokens."""
    parts = memory.estimate(of, load(WORK | settings), 30, kind, smallest=smallest)
    return {name: size for found in parts.values() for name, size in found.items()}


# Counting


def test_parameters_are_counted_from_the_config_alone(configs: dict[str, str]) -> None:
    gpt2 = shape_of(configs["openai-community/gpt2"])
    assert (gpt2.parameters, gpt2.weight_bytes, gpt2.checkpoint_bytes) == (124_439_808, 4 * 124_439_808, 12 * 124_439_808)
    assert (gpt2.layers, gpt2.hidden, gpt2.cached, gpt2.sharing) == (12, 768, 1536, 1)
    qwen = shape_of(configs["Gensyn/Qwen2.5-0.5B-Instruct"], GPU)
    assert (qwen.parameters, qwen.weight_bytes, qwen.dtype) == (494_032_768, 4 * 494_032_768, "float32")
    assert (qwen.layers, qwen.hidden, qwen.cached, qwen.sharing) == (24, 896, 256, 7)


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("architecture", ["nano", "gpt2"])
def test_the_count_is_that_of_the_loaded_model(architecture: str, rank: int, tmp_path: Path) -> None:
    name = "nano"
    if architecture == "gpt2":
        name = str(tmp_path)
        tiny_models.gpt2(300).save_pretrained(name)
        tiny_models.plain_tokenizer().save_pretrained(name)
    model = load_model(name, cpu_only=True, lora_rank=rank).model
    found = shape_of(name, LORA_RANK=str(rank))
    assert found.weight_bytes == sum(parameter.nbytes for parameter in model.parameters())
    assert found.trainable_bytes == sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)


def test_adapters_are_trained_in_full_precision(configs: dict[str, str]) -> None:
    found = shape_of(configs["openai-community/gpt2"], GPU, LORA_RANK="16")
    adapters = 12 * 16 * (768 + 2304 + 768 + 768 + 768 + 3072 + 3072 + 768)
    assert (found.trainable_bytes, found.weight_bytes) == (4 * adapters, 2 * 124_439_808 + 4 * adapters)
    assert shape_of(configs["openai-community/gpt2"], GPU, LORA_RANK="16", DTYPE="float32").dtype == "float32"


def test_what_cannot_be_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no such model"}')
    with pytest.raises(ModelError, match=r"the config of .* cannot be read \(.*\): MODEL_NAME wants a causal language model"):
        shape_of(str(tmp_path))
    address = "http://127.0.0.1:9"
    monkeypatch.setattr(
        huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
    )
    with pytest.raises(ModelError, match="cannot reach the Hugging Face hub for openai-community/gpt2"):
        shape_of("openai-community/gpt2")


# Parts


def test_each_part_by_hand() -> None:
    found = estimate(shape())
    assert (found["weights"], found["Adam's averages"]) == (4000, 8000)
    cached = 4 * (30 + 8 * 10 * 1.75)
    assert found["key-value cache"] == cached * 2 * 20 * 4, "4 prompts and 32 rows in two layers, three quarters of the rows twice"
    assert found["reading and sampling"] == max(4 * 30 * 2560 // 4, 32 * 100 * 58)
    tokens, attended = 8 * 30 + 64 * 10, 64 * 40 * (20 + 10)
    assert found["activations"] == tokens * 2560 + 2 * attended * 4, "the batch with each prompt once"
    assert found["logits"] == 12 * 640 * 100, "at the tokens of completions only"
    assert found["gradients"] == 4000 + tokens * 1280 + 3 * tokens * 10 * 4, "of the weights, one layer, the embeddings"
    assert found["checkpoint being restored"] == 5 * 4000


def test_the_peak_is_the_largest_phase_and_not_the_sum() -> None:
    parts: Parts = {"always": {"a": 1, "b": 2}, "answering": {"c": 10, "d": 20}, "training": {"e": 25}}
    assert peak(parts) == ("answering", 33)


def test_more_rollouts_than_a_part_holds_cost_their_embeddings() -> None:
    kept = 100 * (8000 + 4000 + 20_000) * 4
    wide = shape(layers=100, hidden=1000, token_bytes=kept, sharing=100)
    assert ACTIVATION_BYTES["cpu"] // kept == 70
    few, many = (estimate(wide, NUM_TRANSPLANT_TREES=count) for count in ("8", "800"))
    assert few["activations"] == many["activations"] == 70 * kept + 4 * 40 * (20 + 10 * 100) * 100 * 4, "4 completions"
    assert few["logits"] == many["logits"] == 12 * 40 * 100
    assert many["gradients"] - few["gradients"] == 792 * (30 + 8 * 10) * 1000 * 3 * 4


def test_an_evaluation_fills_the_batch_as_far_as_the_policy_lets_it() -> None:
    without, some = (estimate(shape(), EVAL_INTERVAL=rounds)["key-value cache"] for rounds in ("0", "20"))
    row = (30 + 10 * 1.75) * 2 * 20 * 4
    assert without < some == 400 * row
    long = memory.estimate(shape(), load(WORK | {"EVAL_INTERVAL": "20"}), 990, "cpu")
    assert long["answering"]["key-value cache"] == int(BATCH_TOKENS // 1000 * (990 + 10 * 1.75)) * 2 * 20 * 4


def test_a_large_vocabulary_is_bounded_by_the_chunk() -> None:
    found = estimate(shape(vocabulary=1_000_000))
    assert found["logits"] == 12 * (LOGIT_VALUES // 1_000_000) * 1_000_000
    assert found["gradients"] == 4000 + (2 * 10 * 1_000_000 + (8 * 30 + 64 * 10) * 10 * 3) * 4, "the head's, and a chunk's"


def test_the_smallest_batches_are_a_question_and_a_completion() -> None:
    found = estimate(shape(), "cuda", smallest=True, EVAL_INTERVAL="20")
    assert found["key-value cache"] == (30 + 80 * 1.75) * 2 * 20 * 4
    assert found["activations"] == 40 * 2560 + 2 * 40 * (20 + 10) * 4


def test_prompts_are_no_longer_than_the_context_allows(configs: dict[str, str]) -> None:
    model = {"MODEL_NAME": configs["openai-community/gpt2"], "MAX_NEW_TOKENS": "1000"}  # of 1024
    usual, short, long = (memory.assess(load(model), 1, GPU, tokens) for tokens in (None, 24, 10_000))
    assert usual == short == long
    easy, paper = (memory.assess(load({"MODEL_NAME": "nano", "TASKS": tasks}), 1, GPU).peak_bytes for tasks in ("easy", "paper"))
    assert easy < paper, "easy questions are short"


# Findings


def fit(workers: int, free_gb: float, kind: str = "cuda", **changes: Any) -> Fit:
    """1 GB of weights and 4 GB with what is trained, 2 GB more with activations."""
    sizes = {"weight_bytes": 10**9, "trainable_bytes": 10**9, "layers": 10, "hidden": 4000, "token_bytes": 10 * 128_000 * 4}
    device = Device(kind, "Card 1", 80 * 10**9, int(free_gb * 1e9))
    model = shape(**sizes | changes)
    usual, least = (memory.estimate(model, load(WORK), 30, kind, smallest=smallest) for smallest in (False, True))
    return Fit(model, device, workers, usual, *peak(usual), peak(least)[1])


def test_what_fits_what_fits_in_smaller_batches_and_what_does_not() -> None:
    each, least = fit(1, 0).peak_bytes / 1e9, fit(1, 0).least_bytes / 1e9
    assert least < 0.8 * each
    fits, squeezed, refused = (fit(3, free).finding for free in (3 * each + 0.1, 3 * least + 0.1, 3 * least - 0.1))
    assert (fits.status, squeezed.status, refused.status) == ("ok", "warning", "failed")
    assert f"m (float32) needs about {each:.1f} GB a worker, {3 * each:.1f} GB in all; " in fits.detail
    assert "workers will use smaller batches" in squeezed.detail
    assert f"{least:.1f} GB a worker in the smallest batches" in refused.detail
    remedy = "--workers 2, EVAL_INTERVAL=0, LORA_RANK=16, a lower MAX_NEW_TOKENS or a smaller MODEL_NAME"
    assert f"are free on Card 1: use {remedy}" in refused.detail


def test_one_worker_that_does_not_fit_is_not_told_to_be_fewer() -> None:
    refused = fit(1, 1.0, lora=True).finding
    assert refused.status == "failed"
    assert "--workers" not in refused.detail and "LORA_RANK" not in refused.detail


def test_the_memory_of_a_cpu_is_no_reason_to_refuse() -> None:
    found = fit(3, 1.0, kind="cpu").finding
    assert found.status == "warning"
    assert "and only 1.0 GB are free on Card 1" in found.detail


def test_the_real_device_and_the_memory_of_this_machine() -> None:
    total, free = memory.host_memory()
    assert 0 < free <= total
    device = memory.this_device(cpu_only=True)
    assert (device.kind, device.total_bytes) == ("cpu", total)


def test_the_table_and_the_document_say_the_same(configs: dict[str, str]) -> None:
    found = memory.assess(load({"MODEL_NAME": configs["openai-community/gpt2"]}), 4, GPU)
    console = Console(width=200, file=io.StringIO())
    console.print(found.table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "124.4 M parameters in float32, a GPU of 80 GB" in text
    document = json.loads(json.dumps(found.as_dict()))
    assert document["total_bytes"] == 4 * document["peak_bytes"]
    assert memory.gb(document["total_bytes"]) in text
    assert document["finding"]["status"] == "ok"


# Presets


def test_presets_are_settings_and_fit_on_a_gpu_of_80_gb(configs: dict[str, str]) -> None:
    document = (ROOT / "docs/operating.md").read_text()
    for name, (workers, settings) in GPU_PRESETS.items():
        assert settings.keys() <= VARIABLES
        found = memory.assess(load(settings | {"MODEL_NAME": configs[settings["MODEL_NAME"]]}), workers, GPU)
        assert found.finding.status == "ok", found.finding.detail
        each = found.peak_bytes
        row = f"| `{name}` | {workers} | {memory.gb(each)} | {memory.gb(workers * each)} |"
        assert row in document, f"docs/operating.md lacks {row}"


def test_the_documented_needs_of_one_worker(configs: dict[str, str]) -> None:
    document = (ROOT / "docs/operating.md").read_text()
    ways = ({"DTYPE": "float32"}, {"DTYPE": "bfloat16"}, {"DTYPE": "bfloat16", "LORA_RANK": "16"})
    for title, model in {"GPT-2 (124 M)": "openai-community/gpt2", "Qwen2.5-0.5B": "Gensyn/Qwen2.5-0.5B-Instruct"}.items():
        (row,) = [line for line in document.splitlines() if line.startswith(f"| {title} |")]
        for way, cell in zip(ways, row.split("|")[2:5], strict=True):
            found = memory.assess(load({"MODEL_NAME": configs[model], **way}), 1, GPU)
            assert cell.strip().startswith(memory.gb(found.peak_bytes)), f"{title} {way}: {memory.gb(found.peak_bytes)}"


# Against reality


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4),
        Qwen2Config(hidden_size=64, intermediate_size=348, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1),
        Qwen3Config(
            hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32
        ),
        GPT2Config(n_embd=64, n_layer=2, n_head=4),
    ],
    ids=lambda config: config.model_type,
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_activations_are_what_autograd_keeps(config: Any, dtype: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    config.vocab_size, config.bos_token_id, config.eos_token_id = 100, None, None
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    config.save_pretrained(tmp_path)
    settings = {"NUM_TRAIN_SAMPLES": "2", "NUM_GENERATIONS": "4", "MAX_NEW_TOKENS": "24"}
    found = memory.estimate(shape_of(str(tmp_path), GPU, DTYPE=dtype), load(settings), 48, "cpu")
    passages = [Passage((question,) * 48, (0,) * 24) for question in range(2) for _ in range(4)]
    shares = []
    for decoder in (HostedDecoder(model.base_model), packed_decoder(model, 0)):  # as transformers computes, and as workers do
        kept.clear()
        assert decoder is not None
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            rows, reading = next(parts := PackedReader(model, 1.0, decoder).parts(passages, token_budget=1000))
        assert len(rows) == 8 and reading.logprobs_BT.requires_grad
        shares.append(found["training"]["activations"] / sum(kept.values()))
        parts.close()  # type: ignore[attr-defined]
    assert 1 <= shares[0] < 1.35
    assert shares[1] >= 1


MEASURE = """
import gc, json, sys
from dataclasses import replace
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from rl_swarm.learning.models import load
from rl_swarm.learning.policy import Policy
from rl_swarm.rollout import Question, Rollout
from rl_swarm.tasks import Tasks, parse_tasks
from rl_swarm.learning.trainer import Trainer

torch.set_num_threads(1)
own, group, new_tokens = 2, 2, 32
questions = [Question(f"What is {number} + {number}?") for number in range(own)]
Tasks(parse_tasks("easy"), seed=0, node_id="m").draw(8)

def resident(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name))

def measure(name):
    loaded = load(name, cpu_only=True)
    policy = Policy(loaded.model, loaded.tokenizer, max_new_tokens=new_tokens)
    trainer = Trainer(policy, learning_rate=1e-5)
    for round in range(2):  # in the second, Adam's averages are there while the gradient is made
        answers = policy.answer(questions, group, round)
        scored = [tuple(replace(done, reward=float(row)) for row, done in enumerate(each)) for each in answers]
        learnt = trainer.update([Rollout(question, each, "m", round) for question, each in zip(questions, scored)])
        assert learnt["informative"] == own, learnt
    return max(len(policy.prompt_ids(question.prompt)) for question in questions)

found = []
for name in sys.argv[1:]:
    gc.collect()
    before = resident("VmRSS")
    prompt_tokens = measure(name)
    found.append([before, resident("VmHWM"), prompt_tokens])
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's account of memory")
def test_the_estimate_lies_within_a_factor_of_two_of_a_real_worker(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=16384,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    llama = tiny_models.seeded(LlamaForCausalLM, config, 0)
    assert 20e6 < sum(parameter.numel() for parameter in llama.parameters()) < 21e6
    llama.save_pretrained(tmp_path)
    tiny_models.chat_tokenizer().save_pretrained(tmp_path)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", MEASURE, "nano", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    (_, nano_peak, nano_prompt), (before, highest, prompt) = json.loads(done.stdout.splitlines()[-1])

    nano, ours = at_work("nano", nano_prompt), at_work(str(tmp_path), prompt)
    grown, taken = peak(ours)[1] - ours["always"]["framework"], highest - before
    print(f"nano: {peak(nano)[1] / 1e6:.0f} MB estimated, {nano_peak / 1e6:.0f} measured")
    print(f"20 M Llama: {grown / 1e6:.0f} MB estimated, {taken / 1e6:.0f} measured")
    assert 0.5 < peak(nano)[1] / nano_peak < 2
    assert 0.5 < grown / taken < 2


def at_work(name: str, prompt_tokens: int) -> Parts:
    """What was measured: no checkpoint was restored."""
    settings = {"NUM_TRAIN_SAMPLES": "2", "NUM_GENERATIONS": "2", "MAX_NEW_TOKENS": "32", "EVAL_INTERVAL": "0"}
    parts = memory.assess(load(settings | {"MODEL_NAME": name}), 1, CPU, prompt_tokens).parts
    return {phase: parts[phase] for phase in ("always", "answering", "training")}


# Before a start


def start(settings: dict[str, str], folder: Path) -> list[str]:
    """What `rl-swarm swarm` does before it starts 2 workers."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GDRIVE_PATH": str(folder), "EXPERIMENT_NAME": "e"} | settings
    return memory.refuse_if_too_large(environment, load(environment), 2)


def test_workers_are_refused_before_they_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model"
    tiny_models.gpt2(300).save_pretrained(model)
    assert start({"MODEL_NAME": "nano"}, tmp_path) == []
    assert start({"MODEL_NAME": str(model), "CPU_ONLY": "1"}, tmp_path) == []
    failed = {"finding": {"check": "memory", "status": "failed", "detail": "too large"}}
    for program, says in (
        ("import sys; print('rl-swarm: no config.json', file=sys.stderr)", "^no config.json"),
        ("raise SystemExit(3)", r"memory cannot be estimated \(exit code 3\): 'rl-swarm doctor' says what is broken"),
        (f"import json; print(json.dumps({failed}))", "^too large"),
    ):
        monkeypatch.setattr(memory, "python", lambda *_, program=program: [sys.executable, "-c", program])
        with pytest.raises(ModelError, match=says):
            start({"MODEL_NAME": str(model)}, tmp_path)
    monkeypatch.setattr(memory, "python", lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(memory, "APART_SECONDS", 0.2)
    assert start({"MODEL_NAME": str(model)}, tmp_path) == ["memory was not estimated within 0 s: the device may be busy"]


def test_importing_it_imports_no_torch() -> None:
    code = "import rl_swarm.tools.memory, sys; assert not {'torch', 'transformers', 'reasoning_gym'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=ROOT)
