# SPDX-License-Identifier: Apache-2.0
"""What Hugging Face's Trainer is given beside a model that compact.apply() has changed.

    Trainer(model, ..., callbacks=[compact.hf.Callback()])
"""
from __future__ import annotations

from transformers import TrainerCallback

from .base.log import log
from .layers.apply import report
from .layers.patched_forward import state_of
from .layers.served_layer import INSTEAD, LayerState


class Callback(TrainerCallback):
    """Keeps the layers that compact serves out of gradient checkpointing, which Trainer switches on
    for all layers, and writes what they held to the log, as compact_held_bytes. Throws ValueError where
    gradients would be clipped of which an optimizer with release=True leaves none."""

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
        optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        if getattr(optimizer, "releases", False) and args.max_grad_norm:
            raise ValueError(
                f"compact.hf.Callback: max_grad_norm is {args.max_grad_norm}, and an optimizer with release=True leaves no gradients "
                "to clip: TrainingArguments(max_grad_norm=0)"
            )
        cleared = 0
        for module in model.modules():
            if isinstance(state_of(module), LayerState) and getattr(module, "gradient_checkpointing", False):
                module.gradient_checkpointing = False
                cleared += 1
        if cleared:
            log.warning(f"compact: gradient checkpointing is off for {cleared} layers, which compact serves: {INSTEAD}")

    def on_log(self, args, state, control, model=None, logs=None, **kwargs):
        if logs is not None and "loss" in logs:
            logs["compact_held_bytes"] = state.log_history[-1]["compact_held_bytes"] = report(model).held
