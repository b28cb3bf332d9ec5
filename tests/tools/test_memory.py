"""The estimate counts what a model really has, follows how batches are cut, and lies within a factor of two of what is measured."""

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from rich.console import Console
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen3Config

from rl_swarm.config import VARIABLES, Config, load
from rl_swarm.errors import ConfigError, ModelError
from rl_swarm.learning.engine.architecture import packed_decoder
from rl_swarm.learning.engine.attention import HostedDecoder
from rl_swarm.learning.engine.forward import LOGIT_VALUES, PackedReader, Passage
from rl_swarm.learning.models import load as load_model
from rl_swarm.learning.policy import BATCH_TOKENS
from rl_swarm.learning.trainer import ACTIVATION_BYTES
from rl_swarm.tools import memory
from rl_swarm.tools.memory import Device, Report, Shape, Workload
from tests.support import tiny_models

ROOT = Path(__file__).parents[2]
CPU = Device("cpu", "2 cores", 8 * 10**9, 4 * 10**9)
QWEN = Qwen2Config(
    vocab_size=151936,
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The configs of GPT-2 and Qwen2.5-0.5B, without their weights: all that an estimate may read."""
    found = {}
    for name, config in {"openai-community/gpt2": GPT2Config(), "Gensyn/Qwen2.5-0.5B-Instruct": QWEN}.items():
        folder = tmp_path_factory.mktemp("config")
        config.save_pretrained(folder)
        found[name] = str(folder)
    return found


def shape(**changes: Any) -> Shape:
    """A model of round numbers."""
    usual = Shape("m", "float32", 4, 1000, 4000, 4000, 2, 10, 10, 40, 20, 100, None, False, 1, False, True)
    return replace(usual, **changes)


def work(**changes: Any) -> Workload:
    usual = Workload(own_count=4, external_count=4, group_size=8, new_tokens=10, prompt_tokens=30, held_out=0, sorts=False)
    return replace(usual, **changes)


def part(estimate: memory.Estimate, name: str) -> int:
    return next(each.bytes for each in estimate.parts if each.name == name)


# Counting


def test_parameters_are_counted_from_the_config_alone(configs: dict[str, str]) -> None:
    gpt2 = memory.shape_of(configs["openai-community/gpt2"], CPU)
    assert (gpt2.parameters, gpt2.weight_bytes, gpt2.checkpoint_bytes) == (124_439_808, 4 * 124_439_808, 12 * 124_439_808)
    assert (gpt2.layers, gpt2.hidden, gpt2.attention, gpt2.intermediate, gpt2.cached) == (12, 768, 768, 3072, 1536)
    qwen = memory.shape_of(configs["Gensyn/Qwen2.5-0.5B-Instruct"], memory.assumed_gpu(80))
    assert (qwen.parameters, qwen.weight_bytes, qwen.dtype) == (494_032_768, 4 * 494_032_768, "float32")
    assert (qwen.layers, qwen.attention, qwen.intermediate, qwen.cached) == (24, 896, 4864, 256)


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("architecture", ["nano", "gpt2"])
def test_the_count_is_that_of_the_loaded_model(architecture: str, rank: int, tmp_path: Path) -> None:
    name = "nano"
    if architecture == "gpt2":
        name = str(tmp_path)
        tiny_models.gpt2(300).save_pretrained(name)
        tiny_models.plain_tokenizer().save_pretrained(name)
    model = load_model(name, cpu_only=True, lora_rank=rank).model
    found = memory.shape_of(name, CPU, lora_rank=rank)
    assert found.weight_bytes == sum(parameter.nbytes for parameter in model.parameters())
    assert found.trainable_bytes == sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)


def test_adapters_are_trained_in_full_precision(configs: dict[str, str]) -> None:
    found = memory.shape_of(configs["openai-community/gpt2"], memory.assumed_gpu(80), lora_rank=16)
    adapters = 12 * 16 * (768 + 2304 + 768 + 768 + 768 + 3072 + 3072 + 768)
    assert (found.trainable_bytes, found.weight_bytes) == (4 * adapters, 2 * 124_439_808 + 4 * adapters)


def test_what_cannot_be_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no such model"}')
    with pytest.raises(ModelError, match=r"the config of .* cannot be read \(.*\): MODEL_NAME wants a causal language model"):
        memory.shape_of(str(tmp_path), CPU)
    address = "http://127.0.0.1:9"
    monkeypatch.setattr(
        huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
    )
    away = memory.check("openai-community/gpt2", 1, load({}), CPU)
    assert away.status == "failed"
    assert "cannot reach the Hugging Face hub for openai-community/gpt2" in away.detail


# Parts


def test_each_part_by_hand() -> None:
    found = memory.estimate(shape(), work(), "cpu")
    assert part(found, "weights") == part(found, "gradients") == 4000
    assert part(found, "Adam's averages") == 8000
    assert part(found, "joined matrices") == 2 * 10 * (10 + 20 + 2 * 40) * 4
    for kind, other in (("cpu", {"gated": False}), ("cpu", {"lora": True}), ("cuda", {})):
        assert part(memory.estimate(shape(**other), work(), kind), "joined matrices") == 0
    cached = 4 * 30 * (2 + 1) + 32 * 10 * 2 * 1.75
    assert part(found, "key-value cache") == cached * 20 * 4, "4 prompts, a layer of them twice, and 32 rows, three quarters twice"
    tokens = 8 * 30 + 64 * 10
    attended = 64 * 40 * (20 + 10)
    assert part(found, "activations") == 2 * (tokens * (80 + 40 + 200) + attended) * 4, (
        "the batch with each prompt once; two layers"
    )
    assert part(found, "logits") == 4 * 640 * 100, "at the tokens of completions only"
    passing = tokens * (80 + 40 + 200) + 8 * 30 * 2 * 20 + tokens * 10 * 3
    assert part(found, "gradients on their way") == passing * 4, "of one layer, of the prompts' keys and values, of embeddings"
    assert part(found, "checkpoint being restored") == 5 * 4000


def test_the_peak_is_the_largest_phase_and_not_the_sum() -> None:
    found = memory.estimate(shape(), work(), "cpu")
    always = part(found, "weights") + part(found, "Adam's averages") + part(found, "framework")
    phases = {
        "answering": sum(part(found, name) for name in ("joined matrices", "key-value cache", "reading and sampling")),
        "training": sum(part(found, name) for name in ("activations", "logits", "gradients on their way", "gradients")),
        "resuming": part(found, "checkpoint being restored"),
    }
    assert {name: found.during(name) for name in phases} == {name: always + size for name, size in phases.items()}
    assert (found.peak_phase, found.peak_bytes) == ("training", always + phases["training"])


def test_more_rollouts_than_a_part_holds_cost_their_embeddings() -> None:
    wide = shape(layers=100, hidden=1000, attention=1000, intermediate=4000)
    kept = 100 * (8000 + 4000 + 20_000) * 4
    assert ACTIVATION_BYTES["cpu"] // kept == 70
    few, many = (memory.estimate(wide, work(external_count=count), "cpu") for count in (8, 800))
    assert part(few, "activations") == part(many, "activations") == 70 * kept + 4 * 40 * (20 + 10 * 100) * 100 * 4, "4 completions"
    assert part(few, "logits") == part(many, "logits") == 4 * 40 * 100
    more = 792 * (30 + 8 * 10) * 1000 * 3 * 4
    assert part(many, "gradients on their way") - part(few, "gradients on their way") == more


def test_scores_exist_where_no_kernel_is_fused() -> None:
    """Prompts on CUDA where heads share their keys, in other types than bfloat16; everything on MPS."""
    small, shared = work(own_count=1, external_count=0, group_size=2), shape(attention=40, cached=20, heads=4)
    plain, masked = 50 * 2 * (80 + 160 + 200), 2 * 2 * 40 * (20 + 10 * 4)
    scores = 2 * 30 * 30 * 4
    found = {kind: part(memory.estimate(shared, small, kind), "activations") for kind in ("cpu", "cuda", "mps")}
    assert found == {"cpu": 4 * (plain + masked), "cuda": 4 * (plain + masked + scores), "mps": 4 * (plain + masked + scores)}
    half = memory.estimate(replace(shared, dtype="bfloat16", value_bytes=2), small, "cuda")
    assert part(half, "activations") == 2 * (plain + masked)


def test_an_evaluation_fills_the_batch_as_far_as_the_policy_lets_it() -> None:
    without, some, many = (
        part(memory.estimate(shape(), work(held_out=count), "cpu"), "key-value cache") for count in (0, 64, 10_000)
    )
    row = (30 * (2 + 1) + 10 * 2 * 1.75) * 20 * 4
    assert without < some == 64 * row
    assert many == BATCH_TOKENS // 40 * row


def test_a_large_vocabulary_is_bounded_by_the_chunk() -> None:
    found = memory.estimate(shape(vocabulary=1_000_000), work(), "cpu")
    assert part(found, "logits") == 4 * (LOGIT_VALUES // 1_000_000) * 1_000_000
    embedded, prompts = (8 * 30 + 64 * 10) * 10 * 3, 8 * 30 * 2 * 20
    assert part(found, "gradients on their way") == (2 * 10 * 1_000_000 + embedded + prompts) * 4, "the head's, and a chunk's"


def test_the_smallest_batches_are_a_question_and_a_completion() -> None:
    found = memory.estimate(shape(), work(held_out=100), "cuda", smallest=True)
    assert part(found, "key-value cache") == (30 * 3 + 80 * 2 * 1.75) * 20 * 4
    assert part(found, "activations") == 2 * (40 * (80 + 40 + 200) + 40 * (20 + 10)) * 4


def test_settings_become_a_workload() -> None:
    settings = {"NUM_TRAIN_SAMPLES": "2", "NUM_TRANSPLANT_TREES": "6", "NUM_GENERATIONS": "4", "MAX_NEW_TOKENS": "100"}
    assert memory.workload_of(load(settings), shape()) == Workload(2, 6, 4, 100, 512, 9 * 16, False)
    assert memory.workload_of(load({**settings, "EVAL_INTERVAL": "0", "TOP_P": "0.9"}), shape(), 7).held_out == 0
    assert memory.workload_of(load(settings), shape(context_tokens=300)).prompt_tokens == 200, "no longer than the context allows"
    assert memory.workload_of(load({"MODEL_NAME": "nano"}), shape()).prompt_tokens < 512, "easy questions are short"


# Verdicts


def report(workers: int, free_gb: float, kind: str = "cuda", **changes: Any) -> Report:
    """1 GB of weights and 4 GB with what is trained, 2 GB more with activations."""
    sizes = {"weight_bytes": 10**9, "trainable_bytes": 10**9, "layers": 10, "hidden": 4000, "intermediate": 16000}
    device = Device(kind, "Card 1", 80 * 10**9, int(free_gb * 1e9))
    usual, least = (memory.estimate(shape(**sizes | changes), work(), kind, smallest=smallest) for smallest in (False, True))
    return Report(shape(**sizes | changes), device, workers, work(), usual, least)


def test_what_fits_what_fits_in_smaller_batches_and_what_does_not() -> None:
    each, least = report(1, 0).estimate.peak_bytes / 1e9, report(1, 0).least.peak_bytes / 1e9
    assert least < 0.8 * each
    fits, squeezed, refused = (memory.verdict(report(3, free)) for free in (3 * each + 0.1, 3 * least + 0.1, 3 * least - 0.1))
    assert (fits.status, squeezed.status, refused.status) == ("ok", "warning", "failed")
    assert "3 workers of m (float32) need about" in fits.detail
    assert "batches will be cut to what fits" in squeezed.detail
    assert "at the very least" in refused.detail
    assert "are free on Card 1: --workers 2, LORA_RANK=16, a lower MAX_NEW_TOKENS or a smaller MODEL_NAME" in refused.detail


def test_one_worker_that_does_not_fit_is_not_told_to_be_fewer() -> None:
    refused = memory.verdict(report(1, 1.0, lora=True))
    assert refused.status == "failed"
    assert "1 worker of m (float32) needs about" in refused.detail
    assert "--workers" not in refused.detail
    assert "free on Card 1: DTYPE=bfloat16, a lower" in refused.detail


def test_the_memory_of_a_cpu_is_no_reason_to_refuse() -> None:
    found = memory.verdict(report(3, 1.0, kind="cpu"))
    assert found.status == "warning"
    assert "and only 1.0 GB of memory are free" in found.detail


def test_an_evaluation_that_is_the_largest_can_be_left_out() -> None:
    large = report(2, 60.0, cached=40_000)
    asked = work(held_out=1000)
    found = memory.verdict(replace(large, work=asked, estimate=memory.estimate(large.shape, asked, "cuda")))
    assert found.status == "warning"
    assert "EVAL_INTERVAL=0" in found.detail


def test_the_real_device_and_the_memory_of_this_machine() -> None:
    total, free = memory.host_memory()
    assert 0 < free <= total
    device = memory.this_device(cpu_only=True)
    assert (device.kind, device.total_bytes) == ("cpu", total)


def test_the_table_and_the_document_say_the_same(configs: dict[str, str]) -> None:
    found = memory.assess(configs["openai-community/gpt2"], 4, load({}), device=memory.assumed_gpu(80))
    console = Console(width=200, file=io.StringIO())
    console.print(memory.table(found))
    text = console.file.getvalue()
    assert "124.4 M parameters in float32, a GPU of 80 GB" in text
    document = json.loads(json.dumps(found.as_dict()))
    assert document["total_bytes"] == 4 * document["peak_bytes"]
    assert memory.gb(document["total_bytes"]) in text
    assert document["finding"]["status"] == "ok"


# Presets


def test_presets_are_settings_and_fit_on_a_gpu_of_80_gb(configs: dict[str, str]) -> None:
    document = (ROOT / "docs/operating.md").read_text()
    for name, preset in memory.PRESETS.items():
        assert preset.settings.keys() <= VARIABLES
        config = load(preset.settings)
        found = memory.assess(configs[config.model], preset.workers, config, device=memory.assumed_gpu(80))
        assert memory.verdict(found).status == "ok", memory.verdict(found).detail
        each = found.estimate.peak_bytes
        row = f"| `{name}` | {preset.workers} | {memory.gb(each)} | {memory.gb(preset.workers * each)} |"
        assert row in document, f"docs/operating.md lacks {row}"


def test_the_documented_needs_of_one_worker(configs: dict[str, str]) -> None:
    document = (ROOT / "docs/operating.md").read_text()
    ways = ({"DTYPE": "float32"}, {"DTYPE": "bfloat16"}, {"DTYPE": "bfloat16", "LORA_RANK": "16"})
    for title, model in {"GPT-2 (124 M)": "openai-community/gpt2", "Qwen2.5-0.5B": "Gensyn/Qwen2.5-0.5B-Instruct"}.items():
        (row,) = [line for line in document.splitlines() if line.startswith(f"| {title} |")]
        for way, cell in zip(ways, row.split("|")[2:5], strict=True):
            found = memory.assess(configs[model], 1, load(way), device=memory.assumed_gpu(80))
            assert cell.strip().startswith(memory.gb(found.estimate.peak_bytes)), f"{title} {way}"


def test_the_environment_wins_over_a_preset() -> None:
    environment = memory.find_preset("gpt2-5").under({"MAX_ROUNDS": "7"})
    assert (load(environment).max_rounds, load(environment).own_count) == (7, 2)
    with pytest.raises(ConfigError, match=r"--preset is not known, got 'gpt3': use gpt2-5, gpt2-8, qwen-4, qwen-8"):
        memory.find_preset("gpt3")


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
    found = memory.estimate(
        memory.shape_of(str(tmp_path), memory.assumed_gpu(80), dtype=dtype),
        work(own_count=2, external_count=0, group_size=4, prompt_tokens=48, new_tokens=24),
        "cpu",
    )
    passages = [Passage((question,) * 48, (0,) * 24) for question in range(2) for _ in range(4)]
    shares = []
    for decoder in (HostedDecoder(model.base_model), packed_decoder(model, 0)):  # as transformers computes, and as workers do
        kept.clear()
        policy: Any = SimpleNamespace(device=torch.device("cpu"), temperature=1.0, decoder=decoder)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            rows, reading = next(parts := PackedReader(policy).parts(model, passages, token_budget=1000))
        assert len(rows) == 8 and reading.logprobs_BT.requires_grad
        shares.append(part(found, "activations") / sum(kept.values()))
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
from rl_swarm.learning.trainer import Trainer, TrainerSettings

torch.set_num_threads(1)
own, group, new_tokens = 2, 2, 32
questions = [Question(f"What is {number} + {number}?") for number in range(own)]
Tasks(parse_tasks("easy"), seed=0, node_id="m").draw(8)

def resident(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name))

def measure(name):
    loaded = load(name, cpu_only=True)
    policy = Policy(loaded.model, loaded.tokenizer, max_new_tokens=new_tokens)
    trainer = Trainer(policy, TrainerSettings(learning_rate=1e-5))
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
    (_, nano_peak, nano_prompt), (before, peak, prompt) = json.loads(done.stdout.splitlines()[-1])

    nano, ours = at_work("nano", nano_prompt), at_work(str(tmp_path), prompt)
    grown, taken = ours.peak_bytes - part(ours, "framework"), peak - before
    print(f"nano: {nano.peak_bytes / 1e6:.0f} MB estimated, {nano_peak / 1e6:.0f} measured")
    print(f"20 M Llama: {grown / 1e6:.0f} MB estimated, {taken / 1e6:.0f} measured")
    assert 0.5 < nano.peak_bytes / nano_peak < 2
    assert 0.5 < grown / taken < 2


def at_work(name: str, prompt_tokens: int) -> memory.Estimate:
    """What was measured: no checkpoint was restored."""
    settings = {"NUM_TRAIN_SAMPLES": "2", "NUM_GENERATIONS": "2", "MAX_NEW_TOKENS": "32", "EVAL_INTERVAL": "0"}
    found = memory.assess(name, 1, load(settings), device=CPU, prompt_tokens=prompt_tokens).estimate
    return memory.Estimate(tuple(each for each in found.parts if "resuming" not in each.phases))


# Other processes


def test_looking_from_another_process(tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "MODEL_NAME": "nano",
        "CPU_ONLY": "1",
    }
    found = memory.check_apart(environment, 2)
    assert found.check == "memory" and "2 workers of nano (float32) need about" in found.detail
    broken = memory.check_apart(environment | {"LORA_RANK": "-1"}, 2)
    assert broken.status == "failed"
    assert "LORA_RANK must be at least 0" in broken.detail


def test_importing_it_imports_no_torch() -> None:
    code = "import rl_swarm.tools.memory, sys; assert not {'torch', 'transformers', 'reasoning_gym'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=ROOT)


def test_what_is_checked_is_the_configured_model(configs: dict[str, str]) -> None:
    config: Config = load({"DTYPE": "float32", "LORA_RANK": "8"})
    found = memory.assess(configs["openai-community/gpt2"], 1, config, device=memory.assumed_gpu(16))
    assert (found.shape.dtype, found.shape.lora) == ("float32", True)
