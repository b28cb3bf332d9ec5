"""The layers of a Llama-like decoder (Llama, SmolLM2, Qwen2, Qwen3), computed with a third less memory and half the calls.

Uses the weights and settings of the transformers model itself, without a copy. Refuses a decoder of another form, or one with
adapters. `architecture.py` compares the result with the model's own before anyone relies on it.

Shapes are in the names:
    N  packed tokens    D  hidden size    F  size of the gate    H  query heads    K  key and value heads    S  size of a head
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, rms_norm, silu

from rl_swarm.learning.engine.attention import Pattern, Unpackable

FEW_ROWS = range(16, 257)
LARGE_WEIGHT = 100_000  # values


class LeanDecoder:
    """Packed tokens in, hidden states out. Raises Unpackable if the decoder is not of this form."""

    def __init__(self, decoder: Any) -> None:
        try:
            self._layers = [_layer(layer) for layer in decoder.layers]
            self._norm, self._angles = decoder.norm, decoder.rotary_emb
        except AttributeError as missing:
            raise Unpackable(f"a decoder without {missing.name}") from None
        text = decoder.config.get_text_config()
        self._head_size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads

    def __call__(self, embedded_ND: Tensor, positions_N: Tensor, pattern: Pattern, wanted_X: Tensor | None = None) -> Tensor:
        cos_N1S, sin_N1S = self._turns(embedded_ND, positions_N)
        hidden_ND = embedded_ND
        for number, layer in enumerate(self._layers):
            query_NHS, key_NKS, value_NKS = self._projected(layer, hidden_ND, cos_N1S, sin_N1S)
            attended_ND = pattern.attend(number, query_NHS, key_NKS, value_NKS, layer.scale).flatten(1)
            if wanted_X is not None and number == len(self._layers) - 1:  # only keys and values of the other tokens are needed
                hidden_ND, attended_ND = (states.index_select(0, wanted_X) for states in (hidden_ND, attended_ND))
            hidden_ND = hidden_ND + product(attended_ND, layer.output)
            hidden_ND = hidden_ND + self._gated(layer, _normed(layer.before_gate, hidden_ND))
        return _normed(self._norm, hidden_ND)

    def _turns(self, like_ND: Tensor, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        """Factors for x · cos + (halves of x swapped) · sin: the first half of the sines is negated."""
        cos, sin = self._angles(like_ND[None], positions_N[None])
        cos_N1S, sin_N1S = cos[0].unsqueeze(1), sin[0].unsqueeze(1).clone()
        sin_N1S[..., : self._head_size // 2].neg_()
        return cos_N1S, sin_N1S

    def _projected(self, layer: Any, hidden_ND: Tensor, cos_N1S: Tensor, sin_N1S: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values; queries and keys are rotated to their positions."""
        normed_ND = _normed(layer.before_attention, hidden_ND)
        projections = (layer.query, layer.key, layer.value)
        query, key, value = (product(normed_ND, each).view(hidden_ND.shape[0], -1, self._head_size) for each in projections)
        if layer.query_norm is not None:
            query, key = _normed(layer.query_norm, query), _normed(layer.key_norm, key)
        return _rotated(query, cos_N1S, sin_N1S), _rotated(key, cos_N1S, sin_N1S), value

    def _gated(self, layer: Any, normed_ND: Tensor) -> Tensor:
        return _Gated.apply(normed_ND, layer.gate.weight, layer.up.weight, layer.down.weight)


