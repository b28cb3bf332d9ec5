"""Find out what a causal language model can do by asking and trying it, rather than by a list of names."""

import inspect
from typing import Any

import torch
from torch import Tensor

from rl_swarm.learning.engine.attention import Growing, HostedDecoder, PackedDecoder, Prompts, Unpackable, completions
from rl_swarm.learning.engine.grid import positions
from rl_swarm.learning.engine.lean import LeanDecoder

SAME = 1e-3  # largest difference between two ways to compute hidden states in fp32, relative to their size
COARSE_SAME = 5e-2  # the same in types with fewer digits


def without_adapter(model: Any) -> Any:
    """The language model inside an adapter (peft), if there is one; the adapter's layers stay in place."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def decoder_of(model: Any) -> Any:
    """The model without its head."""
    return without_adapter(model).base_model


def accepted_arguments(model: Any) -> frozenset[str]:
    return frozenset(inspect.signature(without_adapter(model).forward).parameters)


def kept_values(layers: int, hidden: int, attention: int, intermediate: int) -> int:
    """Values that all layers keep of a token for the backward pass, attention aside.

    5 to 20 % too many for Llama, Qwen2 and GPT-2; up to 25 % too few if queries and keys are normalized (Qwen3).
    """
    return layers * (8 * hidden + 4 * attention + 5 * intermediate)


def activation_bytes(model: Any) -> int:
    """About the memory that one token takes from its forward pass to its backward pass."""
    text = model.config.get_text_config()
    intermediate = getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None) or 4 * text.hidden_size
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    values = kept_values(text.num_hidden_layers, text.hidden_size, text.num_attention_heads * head, intermediate)
    return int(values * model.dtype.itemsize)


@torch.no_grad()
def has_plain_head(model: Any, some_id: int) -> bool:
    """Whether logits are the output embedding of the last hidden state and nothing else; some models cap or scale theirs."""
    ids = torch.tensor([[some_id]], device=model.get_input_embeddings().weight.device)
    head = model.get_output_embeddings()
    if head is None:
        return False
    hidden = getattr(decoder_of(model)(input_ids=ids, use_cache=False), "last_hidden_state", None)
    return hidden is not None and torch.equal(head(hidden), model(input_ids=ids, use_cache=False).logits)


@torch.no_grad()
def packed_decoder(model: Any, some_id: int) -> PackedDecoder | None:
    """The best way to run this model over packed tokens, or None if no way gives the model's own hidden states.

    The trial is three texts that continue two prompts.
    """
    if not has_plain_head(model, some_id):
        return None
    prompts, texts, prompt_of = [[some_id, 0, 1], [1, 2]], [[2, 3], [3, 0], [0, some_id]], [0, 1, 1]
    table, decoder = model.get_input_embeddings(), decoder_of(model)
    rows = [
        torch.tensor([prompts[prompt] + text], device=table.weight.device) for prompt, text in zip(prompt_of, texts, strict=True)
    ]
    expected = torch.stack([decoder(input_ids=row, use_cache=False).last_hidden_state[0, -1] for row in rows]).float()
    tolerance = (SAME if model.dtype in (torch.float32, torch.float64) else COARSE_SAME) * expected.abs().max()
    for kind in (LeanDecoder, HostedDecoder):
        try:
            packed: PackedDecoder = kind(decoder)
            tried = _last_states(packed, table, prompts, texts, prompt_of)
        except (Unpackable, TypeError, AttributeError, KeyError):  # attention does more, takes no pattern, or belongs to no layer
            continue
        if all(bool((found.float() - expected).abs().max() <= tolerance) for found in tried):
            return packed
    return None


def _last_states(decoder: PackedDecoder, table: Any, prompts: Any, texts: Any, prompt_of: list[int]) -> tuple[Tensor, Tensor]:
    """The last hidden state of each text, computed all at once, as in training, and a token at a time, as in sampling."""
    device, lengths = table.weight.device, [len(prompt) for prompt in prompts]

    def embedded(texts: list[list[int]]) -> Tensor:
        return table(torch.tensor([token for text in texts for token in text], device=device))

    pattern = Prompts(lengths, device)
    decoder(embedded(prompts), pattern.positions_N, pattern)
    starts = [lengths[prompt] for prompt in prompt_of]
    together = decoder(embedded(texts), positions([2, 2, 2], device, starts), completions([2, 2, 2], prompt_of, pattern))[1::2]
    rows = Growing(pattern, group_size=2, steps=2)
    rows.keep(torch.tensor([0, 2, 3], device=device))  # the first prompt has one text, the second two
    for step in range(2):
        positions_M = torch.tensor([start + step for start in starts], device=device)
        stepwise = decoder(embedded([[text[step]] for text in texts]), positions_M, rows)
        rows.grow()
    return together, stepwise
