"""Turn a `MODEL_NAME` into a model and a tokenizer that are ready to train: `nano`, `auto`, a folder or a hub id.

Refuses, each with one line: folders without a model, ids that the hub does not know or does not give out, models that lack
weights, weights that are not safetensors (a pickle can run code), and models that bring code of their own.
"""

import difflib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_swarm.config import model_folder
from rl_swarm.errors import ModelError
from rl_swarm.extras import install_command
from rl_swarm.learning.engine.libraries import require_transformers
from rl_swarm.learning.models.hardware import choose_device, choose_dtype, choose_model, device_memory_gb, keep_freed_memory

OWN_MODELS = ("nano", "auto")
HUB_SECONDS = 10.0
HUB_ID = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?", re.ASCII)
# transformers raises these for a folder whose files contradict its settings, and for settings of an unexpected form.
FAULTS_OF_FILES = (OSError, ValueError, LookupError, RuntimeError, ImportError, TypeError, AttributeError)


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model on its device, in evaluation mode, with its tokenizer. Peers and people see `name`."""

    model: Any
    tokenizer: Any
    name: str
    device: str


def trained_dtype(dtype: str, lora_rank: int) -> str:
    """By default train all weights in float32: Adam's small steps round away in bfloat16."""
    return "float32" if dtype == "auto" and not lora_rank else dtype


def load(
    name: str, *, cpu_only: bool = False, dtype: str = "auto", lora_rank: int = 0, token: str | None = None, seed: int = 0
) -> LoadedModel:
    """Load a model by its `MODEL_NAME`. Raise ModelError with the remedy if that fails.

    `seed` draws the model behind `auto` and the initial weights of LoRA's adapters, so that a restarted node starts the same.
    """
    device = choose_device(cpu_only)
    if device == "cpu":
        keep_freed_memory()
    chosen = choose_dtype(device, trained_dtype(dtype, lora_rank))
    if dtype == "float16" and not lora_rank:
        raise ModelError("DTYPE=float16 cannot train all weights (its steps underflow): set LORA_RANK, or use float32 or bfloat16")
    if name == "auto":
        name = choose_model(device_memory_gb(device), seed)
    source = locate(name, token)
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with quiet(Path(source).is_dir()):  # a download keeps its progress bar
            tokenizer = AutoTokenizer.from_pretrained(source, token=token, trust_remote_code=False)
            if tokenizer.pad_token_id is None:  # a new token would resize the model. Padding is masked, so any id will do
                tokenizer.pad_token = tokenizer.eos_token
            model, info = AutoModelForCausalLM.from_pretrained(
                source, token=token, dtype=chosen, trust_remote_code=False, use_safetensors=True, output_loading_info=True
            )
    except (*FAULTS_OF_FILES, SafetensorError) as error:
        raise ModelError(f"cannot load {name}: {_first_line(error)}") from error
    if missing := sorted(info["missing_keys"]):
        raise ModelError(f"{source} lacks {len(missing)} of its weights ({missing[0]} …): they would be random; load it anew")
    if tokenizer.eos_token_id is None:
        raise ModelError(f"the tokenizer of {name} has no end-of-sequence token: no completion could ever stop; choose another")
    if len(tokenizer) > (embedded := model.get_input_embeddings().num_embeddings):
        raise ModelError(f"the tokenizer of {name} has {len(tokenizer)} tokens, its model {embedded}: they do not belong together")
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    if lora_rank:
        model = add_lora(model, lora_rank, seed)
    return LoadedModel(model.to(device).eval(), tokenizer, name, device)


def resolve_nano_folder() -> Path:
    """The folder inside the package that holds the embedded model."""
    return Path(__file__).parent / "nano"


def locate(name: str, token: str | None = None) -> str:
    """Return the folder or hub id that a name stands for. Raise ModelError if there is nothing to load."""
    source = named(name)
    if source == name and not Path(source).is_dir():
        _ask_hub(name, token)
    return source


def read_config(name: str, token: str | None = None) -> Any:
    """Locate a model and read its config, without its weights. Raise ModelError if there is no model to load."""
    source = locate(name, token)
    require_transformers()
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(source, token=token, trust_remote_code=False)
    except FAULTS_OF_FILES as error:
        raise ModelError(
            f"the config of {name} cannot be read ({_first_line(error)}): MODEL_NAME wants a causal language model"
        ) from error


def named(name: str) -> str:
    """Return the folder or hub id that a name stands for, without asking the hub. Raise ModelError if it can be neither."""
    folder = resolve_nano_folder() if name == "nano" else model_folder(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(f"no config.json in {folder}: MODEL_NAME needs a folder that save_pretrained or rl-swarm export wrote")
        return str(folder)
    if name == "nano":
        raise ModelError(f"the embedded model is missing from this installation ({folder}): install rl-swarm again")
    if folder.exists() or folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or "\\" in name:
        raise ModelError(f"MODEL_NAME {name!r} is not a folder: give a folder, a Hugging Face id such as Qwen/Qwen3-0.6B, or nano")
    if not HUB_ID.fullmatch(name):
        raise ModelError(f"MODEL_NAME {name!r} is neither nano, auto, a folder nor a valid Hugging Face id")
    if name not in OWN_MODELS and "/" not in name and (meant := difflib.get_close_matches(name.lower(), OWN_MODELS, 1, 0.75)):
        raise ModelError(f"MODEL_NAME {name!r} is no folder: did you mean {meant[0]!r}? A Hugging Face id is written OWNER/MODEL")
    return name


def _ask_hub(name: str, token: str | None) -> None:
    """Ask once, without the client's retries, whether the hub gives out this model. A model in the local cache needs no asking."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, HFValidationError, RepositoryNotFoundError

    refusals = {
        HFValidationError: f"MODEL_NAME {name!r} is neither nano, auto, a folder nor a valid Hugging Face id",
        GatedRepoError: f"{name} is gated: accept its terms at https://huggingface.co/{name} and set HF_TOKEN",
        RepositoryNotFoundError: f"no model {name!r} on the hub, or it is private: check the name or set HF_TOKEN",
        EntryNotFoundError: f"{name} has no config.json on the hub: it is not a model that transformers loads",
    }  # in this order: a GatedRepoError is a RepositoryNotFoundError too
    try:
        if not isinstance(try_to_load_from_cache(name, "config.json"), str):
            get_hf_file_metadata(hf_hub_url(name, "config.json"), token=token, timeout=HUB_SECONDS)
    except Exception as error:  # the client's transport errors have no public base class
        remedy = "check the connection, or set MODEL_NAME to nano or a folder"
        unreached = f"cannot reach the Hugging Face hub for {name} ({_first_line(error)}): {remedy}"
        raise ModelError(next((line for kind, line in refusals.items() if isinstance(error, kind)), unreached)) from error


def add_lora(model: Any, rank: int, seed: int = 0) -> Any:
    """Freeze the model and put trainable adapters of this rank beside each of its linear layers."""
    import torch
    from transformers.pytorch_utils import Conv1D

    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ModelError(f"LORA_RANK={rank} needs the package peft: {install_command('lora')}") from None
    settings = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        lora_dropout=0.0,
        target_modules="all-linear",
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in model.modules()),  # GPT-2 keeps its weights transposed
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, settings)


@contextmanager
def quiet(wanted: bool = True) -> Iterator[None]:
    """Hide the progress bars of transformers."""
    from transformers.utils import logging

    hide = wanted and logging.is_progress_bar_enabled()
    if hide:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if hide:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
