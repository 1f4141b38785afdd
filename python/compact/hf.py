# SPDX-License-Identifier: Apache-2.0
"""The callback that Hugging Face's Trainer is given beside a model that compact.apply() has changed.

    Trainer(model, ..., callbacks=[compact.hf.Callback()])
"""
from __future__ import annotations

from transformers import TrainerCallback

from .base.log import log
from .base.trl_private import serve_fused_heads
from .layers.apply import report
from .layers.fused_head import log_probs_for_trl
from .layers.patched_forward import state_of
from .layers.served_layer import INSTEAD, LayerState


class Callback(TrainerCallback):
    """Keeps the layers that compact serves out of gradient checkpointing, which Trainer switches on
    for all layers, and writes what they held to the log, as compact_held_bytes. A layer that keeps its own
    forward in the first step is checkpointed from then on. In TRL's trainers, whose models have a fused head, models
    that compact.apply() was given, a reference model, too, make log probabilities by compact.token_log_probs(). Throws ValueError where
    gradients would be clipped of which an optimizer with release=True leaves none."""

    def __init__(self):
        self._cleared = []  # layers, until a step has shown whether they are served
        serve_fused_heads(log_probs_for_trl)

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
        serve_fused_heads(log_probs_for_trl)  # TRL may have been imported since
        optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        if getattr(optimizer, "releases", False) and args.max_grad_norm:
            raise ValueError(
                f"compact.hf.Callback: max_grad_norm is {args.max_grad_norm}, and an optimizer with release=True leaves no gradients "
                "to clip: TrainingArguments(max_grad_norm=0)"
            )
        self._cleared = [m for m in model.modules() if isinstance(state_of(m), LayerState) and getattr(m, "gradient_checkpointing", False)]
        for module in self._cleared:
            module.gradient_checkpointing = False
        if self._cleared:
            log.warning(f"compact: gradient checkpointing is off for {len(self._cleared)} layers, which compact serves: {INSTEAD}")

    def on_step_end(self, args, state, control, **kwargs):
        cleared, self._cleared = self._cleared, []
        own = [m for m in cleared if isinstance(state_of(m), LayerState) and state_of(m).served is False]
        for module in own:
            module.gradient_checkpointing = True
        if own:
            log.warning(f"compact: gradient checkpointing is on again for {len(own)} layers, which keep their own forward")

    def on_log(self, args, state, control, model=None, logs=None, **kwargs):
        if logs is not None and "loss" in logs:
            logs["compact_held_bytes"] = state.log_history[-1]["compact_held_bytes"] = report(model).held
