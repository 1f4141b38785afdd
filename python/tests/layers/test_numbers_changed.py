# SPDX-License-Identifier: Apache-2.0
"""Numbers and code of a layer that are changed before or after apply(): results are its own."""
import contextlib
import functools

from _setting import agree, dropouts, set_everywhere
from conftest import error, gradients, inputs, make
import pytest
import torch
from torch import nn
import transformers

import compact


def in_layer(path, name, value):
    def change(model):
        setattr(model.get_submodule(path), name, value)

    return change


class OtherMlp(transformers.models.llama.modeling_llama.LlamaMLP):
    def forward(self, x):
        return 0.5 * super().forward(x)


class OtherLinear(nn.Linear):
    def forward(self, x):
        return 0.5 * super().forward(x)


class TwoWeights(nn.Linear):
    weight = property(lambda self: 0.5 * self._parameters["weight"], lambda self, value: None)


class OtherAttributes(nn.Linear):
    def __getattr__(self, name):
        value = super().__getattr__(name)
        return 0.5 * value if name == "weight" else value


class OtherNorm(transformers.models.gemma3.modeling_gemma3.Gemma3RMSNorm):
    def _norm(self, x):
        return x


def other_class(path, cls):
    def change(model):
        model.get_submodule(path).__class__ = cls

    return change


def config_is(name, value):
    def change(model):
        setattr(model.config, name, value)

    return change


def gelu(x):
    return 0.5 * nn.functional.gelu(x)


@functools.wraps(nn.functional.gelu)
def gelu_by_name(x):
    return 0.5 * nn.functional.gelu(x)


def function_in_place(path, name, function):
    def change(model):
        module = model.get_submodule(path)
        delattr(module, name)
        setattr(module, name, function)

    return change


def without_bias(*paths):
    def change(model):
        for path in paths:
            model.get_submodule(path).bias = None

    return change


def replaced(cls, *paths):
    def change(model):
        for path in paths:
            model.set_submodule(path, cls())

    return change


ALPHA = functools.partial(nn.AlphaDropout, 0.3)
LAYER = {"llama": "model.layers.0", "qwen3": "model.layers.0", "olmo2": "model.layers.0", "gemma3": "model.layers.0", "gpt2": "transformer.h.0", "bert": "bert.encoder.layer.0", "vit": "vit.layers.0"}
CHANGES = {
    "llama": {
        "is_causal of attention": in_layer(f"{LAYER['llama']}.self_attn", "is_causal", False),
        "is_causal of the configuration": config_is("is_causal", False),
        "scaling": set_everywhere("scaling", 1.0),
        "eps of one norm": in_layer(f"{LAYER['llama']}.post_attention_layernorm", "variance_epsilon", 1.0),
        "a class of the MLP": other_class(f"{LAYER['llama']}.mlp", OtherMlp),
        "a property in place of a weight": other_class(f"{LAYER['llama']}.mlp.down_proj", TwoWeights),
        "attributes that are computed": other_class(f"{LAYER['llama']}.mlp.down_proj", OtherAttributes),
        "a class of a product": other_class(f"{LAYER['llama']}.mlp.down_proj", OtherLinear),
        "another activation": in_layer(f"{LAYER['llama']}.mlp", "act_fn", nn.Tanh()),
        "a function for the activation": function_in_place(f"{LAYER['llama']}.mlp", "act_fn", torch.tanh),
    },
    "qwen3": {"eps of a head's norm": in_layer(f"{LAYER['qwen3']}.self_attn.q_norm", "variance_epsilon", 1.0)},
    "olmo2": {"eps of a norm": in_layer(f"{LAYER['olmo2']}.post_feedforward_layernorm", "variance_epsilon", 1.0)},
    "gemma3": {
        "a method that is overridden": other_class(f"{LAYER['gemma3']}.input_layernorm", OtherNorm),
        "a method of an instance": in_layer(f"{LAYER['gemma3']}.input_layernorm", "_norm", lambda x: x),
        "a function inside of the activation": in_layer(f"{LAYER['gemma3']}.mlp.act_fn", "act", gelu),
    },
    "mistral": {"no window": config_is("sliding_window", None)},
    "gpt2": {
        "scaling": set_everywhere("scaling", 1.0),
        "eps": in_layer(f"{LAYER['gpt2']}.ln_2", "eps", 1.0),
        "GELU": in_layer(f"{LAYER['gpt2']}.mlp", "act", nn.GELU()),
        "GELU by tanh": in_layer(f"{LAYER['gpt2']}.mlp", "act", nn.GELU(approximate="tanh")),
        "no dropouts": replaced(nn.Identity, *(f"{LAYER['gpt2']}.{name}" for name in ("mlp.dropout", "attn.resid_dropout"))),
        "other dropouts": replaced(ALPHA, *(f"{LAYER['gpt2']}.{name}" for name in ("mlp.dropout", "attn.resid_dropout"))),
    },
    "bert": {
        "eps": set_everywhere("eps", 0.1),
        "chunks": set_everywhere("chunk_size_feed_forward", 8),
        "a function inside of the activation": in_layer(f"{LAYER['bert']}.intermediate.intermediate_act_fn", "act", gelu),
        "a function called gelu": function_in_place(f"{LAYER['bert']}.intermediate", "intermediate_act_fn", gelu),
        "a function that wraps gelu": function_in_place(f"{LAYER['bert']}.intermediate", "intermediate_act_fn", gelu_by_name),
        "no bias of queries": without_bias(f"{LAYER['bert']}.attention.self.query"),
        "no dropouts": replaced(nn.Identity, f"{LAYER['bert']}.output.dropout", f"{LAYER['bert']}.attention.output.dropout"),
        "other dropouts": replaced(ALPHA, f"{LAYER['bert']}.output.dropout", f"{LAYER['bert']}.attention.output.dropout"),
    },
    "vit": {"no bias of queries": without_bias(f"{LAYER['vit']}.attention.q_proj"), "other dropouts": replaced(ALPHA, f"{LAYER['vit']}.dropout")},
}
ALIKE = ("GELU", "GELU by tanh", "chunks", "no dropouts", "no bias of queries")  # with which gradients are nearly the same


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name,change", [(n, c) for n in CHANGES for c in CHANGES[n]])
def test_numbers_and_code(name, change, when):
    own, model, given = make(name), make(name), inputs(name)
    unchanged = gradients(own, given)[1]
    CHANGES[name][change](own)
    if when == "before":
        CHANGES[name][change](model)
        with contextlib.suppress(ValueError):  # no layer can be served
            compact.apply(model, "exact")
    else:
        compact.apply(model, "exact")
        gradients(model, given)
        CHANGES[name][change](model)
    torch.manual_seed(1)
    wanted = gradients(own, given)
    torch.manual_seed(1)
    got = gradients(model, given)
    assert agree(got, wanted)
    assert change in ALIKE or error(wanted[1], unchanged) > 1e-3, "the change changes nothing"


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_dropout_switched_off_later(name):
    own, model, given = make(name), make(name), inputs(name)
    dropouts(0.4)(model)
    compact.apply(model, "exact")
    dropouts(0.0)(model)
    assert error(gradients(model, given)[1], gradients(own, given)[1]) < 1e-4
    dropouts(0.4)(model)
    layers = [m for m in model.modules() if "_compact" in m.__dict__ and m is not model]
    for module in (inner for layer in layers for inner in layer.modules() if inner is not layer):
        module.eval()
    for outside in (m for m in model.modules() if isinstance(m, nn.Dropout)):
        outside.eval()
    assert error(gradients(model, given)[1], gradients(own, given)[1]) < 1e-4
