"""PyTorch's optimizers as the server's."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from paceline._torch.tensors import ModelTensors
from paceline.errors import InputError

#: Settings that may differ between parameter groups.
_OF_GROUPS = {"lr", "weight_decay", "params", "initial_lr", "betas_name", "param_names"}
#: Settings that the server is told once.
_FIXED = ("momentum", "dampening", "nesterov", "weight_decay", "betas", "eps", "amsgrad", "maximize")
#: Settings that only choose an implementation.
_OF_IMPLEMENTATION = {"foreach", "fused", "capturable", "differentiable"}


def rates(optimizer: Optimizer) -> list[float]:
    """Return the learning rates of the parameter groups at present."""
    return [float(group["lr"]) for group in optimizer.param_groups]


def set_rates(optimizer: Optimizer, rates: Sequence[float | Tensor]) -> list[float | Tensor]:
    """Set the learning rate of every parameter group, or one for all. Return those before."""
    before = []
    for index, group in enumerate(optimizer.param_groups):
        old, new = group["lr"], rates[index if len(rates) > 1 else 0]
        before.append(old.clone() if isinstance(old, Tensor) else old)
        if isinstance(old, Tensor):
            old.fill_(new)
        else:
            group["lr"] = new
    return before


def settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return what the server knows of the parameter groups from the beginning, unlike their learning rates."""
    return [{key: group[key] for key in _FIXED if key in group} for group in optimizer.param_groups]


def check_fixed(optimizer: Optimizer, before: list[dict[str, Any]]) -> None:
    """Refuse to go on with other settings than the server has."""
    for old, new in zip(before, settings(optimizer), strict=True):
        for key, value in old.items():
            if new[key] != value:
                message = (
                    f"the optimizer's {key} was {value} at run.prepare and is {new[key]}: only learning rates may "
                    "change (for a scheduler of torch that means cycle_momentum=False)"
                )
                raise InputError(message)


def check(optimizer: Optimizer, tensors: ModelTensors) -> None:
    """Refuse an optimizer that can't take part, or that does not train the model's parameters."""
    if isinstance(optimizer, torch.optim.LBFGS):
        message = "LBFGS calls its closure several times in one step, which no scheme can spread: use SGD or Adam"
        raise InputError(message)
    if isinstance(optimizer, torch.optim.SparseAdam):
        message = (
            "SparseAdam needs sparse gradients, which are not supported: use Adam, and sparse=False in nn.Embedding"
        )
        raise InputError(message)
    known = {id(entry.tensor): entry.name for entry in tensors.trained}
    optimized = {id(parameter) for parameter in _parameters(optimizer)}
    if missing := [name for key, name in known.items() if key not in optimized]:
        message = f"the optimizer does not train parameter '{missing[0]}': give it all, or set requires_grad to False"
        raise InputError(message)
    if any(parameter.requires_grad and id(parameter) not in known for parameter in _parameters(optimizer)):
        message = "the optimizer trains parameters that the model does not have: give it those of this model alone"
        raise InputError(message)


def specification(optimizer: Optimizer, tensors: ModelTensors) -> str | None:
    """Describe the optimizer as the server knows it, e.g. `momentum:momentum=0.9`.

    None if the server does not know it; it then steps on the workers, which send the difference.
    """
    groups = optimizer.param_groups
    settings = groups[0]
    shared = set(settings) - _OF_GROUPS - _OF_IMPLEMENTATION
    same = all(group.get(key) == settings.get(key) for group in groups for key in shared)
    if not same or settings.get("maximize") or settings.get("differentiable"):
        return None
    kind = _kind(optimizer, settings)
    if kind is None:
        return None
    names = {id(entry.tensor): entry.name for entry in tensors.trained}
    parts = [kind]
    for group in groups[1:]:
        pattern = "|".join(names[id(parameter)] for parameter in group["params"] if id(parameter) in names)
        if any(character in pattern for character in "*;:,="):
            return None
        parts.append(f"{pattern}:decay={_number(group['weight_decay'])}")
    return ";".join(parts)


def _kind(optimizer: Optimizer, settings: dict[str, Any]) -> str | None:
    """Describe the optimizer without its groups."""
    decay = f"decay={_number(settings.get('weight_decay', 0.0))}"
    # A subclass may do anything.
    match type(optimizer):
        case torch.optim.SGD if settings["momentum"] == 0:
            return f"sgd:{decay}"
        case torch.optim.SGD if settings["nesterov"]:
            return f"nesterov:momentum={_number(settings['momentum'])},{decay}"
        case torch.optim.SGD:
            dampening = f"dampening={_number(settings['dampening'])}"
            return f"momentum:momentum={_number(settings['momentum'])},{dampening},{decay}"
        case torch.optim.Adam | torch.optim.AdamW if not settings["amsgrad"]:
            decoupled = settings.get("decoupled_weight_decay", isinstance(optimizer, torch.optim.AdamW))
            beta1, beta2 = (_number(beta) for beta in settings["betas"])
            moments = f"beta1={beta1},beta2={beta2},epsilon={_number(settings['eps'])}"
            return f"{'adamw' if decoupled else 'adam'}:{decay},{moments}"
        case _:
            return None


def _number(value: float | Tensor) -> str:
    """Format a number so that it reads back as the same."""
    return repr(float(value))


def _parameters(optimizer: Optimizer) -> Iterable[Tensor]:
    """Return all parameters of an optimizer."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
