# SPDX-License-Identifier: Apache-2.0
"""Whether a block of the library computes what the modules of a layer compute."""
from __future__ import annotations

from numbers import Real

from torch import nn

from ..base.library import TYPES
from ..base.torch_private import buffers_of, FLAT, parameters_of
from ..base.type_names import base_of_path, code_of, has_plain_weights, name_of, origin_of, path_of
from .adapters import adapter_problem, is_lora, plain
from .families import Family
from .layer_numbers import NUMBERS, submodule
from .weight_providers import provider_of

# Modules inside a layer run code of these origins; code of any other origin may compute anything.
_KNOWN_CODE = ("torch.nn.modules.", "transformers.activations", "transformers.pytorch_utils")


def layer_problem(layer: nn.Module, family: Family) -> str | None:
    """Why a layer of a family cannot be served."""
    if "forward" in layer.__dict__:
        return "its forward was replaced"
    problem = submodules_problem(layer, family)
    if problem:
        return problem
    for path in (path for paths in family.products.values() for path in paths):
        module = submodule(layer, path)
        problem = adapter_problem(module) if is_lora(module) else None
        if problem:
            return f"{path}: {problem}"
    first = plain(submodule(layer, next(iter(family.products.values()))[0]))
    dtype = first.weight.dtype
    if dtype not in TYPES and not provider_of(first):
        return f"its weights are {name_of(dtype)}; float32 and bfloat16 are served (model.float(), model.bfloat16(); with Trainer bf16=True)"
    return family.refuses(layer)


def submodules_problem(layer: nn.Module, family: Family) -> str | None:
    """Which submodule of a layer, if any, a block cannot stand in for."""
    for path in (path for paths in family.products.values() for path in paths):
        module = submodule(layer, path)
        if module is None:
            return f"it has no {path}"
        product = plain(module) if is_lora(module) else module
        if not provider_of(product) and not _derives(product, family.product_class):
            weight = type(getattr(module, "weight", None))
            return f"{path} is a {path_of(type(module))}" + f" with weights of type {weight.__name__}" * (weight not in (nn.Parameter, type(None)))
    for path in family.norms.values():
        module = submodule(layer, path)
        if module is None:
            return f"it has no {path}"
        if not _is_norm(module, family.kind == "gated"):
            return f"{path} is a {path_of(type(module))}"
    return _foreign_code(layer, family) or parameters_problem(other_modules(layer, family))


def other_modules(layer: nn.Module, family: Family) -> list[tuple[str, nn.Module]]:
    """The modules of a layer that have no weights, but for those inside of adapters, with their names."""
    of_weights = [path for paths in family.products.values() for path in paths] + list(family.norms.values())
    return [(name, m) for name, m in layer.named_modules() if not any(name == path or name.startswith(path + ".") for path in of_weights)]


def parameters_problem(modules: list[tuple[str, nn.Module]]) -> str | None:
    """Which module, if any, has a parameter of its own, or a number of the layer's as a tensor: no block reads them."""
    for name, module in modules:
        parameters = parameters_of(module)
        for key in (*parameters, *buffers_of(module)):
            if (parameters.get(key) is not None and key != FLAT) or key in NUMBERS:
                return f"{name + '.' if name else ''}{key} is a {type(getattr(module, key)).__name__}"
    return None


def _derives(module: nn.Module, path: str) -> bool:
    base = base_of_path(type(module), path)
    return base is not None and type(module).forward is base.forward and has_plain_weights(module)


def _is_norm(module: nn.Module, rms: bool) -> bool:
    if not has_plain_weights(module):
        return False
    if not rms:
        known = type(module).forward is nn.LayerNorm.forward and len(getattr(module, "normalized_shape", ())) == 1
        return known and module.weight is not None and module.bias is not None
    name = next((c.__name__ for c in type(module).__mro__ if c.__module__.startswith("transformers.models.")), "")
    return name.endswith("RMSNorm") and isinstance(getattr(module, "eps" if name.startswith("Gemma") else "variance_epsilon", None), Real)


def _foreign_code(layer: nn.Module, family: Family) -> str | None:
    """Which submodule runs code that is neither of torch, nor of LoRA, nor of the layer's own file."""
    own = origin_of(code_of(type(layer).forward))
    products = {submodule(layer, path) for paths in family.products.values() for path in paths}
    inside = {plain(product) for product in products}
    for name, module in layer.named_modules():
        if (module in products and is_lora(module)) or (module in inside and provider_of(module)):
            continue
        origin = origin_of(code_of(type(module).forward))
        if origin != own and not origin.startswith(_KNOWN_CODE):
            return f"{name or 'its forward'} runs code of {origin}"
    return None
