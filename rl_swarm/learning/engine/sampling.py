"""Sample completions of many prompts in one batch, with the log-probability of every token.

A prompt is read once for all its completions, rows that ended leave the batch, and a row depends on its own random numbers only.
Knows ids, not text: the policy renders and decodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl_swarm.learning.engine import logits
from rl_swarm.learning.engine.architecture import accepted_arguments
from rl_swarm.learning.engine.attention import Growing, PackedDecoder, Prompts, shared_once, shared_start
from rl_swarm.learning.engine.lean import FrozenDecoder, LeanDecoder


@dataclass(frozen=True)
class Sampled:
    """One sampled row: the ids (the end token included where it stopped) and the log-probability of each."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool


@dataclass(frozen=True)
class Sampler:
    """How to continue prompts. Without a packed decoder the model is run as it is."""

    model: Any
    decoder: PackedDecoder | None
    pad_id: int
    end_ids: frozenset[int]
    max_new_tokens: int
    temperature: float
    top_p: float
    device: torch.device

    def sample(self, prompts: Sequence[Sequence[int]], group_size: int, uniforms_IGT: Tensor | None) -> list[Sampled]:
        """Continue every prompt `group_size` times, by the given uniform numbers or, without them, greedily."""
        decoder = self.decoder
        # On a CPU the joined matrices are worth their memory; on a GPU the large batches of an evaluation need it.
        if frozen := isinstance(decoder, LeanDecoder) and self.device.type == "cpu":
            with torch.no_grad():
                decoder = FrozenDecoder(decoder, max(map(len, prompts)) + self.max_new_tokens)
        # Tensors that a model of transformers caches here must stay usable in training; ours do not outlive the call.
        with torch.inference_mode(frozen), torch.no_grad():
            batch: PackedBatch | PaddedBatch
            batch = PaddedBatch(self, prompts, group_size) if decoder is None else PackedBatch(self, decoder, prompts, group_size)
            return self._continue(batch, len(prompts) * group_size, uniforms_IGT)

    def _continue(self, batch: "PackedBatch | PaddedBatch", rows: int, uniforms_IGT: Tensor | None) -> list[Sampled]:
        """N counts rows of the result, M rows still in the batch. Rows that ended leave a quarter of the batch at a time, since
        each removal copies the rest."""
        steps, device = self.max_new_tokens, self.device
        precise = torch.float32 if device.type == "mps" else torch.float64  # MPS has no double precision
        uniforms_NT = None if uniforms_IGT is None else uniforms_IGT.flatten(0, 1).to(device, precise)
        ids_NT = torch.zeros((rows, steps), dtype=torch.long, device=device)
        logprobs_NT = torch.zeros((rows, steps), device=device)
        lengths_N = torch.full((rows,), steps, device=device)
        stopped_N = torch.zeros(rows, dtype=torch.bool, device=device)
        at_M = torch.arange(rows, device=device)
        ends = torch.tensor(sorted(self.end_ids), device=device)
        for step in range(steps):
            probs_MV = logits.next_token_probs(batch.logits_MV, self.temperature)
            chosen_M = probs_MV.argmax(-1) if uniforms_NT is None else logits.draw(probs_MV, uniforms_NT[at_M, step], self.top_p)
            ids_NT[at_M, step] = chosen_M
            logprobs_NT[at_M, step] = logits.chosen(probs_MV, chosen_M).log()
            ended_M = torch.isin(chosen_M, ends)
            if bool(ended_M.any()):  # rows that ended earlier may still be in the batch
                ended = at_M[ended_M & ~stopped_N[at_M]]
                lengths_N[ended], stopped_N[ended] = step + 1, True
                running_M = (~stopped_N[at_M]).nonzero().squeeze(-1)
                if len(running_M) == 0:
                    break
                if len(running_M) <= 0.75 * len(at_M):
                    batch.keep(running_M)
                    at_M, chosen_M = at_M[running_M], chosen_M[running_M]
            if step + 1 < steps:
                batch.advance(chosen_M)
        ids, logprobs, lengths, stopped = ids_NT.tolist(), logprobs_NT.tolist(), lengths_N.tolist(), stopped_N.tolist()
        return [Sampled(tuple(ids[n][: lengths[n]]), tuple(logprobs[n][: lengths[n]]), stopped[n]) for n in range(rows)]


