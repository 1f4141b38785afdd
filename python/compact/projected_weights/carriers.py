# SPDX-License-Identifier: Apache-2.0
"""Parameters that take the gradients of weights in a random projection (CompAct, arXiv 2410.15352).

A weight [out, in] whose gradient is projected is frozen, and beside it stands a parameter `carrier`,
zeros [out, rank]. Its gradient is that of the weight times the projection, its moments are as small,
and compact.optim adds its update to the weight through the projection, so that it is zero whenever
anybody looks at it. state_dict() does not write it.
"""
from __future__ import annotations

import copy
import weakref
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from ..base.hooks import before_every_step, has_hooks_of_others, hookable
from ..base.shards import in_process_group
from ..base.torch_private import parameters_of, register_state_dict_hook, remove_state_hooks, running_ddp, version_of
from .watched_parameter import Watched

NAME = "carrier"
_PROJECTED = "_compact_projected"  # the attribute of a module whose weight has a carrier
_PREFIX = "_compact_prefix"  # the prefix of its names in the state that is being loaded
_of_weight = WeakIdKeyDictionary()  # weak references to carriers in force, by their weights
_known_to = weakref.WeakKeyDictionary()  # ids of the parameters that a DistributedDataParallel sends
ONLY = (
    "compact.optim.AdamW and compact.optim.Muon alone update weights with projected gradients; with Trainer: "
    "optimizer_cls_and_kwargs=(compact.optim.AdamW, {...}) or optimizers=(compact.optim.Muon(model, ...), None)"
)


class Projected(Watched):
    """A weight while its carrier takes its gradient."""

    def is_watched(self) -> bool:
        carrier = _carrier_of(self)
        return carrier is not None and carrier.requires_grad


class Carrier(Watched):
    """Zeros that take a gradient; copies are of the copied weight."""

    weight: nn.Parameter  # the update is added to it
    projected: Any  # the projection, shared by all weights that read the same input
    transposed: bool  # the weight is [in, out]
    zero_at: int  # the version at which it was known to be zero
    redrawn: bool  # no gradient has arrived since its projection was drawn again

    def in_force(self) -> bool:
        """Whether it is still the carrier of its weight, and was not removed."""
        return _carrier_of(self.weight) is self

    def is_watched(self) -> bool:
        return self.requires_grad and self.in_force()

    def is_zero(self) -> bool:
        """Whether it is unchanged; its values are read only where its version says that something wrote to it."""
        if version_of(self) != self.zero_at:
            if bool(self.detach().any()):
                return False
            self.zero_at = version_of(self)
        return True

    def is_stale(self) -> bool:
        """Whether its gradient was made with an earlier projection than the present one."""
        return self.redrawn and self.grad is not None and bool(self.grad.any())

    def shrink(self) -> None:
        """Lets it take no memory again after it was moved to another device or type."""
        if self.numel() > 1 and self.stride() != (0, 0) and not in_process_group():
            self.data = _values(tuple(self.shape), self.dtype, self.device)

    def __reduce_ex__(self, protocol: int) -> tuple:
        made = (self.weight, tuple(self.shape), self.dtype, self.requires_grad)
        return _loaded_carrier, made, {k: v for k, v in self.__dict__.items() if k != "zero_at"}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        _register(self)

    def __deepcopy__(self, memo: dict) -> Carrier:
        result = _zeros(tuple(self.shape), self.dtype, self.device, self.requires_grad)
        memo[id(self)] = result
        result.__setstate__(copy.deepcopy({k: v for k, v in self.__dict__.items() if k != "zero_at"}, memo))
        return result


def _carrier_of(weight: torch.Tensor) -> Carrier | None:
    found = _of_weight.get(weight)
    return None if found is None else found()


