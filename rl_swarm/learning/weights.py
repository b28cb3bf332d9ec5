"""Judge the tensors of a checkpoint against the model that they are for, before any of them is used.

Every check raises CheckpointError and changes nothing. A checkpoint that passes is whole and can be computed with. Whether its
weights are good, nobody can tell.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_swarm.errors import CheckpointError, OtherModel

MOMENTS = ("exp_avg", "exp_avg_sq")  # Adam's averages of the gradient and of its square
MOST = torch.finfo(torch.float32).max ** 0.5  # the square of a larger value overflows


def trainable(model: Any) -> dict[str, Tensor]:
    """The trained parameters by name, in the optimizer's order."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def check_weights(saved: object, own: Mapping[str, Tensor], model: str, *, any_precision: bool = False) -> dict[str, Tensor]:
    """Return the saved tensors. Their names, shapes and types must be the model's own (else raise OtherModel), their values in
    range, and no matrix may be all zeros unless the model's is."""
    saved = tensors_by_name(saved)
    differing = [name for name in own if not _fits(saved.get(name), own[name], any_precision)] + sorted(saved.keys() - own.keys())
    if differing:
        raise OtherModel(
            f"its {len(saved)} trainable tensors are not the {len(own)} of {model or 'this model'}, for instance "
            f"{differing[0][:80]!r}: use the MODEL_NAME, LORA_RANK and DTYPE that it was made with, or another NODE_ID"
        )
    for name, tensor in saved.items():
        if value_range(tensor, name) == (0, 0) and tensor.ndim > 1 and bool(own[name].any()):
            raise CheckpointError(f"all values of {name} are zero, and those of {model or 'the model'} are not")
    return saved


def tensors_by_name(saved: object) -> dict[str, Tensor]:
    """Return the weights of any model."""
    if not isinstance(saved, dict) or not all(isinstance(name, str) and type(tensor) is Tensor for name, tensor in saved.items()):
        raise CheckpointError("it has no weights by name")
    return saved


def adapter_rank(weights: Mapping[str, Tensor]) -> int:
    """The rank of a LoRA adapter's weights, 0 for those of a whole model."""
    return next((tensor.shape[0] for name, tensor in weights.items() if ".lora_A." in name and tensor.ndim), 0)


def check_moments(
    saved: object, weights: Mapping[str, Tensor], own: Mapping[str, Tensor], updates: int
) -> dict[int, dict[str, Tensor]]:
    """Return Adam's state by the number of the parameter. A parameter may lack it only if its weights are still the model's."""
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
    step, _ = value_range(entry["step"], f"the step of {name}")
    value_range(entry["exp_avg"], f"the average gradient of {name}")
    if value_range(entry["exp_avg_sq"], f"the average square of {name}")[0] < 0 or not 1 <= step <= updates:
        raise CheckpointError(f"its optimizer state of {name} is impossible: step {step:g} of {updates}, or a negative square")
    return entry


def check_random(saved: object) -> Tensor:
    """Return the state of torch's random generator."""
    if not _fits(saved, torch.get_rng_state()):
        raise CheckpointError("its state of the random generator has another size or type")
    assert isinstance(saved, Tensor)
    try:
        torch.Generator().set_state(saved)
    except RuntimeError as error:
        raise CheckpointError("its state of the random generator is impossible") from error
    return saved


def value_range(tensor: Tensor, name: str) -> tuple[float, float]:
    """The lowest and the highest value; zeros for an empty tensor. Raise CheckpointError for values that cannot be used."""
    if not tensor.numel():
        return 0.0, 0.0
    low, high = (float(bound) for bound in torch.aminmax(tensor))
    if not -MOST < low <= high < MOST:  # also false for NaN
        raise CheckpointError(f"{name} has values that are not finite, or too large to compute with")
    return low, high


def _fits(saved: object, own: Tensor, any_precision: bool = False) -> bool:
    if type(saved) is not Tensor or saved.layout != torch.strided or saved.shape != own.shape:
        return False
    return saved.dtype == own.dtype or (any_precision and saved.is_floating_point())
