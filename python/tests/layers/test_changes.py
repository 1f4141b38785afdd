# SPDX-License-Identifier: Apache-2.0
"""Classes, functions, modules and numbers that are replaced, before or after apply(): results are the model's own."""
import contextlib
import functools
import gc
import types
import weakref

from _setting import agree, changed_passes, halved, Halves, patched
from conftest import error, gradients, inputs, make
import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import modeling_utils
from transformers.integrations import sdpa_attention
from transformers.loss import loss_utils
from transformers.models.bert import modeling_bert
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.glm import modeling_glm
from transformers.models.llama import modeling_llama

import compact
from compact.base import torch_functions


@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("cls", ["LlamaMLP", "LlamaAttention", "LlamaDecoderLayer", "LlamaRMSNorm", "Linear"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_classes_patched(cls, when, wraps):
    """Also where functools.wraps gives the other function the name and the module of the first."""
    owner = getattr(torch.nn if cls == "Linear" else modeling_llama, cls)
    own = owner.forward

    def other(self, *args, **kwargs):
        y = own(self, *args, **kwargs)
        return (0.5 * y[0], *y[1:]) if isinstance(y, tuple) else 0.5 * y

    if wraps:
        other = functools.wraps(own)(other)
    given = inputs("llama")
    model = make("llama")
    if when == "after":
        compact.apply(model)
    with patched(owner, "forward", other):
        wanted = gradients(make("llama"), given)
        if when == "before":
            with contextlib.suppress(ValueError):  # no layer can be served
                compact.apply(model)
        assert agree(gradients(model, given), wanted)


class Table:
    def __init__(self, own):
        self.own = own

    def get_interface(self, *_):
        return lambda *args, **kwargs: (0.5 * self.own(*args, **kwargs)[0], None)


AUTOCAST = torch.autocast("cpu", dtype=torch.bfloat16)
DECORATORS = {
    "torch.compile": lambda own: torch.compile(halved(own), backend="eager"),
    "torch.compiler.disable": lambda own: torch.compiler.disable(halved(own)),
    "torch.no_grad": torch.no_grad(),
    "functools.partial": lambda own: functools.partial(halved(own)),
    "an object": Halves,
}
GEMMA_NORM, BERT_LAYER = modeling_gemma3.Gemma3RMSNorm, modeling_bert.BertLayer
PATCHED = {
    **{f"apply_rotary_pos_emb by {name}": ("llama", modeling_llama, "apply_rotary_pos_emb", DECORATORS[name]) for name in DECORATORS},
    "MLP by torch.no_grad": ("llama", modeling_llama.LlamaMLP, "forward", torch.no_grad()),
    "layers by torch.autocast": ("llama", modeling_llama.LlamaDecoderLayer, "forward", AUTOCAST),
    "Linear by torch.autocast": ("bert", torch.nn.Linear, "forward", AUTOCAST),
    "the table of attention": ("llama", modeling_llama, "ALL_ATTENTION_FUNCTIONS", lambda own: Table(own["sdpa"])),
    "a method of norms": ("gemma3", GEMMA_NORM, "_norm", halved),
    "a method of layers": ("bert", BERT_LAYER, "feed_forward_chunk", halved),
    "the call of an MLP": ("llama", modeling_llama.LlamaMLP, "__call__", halved),
    **{f"{name} of torch": ("llama", torch.nn.functional, name, halved) for name in ("scaled_dot_product_attention", "silu", "linear", "cross_entropy")},
    "addmm of torch": ("gpt2", torch, "addmm", halved),
    "another model's function": ("llama", modeling_llama, "apply_rotary_pos_emb", lambda own: modeling_glm.apply_rotary_pos_emb),
    "the loss": ("llama", loss_utils, "fixed_cross_entropy", halved),
    "repeat_kv of sdpa": ("llama", sdpa_attention, "repeat_kv", halved),
}


@pytest.mark.parametrize("change", PATCHED)
@pytest.mark.parametrize("when", ["before", "after"])
def test_code_patched(change, when):
    name, owner, attribute, patch = PATCHED[change]
    given, model = inputs(name, padded=True), make(name)
    unchanged = gradients(make(name), given)[1]
    if when == "after":
        gradients(compact.apply(model), given)
    with patched(owner, attribute, patch(getattr(owner, attribute))):
        wanted = gradients(make(name), given)
        if when == "before":
            with contextlib.suppress(ValueError):  # no layer can be served
                compact.apply(model)
        got = gradients(model, given)
    # Rounding to bfloat16 makes steps of what differs by the last bits of f32; the change itself is 7e-3.
    assert agree(got, wanted, within=1e-3 if patch is AUTOCAST else 1e-4)
    assert wanted[1].keys() != unchanged.keys() or error(wanted[1], unchanged) > 1e-3, "the change changes nothing"


class Dropout(nn.Dropout):
    """A dropout of another name."""


def test_what_changes_nothing_in_layers_leaves_them_served():
    model, given = make("gpt2"), inputs("gpt2")
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.Dropout):
                setattr(module, name, Dropout(child.p))
    model.eval()
    own = functional.cross_entropy
    with patched(functional, "cross_entropy", lambda *args, **kwargs: own(*args, **kwargs)):
        compact.apply(model)
        model(**given).loss.backward()
    assert all(row.calls == 1 and not row.own_forward for row in compact.report(model).layers)


def test_functions_are_known_once_they_are_torchs_own(monkeypatch):
    monkeypatch.setattr(torch_functions, "_own", {})
    silu = [(functional, "silu")]
    with patched(functional, "silu", halved(functional.silu)):
        assert "silu of torch.nn.functional was replaced" in torch_functions.replaced_function(silu)
    assert torch_functions.replaced_function(silu) is None


@pytest.mark.parametrize("name,attention", [("apply_rotary_pos_emb", "sdpa"), ("eager_attention_forward", "eager"), ("repeat_kv", "eager")])
@pytest.mark.parametrize("when", ["before", "after"])
def test_functions_patched(name, attention, when):
    own = getattr(modeling_llama, name)

    def other(first, *args, **kwargs):
        if name == "eager_attention_forward":
            return own(first, 2 * args[0], *args[1:], **kwargs)
        return own(2 * first, *args, **kwargs)

    def made():
        model = make("llama")
        model.set_attn_implementation(attention)
        return model

    given, model = inputs("llama"), made()
    if when == "after":
        compact.apply(model)
    with patched(modeling_llama, name, other):
        wanted = gradients(made(), given)
        if when == "before":
            compact.apply(model)
        assert agree(gradients(model, given), wanted)
    assert f"{name} of {modeling_llama.__name__} was replaced" in str(compact.report(model))


@pytest.mark.parametrize("own", [True, False])
def test_functions_that_kernels_makes_modules_of(own):
    """The package `kernels` does so with transformers' functions; it may be installed or not."""
    rotate = modeling_llama.apply_rotary_pos_emb
    func = rotate if own else halved(rotate)

    class Func(torch.nn.Module):
        __module__ = "kernels.layer.layer"

        def forward(self, *args, **kwargs):
            return func(*args, **kwargs)

    given, module = inputs("llama"), Func()
    with patched(modeling_llama, "apply_rotary_pos_emb", module):
        wanted, model = gradients(make("llama"), given), compact.apply(make("llama"))
        assert agree(gradients(model, given), wanted)
        assert all(row.calls == own for row in compact.report(model).layers)
        # As kernelize() does: another forward in the module, whose name stays.
        module.forward = types.MethodType(lambda self, *args, **kwargs: halved(rotate)(*args, **kwargs), module)
        swapped = gradients(make("llama"), given)
        assert agree(gradients(model, given), swapped) and not (own and agree(wanted, swapped))
        del module.forward
        assert agree(gradients(model, given), wanted)
    assert all(row.calls == 2 * own for row in compact.report(model).layers)
    assert not own or "apply_rotary_pos_emb of transformers.models.llama.modeling_llama was replaced" in str(compact.report(model))


def bidirectional(model):
    for layer in model.model.layers:
        layer.self_attn, before = type(layer.self_attn)(model.config, layer.self_attn.layer_idx), layer.self_attn
        layer.self_attn.load_state_dict(before.state_dict())
        layer.self_attn.is_causal = False


def scaling(model):
    model.set_attn_implementation("eager")
    for layer in model.model.layers:
        layer.self_attn.scaling = torch.nn.Parameter(torch.tensor(0.4))


def of_granite(kind):
    def change(model):
        for layer in model.model.layers:
            value = torch.tensor(layer.__dict__.pop("residual_multiplier"))
            if kind == "parameter":
                layer.residual_multiplier = torch.nn.Parameter(value)
            else:
                layer.register_buffer("residual_multiplier", value)

    return change


def halves(model):
    rotary = model.model.rotary_emb

    def differ(module, given, output):
        return tuple(torch.cat([t[..., : t.size(-1) // 2], 0.9 * t[..., t.size(-1) // 2 :]], -1) for t in output)

    rotary.register_forward_hook(differ)


def eps(model):
    for layer in model.model.layers:
        del layer.input_layernorm.variance_epsilon
        layer.input_layernorm.variance_epsilon = torch.nn.Parameter(torch.tensor(1e-3))


@pytest.mark.parametrize(
    "name,change", [("llama", bidirectional), ("llama", scaling), ("granite", of_granite("parameter")), ("granite", of_granite("buffer")), ("llama", halves), ("llama", eps)]
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_modules_and_numbers_replaced(name, change, when):
    wanted, got = changed_passes(change, make(name), make(name), inputs(name), when)
    assert agree(got, wanted)


def test_another_function_for_attention():
    own = modeling_utils.ALL_ATTENTION_FUNCTIONS["sdpa"]

    def other(*args, **kwargs):
        y, weights = own(*args, **kwargs)
        return 0.5 * y, weights

    model, given = make("llama"), inputs("llama")
    compact.apply(model)
    try:
        modeling_utils.AttentionInterface.register("sdpa", other)
        wanted = gradients(make("llama"), given)
        assert agree(gradients(model, given), wanted)
    finally:
        modeling_utils.AttentionInterface.register("sdpa", own)


def test_weights_that_are_made_again():
    own, model, given = make("llama"), make("llama"), inputs("llama")
    compact.apply(model)
    for m in (own, model):
        torch.nn.utils.parametrizations.weight_norm(m.model.layers[0].mlp.down_proj)
    assert agree(gradients(model, given), gradients(own, given))
    assert [row.calls for row in compact.report(model).layers] == [0, 1]


def test_replicas_for_data_parallel_run_their_own():
    model = compact.apply(make("llama"))
    layer = model.model.layers[0]
    replica = layer._replicate_for_data_parallel()
    assert "forward" not in replica.__dict__ and "_compact" not in replica.__dict__
    assert "forward" in layer.__dict__


@pytest.mark.parametrize("order", ["apply, prepare", "prepare, apply"])
def test_accelerate_and_remove(order):
    accelerate = pytest.importorskip("accelerate")
    types_seen = []
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    model, given = make("llama"), inputs("llama")
    hidden = model.model.layers[0].mlp.register_forward_hook(lambda m, a, y: types_seen.append(y.dtype))
    if order == "apply, prepare":
        compact.apply(model)
        model = accelerator.prepare(model)
    else:
        model = accelerator.prepare(model)
        compact.apply(model)
    model(**given).loss.backward()
    compact.remove(model)
    model(**given).loss.backward()
    assert types_seen == [torch.bfloat16] * 2
    hidden.remove()


def test_a_model_is_freed_without_a_collection():
    gc.collect()
    gc.disable()
    try:
        model = compact.apply(make("llama"))
        gradients(model, inputs("llama"))
        alive = weakref.ref(model.model.layers[0].mlp)
        del model
        assert alive() is None
    finally:
        gc.enable()
