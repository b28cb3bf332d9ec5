"""What of a model decides about memory, read from its config: parameters are counted on torch's meta device, no weights are read.

It refuses names, folders and configs that `models.load` would refuse, with the same one line.
"""

from dataclasses import dataclass
from typing import Any

from rl_swarm.errors import ModelError
from rl_swarm.learning.engine.libraries import require_transformers
from rl_swarm.tools.memory.device import GIGABYTE, Device


@dataclass(frozen=True)
class Shape:
    """`hidden` to `cached` are sizes of one layer, in values a token; `cached` are its keys and values.

    `heads` are those of queries; `normed` says that queries and keys are normalized (Qwen3), `gated` that layers are Llama's.
    """

    name: str
    dtype: str
    value_bytes: int
    parameters: int
    weight_bytes: int
    trainable_bytes: int
    layers: int
    hidden: int
    attention: int
    intermediate: int
    cached: int
    vocabulary: int
    context_tokens: int | None
    lora: bool
    heads: int
    normed: bool
    gated: bool

    @property
    def checkpoint_bytes(self) -> int:
        """Trained weights and both of Adam's averages."""
        return 3 * self.trainable_bytes


def shape_of(
    name: str, device: Device, *, dtype: str = "auto", lora_rank: int = 0, token: str | None = None, seed: int = 0
) -> Shape:
    """The shape of a model as a worker on `device` would load it; raise ModelError where that cannot be known."""
    require_transformers()
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from rl_swarm.learning.models import choose_dtype, choose_model
    from rl_swarm.learning.models.loading import add_lora, locate, trained_dtype

    if name == "auto":
        name = choose_model(0.0 if device.kind == "cpu" else device.total_bytes / GIGABYTE, seed)
    source = locate(name, token)
    wanted = trained_dtype(dtype, lora_rank)
    assumed = "bfloat16" if wanted == "auto" else wanted
    chosen = getattr(torch, assumed) if device.assumed else choose_dtype(device.kind, wanted)
    try:
        config = AutoConfig.from_pretrained(source, token=token, trust_remote_code=False)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=chosen, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"the config of {name} cannot be read ({first}): MODEL_NAME wants a causal language model") from error
    return _measured(name, add_lora(model, lora_rank) if lora_rank else model, config.get_text_config(), chosen, lora_rank)


def _measured(name: str, model: Any, text: Any, dtype: Any, lora_rank: int) -> Shape:
    parameters = list(model.parameters())
    heads = text.num_attention_heads
    head = getattr(text, "head_dim", None) or text.hidden_size // heads
    return Shape(
        name=name,
        dtype=str(dtype).removeprefix("torch."),
        value_bytes=dtype.itemsize,
        parameters=sum(parameter.numel() for parameter in parameters),
        weight_bytes=sum(parameter.nbytes for parameter in parameters),
        trainable_bytes=sum(parameter.nbytes for parameter in parameters if parameter.requires_grad),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        attention=heads * head,
        intermediate=getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None) or 4 * text.hidden_size,
        cached=2 * (getattr(text, "num_key_value_heads", None) or heads) * head,
        vocabulary=text.vocab_size,
        context_tokens=getattr(text, "max_position_embeddings", None),
        lora=bool(lora_rank),
        heads=heads,
        normed=any(".q_norm." in parameter for parameter, _ in model.named_parameters()),
        gated=any(".gate_proj." in parameter for parameter, _ in model.named_parameters()),
    )
