# SPDX-License-Identifier: Apache-2.0
"""The private names of transformers that the package uses: a version in which they differ changes this file alone."""
from __future__ import annotations

import operator
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


def class_for(config: Any, auto_class: Any) -> Any:
    """The class, or several of them, that an AutoModelFor... has for a configuration; None: it has none."""
    classes = auto_class._model_mapping
    return classes[type(config)] if type(config) in classes else None