class PackedBatch:
    """Unfinished rows, one packed token each; the keys and values of a prompt exist once, not once a row."""

    def __init__(self, sampler: Sampler, decoder: PackedDecoder, prompts: Sequence[Sequence[int]], group_size: int) -> None:
        self._decoder = decoder
        self._table, self._head = sampler.model.get_input_embeddings(), sampler.model.get_output_embeddings()
        lengths, shared = [len(prompt) for prompt in prompts], shared_start(prompts)
        read = Prompts(lengths, sampler.device, shared)
        ids_N = torch.tensor([token for text in shared_once(prompts, shared) for token in text], device=sampler.device)
        hidden_ID = decoder(self._table(ids_N), read.positions_N, read, read.lasts_I)
        self.logits_MV = self._head(hidden_ID).repeat_interleave(group_size, dim=0)
        self._rows = Growing(read, group_size, sampler.max_new_tokens)
        self._positions_M = torch.tensor(lengths, device=sampler.device).repeat_interleave(group_size)

    def keep(self, kept_M: Tensor) -> None:
        self._rows.keep(kept_M)
        self._positions_M = self._positions_M[kept_M]

    def advance(self, chosen_M: Tensor) -> None:
        """Append one token to every row and compute the logits of the next."""
        self.logits_MV = self._head(self._decoder(self._table(chosen_M), self._positions_M, self._rows))
        self._rows.grow()
        self._positions_M = self._positions_M + 1


class PaddedBatch:
    """Unfinished rows of any causal language model, with the model's own cache; prompts are padded on the left to end together."""

    _cache: Any

    def __init__(self, sampler: Sampler, prompts: Sequence[Sequence[int]], group_size: int) -> None:
        self._model, self._accepts = sampler.model, accepted_arguments(sampler.model)
        width, device = max(map(len, prompts)), sampler.device
        ids_IS = torch.tensor([[sampler.pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
        mask_IS = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
        positions_IS = (mask_IS.cumsum(-1) - 1).clamp(min=0)
        self.logits_MV, self._cache, self._mask_MS = torch.empty(0), None, mask_IS
        self._forward(ids_IS, positions_IS)
        self._cache.batch_repeat_interleave(group_size)
        self.logits_MV = self.logits_MV.repeat_interleave(group_size, dim=0)
        self._mask_MS = self._mask_MS.repeat_interleave(group_size, dim=0)
        self._positions_M = positions_IS[:, -1].repeat_interleave(group_size)

    def keep(self, kept_M: Tensor) -> None:
        self._cache.batch_select_indices(kept_M)
        self._mask_MS, self._positions_M = self._mask_MS[kept_M], self._positions_M[kept_M]

    def advance(self, chosen_M: Tensor) -> None:
        """Append one token to every row and compute the logits of the next."""
        self._positions_M = self._positions_M + 1
        self._mask_MS = torch.cat([self._mask_MS, self._mask_MS.new_ones((len(chosen_M), 1))], dim=-1)
        self._forward(chosen_M.unsqueeze(-1), self._positions_M.unsqueeze(-1))

    def _forward(self, ids_MS: Tensor, positions_MS: Tensor) -> None:
        optional = {"position_ids": positions_MS, "logits_to_keep": 1}
        output = self._model(
            input_ids=ids_MS,
            attention_mask=self._mask_MS,
            past_key_values=self._cache,
            use_cache=True,
            **{name: value for name, value in optional.items() if name in self._accepts},
        )
        self.logits_MV, self._cache = output.logits[:, -1], output.past_key_values
