"""Log-probabilities that a model gives to completions already written: forward passes over a batch, a part of it at a time.

Two readers read the same passages with the same result. `PackedReader` computes every prompt once for all its completions and has
no padding; `PaddedReader` works for every causal language model. Logits exist only at the positions that predict a token of a
completion. Nothing here knows advantages or losses, or takes a step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from rl_swarm.learning.engine import logits
from rl_swarm.learning.engine.architecture import accepted_arguments, decoder_of, has_plain_head
from rl_swarm.learning.engine.attention import HostedDecoder, PackedDecoder, Prompts, Whole, completions
from rl_swarm.learning.engine.grid import positions
from rl_swarm.learning.engine.lean import LeanDecoder, product

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


class Reader(Protocol):
    def parts(self, model: Any, passages: Sequence[Passage], token_budget: int) -> Iterator[tuple[list[int], Reading]]:
        """Read with `model`, which is the policy's or one of the same architecture (the reference), a part of the batch at a time:
        the numbers of some passages, and their reading. Go backward through a part before asking for the next.

        A part has about `token_budget` tokens, but at least one passage. The cut depends on lengths and order only.
        """
        ...


class Model(Protocol):
    """What a reader must know of a policy."""

    @property
    def model(self) -> Any: ...
    @property
    def decoder(self) -> PackedDecoder | None: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def temperature(self) -> float: ...
    @property
    def pad_id(self) -> int: ...
    @property
    def end_id(self) -> int: ...


def make_reader(policy: Model, logit_values: int = LOGIT_VALUES) -> Reader:
    return PaddedReader(policy, logit_values) if policy.decoder is None else PackedReader(policy, logit_values)


class _Head:
    """From hidden states to log-probabilities, a chunk at a time where the vocabulary makes the logits large."""

    def __init__(self, temperature: float, logit_values: int) -> None:
        self._temperature, self._logit_values = temperature, logit_values

    def read(self, head: Any, values_ND: Tensor, targets_N: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
        def read(values: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            return logits.read_logits(head(values), targets, self._temperature)

        size = max(1, self._logit_values // vocabulary)
        if len(targets_N) <= size:
            return read(values_ND, targets_N)
        chunks = zip(values_ND.split(size), targets_N.split(size), strict=True)
        # Computed again in the backward pass: that costs less than the memory of all of them.
        parts = [checkpoint(read, values, targets, use_reentrant=False) for values, targets in chunks]
        return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropies for _, entropies in parts])


def _padded(logprobs_N: Tensor, entropies_N: Tensor, lengths: list[int]) -> Reading:
    values = (logprobs_N, entropies_N, torch.ones_like(entropies_N))
    return Reading(*(pad_sequence(values_N.split(lengths), batch_first=True) for values_N in values))


class PackedReader:
    """Completions behind each other, without padding, and each prompt computed once for all of its completions."""

    def __init__(self, policy: Model, logit_values: int = LOGIT_VALUES) -> None:
        self._device, self._head = policy.device, _Head(policy.temperature, logit_values)
        self._kind: Callable[[Any], PackedDecoder] = LeanDecoder if isinstance(policy.decoder, LeanDecoder) else HostedDecoder

    def parts(self, model: Any, passages: Sequence[Passage], token_budget: int) -> Iterator[tuple[list[int], Reading]]:
        decoder = self._kind(decoder_of(model))
        cut = packed_cut(passages, token_budget)
        # The last token of a completion predicts nothing, so it is not among those that are computed.
        texts = [passage.completion_ids[:-1] for passage in passages]
        order = [text for prompts, parts in cut for text in (*prompts, *(texts[row] for rows in parts for row in rows))]
        tokens = _Tokens(model.get_input_embeddings(), order, self._device)
        for prompts, parts in cut:
            prefix = None if len(parts) == 1 else _Prefix(decoder, tokens.take(prompts), prompts)
            for rows in parts:
                part, following = [passages[row] for row in rows], [texts[row] for row in rows]
                sequel = _Sequel(prompts, part)
                if prefix is None:
                    states_XD = _at_once(decoder, tokens.take([*prompts, *following]), sequel)
                else:
                    states_XD = prefix.continued(tokens.take(following), sequel)
                yield rows, self._read(model, part, states_XD.index_select(0, torch.tensor(sequel.predicting, device=self._device)))
            if prefix is not None:
                prefix.backward()
        tokens.backward()

    def _read(self, model: Any, passages: list[Passage], values_ND: Tensor) -> Reading:
        targets = torch.tensor([token for passage in passages for token in passage.completion_ids], device=self._device)
        vocabulary = model.config.get_text_config().vocab_size
        head = partial(product, layer=model.get_output_embeddings())
        lengths = [len(passage.completion_ids) for passage in passages]
        return _padded(*self._head.read(head, values_ND, targets, vocabulary), lengths)


class _Sequel:
    """Some completions as texts that follow prompts, each without its last token, which predicts nothing.

    `predicting` says for every token of the completions which state predicts it, where states are of the ends of all prompts and
    then of these texts: the first token is predicted at the end of its prompt, each other one at the token before it.
    """

    def __init__(self, prompts: Sequence[tuple[int, ...]], passages: list[Passage]) -> None:
        numbers = {prompt: number for number, prompt in enumerate(prompts)}
        self.prompt_lengths = [len(prompt) for prompt in prompts]
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
    device, pattern = embedded_ND.device, Prompts(sequel.prompt_lengths, embedded_ND.device)
    lasts_I, tokens = _lasts(sequel.prompt_lengths, device), pattern.grid.tokens
    positions_N = torch.cat([positions(sequel.prompt_lengths, device), sequel.positions(device)])
    wanted_X = torch.cat([lasts_I, torch.arange(tokens, len(positions_N), device=device)])
    if not any(sequel.lengths):
        return decoder(embedded_ND, positions_N, pattern, wanted_X)
    following = completions(sequel.lengths, sequel.prompt_of, pattern, pattern.keys, pattern.values)
    return decoder(embedded_ND, positions_N, Whole(pattern, following), wanted_X)


def _lasts(lengths: list[int], device: torch.device) -> Tensor:
    return torch.tensor(lengths, device=device).cumsum(0) - 1


class _Leaves:
    """Tensors cut off from what they were computed from: they gather the gradients of all parts, and `backward` passes them on."""

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

    def __init__(self, table: Any, texts: Sequence[tuple[int, ...]], device: torch.device) -> None:
        super().__init__()
        self._embedded_ND = self.leaf(table(torch.tensor([token for text in texts for token in text], device=device)))
        self._taken = 0

    def take(self, texts: Sequence[tuple[int, ...]]) -> Tensor:
        """The embeddings of the texts that come next."""
        first, self._taken = self._taken, self._taken + sum(map(len, texts))
        return self._embedded_ND[first : self._taken]


class _Prefix(_Leaves):
    """Prompts, computed once: activations of one part exist at a time, and still each prompt goes forward once and back once."""

    def __init__(self, decoder: PackedDecoder, embedded_ND: Tensor, prompts: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        lengths, device = [len(prompt) for prompt in prompts], embedded_ND.device
        self._decoder, self._prompts = decoder, Prompts(lengths, device)
        states_ID = decoder(embedded_ND, positions(lengths, device), self._prompts, _lasts(lengths, device))
        self._lasts_ID = self.leaf(states_ID)
        self._keys = {layer: self.leaf(keys) for layer, keys in self._prompts.keys.items()}
        self._values = {layer: self.leaf(values) for layer, values in self._prompts.values.items()}

    def continued(self, embedded_ND: Tensor, sequel: _Sequel) -> Tensor:
        """The states at the ends of the prompts and of what follows them."""
        if not any(sequel.lengths):
            return self._lasts_ID
        pattern = completions(sequel.lengths, sequel.prompt_of, self._prompts, self._keys, self._values)
        return torch.cat([self._lasts_ID, self._decoder(embedded_ND, sequel.positions(embedded_ND.device), pattern)])


def packed_cut(passages: Sequence[Passage], token_budget: int) -> list[tuple[list[tuple[int, ...]], list[list[int]]]]:
    """Groups of distinct prompts, and for each group its passages in parts, by number."""
    groups = prompt_groups(passages, token_budget // 2)
    return [(list(group), list(completion_cut(group, passages, token_budget - sum(map(len, group))))) for group in groups]


def prompt_groups(passages: Sequence[Passage], room: int) -> list[dict[tuple[int, ...], list[int]]]:
    """Distinct prompts with the numbers of their passages, in groups of at most `room` prompt tokens but at least one prompt."""
    rows_of: dict[tuple[int, ...], list[int]] = {}
    for row, passage in enumerate(passages):
        rows_of.setdefault(passage.prompt_ids, []).append(row)
    groups: list[dict[tuple[int, ...], list[int]]] = []
    used = 0
    for prompt in sorted(rows_of, key=len, reverse=True):
        if not groups or used + len(prompt) > room:
            groups.append({})
            used = 0
        groups[-1][prompt] = rows_of[prompt]
        used += len(prompt)
    return groups


def completion_cut(group: dict[tuple[int, ...], list[int]], passages: Sequence[Passage], room: int) -> Iterator[list[int]]:
    """The group's passages, longest completions first, in parts of at most `room` completion tokens but at least one passage.

    Parts are about equal: a small rest would waste the rate that matrix products have only at some size. Attention is padded to a
    part's longest completion, so a part ends, too, where that would double it.
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


