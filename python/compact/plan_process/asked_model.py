# SPDX-License-Identifier: Apache-2.0
"""The model that is planned, on the meta device, and what it is called with."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ..base.transformers_private import class_for, let_record
from ..planning import known_values, sent

_LABELS_OF_TOKENS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForTokenClassification")
_LABELS_OF_SAMPLES = ("ForSequenceClassification", "ForImageClassification")


def model_of(asked: dict) -> nn.Module:
    """The model that was sent, or one of a configuration."""
    if asked["model"] is not None:
        model = sent.receive(asked["model"])
        for module in model.modules():
            let_record(module)
        return model
    import transformers

    config = asked["config"]
    if isinstance(config, str):
        config = transformers.AutoConfig.from_pretrained(config, local_files_only=True)
    cls = _class_of(config)
    dtype = getattr(torch, asked["dtype"]) if asked["dtype"] else config.dtype or torch.float32
    with torch.device("meta"):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            return cls(config)
        finally:
            torch.set_default_dtype(before)


def loss_of(asked: dict) -> Callable[[Any], torch.Tensor]:
    """The function that gives the loss of the model's output."""
    given = sent.receive(asked["loss"]) if asked["loss"] is not None else None

    def loss(output: Any) -> torch.Tensor:
        if given is not None:
            found = given(output)
            if not isinstance(found, torch.Tensor) or found.numel() != 1:
                what = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else f"a {type(found).__name__}"
                raise ValueError(f"compact.plan: loss= must give a tensor of one number, gives {what}")
            return found
        if isinstance(output, torch.Tensor):
            found = output
        elif isinstance(output, (tuple, list)):
            found = next((t for t in output if isinstance(t, torch.Tensor) and t.numel() == 1 and t.requires_grad), None)
        else:
            found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if found is None:
            raise ValueError("compact.plan: the model gives no loss: `batch` must hold its labels, or loss= be a function of what it returns")
        if found.numel() != 1:
            raise ValueError(f"compact.plan: the model gives a tensor of shape {tuple(found.shape)}, no loss: loss= must be a function of it, as functools.partial(torch.nn.functional.cross_entropy, target=labels)")
        return found

    return loss


def _class_of(config: Any) -> type[nn.Module]:
    """The class that a configuration names in `architectures`, or the one that its type of model is trained as."""
    import transformers

    if config.architectures:
        cls = getattr(transformers, config.architectures[0], None)
        if cls is None:
            raise ValueError(
                f"compact.plan: transformers has no class {config.architectures[0]}, which the configuration names in `architectures`: set "
                'that (config.architectures = ["LlamaForCausalLM"]), or give a model, which may be on the meta device'
            )
        return cls
    causal, masked, images = transformers.AutoModelForCausalLM, transformers.AutoModelForMaskedLM, transformers.AutoModelForImageClassification
    decoder = getattr(config, "is_decoder", False)  # BERT and its kin can be either
    for kind in (causal, masked, images) if decoder else (masked, causal, images):
        cls = class_for(config, kind)
        if isinstance(cls, type) and cls.__name__.endswith(_LABELS_OF_TOKENS + _LABELS_OF_SAMPLES):
            return cls
    raise ValueError(
        f"compact.plan: what is trained of a {config.model_type} is not known: name its class "
        '(config.architectures = ["BertForTokenClassification"]), or give a model, which may be on the meta device'
    )


def inputs_of(asked: dict, model: nn.Module) -> dict:
    """The arguments that the model is called with."""
    if isinstance(asked["batch"], bytes):
        return sent.receive(asked["batch"])
    samples, length = asked["batch"]
    if hasattr(model, "get_base_model"):  # of peft: what its adapters are in
        model = model.get_base_model()
    name = type(model).__name__
    if not name.endswith(_LABELS_OF_TOKENS + _LABELS_OF_SAMPLES):
        raise ValueError(f"compact.plan: what labels a {name} takes is not known: give `batch` as a dictionary of its arguments")
    main = getattr(model, "main_input_name", "input_ids")
    if main == "input_ids":
        if length is None:
            raise ValueError("compact.plan: the length is missing: `batch` must be (samples, tokens) or a dictionary of the model's arguments")
        most = getattr(model.config, "max_position_embeddings", None)
        if most is not None and length > most:
            raise ValueError(f"compact.plan: {length} tokens are more than the model's {most} positions")
        given = {main: torch.zeros(samples, length, dtype=torch.long)}
        if asked["padded"]:  # a mask takes memory by its shape, once some token is padding
            given["attention_mask"] = torch.ones(samples, length, dtype=torch.long)
            given["attention_mask"][-1, max(1, length - 1) :] = 0
    elif asked["padded"]:
        raise ValueError(f"compact.plan: padded=True is for models of tokens, {name} takes {main}")
    else:
        size = model.config.image_size
        sides = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
        given = {main: torch.zeros(samples, model.config.num_channels, *sides, dtype=next(model.parameters()).dtype)}
    labels = given[main].shape if name.endswith(_LABELS_OF_TOKENS) else (samples,)
    given["labels"] = torch.zeros(labels, dtype=torch.long)
    return {key: known_values.with_value(t) for key, t in given.items()}
