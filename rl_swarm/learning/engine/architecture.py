"""What can be found out about a causal language model by asking it and trying it, rather than by a list of names."""

import inspect
from typing import Any

import torch
from torch import Tensor

from rl_swarm.learning.engine.attention import Growing, HostedDecoder, PackedDecoder, Prompts, Unpackable, completions
from rl_swarm.learning.engine.grid import positions
from rl_swarm.learning.engine.lean import LeanDecoder

SAME = 1e-3  # of the size of the hidden states, between two ways to compute them in fp32
COARSE_SAME = 5e-2  # in types with fewer digits


def without_adapter(model: Any) -> Any:
    """The language model itself, where an adapter (peft) is wrapped around it; the adapter's layers stay in place inside."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def decoder_of(model: Any) -> Any:
    """The model without its head."""
    return without_adapter(model).base_model


def accepted_arguments(model: Any) -> frozenset[str]:
    return frozenset(inspect.signature(without_adapter(model).forward).parameters)


def kept_values(layers: int, hidden: int, attention: int, intermediate: int) -> int:
    """Values that a token leaves in all layers for the backward pass, what it attends to aside.

    As counted for Llama, Qwen2 and GPT-2: 5 to 20 % too many. Queries and keys that are normalized (Qwen3) leave up to 25 % more.
    """
    return layers * (8 * hidden + 4 * attention + 5 * intermediate)


def activation_bytes(model: Any) -> int:
    """About how much memory one token takes from its forward pass to its backward pass."""
    text = model.config.get_text_config()
    intermediate = getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None) or 4 * text.hidden_size
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    values = kept_values(text.num_hidden_layers, text.hidden_size, text.num_attention_heads * head, intermediate)
    return int(values * model.dtype.itemsize)


@torch.no_grad()
def has_plain_head(model: Any, some_id: int) -> bool:
    """Whether logits are the last hidden state through the output embedding and nothing else: some models cap or scale theirs."""
    ids = torch.tensor([[some_id]], device=model.get_input_embeddings().weight.device)
    head = model.get_output_embeddings()
    if head is None:
        return False
    hidden = getattr(decoder_of(model)(input_ids=ids, use_cache=False), "last_hidden_state", None)
    return hidden is not None and torch.equal(head(hidden), model(input_ids=ids, use_cache=False).logits)


@torch.no_grad()
def packed_decoder(model: Any, some_id: int) -> PackedDecoder | None:
    """The best way to run this model over packed tokens, or None if there is none that gives the model's own hidden states.

    Two prompts and three continuations of them are computed as the model itself does it, all at once, and a token at a time.
    """
    if not has_plain_head(model, some_id):
        return None
    prompts, texts, prompt_of = [[some_id, 0, 1], [1, 2]], [[2, 3], [3], [0, some_id]], [0, 1, 1]
    table, device = model.get_input_embeddings(), model.get_input_embeddings().weight.device
    alone = [_alone(model, prompts[number] + text, device)[-1] for number, text in zip(prompt_of, texts, strict=True)]
    expected = torch.stack(alone).float()
    tolerance = (SAME if model.dtype in (torch.float32, torch.float64) else COARSE_SAME) * expected.abs().max()
    for kind in (LeanDecoder, HostedDecoder):
        try:
            decoder: PackedDecoder = kind(decoder_of(model))
            tried = [way(decoder, table, prompts, texts, prompt_of, device) for way in (_together, _step_by_step)]
        except (
            Unpackable,
            TypeError,
            AttributeError,
            KeyError,
        ):  # attention that is more, takes no pattern, or belongs to no layer
            continue
        if all(bool((found.float() - expected).abs().max() <= tolerance) for found in tried):
            return decoder
    return None


def _alone(model: Any, ids: list[int], device: torch.device) -> Tensor:
    states: Tensor = decoder_of(model)(input_ids=torch.tensor([ids], device=device), use_cache=False).last_hidden_state
    return states[0]


def _prompts(decoder: PackedDecoder, table: Any, prompts: list[list[int]], device: torch.device) -> Prompts:
    pattern = Prompts([len(prompt) for prompt in prompts], device)
    decoder(_embedded(table, prompts, device), positions([len(prompt) for prompt in prompts], device), pattern)
    return pattern


def _together(decoder: PackedDecoder, table: Any, prompts: Any, texts: Any, prompt_of: list[int], device: torch.device) -> Tensor:
    before, lengths = _prompts(decoder, table, prompts, device), [len(text) for text in texts]
    pattern = completions(lengths, prompt_of, before, before.keys, before.values)
    starts = [len(prompts[number]) for number in prompt_of]
    states = decoder(_embedded(table, texts, device), positions(lengths, device, starts), pattern)
    return states[torch.tensor(lengths).cumsum(0) - 1]


def _step_by_step(
    decoder: PackedDecoder, table: Any, prompts: Any, texts: Any, prompt_of: list[int], device: torch.device
) -> Tensor:
    before, last = _prompts(decoder, table, prompts, device), [torch.empty(0)] * len(texts)
    rows = Growing(before, group_size=2, steps=2)
    running = torch.tensor([0, 2, 3], device=device)  # the first prompt has one text, the second two
    rows.keep(running)
    for step in range(2):
        texts_now = [text for text in range(len(texts)) if len(texts[text]) > step]
        if len(texts_now) < len(texts):
            rows.keep(torch.tensor(texts_now, device=device))
        embedded = _embedded(table, [[texts[text][step]] for text in texts_now], device)
        starts = [len(prompts[prompt_of[text]]) + step for text in texts_now]
        states = decoder(embedded, positions([1] * len(starts), device, starts), rows)
        rows.grow()
        for row, text in enumerate(texts_now):
            last[text] = states[row]
    return torch.stack(last)


def _embedded(table: Any, texts: list[list[int]], device: torch.device) -> Tensor:
    embedded: Tensor = table(torch.tensor([token for text in texts for token in text], device=device))
    return embedded