class PaddedReader:
    """Passages side by side, padded on the right."""

    def __init__(self, policy: Model, logit_values: int = LOGIT_VALUES) -> None:
        self._device, self._pad_id = policy.device, policy.pad_id
        self._plain_head = has_plain_head(policy.model, policy.end_id)
        self._head = _Head(policy.temperature, logit_values)

    def parts(self, model: Any, passages: Sequence[Passage], token_budget: int) -> Iterator[tuple[list[int], Reading]]:
        for rows in padded_cut(passages, token_budget):
            yield rows, self._read(model, [passages[row] for row in rows])

    def _read(self, model: Any, passages: list[Passage]) -> Reading:
        rows = [torch.tensor(passage.prompt_ids + passage.completion_ids) for passage in passages]
        ids_BS = pad_sequence(rows, batch_first=True, padding_value=self._pad_id).to(self._device)
        starts_B1 = torch.tensor([[len(passage.prompt_ids)] for passage in passages], device=self._device)
        ends_B1 = torch.tensor([[passage.length] for passage in passages], device=self._device)
        positions_S = torch.arange(ids_BS.shape[1], device=self._device)
        predicting_BS = (positions_S >= starts_B1 - 1) & (positions_S < ends_B1 - 1)  # token s is predicted at position s - 1
        optional = {"position_ids": positions_S.expand_as(ids_BS)} if "position_ids" in accepted_arguments(model) else {}
        inputs = {"input_ids": ids_BS, "attention_mask": (positions_S < ends_B1).long(), "use_cache": False, **optional}
        if self._plain_head:
            values_ND, head = decoder_of(model)(**inputs).last_hidden_state[predicting_BS], model.get_output_embeddings()
        else:
            values_ND, head = _late_logits(model, inputs, predicting_BS), torch.clone  # reading uses logits up
        targets_N = ids_BS.roll(-1, dims=1)[predicting_BS]
        vocabulary = model.config.get_text_config().vocab_size
        lengths = [len(passage.completion_ids) for passage in passages]
        return _padded(*self._head.read(head, values_ND, targets_N, vocabulary), lengths)


def padded_cut(passages: Sequence[Passage], token_budget: int) -> list[list[int]]:
    """Rows of similar length, longest first, with at most `token_budget` tokens each, padding included."""
    cut: list[list[int]] = []
    for row in sorted(range(len(passages)), key=lambda row: -passages[row].length):
        if not cut or (len(cut[-1]) + 1) * passages[cut[-1][0]].length > token_budget:
            cut.append([])
        cut[-1].append(row)
    return cut


def _late_logits(model: Any, inputs: dict[str, Any], predicting_BS: Tensor) -> Tensor:
    """The model's own logits at the predicting positions; positions before the first of them are left out where it can do that."""
    if "logits_to_keep" not in accepted_arguments(model):
        return model(**inputs).logits[predicting_BS]
    kept = int(predicting_BS.shape[1] - predicting_BS.any(dim=0).nonzero()[0])
    return model(**inputs, logits_to_keep=kept).logits[predicting_BS[:, -kept:]]
