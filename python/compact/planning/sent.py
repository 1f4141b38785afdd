# SPDX-License-Identifier: Apache-2.0
"""A model on its way to another process: everything but the values of its weights."""
from __future__ import annotations

import copy
import io
import pickle
import types
from typing import Any

import torch
from torch import nn

from ..base.torch_private import as_class, storage_id
from ..base.transformers_private import no_recorder, RECORDERS
from ..base.type_names import origin_of
from ..projected_weights.watched_parameter import Watched
from .known_values import with_value

_MOST_VALUES = 1 << 24  # elements of a tensor that is not a parameter: positions, masks, tables


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO):
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._numbers: dict[int, tuple[int, torch.Tensor]] = {}  # by id(), kept alive
        self._copies: dict[int, Any] = {}  # without values, by id()
        self._places: dict[tuple, int] = {}  # by their memory

    def reducer_override(self, obj: Any) -> Any:
        if id(obj) in self._copies:  # a module has what its parameter has
            return _itself, (self._copies[id(obj)],)
        if isinstance(obj, types.FunctionType) and obj.__name__ in _INPUT_HOOKS and origin_of(obj).startswith(("transformers.", "peft.")):
            return _itself, (require_gradient,)
        # Hooks that record what layers return; transformers adds them again where they are gone.
        return (no_recorder, ()) if getattr(obj, "__module__", None) == RECORDERS and not isinstance(obj, type) else NotImplemented

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, (torch.UntypedStorage, torch.TypedStorage)):
            raise ValueError("it has a storage beside its tensors")
        if not isinstance(obj, torch.Tensor):
            return None
        if isinstance(obj, Watched):
            raise ValueError("it has projected gradients: compact.remove(model) takes them back")
        of_class = type(obj) not in (torch.Tensor, nn.Parameter, nn.Buffer)
        if (of_class and not _is_plain_parameter(obj)) or obj.layout != torch.strided:
            raise ValueError(f"it has a tensor of type {type(obj).__name__}: plan before it is sharded or compiled, and after the first pass of lazy modules")
        number, _ = self._numbers.setdefault(id(obj), (len(self._numbers), obj))
        memory = storage_id(obj.untyped_storage()), obj.storage_offset(), obj.shape, obj.stride(), obj.dtype
        shared = self._places.setdefault(memory, number) if isinstance(obj, nn.Parameter) else self._places.get(memory)
        value = None
        if shared is None and not isinstance(obj, nn.Parameter) and obj.device.type != "meta" and obj.numel() <= _MOST_VALUES:
            file = io.BytesIO()
            torch.save(obj.detach().cpu().clone(memory_format=torch.contiguous_format), file)
            value = file.getvalue()
        about = (type(obj), {name: self._without_values(x) for name, x in vars(obj).items() if not isinstance(x, nn.Module)}) if of_class else None
        return number, isinstance(obj, nn.Parameter), tuple(obj.shape), obj.stride(), obj.dtype, obj.requires_grad, value, about, shared

    def _without_values(self, x: Any) -> Any:
        """Tensors that a parameter of a class of its own has beside its elements, as scales of its blocks."""
        if isinstance(x, torch.Tensor):
            return x.detach().to("meta")
        if not hasattr(x, "__dict__") or isinstance(x, type):
            return x
        if id(x) not in self._copies:
            made = self._copies[id(x)] = copy.copy(x)
            for name, inside in vars(x).items():
                setattr(made, name, self._without_values(inside))
        return self._copies[id(x)]


def _is_plain_parameter(t: torch.Tensor) -> bool:
    """Whether it is of a class of parameters whose memory is its own, as those that bitsandbytes quantizes."""
    return isinstance(t, nn.Parameter) and type(t).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def _itself(x: Any) -> Any:
    return x


# The hooks by which transformers and peft give inputs of layers a gradient: functions inside of functions, which pickle cannot send.
_INPUT_HOOKS = ("make_inputs_require_grad", "make_inputs_require_grads")


def require_gradient(module: nn.Module, given: Any, output: torch.Tensor) -> None:
    output.requires_grad_(True)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO):
        super().__init__(file)
        self._made: dict[int, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> torch.Tensor:
        number, parameter, shape, stride, dtype, requires_grad, value, about, shared = pid
        if number not in self._made:
            if shared in self._made:  # codes of LLM.int8, which a module has beside its parameter
                made = self._made[shared].detach()
            elif value is not None:
                made = with_value(torch.load(io.BytesIO(value), weights_only=True))
            else:
                made = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            if about is not None:
                made = as_class(about[0], made, requires_grad)
                vars(made).update(about[1])
            elif parameter:
                made = nn.Parameter(made, requires_grad=requires_grad)
            self._made[number] = made
        return self._made[number]


def send(
    obj: Any, what: str = "the model", instead: str = "The folder or the configuration of a model of transformers can be given instead"
) -> bytes:
    """Throws ValueError where something in it cannot be sent, and says what."""
    file = io.BytesIO()
    try:
        _Pickler(file).dump(obj)
    except (pickle.PicklingError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"compact.plan: {what} cannot be sent to the process that plans: {error}. {instead}") from error
    return file.getvalue()


def receive(sent: bytes) -> Any:
    """The tensor that was sent, on the meta device; its values are known unless it is a parameter."""
    return _Unpickler(io.BytesIO(sent)).load()
