# SPDX-License-Identifier: Apache-2.0
"""The private names of transformers that the package uses: a version in which they differ changes this file alone."""
from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

RECORDERS = "transformers.utils.output_capturing"  # the module of hooks that record what layers return
attention_of = operator.attrgetter("_attn_implementation")  # of a configuration


def records_attention() -> bool:
    """Whether transformers records attention weights in this pass, which a block never makes."""
    try:
        from transformers.utils.output_capturing import _active_collector
    except ImportError:
        return False
    wanted = _active_collector.get()
    return wanted is not None and any("attention" in key for key in wanted)


def no_recorder() -> Callable:
    """A hook in the place of one of transformers'."""

    def hook(*_: Any) -> None:
        pass

    hook.__module__ = RECORDERS
    return hook


def let_record(module: Any) -> None:
    """Lets a model that was unpickled record what its layers return, for which transformers registers a class as it is constructed
    and adds hooks at need."""
    module.__dict__.pop("_output_capturing_hooks_installed", None)
    try:
        from transformers.modeling_utils import _CAN_RECORD_REGISTRY as known
    except ImportError:
        return
    if hasattr(type(module), "_can_record_outputs"):
        known[str(type(module)) if type(known) is dict else module] = module._can_record_outputs


def class_for(config: Any, auto_class: Any) -> Any:
    """The class, or several of them, that an AutoModelFor... has for a configuration; None: it has none."""
    classes = auto_class._model_mapping
    return classes[type(config)] if type(config) in classes else None