def _values(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    # One zero that all elements share; but in a process group DDP writes to parameters at the start.
    if in_process_group():
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.zeros((1, 1), dtype=dtype, device=device).expand(shape)


def _zeros(shape: tuple[int, int], dtype: torch.dtype, device: torch.device, requires_grad: bool) -> Carrier:
    carrier = Carrier(_values(shape, dtype, device), requires_grad=requires_grad)
    carrier.zero_at = version_of(carrier)
    return carrier


def _loaded_carrier(weight: torch.Tensor, shape: tuple[int, int], dtype: torch.dtype, requires_grad: bool) -> Carrier:
    return _zeros(shape, dtype, weight.device, requires_grad)  # on the device that the weight was loaded to


def _register(carrier: Carrier) -> None:
    reference = weakref.ref(carrier)
    _of_weight[carrier.weight] = reference
    carrier.weight.__class__ = Projected
    with hookable(carrier):
        carrier.register_hook(lambda gradient: _check_gradient(reference()))
    before_every_step(_check_optimizer)  # a fused update by another optimizer would write to memory that a carrier lacks


def _check_gradient(carrier: Carrier | None) -> None:
    """Runs before a gradient is added to a carrier's present one."""
    if carrier is None or not carrier.redrawn:
        return
    if carrier.is_stale():
        raise RuntimeError(
            "compact: a carrier has a gradient of a projection before the one in force: zero_grad() belongs between "
            "step() and the next backward pass"
        )
    carrier.redrawn = False


@torch.compiler.disable
def _check_optimizer(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
    """Throws RuntimeError where an optimizer's step would lose projected gradients."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for group in optimizer.param_groups:
        for p in group["params"]:
            if isinstance(p, Carrier):
                if not p.requires_grad and p.grad is None:
                    continue
                if not getattr(optimizer, "takes_carriers", False):
                    raise RuntimeError(f"compact: {type(optimizer).__name__} has been given carriers: {ONLY}")
                if not p.in_force():
                    raise RuntimeError(
                        "compact: the optimizer has carriers of a policy that was taken back: make it again, after apply() or remove()"
                    )
                continue
            carrier = _carrier_of(p)
            if carrier is not None and carrier.requires_grad and id(carrier) not in held:
                raise RuntimeError(
                    f"compact: the optimizer has a weight {tuple(p.shape)} whose gradient is projected, and not its carrier, "
                    "which takes it: make the optimizer after apply(), of all of model.parameters(); where another optimizer has "
                    "the carriers, of those that require gradients"
                )


def projection_problems(weights: list[tuple[str, nn.Parameter]], model: nn.Module) -> dict[str, str]:
    """Why gradients of weights of a model cannot be projected, by the names of their products; weights: of each the name of its product, and itself."""
    owners: dict[int, set[int]] = {}
    for module in model.modules():
        for p in parameters_of(module).values():
            if p is not None:
                owners.setdefault(id(p), set()).add(id(module))
    problems = {}
    for name, weight in weights:
        if type(weight) is not nn.Parameter:
            problems[name] = f"{name} is split over ranks or of a type of its own: projected gradients need whole weights"
        elif len(owners.get(id(weight), ())) > 1:
            problems[name] = f"{name} is the weight of several modules"
        elif weight.dim() != 2:
            problems[name] = f"{name} has the shape {tuple(weight.shape)}, as FullyShardedDataParallel leaves its parts: projected gradients need whole weights"
        elif has_hooks_of_others(weight):
            problems[name] = f"{name} has a hook for its gradient, which it will not have"
    if any(isinstance(module, nn.parallel.DistributedDataParallel) for module in model.modules()):
        reason = "the model is wrapped in DistributedDataParallel, which knows no parameters that come later: apply first, and wrap then"
        problems |= {name: reason for name, _ in weights if name not in problems}
    return problems


def add_carrier(module: nn.Module, projected: Any, transposed: bool) -> None:
    """Freezes the weight of a module and gives it a carrier."""
    weight = module.weight
    out = weight.shape[1 if transposed else 0]
    carrier = _zeros((out, projected.rank()), weight.dtype, weight.device, weight.requires_grad)
    carrier.weight, carrier.projected, carrier.transposed, carrier.redrawn = weight, projected, transposed, False
    module.__dict__[_PROJECTED] = True
    weight.requires_grad_(False)
    module.register_parameter(NAME, carrier)
    register_state_dict_hook(module, _without_carrier)
    module.register_load_state_dict_pre_hook(_remember_prefix)
    module.register_load_state_dict_post_hook(_carrier_is_not_missing)
    _register(carrier)


def check_removal(model: nn.Module) -> None:
    """Throws RuntimeError where a DistributedDataParallel would not send gradients of the weights that are trained then."""
    for around in model.modules():
        if isinstance(around, nn.parallel.DistributedDataParallel) and any(_PROJECTED in m.__dict__ for m in around.modules()):
            raise RuntimeError(
                "compact.remove: gradients are projected in a model that DistributedDataParallel wraps, which does not know its "
                "weights: remove from the model itself (ddp.module), and wrap it again"
            )


def remove_carrier(module: nn.Module) -> None:
    """Undoes add_carrier() where it was called; if the carrier is frozen, the weight stays frozen."""
    if module.__dict__.pop(_PROJECTED, None) is None:
        return
    carrier = parameters_of(module).pop(NAME)
    module.weight.requires_grad_(carrier.requires_grad)
    if isinstance(carrier, Carrier):
        _of_weight.pop(carrier.weight, None)
        carrier.weight.__class__ = nn.Parameter
    module.__dict__.pop(_PREFIX, None)
    remove_state_hooks(module, (_without_carrier, _remember_prefix, _carrier_is_not_missing))


def _without_carrier(module: nn.Module, state_dict: dict, prefix: str, local_metadata: dict) -> None:
    state_dict.pop(prefix + NAME, None)


def _remember_prefix(module: nn.Module, state_dict: dict, prefix: str, *rest: Any) -> None:
    module.__dict__[_PREFIX] = prefix


def _carrier_is_not_missing(module: nn.Module, keys: Any) -> None:
    missing = module.__dict__.pop(_PREFIX, "") + NAME
    keys.missing_keys[:] = [key for key in keys.missing_keys if key != missing]


def _check_wrapped(carrier: Carrier, name: str) -> None:
    around, known = running_ddp()
    if known is None:
        return
    if around not in _known_to:
        _known_to[around] = {id(p) for p in known}
    if carrier.requires_grad and id(carrier) not in _known_to[around]:
        raise RuntimeError(
            f"compact: DistributedDataParallel does not know a carrier of {name}, and would not send its gradient: apply first, and wrap then"
        )


def check_carrier(carrier: Any, weight: Any, name: str) -> None:
    """Throws RuntimeError where a pass would lose the gradient of a weight."""
    if type(carrier) is not Carrier:
        raise RuntimeError(
            f"compact: a carrier of {name} has become a {type(carrier).__name__}: projected gradients need whole "
            "weights, which fully_shard splits; train with DDP"
        )
    if carrier.weight is not weight:
        raise RuntimeError(
            f"compact: a weight of {name} was replaced, and its carrier is that of the one before: "
            "compact.remove(model), and apply again"
        )
    if weight.requires_grad:
        raise RuntimeError(
            f"compact: a weight of {name} was made trainable, and its carrier takes its gradient: freeze and unfreeze "
            "the parameters named `carrier`, and leave weights beside them frozen"
        )
    if not carrier.is_zero():
        raise RuntimeError(f"compact: the carrier of {name} was modified: {ONLY}. Create DDP after init_process_group() and apply()")
    _check_wrapped(carrier, name)
    carrier.shrink()
