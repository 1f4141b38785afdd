# SPDX-License-Identifier: Apache-2.0
"""Weights that another package holds in codes: a block asks for the values when a product reads them, in both passes, and lets them go.

A row of PROVIDERS says how the values are made. What it gives must be what the package itself multiplies with.
"""
from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..base.library import kind_of
from ..base.torch_private import parameters_of, storage_id, version_of, wrapper_tensor
from ..base.type_names import base_of_path, path_of


@dataclasses.dataclass(frozen=True)
class Provider:
    name: str
    module: str  # its class, whose forward must be its own
    weight: str  # the class of its weight
    make: Callable[[nn.Module, torch.dtype], tuple[list[torch.Tensor], Callable[[], torch.Tensor]]]  # the tensors that values are made of, and how
    problem: Callable[[nn.Module], str | None] = lambda module: None  # why its product is not one with these values
    dtype: Callable[[nn.Module, torch.dtype], torch.dtype] = lambda module, dtype: dtype  # of the product, in a pass of this type

    def __reduce__(self):
        return _named, (self.name,)  # a copy is the row of the table


class ProvidedWeight(torch.Tensor):
    """A frozen weight [out, in] without memory: dequantize() makes its values."""

    made_of: list[tuple[torch.Tensor, int]]  # with the version of each
    make: Callable[[], torch.Tensor]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> torch.Tensor:
        if func is not torch.ops.aten.dequantize.self:
            raise NotImplementedError(f"compact: {func} of a weight that is in codes")
        weight = args[0]
        if any(version_of(t) != version for t, version in weight.made_of):
            raise RuntimeError("compact: a quantized weight was changed in place between the forward and the backward pass that reads it")
        return weight.make()


def provided(provider: Provider, module: nn.Module, dtype: torch.dtype) -> torch.Tensor:
    """The weight of a module as a block takes it, in the type of its product."""
    made_of, make = provider.make(module, dtype)
    weight = wrapper_tensor(ProvidedWeight, (module.out_features, module.in_features), dtype=dtype, device=made_of[0].device)
    weight.made_of, weight.make = [(t, version_of(t)) for t in made_of], make
    return weight


def provider_of(module: Any) -> Provider | None:
    """The provider of a module's weight; None: the weight is of no known kind, or the module has another forward."""
    weight = parameters_of(module).get("weight") if isinstance(module, nn.Module) else None
    if type(weight) is nn.Parameter:
        return None
    for row in PROVIDERS:
        base = base_of_path(type(module), row.module)
        if base is not None and type(module).forward is base.forward and path_of(type(weight)) == row.weight:
            return row
    return None


def weights_of(model: nn.Module) -> tuple[int, int]:
    """How many parameters a model has, of weights in codes those that they stand for, and the bytes that they and the scales and
    tables of codes take."""
    held, number = {}, {}

    def weigh(x: Any, in_codes: bool) -> None:
        if isinstance(x, torch.Tensor):
            storage = x.untyped_storage()
            held[storage_id(storage)] = storage.nbytes()
        if in_codes and type(x).__module__.startswith("bitsandbytes."):
            for inside in vars(x).values():
                weigh(inside, True)

    for module in model.modules():
        for p in module.parameters(recurse=False):
            in_codes = path_of(type(p)) in {row.weight for row in PROVIDERS}
            weigh(p, in_codes)
            shape = None
            if in_codes:
                weigh(module.__dict__.get("state"), True)  # LLM.int8 moves codes there
                shape = getattr(getattr(p, "quant_state", None), "shape", None)  # a byte has two codes of 4 bits
            number[id(p)] = math.prod(shape or p.shape)
    return sum(number.values()), sum(held.values())


# --- bitsandbytes


def _make_4_bits(module: nn.Module, dtype: torch.dtype) -> tuple[list[torch.Tensor], Callable[[], torch.Tensor]]:
    if getattr(module.weight.quant_state, "packing_format_for_cpu", False):
        module.state_dict()  # a pass without gradients packs it for inference on a CPU, and this unpacks it
    codes, state, ops = module.weight.detach(), module.weight.quant_state, torch.ops.bitsandbytes
    absmax, size, kind, shape = state.absmax, state.blocksize, state.quant_type, list(state.shape)
    made_of, outer = [codes, absmax], None
    if state.nested:
        outer = state.state2.absmax, state.state2.code, state.state2.blocksize, state.state2.dtype
        offset = state.offset
        made_of += [*outer[:2], offset]

    def make() -> torch.Tensor:
        scales = absmax if outer is None else ops.dequantize_blockwise(absmax, *outer).add_(offset)
        return ops.dequantize_4bit(codes.view(-1, 1), scales, size, kind, shape, dtype)

    return made_of, make


def _problem_4_bits(module: nn.Module) -> str | None:
    state = getattr(module.weight, "quant_state", None)
    if state is None:
        return "its 4-bit weights have no codes yet: move the model to a device"
    if tuple(state.shape) != (module.out_features, module.in_features):
        return f"its 4-bit weights are codes of {list(state.shape)}, not of [out, in]"
    return None


def _make_8_bits(module: nn.Module, dtype: torch.dtype) -> tuple[list[torch.Tensor], Callable[[], torch.Tensor]]:
    first = module.weight if module.state.CB is None else module.state  # the module's first own pass moves them there
    codes, scales = module.weight.detach() if first.CB is None else first.CB, first.SCB
    return [codes, scales], lambda: codes.to(dtype).mul_(scales.unsqueeze(1).mul(1.0 / 127.0))


def _problem_8_bits(module: nn.Module) -> str | None:
    if module.state.has_fp16_weights or (module.state.SCB is None and module.weight.SCB is None):
        return "its 8-bit weights have no codes"
    if kind_of(module.weight) != "cpu" or not module.training:
        return "LLM.int8 rounds what its weights are multiplied with"
    return None


# --- torchao


def _make_torchao(module: nn.Module, dtype: torch.dtype) -> tuple[list[torch.Tensor], Callable[[], torch.Tensor]]:
    weight = module.weight.detach()
    return [weight.qdata, weight.scale], lambda: weight.dequantize().to(dtype)


def _problem_torchao(module: nn.Module) -> str | None:
    return "torchao rounds what its weights are multiplied with" if module.weight.act_quant_kwargs is not None else None


_LINEAR = "torch.nn.modules.linear.Linear"
PROVIDERS = (
    Provider(
        "bitsandbytes, 4 bits", "bitsandbytes.nn.modules.Linear4bit", "bitsandbytes.nn.modules.Params4bit",
        _make_4_bits, _problem_4_bits, lambda module, dtype: module.compute_dtype or dtype,
    ),
    Provider("bitsandbytes, 8 bits", "bitsandbytes.nn.modules.Linear8bitLt", "bitsandbytes.nn.modules.Int8Params", _make_8_bits, _problem_8_bits),
    Provider("torchao, 8 bits", _LINEAR, "torchao.quantization.Int8Tensor", _make_torchao, _problem_torchao),
    Provider("torchao, floats of 8 bits", _LINEAR, "torchao.quantization.Float8Tensor", _make_torchao, _problem_torchao),
)  # fmt: skip


def _named(name: str) -> Provider:
    return next(row for row in PROVIDERS if row.name == name)
