"""Log-probabilities that a model gives to completions already written: forward passes over a batch, a part of it at a time.

Two readers give the same result. `PackedReader` has no padding and computes every prompt once for all its completions;
`PaddedReader` works for every causal language model. Logits exist only where a token of a completion is predicted. Nothing here
knows advantages or losses, or takes a step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from rl_swarm.learning.engine import logits
from rl_swarm.learning.engine.architecture import accepted_arguments, decoder_of, has_plain_head
from rl_swarm.learning.engine.attention import PackedDecoder, Prompts, Whole, completions, shared_once, shared_start
from rl_swarm.learning.engine.grid import positions
from rl_swarm.learning.engine.lean import product

LOGIT_VALUES = 1 << 26  # logits that exist at once, 256 MB in fp32; a part with more is read in chunks


@dataclass(frozen=True)
class Passage:
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True)
class Reading:
    """Per completion token, padded on the right with zeros; `entropies_BT` carries no gradient."""

    logprobs_BT: Tensor
    entropies_BT: Tensor
    mask_BT: Tensor


class Reader:
    def __init__(self, model: Any, temperature: float) -> None:
        self._model, self._temperature = model, temperature
        self._device = model.get_input_embeddings().weight.device

    def parts(self, passages: Sequence[Passage], token_budget: int) -> Iterator[tuple[list[int], Reading]]:
        """Read a part of the batch at a time: yield the numbers of its passages, and their reading.

        Go backward through a part before asking for the next. A part has about `token_budget` tokens, but at least one passage. The
        cut depends on the passages and their order only.
        """
        raise NotImplementedError

    def _reading(self, passages: list[Passage], values_ND: Tensor, head: Callable[[Tensor], Tensor]) -> Reading:
        """Apply the head to the values that predict the passages' completion tokens, in chunks where the vocabulary is large."""

        def read(values: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            return logits.read_logits(head(values), targets, self._temperature)

        targets_N = torch.tensor([token for passage in passages for token in passage.completion_ids], device=self._device)
        size = max(1, LOGIT_VALUES // self._model.config.get_text_config().vocab_size)
        if len(targets_N) <= size:
            logprobs_N, entropies_N = read(values_ND, targets_N)
        else:
            # Computed again in the backward pass: that costs less than the memory of all chunks.
            chunks = zip(values_ND.split(size), targets_N.split(size), strict=True)
            parts = [checkpoint(read, values, targets, use_reentrant=False) for values, targets in chunks]
            logprobs_N, entropies_N = (torch.cat(each) for each in zip(*parts, strict=True))
        lengths = [len(passage.completion_ids) for passage in passages]
        flat = (logprobs_N, entropies_N, torch.ones_like(entropies_N))
        return Reading(*(pad_sequence(each_N.split(lengths), batch_first=True) for each_N in flat))


def make_reader(model: Any, decoder: PackedDecoder | None, temperature: float, pad_id: int) -> Reader:
    return PaddedReader(model, temperature, pad_id) if decoder is None else PackedReader(model, temperature, decoder)


class PackedReader(Reader):
    """Completions one behind the other, without padding, and each prompt computed once for all of its completions."""

    def __init__(self, model: Any, temperature: float, decoder: PackedDecoder) -> None:
        super().__init__(model, temperature)
        self._decoder = decoder

    def parts(self, passages: Sequence[Passage], token_budget: int) -> Iterator[tuple[list[int], Reading]]:
        cut = packed_cut(passages, token_budget)
        # The last token of a completion predicts nothing, so it is not computed.
        texts = [passage.completion_ids[:-1] for passage in passages]
        starts = [shared_once(prompts, shared_start(prompts)) for prompts, _ in cut]
        order = [
            text
            for start, (_, parts) in zip(starts, cut, strict=True)
            for text in (*start, *(texts[row] for rows in parts for row in rows))
        ]
        tokens = _Tokens(self._model.get_input_embeddings(), order, self._device)
        head = partial(product, layer=self._model.get_output_embeddings())
        for start, (prompts, parts) in zip(starts, cut, strict=True):
            prefix = None if len(parts) == 1 else _Prefix(self._decoder, tokens.take(start), prompts)
            for rows in parts:
                part, following = [passages[row] for row in rows], [texts[row] for row in rows]
                sequel = _Sequel(prompts, part)
                if prefix is None:
                    states_XD = _at_once(self._decoder, tokens.take([*start, *following]), sequel)
                else:
                    states_XD = prefix.continued(tokens.take(following), sequel)
                predicting_N = torch.tensor(sequel.predicting, device=self._device)
                yield rows, self._reading(part, states_XD.index_select(0, predicting_N), head)
            if prefix is not None:
                prefix.backward()
        tokens.backward()


class _Sequel:
    """Some completions as texts that follow prompts, each without its last token, which predicts nothing.

    `predicting` has the number of the state that predicts each token of the completions: states of the ends of all prompts come
    first, then those of the texts. The first token is predicted at the end of its prompt, every other one at the token before it.
    """

    def __init__(self, prompts: Sequence[tuple[int, ...]], passages: list[Passage]) -> None:
        numbers = {prompt: number for number, prompt in enumerate(prompts)}
        self.prompts, self.prompt_lengths = prompts, [len(prompt) for prompt in prompts]
        self.prompt_of = [numbers[passage.prompt_ids] for passage in passages]
        self.lengths = [len(passage.completion_ids) - 1 for passage in passages]
        self.predicting: list[int] = []
        first = len(prompts)
        for prompt, length in zip(self.prompt_of, self.lengths, strict=True):
            self.predicting += [prompt, *range(first, first + length)]
            first += length

    def positions(self, device: torch.device) -> Tensor:
        return positions(self.lengths, device, [self.prompt_lengths[prompt] for prompt in self.prompt_of])


def _at_once(decoder: PackedDecoder, embedded_ND: Tensor, sequel: _Sequel) -> Tensor:
    """The states at the ends of the prompts and of all that follows them, in one pass."""
    device, pattern = embedded_ND.device, _pattern(sequel.prompts, embedded_ND.device)
    positions_N = torch.cat([pattern.positions_N, sequel.positions(device)])
    wanted_X = torch.cat([pattern.lasts_I, torch.arange(pattern.tokens, len(positions_N), device=device)])
    if not any(sequel.lengths):
        return decoder(embedded_ND, positions_N, pattern, wanted_X)
    following = completions(sequel.lengths, sequel.prompt_of, pattern)
    return decoder(embedded_ND, positions_N, Whole(pattern, following), wanted_X)


class _Leaves:
    """Tensors detached from their graph: they accumulate the gradients of all parts, and `backward` passes these on once."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def leaf(self, computed: Tensor) -> Tensor:
        cut_off = computed.detach().requires_grad_(computed.requires_grad)
        self._pairs.append((computed, cut_off))
        return cut_off

    def backward(self) -> None:
        reached = [(computed, leaf.grad) for computed, leaf in self._pairs if leaf.grad is not None]
        if reached:
            torch.autograd.backward([computed for computed, _ in reached], [gradient for _, gradient in reached])


class _Tokens(_Leaves):
    """The batch's tokens, embedded together: an embedding's gradient is as large as the vocabulary, and is computed once."""

    def __init__(self, table: Any, texts: Sequence[Sequence[int]], device: torch.device) -> None:
        super().__init__()
        self._embedded_ND = self.leaf(table(torch.tensor([token for text in texts for token in text], device=device)))
        self._taken = 0

    def take(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """The embeddings of the next texts."""
        first, self._taken = self._taken, self._taken + sum(map(len, texts))
        return self._embedded_ND[first : self._taken]


class _Prefix(_Leaves):
    """Prompts that several parts share: each goes forward and backward once, though only one part's activations exist at a time."""

    def __init__(self, decoder: PackedDecoder, embedded_ND: Tensor, prompts: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        self._decoder, self._prompts = decoder, _pattern(prompts, embedded_ND.device)
        self._lasts_ID = self.leaf(decoder(embedded_ND, self._prompts.positions_N, self._prompts, self._prompts.lasts_I))
        self._prompts.keys = {layer: self.leaf(keys) for layer, keys in self._prompts.keys.items()}
        self._prompts.values = {layer: self.leaf(values) for layer, values in self._prompts.values.items()}

    def continued(self, embedded_ND: Tensor, sequel: _Sequel) -> Tensor:
        """The states at the ends of the prompts and of all that follows them."""
        if not any(sequel.lengths):
            return self._lasts_ID
        pattern = completions(sequel.lengths, sequel.prompt_of, self._prompts)
        return torch.cat([self._lasts_ID, self._decoder(embedded_ND, sequel.positions(embedded_ND.device), pattern)])


def _pattern(prompts: Sequence[tuple[int, ...]], device: torch.device) -> Prompts:
    return Prompts([len(prompt) for prompt in prompts], device, shared_start(prompts))


def packed_cut(passages: Sequence[Passage], token_budget: int) -> list[tuple[list[tuple[int, ...]], list[list[int]]]]:
    """Groups of distinct prompts, and for each group its passages in parts, by number."""
    cut = []
    for group in prompt_groups(passages, token_budget // 2):
        prompts = list(group)
        tokens = sum(map(len, shared_once(prompts, shared_start(prompts))))
        cut.append((prompts, list(completion_cut(group, passages, token_budget - tokens))))
    return cut


def prompt_groups(passages: Sequence[Passage], room: int) -> list[dict[tuple[int, ...], list[int]]]:
    """Distinct prompts with the numbers of their passages, in groups of at most `room` prompt tokens but at least one prompt.

    Tokens with which all prompts begin count once a group.
    """
    rows_of: dict[tuple[int, ...], list[int]] = {}
    for row, passage in enumerate(passages):
        rows_of.setdefault(passage.prompt_ids, []).append(row)
    groups: list[dict[tuple[int, ...], list[int]]] = []
    used, shared = 0, shared_start(list(rows_of))
    for prompt in sorted(rows_of, key=len, reverse=True):
        rest = len(prompt) - shared
        if not groups or used + rest > room:
            groups.append({})
            used = shared
        groups[-1][prompt] = rows_of[prompt]
        used += rest
    return groups


def completion_cut(group: dict[tuple[int, ...], list[int]], passages: Sequence[Passage], room: int) -> Iterator[list[int]]:
    """The group's passages, longest completions first, in parts of at most `room` completion tokens but at least one passage.

    Parts are about equal, since matrix products of a small rest would be slow. Attention is padded to a part's longest completion,
    so a part also ends where padding would double it.
    """
    rows = sorted((row for found in group.values() for row in found), key=lambda row: -len(passages[row].completion_ids))
    lengths = {row: len(passages[row].completion_ids) for row in rows}
    total = sum(lengths.values())
    share = total / -(-total // max(room, 1))
    part: list[int] = []
    used = 0
    for row in rows:
        padded = (len(part) + 1) * lengths[part[0]] if part else 0
        if part and (used + lengths[row] > room or used >= share or padded > 2 * room):
            yield part
            part, used = [], 0
        part.append(row)
        used += lengths[row]
    yield part


class PaddedReader(Reader):
    """Passages side by side, padded on the right."""

    def __init__(self, model: Any, temperature: float, pad_id: int) -> None:
        super().__init__(model, temperature)
        self._pad_id, self._plain_head = pad_id, has_plain_head(model, pad_id)

    def parts(self, passages: Sequence[Passage], token_budget: int) -> Iterator[tuple[list[int], Reading]]:
        for rows in padded_cut(passages, token_budget):
            part = [passages[row] for row in rows]
            yield rows, self._reading(part, *self._predictions(part))

    def _predictions(self, passages: list[Passage]) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The hidden states that predict completion tokens and the head for them; if the head does more, logits that need none."""
        model, accepted = self._model, accepted_arguments(self._model)
        rows = [torch.tensor(passage.prompt_ids + passage.completion_ids) for passage in passages]
        ids_BS = pad_sequence(rows, batch_first=True, padding_value=self._pad_id).to(self._device)
        starts_B1 = torch.tensor([[len(passage.prompt_ids)] for passage in passages], device=self._device)
        ends_B1 = torch.tensor([[passage.length] for passage in passages], device=self._device)
        positions_S = torch.arange(ids_BS.shape[1], device=self._device)
        predicting_BS = (positions_S >= starts_B1 - 1) & (positions_S < ends_B1 - 1)  # token s is predicted at position s - 1
        inputs = {"input_ids": ids_BS, "attention_mask": (positions_S < ends_B1).long(), "use_cache": False}
        if "position_ids" in accepted:
            inputs["position_ids"] = positions_S.expand_as(ids_BS)
        if self._plain_head:
            return decoder_of(model)(**inputs).last_hidden_state[predicting_BS], model.get_output_embeddings()
        if "logits_to_keep" in accepted:  # none before the first position that predicts
            kept = int(predicting_BS.shape[1] - predicting_BS.any(dim=0).nonzero()[0])
            inputs["logits_to_keep"], predicting_BS = kept, predicting_BS[:, -kept:]
        return model(**inputs).logits[predicting_BS], torch.clone  # a copy, since reading uses logits up


def padded_cut(passages: Sequence[Passage], token_budget: int) -> list[list[int]]:
    """Rows of similar length, longest first, with at most `token_budget` tokens each, padding included."""
    cut: list[list[int]] = []
    for row in sorted(range(len(passages)), key=lambda row: -passages[row].length):
        if not cut or (len(cut[-1]) + 1) * passages[cut[-1][0]].length > token_budget:
            cut.append([])
        cut[-1].append(row)
    return cut
