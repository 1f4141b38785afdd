# SPDX-License-Identifier: Apache-2.0
"""Forwards, losses and arguments that are changed, before or after apply(): results are the model's own."""
import contextlib
import copy
import functools
import gc
import types
import weakref

from _setting import dropouts, set_everywhere
from conftest import DECODER, error, gradients, inputs, make
import pytest
import torch
from torch import nn
from torch.nn import functional
import transformers
from transformers import modeling_utils
from transformers.integrations import sdpa_attention
from transformers.loss import loss_utils
from transformers.models.bert import modeling_bert
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.glm import modeling_glm
from transformers.models.llama import modeling_llama

import compact
from compact.base import torch_functions


def test_an_argument_is_causal():
    own, model, given = make("llama"), make("llama"), inputs("llama") | {"is_causal": False, "use_cache": False}
    compact.apply(model)
    assert error(gradients(model, given)[1], gradients(own, given)[1]) < 1e-4


@contextlib.contextmanager
def patched(owner, name, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


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
        wanted = gradients(make("llama"), given)[1]
        if when == "before":
            with contextlib.suppress(ValueError):  # no layer can be served
                compact.apply(model)
        assert error(gradients(model, given)[1], wanted) < 1e-4


class Halves:
    def __init__(self, own):
        self.own = own

    def __call__(self, *args, **kwargs):
        y = self.own(*args, **kwargs)
        return tuple(0.5 * t for t in y) if isinstance(y, tuple) else 0.5 * y


def halved(own):
    @functools.wraps(own)
    def other(*args, **kwargs):
        return Halves(own)(*args, **kwargs)

    return other


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
    assert wanted[1].keys() == got[1].keys() and abs(wanted[0] - got[0]) < 1e-5 and error(got[1], wanted[1]) < 1e-4
    assert wanted[1].keys() != unchanged.keys() or error(wanted[1], unchanged) > 1e-3, "the change changes nothing"


class Dropout(nn.Dropout):
    """Of another name."""


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
        wanted = gradients(made(), given)[1]
        if when == "before":
            compact.apply(model)
        assert error(gradients(model, given)[1], wanted) < 1e-4
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

    given = inputs("llama")
    with patched(modeling_llama, "apply_rotary_pos_emb", Func()):
        wanted, model = gradients(make("llama"), given)[1], compact.apply(make("llama"))
        assert error(gradients(model, given)[1], wanted) < 1e-4
    assert all(row.calls == own for row in compact.report(model).layers)


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
    own, model, given = make(name), make(name), inputs(name)
    if when == "after":
        compact.apply(model)
    change(own)
    change(model)
    if when == "before":
        compact.apply(model)
    wanted, got = gradients(own, given), gradients(model, given)
    assert len(wanted[1]) == len(got[1]) and abs(wanted[0] - got[0]) < 1e-5 and error(got[1], wanted[1]) < 1e-4


def test_a_layer_twice_with_a_cache():
    own, model, given = make("llama"), make("llama"), inputs("llama") | {"use_cache": True}
    for one in (own, model):
        one.model.layers[1] = one.model.layers[0]
    compact.apply(model)
    wanted, got = gradients(own, given), gradients(model, given)
    assert abs(wanted[0] - got[0]) < 1e-5 and error(got[1], wanted[1]) < 1e-4


def test_embeddings_of_another_type():
    own, model, given = make("llama"), make("llama"), inputs("llama")
    for one in (own, model):
        one.model.embed_tokens.bfloat16()
    compact.apply(model)
    assert error(gradients(model, given)[1], gradients(own, given)[1]) < 1e-4


def test_another_function_for_attention():
    own = modeling_utils.ALL_ATTENTION_FUNCTIONS["sdpa"]

    def other(*args, **kwargs):
        y, weights = own(*args, **kwargs)
        return 0.5 * y, weights

    model, given = make("llama"), inputs("llama")
    compact.apply(model)
    try:
        modeling_utils.AttentionInterface.register("sdpa", other)
        wanted = gradients(make("llama"), given)[1]
        assert error(gradients(model, given)[1], wanted) < 1e-4
    finally:
        modeling_utils.AttentionInterface.register("sdpa", own)


class Halved(transformers.LlamaForCausalLM):
    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        out.loss = out.loss * 0.5
        return out


class Penalized(transformers.LlamaForCausalLM):
    @functools.wraps(transformers.LlamaForCausalLM.forward)
    def forward(self, *args, labels=None, **kwargs):
        out = super().forward(*args, labels=labels, **kwargs)
        if labels is not None:
            out.loss = out.loss + 0.01 * out.logits.float().logsumexp(-1).square().mean()
        return out


def halved_forward(model):
    own = model.forward

    def forward(self, *args, **kwargs):
        out = own(*args, **kwargs)
        out.loss = out.loss * 0.5
        return out

    model.forward = types.MethodType(forward, model)


def halved_head(model):
    own = model.lm_head.forward
    model.lm_head.forward = lambda x: own(x) / 2


def hook_on_head(model):
    model.lm_head.register_forward_hook(lambda module, args, y: y / 2)


def test_another_function_for_the_loss():
    own = loss_utils.fixed_cross_entropy
    model, given = make("llama"), inputs("llama")
    compact.apply(model)
    with patched(loss_utils, "fixed_cross_entropy", lambda *args, **kwargs: 2 * own(*args, **kwargs)):
        wanted, got = gradients(make("llama"), given), gradients(model, given)
    assert abs(wanted[0] - got[0]) < 1e-5 and error(got[1], wanted[1]) < 1e-4


@pytest.mark.parametrize("change", [halved_forward, halved_head, hook_on_head, Halved, Penalized])
@pytest.mark.parametrize("when", ["before", "after"])
def test_losses(change, when):
    given = inputs("llama")
    models = []
    for _ in range(2):
        model = make("llama")
        if isinstance(change, type):
            other = change(transformers.LlamaConfig(**DECODER))
            other.load_state_dict(model.state_dict())
            model = other.train()
        models.append(model)
    own, model = models
    if when == "after":
        compact.apply(model)
    if not isinstance(change, type):
        change(own)
        change(model)
    if when == "before":
        compact.apply(model)
    wanted, got = gradients(own, given), gradients(model, given)
    assert abs(wanted[0] - got[0]) < 1e-5 and error(got[1], wanted[1]) < 1e-4
    compact.remove(model)
    again = gradients(model, given)
    assert abs(wanted[0] - again[0]) < 1e-5 and error(again[1], wanted[1]) < 1e-4


def test_a_loss_that_wraps_its_own(monkeypatch):
    given, other = inputs("llama"), halved(loss_utils.ForCausalLMLoss)
    monkeypatch.setattr(loss_utils, "ForCausalLMLoss", other)
    monkeypatch.setitem(loss_utils.LOSS_MAPPING, "ForCausalLM", other)
    wanted, got = gradients(make("llama"), given), gradients(compact.apply(make("llama")), given)
    assert abs(wanted[0] - got[0]) < 1e-5 and error(got[1], wanted[1]) < 1e-4


@pytest.mark.parametrize("count", [2.5, 0.5, torch.tensor(40.5)])
def test_counts_that_are_no_whole_numbers(count):
    given = inputs("llama") | {"num_items_in_batch": count}
    model = compact.apply(make("llama"))
    assert float(model(**given).loss) == pytest.approx(float(make("llama")(**given).loss), rel=1e-5)


def test_arguments_by_position():
    model, given = make("llama"), inputs("llama")
    ids, labels = given["input_ids"], given["labels"]
    wanted = model(ids, None, None, None, None, labels, False).loss
    compact.apply(model)
    assert torch.allclose(model(ids, None, None, None, None, labels, False).loss, wanted, atol=1e-5)
    assert "in chunks, 1 passes" in compact.report(model).loss


def test_windows_longer_than_padded_sequences():
    own = make("mistral")
    set_everywhere("sliding_window", 64)(own)
    own.config.sliding_window = 64
    model, given = copy.deepcopy(own), inputs("mistral", padded=True)
    compact.apply(model)
    assert error(gradients(model, given)[1], gradients(own, given)[1]) < 1e-4
    assert all(row.calls == 1 for row in compact.report(model).layers)


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3"])
def test_padding_behind_windows(name):
    own, given = make(name), inputs(name)
    given["attention_mask"] = (torch.arange(40) < torch.tensor([[40], [33], [38]])).long()
    model = compact.apply(copy.deepcopy(own))
    assert own.config.sliding_window < 33
    got, wanted = gradients(model, given), gradients(own, given)
    assert abs(got[0] - wanted[0]) < 1e-5 and error(got[1], wanted[1]) < 1e-5
    report = compact.report(model)
    assert all(row.calls == 1 for row in report.layers) and "padding: " in str(report)


def test_booleans_that_eager_attention_adds():
    own, given = make("llama"), inputs("llama")
    own.set_attn_implementation("eager")  # it adds 1 where the mask is true
    given["attention_mask"] = torch.tril(torch.ones(40, 40, dtype=torch.bool))[None, None].clone()
    model = compact.apply(copy.deepcopy(own))
    assert error(gradients(model, given)[1], gradients(own, given)[1]) < 1e-6
    assert "one of booleans" in str(compact.report(model))


def test_what_is_made_in_inference_mode():
    own, given = make("llama"), inputs("llama")
    model = compact.apply(copy.deepcopy(own))
    with torch.inference_mode():
        given["attention_mask"] = torch.tril(torch.ones(40, 40, dtype=torch.bool))[None, None].clone()
        tables = own.model.rotary_emb(torch.randn(1, 8, 64), torch.arange(8)[None])
    assert error(gradients(model, given)[1], gradients(own, given)[1]) < 1e-4
    x = torch.randn(1, 8, 64, requires_grad=True)
    got = model.model.layers[0](x, position_embeddings=tables)
    assert torch.allclose(got, own.model.layers[0](x.detach(), position_embeddings=[t.clone() for t in tables]), atol=1e-5)
    assert [row.calls for row in compact.report(model).layers] == [2, 1]


def test_one_mask_for_the_batch():
    own, given = make("llama"), inputs("llama")
    mask = torch.tril(torch.ones(40, 40, dtype=torch.bool))[None, None].clone()
    mask[..., 35:] = False
    given["attention_mask"] = mask
    given["labels"] = given["labels"].clone()
    given["labels"][:, 35:] = -100
    model = compact.apply(copy.deepcopy(own))
    assert error(gradients(model, given)[1], gradients(own, given)[1]) < 1e-4


def test_weights_that_are_made_again():
    own, model, given = make("llama"), make("llama"), inputs("llama")
    compact.apply(model)
    for m in (own, model):
        torch.nn.utils.parametrizations.weight_norm(m.model.layers[0].mlp.down_proj)
    assert error(gradients(model, given)[1], gradients(own, given)[1]) < 1e-4
    assert [row.calls for row in compact.report(model).layers] == [0, 1]


def test_tables_changed_in_place():
    model = make("llama")
    layer = model.model.layers[0]
    x = torch.randn(1, 8, 64, requires_grad=True)
    cos, sin = (t.clone() for t in model.model.rotary_emb(x, torch.arange(8)[None]))
    others = model.model.rotary_emb(x, torch.arange(3, 11)[None])
    compact.apply(model)
    layer(x, position_embeddings=(cos, sin))
    cos.copy_(others[0])
    sin.copy_(others[1])
    got = layer(x, position_embeddings=(cos, sin))
    compact.remove(model)
    assert torch.allclose(got, layer(x, position_embeddings=(cos, sin)), atol=1e-5)


def test_reentrant_checkpointing_has_one_dropout():
    model = make("gpt2")
    dropouts(0.5)(model)
    compact.apply(model)
    block = model.transformer.h[0]
    x = torch.randn(2, 10, 64, requires_grad=True)

    def run(checkpoint):
        torch.manual_seed(3)
        x.grad = None
        y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=True) if checkpoint else block(x)
        y.square().sum().backward()
        return x.grad.clone()

    got = run(True)
    compact.remove(model)
    assert torch.allclose(got, run(False), atol=1e-4)


def test_transforms_of_the_loss():
    model, given = make("llama"), inputs("llama")
    parameters = {n: p.detach() for n, p in model.named_parameters()}

    def loss(p):
        return torch.func.functional_call(model, p, (), given).loss

    wanted = torch.func.grad(loss)(parameters)
    compact.apply(model)
    got = torch.func.grad(loss)(parameters)
    assert error(got, wanted) < 1e-4


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


def test_reward_models_are_served_in_training():
    config = transformers.LlamaConfig(**DECODER, num_labels=1, pad_token_id=0)
    model = compact.apply(transformers.LlamaForSequenceClassification(config).train())
    model(**inputs("llama") | {"labels": torch.tensor([[0.1], [0.2], [0.3]])}).loss.backward()
    assert all(row.calls == 1 and not row.own_forward for row in compact.report(model).layers)
