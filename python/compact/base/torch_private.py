# SPDX-License-Identifier: Apache-2.0
"""The private names of torch that the package uses: a torch in which they differ changes this file alone."""
from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._meta_registrations as meta_registrations
from torch import nn
from torch._C import _autograd, _functorch
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook as has_global_hooks
from torch.optim import optimizer as optimizers
from torch.utils import _pytree as pytree

__all__ = ["has_global_hooks", "pytree"]

# Modules.
submodules_of = operator.attrgetter("_modules")
parameters_of = operator.attrgetter("_parameters")
buffers_of = operator.attrgetter("_buffers")
FLAT = "_flat_param"  # FullyShardedDataParallel's, of all parameters of a module
HOOKS = FORWARD_HOOKS, FORWARD_PRE_HOOKS, BACKWARD_HOOKS, BACKWARD_PRE_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip
REPLICATE = "_replicate_for_data_parallel"  # the method that nn.DataParallel calls
register_state_dict_hook = nn.Module._register_state_dict_hook
# Tensors and autograd.
storage_id = operator.attrgetter("_cdata")
is_view = torch.Tensor._is_view
wrapper_tensor = torch.Tensor._make_wrapper_subclass  # class, sizes: it has no memory
as_class = torch.Tensor._make_subclass  # class, tensor, whether it has a gradient
internal_overlap = torch._debug_has_internal_overlap  # 1: elements share memory
without_torch_function = torch._C.DisableTorchFunctionSubclass
running_backward_pass = torch._C._current_graph_task_id  # -1: none
top_saved_tensors_hooks = _autograd._top_saved_tensors_default_hooks
disabled_saved_tensors_hooks = _autograd._saved_tensors_hooks_get_disabled_error_message  # None: they are not
push_saved_tensors_hooks = _autograd._push_saved_tensors_default_hooks
pop_saved_tensors_hooks = _autograd._pop_saved_tensors_default_hooks
# Kernels, in the process that plans.
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
attention_choice = torch._fused_sdp_choice  # 1: flash attention
flash_attention_on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_attention = torch.ops.aten._scaled_dot_product_flash_attention
efficient_attention = torch.ops.aten._scaled_dot_product_efficient_attention


def version_of(t: torch.Tensor) -> int | None:
    """It counts changes in place; tensors made under torch.inference_mode have none."""
    try:
        return t._version
    except RuntimeError:
        return None


def calling_module(file: str) -> nn.Module | None:
    """The module whose __call__ has called a function of a file; None: something else has."""
    frame = inspect.currentframe().f_back
    while frame is not None and frame.f_code.co_filename == file:
        frame = frame.f_back
    return frame.f_locals.get("self") if frame is not None and frame.f_globals is vars(nn.modules.module) else None


def registered_interfaces(namespace: str) -> list[str]:
    """The operators and methods of classes that a library has registered, as they are called."""
    operators = [str(schema) for schema in torch._C._jit_get_all_schemas() if schema.name.startswith(f"{namespace}::")]
    methods = [text for text in map(str, torch._C._jit_get_custom_class_schemas()) if f"torch.classes.{namespace}." in text]
    return sorted(operators + methods)


def remove_state_hooks(module: nn.Module, ours: tuple[Callable, ...]) -> None:
    """Removes these functions from those that run when a state is made or loaded."""
    for hooks in (module._state_dict_hooks, module._load_state_dict_pre_hooks, module._load_state_dict_post_hooks):
        for key in [key for key, hook in hooks.items() if getattr(hook, "hook", hook) in ours]:
            del hooks[key]


def running_ddp() -> tuple[nn.Module | None, list[nn.Parameter] | None]:
    """The DistributedDataParallel whose forward pass runs, and the parameters whose gradients it sends."""
    ask = getattr(nn.parallel.DistributedDataParallel, "_get_active_ddp_module", None)
    ddp = ask() if ask is not None else None
    return ddp, getattr(ddp, "_module_parameters", None)


def gradient_hooks_of(p: torch.Tensor) -> Iterator[Callable]:
    for hooks in (p._backward_hooks, getattr(p, "_post_accumulate_grad_hooks", None)):
        yield from (hooks or {}).values()


def under_transform() -> bool:
    """Whether a transform of torch.func or forward-mode differentiation runs."""
    return _functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def take_meta_kernels() -> dict[Any, Callable]:
    """Takes torch's implementations in Python away from the meta device; they are returned by operator."""
    meta_registrations._meta_lib_dont_use_me_use_register_meta._destroy()
    tables = [meta_registrations.global_decomposition_table[kind] for kind in ("pre_autograd", "post_autograd", "meta")]
    return {op: function for table in tables for op, function in table.items() if isinstance(op, torch._ops.OpOverload)}


def let_meta_have_updates(of_lists: bool) -> None:
    """Lets torch's optimizers have fused updates on the meta device, and updates of lists of tensors if `of_lists`."""
    for name in ["_get_fused_kernels_supported_devices"] + ["_get_foreach_kernels_supported_devices"] * of_lists:
        setattr(optimizers, name, lambda own=getattr(optimizers, name): [*own(), "meta"])