class FrozenDecoder(LeanDecoder):
    """A decoder for many small passes without a gradient, over up to `length` tokens, valid until the weights change. Matrices with
    the same input are joined, so that there are fewer and larger products."""

    def __init__(self, decoder: LeanDecoder, length: int) -> None:
        vars(self).update(vars(decoder))
        self._layers = [SimpleNamespace(**vars(layer), **_joined(layer)) for layer in decoder._layers]
        weight = self._layers[0].asking
        self._cos, self._sin = decoder._turns(weight, torch.arange(length, device=weight.device))

    def _turns(self, like_ND: Tensor, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        return self._cos.index_select(0, positions_N), self._sin.index_select(0, positions_N)

    def _projected(self, layer: Any, hidden_ND: Tensor, cos_N1S: Tensor, sin_N1S: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values_NX = _plain_product(_normed(layer.before_attention, hidden_ND), layer.asking, layer.asking_bias)
        values_NXS = values_NX.view(hidden_ND.shape[0], -1, self._head_size)
        shared = layer.key.out_features // self._head_size
        asking_NXS, value_NKS = values_NXS[:, :-shared], values_NXS[:, -shared:]
        if layer.query_norm is not None:
            normed = (_normed(layer.query_norm, asking_NXS[:, :-shared]), _normed(layer.key_norm, asking_NXS[:, -shared:]))
            asking_NXS = torch.cat(normed, dim=1)
        turned_NXS = _plain_rotation(asking_NXS, cos_N1S, sin_N1S)
        return turned_NXS[:, :-shared], turned_NXS[:, -shared:], value_NKS

    def _gated(self, layer: Any, normed_ND: Tensor) -> Tensor:
        # As in _plain_product; here the other order in memory costs nothing.
        if len(normed_ND) in FEW_ROWS and normed_ND.device.type == "cpu":
            gated_FN, upped_FN = (layer.gate_up @ normed_ND.t()).chunk(2)
            return _plain_product(silu(gated_FN, inplace=True).mul_(upped_FN).t(), layer.down.weight)
        gated_NF, upped_NF = linear(normed_ND, layer.gate_up).chunk(2, dim=-1)
        return linear(silu(gated_NF, inplace=True).mul_(upped_NF), layer.down.weight)


def _joined(layer: Any) -> dict[str, Tensor | None]:
    """The matrix of queries, keys and values, with its bias, and that of gate and up."""
    asking, bias = (layer.query, layer.key, layer.value), None
    if any(each.bias is not None for each in asking):
        bias = torch.cat([each.weight.new_zeros(each.out_features) if each.bias is None else each.bias for each in asking])
    matrix, gate_up = torch.cat([each.weight for each in asking]), torch.cat([layer.gate.weight, layer.up.weight])
    return {"asking": matrix, "asking_bias": bias, "gate_up": gate_up}


def _layer(layer: Any) -> SimpleNamespace:
    """The parts of one layer by name; raise Unpackable if they do more than is computed here."""
    attention, gated = layer.self_attn, layer.mlp
    matrices = {"query": attention.q_proj, "key": attention.k_proj, "value": attention.v_proj, "output": attention.o_proj}
    gates = {"gate": gated.gate_proj, "up": gated.up_proj, "down": gated.down_proj}
    biased = any(each.bias is not None for each in gates.values())
    if biased or any(type(each) is not nn.Linear for each in (matrices | gates).values()):
        raise Unpackable("a layer whose linear parts are more than matrices")
    if type(gated.act_fn).__name__ not in ("SiLU", "SiLUActivation") or getattr(attention, "sliding_window", None) is not None:
        raise Unpackable("a layer with another gate, or a sliding window")
    return SimpleNamespace(
        **matrices,
        **gates,
        before_attention=layer.input_layernorm,
        before_gate=layer.post_attention_layernorm,
        query_norm=getattr(attention, "q_norm", None),
        key_norm=getattr(attention, "k_norm", None),
        scale=attention.scaling,
    )


def _normed(norm: Any, values: Tensor) -> Tensor:
    epsilon = norm.variance_epsilon
    if torch.is_grad_enabled():
        return _Normed.apply(values, norm.weight, epsilon)
    return rms_norm(values, values.shape[-1:], norm.weight, epsilon)


def product(values_ND: Tensor, layer: nn.Linear) -> Tensor:
    """Apply the layer. Its weight's gradient is accumulated in place, so that no second one ever exists."""
    if torch.is_grad_enabled():
        return _Product.apply(values_ND, layer.weight, layer.bias)
    return _plain_product(values_ND, layer.weight, layer.bias)


def _plain_product(values_ND: Tensor, weight_FD: Tensor, bias_F: Tensor | None = None) -> Tensor:
    """values · weightᵀ + bias. For few rows and a large weight, the transposed product is a fifth faster on a CPU: its result has
    more rows to share out among threads. For a small weight, the result's other order in memory costs more than that."""
    turned = len(values_ND) in FEW_ROWS and weight_FD.numel() >= LARGE_WEIGHT
    if turned and bias_F is None and values_ND.device.type == "cpu":
        return (weight_FD @ values_ND.t()).t()
    return linear(values_ND, weight_FD, bias_F)


class _Product(torch.autograd.Function):
    """Holds weights by reference instead of saving them: `checkpoint` would hand back copies of saved ones."""

    @staticmethod
    def forward(ctx: Any, values_ND: Tensor, weight_FD: Tensor, bias_F: Tensor | None) -> Tensor:
        ctx.save_for_backward(values_ND)
        ctx.weight_FD = weight_FD
        return linear(values_ND, weight_FD, bias_F)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NF: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        (values_ND,), weight_FD = ctx.saved_tensors, ctx.weight_FD
        if ctx.needs_input_grad[1]:
            _add_product(weight_FD, grad_NF, values_ND)
        values_grad = grad_NF @ weight_FD if ctx.needs_input_grad[0] else None
        return values_grad, None, grad_NF.sum(0) if ctx.needs_input_grad[2] else None


def _add_product(weight_FD: Tensor, grad_NF: Tensor, values_ND: Tensor) -> None:
    """Add a part's gradient to that of earlier parts, without the temporary tensor that autograd would make."""
    if weight_FD.grad is None:
        weight_FD.grad = grad_NF.t() @ values_ND
    else:
        weight_FD.grad.addmm_(grad_NF.t(), values_ND)


class _Normed(torch.autograd.Function):
    """x / rms(x) · weight. Saves x, which others save too, and one number a row."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        length = torch.linalg.vector_norm(values.float(), dim=-1, keepdim=True)
        inverse = length.square_().div_(values.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(values, weight, inverse)
        normed: Tensor = (values * inverse).to(values.dtype)
        return normed.mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        values, weight, inverse = ctx.saved_tensors
        unit = values * inverse
        weight_grad = (grad * unit).flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        inner = grad * weight
        mean = torch.linalg.vecdot(inner, unit).unsqueeze(-1).div_(values.shape[-1])
        return inner.sub_(unit.mul_(mean)).mul_(inverse).to(values.dtype), weight_grad, None


def _rotated(values_NHS: Tensor, cos_N1S: Tensor, sin_N1S: Tensor) -> Tensor:
    if torch.is_grad_enabled():
        return _Rotate.apply(values_NHS, cos_N1S, sin_N1S)
    return _plain_rotation(values_NHS, cos_N1S, sin_N1S)


def _plain_rotation(values_NHS: Tensor, cos_N1S: Tensor, sin_N1S: Tensor) -> Tensor:
    return torch.addcmul(values_NHS * cos_N1S, values_NHS.roll(values_NHS.shape[-1] // 2, -1), sin_N1S)


class _Rotate(torch.autograd.Function):
    """Rotary positions. The gradient is the inverse rotation, so the values are not saved."""

    @staticmethod
    def forward(ctx: Any, values_NHS: Tensor, cos_N1S: Tensor, sin_N1S: Tensor) -> Tensor:
        ctx.save_for_backward(cos_N1S, sin_N1S)
        return _plain_rotation(values_NHS, cos_N1S, sin_N1S)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NHS: Tensor) -> tuple[Tensor, None, None]:
        cos_N1S, sin_N1S = ctx.saved_tensors
        return torch.addcmul(grad_NHS * cos_N1S, grad_NHS.roll(grad_NHS.shape[-1] // 2, -1), sin_N1S, value=-1), None, None


class _Gated(torch.autograd.Function):
    """down(silu(gate(x)) · up(x)). Saves x and the two products; the backward pass computes the cheap rest again."""

    @staticmethod
    def forward(ctx: Any, values_ND: Tensor, gate_FD: Tensor, up_FD: Tensor, down_DF: Tensor) -> Tensor:
        gated_NF, upped_NF = linear(values_ND, gate_FD), linear(values_ND, up_FD)
        ctx.save_for_backward(values_ND, gated_NF, upped_NF)
        ctx.weights = (gate_FD, up_FD, down_DF)
        return linear(silu(gated_NF).mul_(upped_NF), down_DF)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor, None, None, None]:
        (values_ND, gated_NF, upped_NF), (gate_FD, up_FD, down_DF) = ctx.saved_tensors, ctx.weights
        active_NF = silu(gated_NF)
        if ctx.needs_input_grad[3]:
            _add_product(down_DF, grad_ND, active_NF * upped_NF)
        grad_NF = grad_ND @ down_DF
        upped_grad_NF = active_NF.mul_(grad_NF)
        gated_grad_NF = torch.ops.aten.silu_backward(grad_NF.mul_(upped_NF), gated_NF)
        if ctx.needs_input_grad[1]:
            _add_product(gate_FD, gated_grad_NF, values_ND)
        if ctx.needs_input_grad[2]:
            _add_product(up_FD, upped_grad_NF, values_ND)
        return (gated_grad_NF @ gate_FD).addmm_(upped_grad_NF, up_FD), None, None, None
