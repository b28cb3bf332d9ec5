"""Judge the tensors of a checkpoint against the model that they are for, before any of them is used.

Every function raises CheckpointError and changes nothing. A checkpoint that passes is whole and can be computed with; whether its
weights are good ones nobody can tell.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_swarm.errors import CheckpointError, OtherModel

MOMENTS = ("exp_avg", "exp_avg_sq")  # Adam's averages of the gradient and of its square


def trainable(model: Any) -> dict[str, Tensor]:
    """The parameters that are trained, by name, in the optimizer's order."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def check_weights(saved: object, own: Mapping[str, Tensor], model: str, *, any_precision: bool = False) -> dict[str, Tensor]:
    """The saved tensors: of the same names, shapes and types as the model's own, finite, and no matrix of zeros where the model has
    none. Raise OtherModel if they are of another model."""
    saved = tensors_by_name(saved)
    differing = [name for name in own if not _fits(saved.get(name), own[name], any_precision)] + sorted(saved.keys() - own.keys())
    if differing:
        raise OtherModel(
            f"its {len(saved)} trainable tensors are not the {len(own)} of {model or 'this model'}, for instance "
            f"{differing[0][:80]!r}: use the MODEL_NAME, LORA_RANK and DTYPE that it was made with, or another NODE_ID"
        )
    for name, tensor in saved.items():
        low, high = finite_range(tensor, name)
        if tensor.ndim > 1 and low == high == 0 and bool(own[name].any()):
            raise CheckpointError(f"all values of {name} are zero, and those of {model or 'the model'} are not")
    return saved


def tensors_by_name(saved: object) -> dict[str, Tensor]:
    """Weights of whatever model."""
    if not isinstance(saved, dict) or not all(isinstance(name, str) and type(tensor) is Tensor for name, tensor in saved.items()):
        raise CheckpointError("it has no weights by name")
    return saved


def adapter_rank(weights: Mapping[str, Tensor]) -> int:
    """The rank of the LoRA adapter that weights are of, 0 for those of a whole model."""
    return next((tensor.shape[0] for name, tensor in weights.items() if ".lora_A." in name and tensor.ndim), 0)


def check_moments(
    saved: object, weights: Mapping[str, Tensor], own: Mapping[str, Tensor], updates: int
) -> dict[int, dict[str, Tensor]]:
    """Adam's state by the number of the parameter. A parameter that was never stepped has none, and still the model's weights."""
    state = saved.get("state") if isinstance(saved, dict) else None
    if not isinstance(state, dict) or not state.keys() <= set(range(len(own))):
        raise CheckpointError("its optimizer state is not by parameter")
    checked = {}
    for number, (name, parameter) in enumerate(own.items()):
        if number in state:
            checked[number] = _moments(state[number], name, parameter, updates)
        elif not torch.equal(weights[name], parameter.detach().cpu()):
            raise CheckpointError(f"it has no optimizer state of {name}, which was trained")
    return checked


def _moments(entry: object, name: str, parameter: Tensor, updates: int) -> dict[str, Tensor]:
    if not isinstance(entry, dict) or entry.keys() != {"step", *MOMENTS}:
        raise CheckpointError(f"its optimizer state of {name} is not Adam's")
    if not _fits(entry["step"], torch.zeros((), dtype=torch.float32)) or not all(_fits(entry[kind], parameter) for kind in MOMENTS):
        raise CheckpointError(f"its optimizer state of {name} has another shape or type")
    step, _ = finite_range(entry["step"], f"the step of {name}")
    finite_range(entry["exp_avg"], f"the average gradient of {name}")
    if finite_range(entry["exp_avg_sq"], f"the average square of {name}")[0] < 0 or not 1 <= step <= updates:
        raise CheckpointError(f"its optimizer state of {name} is impossible: step {step:g} of {updates}, or a negative square")
    return entry


def check_random(saved: object) -> Tensor:
    """The state of torch's random generator."""
    if not _fits(saved, torch.get_rng_state()):
        raise CheckpointError("its state of the random generator has another size or type")
    assert isinstance(saved, Tensor)
    try:
        torch.Generator().set_state(saved)
    except RuntimeError as error:
        raise CheckpointError("its state of the random generator is impossible") from error
    return saved


def finite_range(tensor: Tensor, name: str) -> tuple[float, float]:
    """The lowest and the highest value, both finite; a tensor without values has zero for both."""
    if not tensor.numel():
        return 0.0, 0.0
    low, high = (float(bound) for bound in torch.aminmax(tensor))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise CheckpointError(f"{name} has values that are not finite")
    return low, high


def _fits(saved: object, own: Tensor, any_precision: bool = False) -> bool:
    if type(saved) is not Tensor or saved.layout != torch.strided or saved.shape != own.shape:
        return False
    return saved.dtype == own.dtype or (any_precision and saved.is_floating_point())
