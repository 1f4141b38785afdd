# SPDX-License-Identifier: Apache-2.0
"""When a layer's own forward runs, and when it need not."""
import copy
import pickle
import types

from _reasons import reasons
from conftest import applied, error, gradients, inputs, make, same
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.llama import modeling_llama

import compact
from compact.layers.masks import OTHER

# Padding at the beginning of one row and at the end of another, which attends to the row's sequence.
MIXED = torch.ones(3, 40, dtype=torch.long)
MIXED[0, :5] = 0
MIXED[1, 35:] = 0


def test_hidden_states_and_attentions():
    model, given = make("llama"), inputs("llama")
    plain = model(**given, output_hidden_states=True).hidden_states
    compact.apply(model, "exact")
    got = model(**given, output_hidden_states=True).hidden_states
    assert len(got) == len(plain) == 3
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(got, plain))
    assert not reasons(model)
    model.set_attn_implementation("eager")
    assert len(model(**given, output_attentions=True).attentions) == 2
    assert len(reasons(model)) == 1
    before = compact.report(model).layers[0].calls
    gradients(model, given)  # recorders stay, and ask for nothing now
    assert compact.report(model).layers[0].calls == before + 1


def test_one_layer_may_keep_its_own():
    model, given = make("llama"), inputs("llama")
    model.model.layers[0].self_attn.q_proj = type("MyLinear", (nn.Linear,), {"forward": lambda s, x: x @ s.weight.T})(
        64, 64, bias=False
    )
    compact.apply(model, "exact")
    gradients(model, given)
    rows = compact.report(model).layers
    assert rows[0].served_as is None and "MyLinear" in rows[0].reason
    assert rows[1].served_as == "layers.1" and rows[1].calls == 1
    assert "own forward: self_attn.q_proj" in str(compact.report(model))


def test_hooks_added_later_are_called():
    model, given = make("llama"), inputs("llama")
    compact.apply(model, "exact")
    calls = []
    handle = model.model.layers[0].mlp.down_proj.register_forward_hook(lambda *a: calls.append(1))
    gradients(model, given)
    assert calls == [1] and reasons(model) == {"down_proj has a hook"}
    handle.remove()
    gradients(model, given)
    rows = compact.report(model).layers
    assert [row.calls for row in rows] == [1, 2]


@pytest.mark.parametrize("kind", ["forward", "full_backward"])
def test_hooks_of_a_layer_itself(kind):
    model, given = make("llama"), inputs("llama")
    calls = []
    getattr(model.model.layers[1], f"register_{kind}_hook")(lambda *a: calls.append(1))
    with applied(model, "exact"):
        gradients(model, given)
    assert calls == [1]


def test_other_masks():
    model, given = make("llama"), inputs("llama")
    plain = copy.deepcopy(model)
    compact.apply(model, "exact")
    prefix = torch.ones(40, 40).tril().bool()
    prefix[:10, :10] = True
    for mask in (MIXED, prefix.expand(3, 1, 40, 40)):
        wanted, got = gradients(plain, given | {"attention_mask": mask}), gradients(model, given | {"attention_mask": mask})
        assert torch.allclose(wanted[0], got[0], atol=1e-5)
        assert error(got[1], wanted[1]) < 1e-5
    assert reasons(model) == {OTHER} and [layer.calls for layer in compact.report(model).layers] == [0, 0]
    assert "masks: 2 layers ran their own forward, since the attention mask is neither causal" in str(compact.report(model))


@pytest.mark.parametrize(
    "name,how,kernel,row,mask",
    [
        ("llama", {}, "flash (cpu)", 48, 40 * 40),
        ("gpt2", {"attn_pdrop": 0.1}, "chunks of scores", 0, 40 * 40),
        ("bert", {}, "flash (cpu)", 48, 40 * 40),
    ],
)
def test_what_padding_costs_is_reported(name, how, kernel, row, mask):
    model = make(name)
    for module in model.modules():
        if hasattr(module, "attn_dropout"):
            module.attn_dropout.p = how.get("attn_pdrop", 0.0)
    compact.apply(model, "exact")
    model(**inputs(name)).loss.backward()
    assert all(layer.padding is None for layer in compact.report(model).layers) and "padding" not in str(compact.report(model))
    model(**inputs(name, padded=True)).loss.backward()
    assert [layer.padding for layer in compact.report(model).layers] == [(kernel, 3 * row * 4, 3 * mask)] * 2
    text = f"padding: 2 layers in the last step, attention by {kernel}, in each {12 * row:,} bytes for it; the model's mask has {3 * mask:,} bytes"
    assert text in str(compact.report(model))
    assert compact.report(copy.deepcopy(model)).layers[0].padding is None


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "phi3", "gpt2"])
@pytest.mark.parametrize("how", ["as it is", "use_cache", "config", "checkpointing"])
def test_packed_positions_mean_what_they_mean_in_plain(name, how):
    """In training and in evaluation, by labels and without; with a cache transformers takes them for those of one sequence."""
    model, given = make(name), inputs(name)
    given["position_ids"] = torch.cat([torch.arange(25), torch.arange(15)]).expand(3, 40)
    if how == "use_cache":
        given["use_cache"] = False
    if how == "config":
        model.config.use_cache = False
    if how == "checkpointing":
        model.gradient_checkpointing_enable()
    plain = copy.deepcopy(model)
    compact.apply(model, "exact")
    wanted, got = gradients(plain, given), gradients(model, given)
    assert torch.allclose(wanted[0], got[0], atol=1e-5)
    assert error(got[1], wanted[1]) < 1e-5
    if how == "as it is":
        assert not reasons(model)
    without = {k: v for k, v in given.items() if k != "labels"}
    assert torch.allclose(model(**without).logits, plain(**without).logits, atol=1e-5)
    for context in (torch.no_grad(), torch.enable_grad()):
        with context:
            assert torch.allclose(model.eval()(**given).loss, plain.eval()(**given).loss, atol=1e-5)


def test_positions_of_their_own():
    """Rows of a batch at other places, with the ordinary causal mask."""
    model, given = make("llama"), inputs("llama")
    positions = torch.arange(40) + torch.tensor([[0], [7], [30]])
    wanted = gradients(copy.deepcopy(model), given | {"position_ids": positions})[1]
    with applied(model, "exact"):
        assert error(gradients(model, given | {"position_ids": positions})[1], wanted) < 1e-5


def test_a_cache_means_the_own_forward():
    model = make("llama")
    compact.apply(model, "exact")
    ids = inputs("llama")["input_ids"]
    out = model(input_ids=ids, use_cache=True)
    assert out.past_key_values.get_seq_length() == 40
    assert reasons(model) == {"a cache of keys and values is passed; give use_cache=False"}


def test_checkpointing_and_other_hooks():
    model, given = make("llama"), inputs("llama")
    wanted = gradients(model, given)[1]
    compact.apply(model, "exact")
    model.gradient_checkpointing_enable()
    assert error(gradients(model, given)[1], wanted) < 1e-5
    model.gradient_checkpointing_disable()
    assert [row.calls for row in compact.report(model).layers] == [1, 1]
    with torch.autograd.graph.save_on_cpu():
        assert error(gradients(model, given)[1], wanted) < 1e-5
    assert any("hooks for saved tensors" in reason for reason in reasons(model))

    def block(x, *args, **kwargs):
        return torch.utils.checkpoint.checkpoint(own, x, *args, use_reentrant=False, **kwargs)

    layer = model.model.layers[0]
    own = layer.forward
    layer.forward = block
    assert error(gradients(model, given)[1], wanted) < 1e-5


def test_transforms_run_the_own_forward():
    model = make("vit").eval()
    compact.apply(model, "exact")
    pixels = inputs("vit")["pixel_values"]
    parameters = dict(model.named_parameters())

    def loss(p):
        return torch.func.functional_call(model, p, (pixels,)).logits.square().sum()

    got = torch.func.grad(loss)(parameters)
    compact.remove(model)
    wanted = torch.func.grad(loss)(parameters)
    assert all(torch.allclose(got[n], wanted[n], atol=1e-5) for n in wanted)


def test_functional_call_reads_the_given_weights():
    model, given = make("vit"), inputs("vit")
    given.pop("labels")
    others = {n: torch.randn_like(p).requires_grad_() * 0.1 for n, p in model.named_parameters()}
    others = {n: p.detach().requires_grad_() for n, p in others.items()}

    def run():
        y = torch.func.functional_call(model, others, (), given).logits.square().sum()
        return torch.autograd.grad(y, list(others.values()), allow_unused=True)

    wanted = run()
    with applied(model, "exact"):
        got = run()
    assert all((a is None) == (b is None) for a, b in zip(got, wanted))
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(got, wanted) if a is not None)


@pytest.mark.parametrize("policy", ["exact", "recompute", "gact-l1", "a budget"])
def test_layers_that_run_their_own_forward_are_held_in_a_scope(policy):
    model, given = make("llama"), inputs("llama") | {"attention_mask": MIXED}
    wanted = gradients(model, given)
    if policy == "a budget":
        policy = compact.policy_text("exact") + "slot role:heavy = recompute:budget=50%\n"
    compact.apply(model, policy, chunked_loss=False)
    for model in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        for _ in range(2):
            got = gradients(model, given)
        assert torch.equal(got[0], wanted[0]) and same(got[1], wanted[1])
        saved = compact.report(model).saved
        assert saved.stored < (0.4 if policy == "recompute" else 0.46 if "heavy" in policy else 0.6) * saved.bytes, (saved.stored / saved.bytes)
        assert f"{saved.stored:,} of {saved.bytes:,} bytes held" in str(compact.report(model))
    gradients(model, inputs("llama"))
    assert compact.report(model).saved is None  # each of its layers was served
    with torch.autograd.graph.save_on_cpu():
        gradients(model, given)
    assert compact.report(model).saved is None and "hooks for saved tensors are in force around it, as of checkpointing or offloading" in reasons(model)
    compact.remove(model)
    assert not any("_compact_scope" in m.__dict__ or "forward" in m.__dict__ for m in model.modules())


def test_a_pass_that_fails_ends_its_scope():
    model, given = make("llama"), inputs("llama") | {"use_cache": True}
    compact.apply(model)
    wanted = gradients(model, given)

    def fail(*_):
        raise RuntimeError("of a hook")

    handle = model.model.norm.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="of a hook"):
        gradients(model, given)
    handle.remove()
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    got = gradients(model, given)
    assert same(got[1], wanted[1]) and compact.report(model).saved.stored > 0


def test_a_scope_that_others_opened_is_the_one():
    model, given = make("llama"), inputs("llama") | {"use_cache": True}
    wanted = gradients(compact.apply(model), given)
    with compact.saved_tensors("exact", model=model) as saved:
        got = gradients(model, given)
    assert same(got[1], wanted[1]) and saved.stored > 0 and compact.report(model).saved is None


class Around(nn.Module):
    """A model in a module whose forward does more."""

    def __init__(self, before):
        super().__init__()
        self.lm, self.before = make("llama"), before
        layers = 0 if before is without_hooks else 2  # unknown ones have a scope from the beginning, inside of which torch refuses this
        self.tower = nn.ModuleList(nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(layers))

    def forward(self, input_ids, **given):
        return self.before(self, input_ids, given)


def penalty(self, ids, given):
    """A backward pass in the forward pass, of a layer that a reentrant checkpoint runs again."""
    e = self.lm.model.embed_tokens(ids).detach().requires_grad_()
    positions = self.lm.model.rotary_emb(e, torch.arange(ids.shape[1])[None])
    y = checkpoint(lambda t: self.lm.model.layers[0](t, position_embeddings=positions), e, use_reentrant=True)
    y.pow(2).sum().backward()
    out = self.lm(input_ids=ids, **given)
    out.loss = out.loss + e.grad.mean()
    return out


def own_scope(self, ids, given):
    e = self.lm.model.embed_tokens(ids)
    with compact.saved_tensors("exact", model=self.tower):
        for layer in self.tower:
            e = layer(e)
    return self.lm(inputs_embeds=e, **given)


def without_hooks(self, ids, given):
    with torch.autograd.graph.disable_saved_tensors_hooks("hooks are disabled here"):
        return self.lm(input_ids=ids, **given)


@pytest.mark.parametrize("before", [penalty, own_scope, without_hooks])
@pytest.mark.parametrize("more", [{}, {"attention_mask": MIXED}])
def test_forwards_that_do_more(before, more):
    torch.manual_seed(0)
    model, given = Around(before).train(), inputs("llama") | more
    wanted = gradients(compact.apply(model, "off"), given)
    compact.remove(model)
    compact.apply(model)
    for _ in range(2):
        got = gradients(model, given)
        if before is not penalty or more:  # served layers of it run once as they are
            assert abs(got[0] - wanted[0]) < 1e-5 and error(got[1], wanted[1]) < 1e-5
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_other_networks_called_inside():
    """A teacher outside of the model's modules is held by its own policy, where a scope of the model waits or runs."""
    teacher = compact.apply(nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU()))

    def taught(self, ids, given):
        out = self.lm(input_ids=ids, **given)
        out.loss = out.loss + teacher(self.lm.model.embed_tokens(ids)).mean()
        return out

    for more in ({}, {"attention_mask": MIXED}):
        model, given = compact.apply(Around(taught)), inputs("llama") | more
        before = compact.report(teacher).saved
        gradients(model, given)
        held = compact.report(teacher).saved
        assert held is not before and 0 < held.stored < held.bytes and not compact.report(teacher).network.count("own forward")


def test_forwards_that_others_hold():
    model, given = compact.apply(make("llama")), inputs("llama")
    wanted, forward = gradients(model, given), model.forward
    compact.remove(model)
    compact.apply(model, "off")
    assert abs(forward(**given).loss - wanted[0]) < 1e-5
    bert, given = make("bert"), inputs("bert")
    wanted = gradients(bert, given)
    compact.apply(bert)
    bert.forward = types.MethodType(bert.forward, bert)  # as accelerate does
    assert error(gradients(bert, given)[1], wanted[1]) < 1e-5


def test_transforms_of_positions():
    model, ids = compact.apply(make("llama"), "off"), inputs("llama")["input_ids"]
    positions = torch.arange(40).expand(3, 40)
    losses = torch.func.vmap(lambda i, p: model(input_ids=i[None], labels=i[None], position_ids=p[None]).loss)(ids, positions)
    assert losses.shape == (3,)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("which", ["input_layernorm", "self_attn.q_proj"])
def test_weights_whose_elements_share_memory(which, when):
    own, model, given = make("llama"), make("llama"), inputs("llama")
    if when == "after":
        compact.apply(model)
    for one in (own, model):
        inside = one.model.layers[0].get_submodule(which)
        first = inside.weight.detach()[:1].clone()
        inside.weight = nn.Parameter(first.expand_as(inside.weight))
    if when == "before":
        compact.apply(model)
    assert error(gradients(model, given)[1], gradients(own, given)[1]) < 1e-4
    assert [row.calls for row in compact.report(model).layers] == [0, 1] and reasons(model) == {"elements of a weight share memory, as of an expanded tensor"}


class WithoutBias(modeling_llama.LlamaRMSNorm):
    bias = None


def test_classes_that_say_that_they_have_no_bias():
    own, given = make("llama"), inputs("llama")
    for layer in own.model.layers:
        layer.input_layernorm.__class__ = WithoutBias
        layer.self_attn.q_proj.__class__ = type("Linear", (nn.Linear,), {"bias": None})
    model = compact.apply(copy.deepcopy(own))
    assert error(gradients(model, given)[1], gradients(own, given)[1]) < 1e-4
    assert all(row.calls == 1 and not row.own_forward for row in compact.report(model).layers)
    model = make("qwen2")  # a parameter that is not read, since the class says None
    model.model.layers[0].self_attn.q_proj.__class__ = type("Linear", (nn.Linear,), {"bias": None})
    assert [row.served_as for row in compact.report(compact.apply(model)).layers] == [None, "layers.1"]


def test_class_methods(monkeypatch):
    """As methods of a layer; another one in its place is seen."""
    code = "def _norm(cls, x):\n    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + {})"
    exec(code.format(1e-6), vars(modeling_gemma3), made := {})
    monkeypatch.setattr(modeling_gemma3.Gemma3RMSNorm, "_norm", classmethod(made["_norm"]))
    own, model, given = make("gemma3"), compact.apply(make("gemma3")), inputs("gemma3")
    assert error(gradients(model, given)[1], gradients(own, given)[1]) < 1e-4
    assert all(row.calls == 1 and not row.own_forward for row in compact.report(model).layers)
    exec(code.format(0.5), vars(modeling_gemma3), made)
    monkeypatch.setattr(modeling_gemma3.Gemma3RMSNorm, "_norm", classmethod(made["_norm"]))
    assert error(gradients(model, given)[1], gradients(own, given)[1]) < 1e-4
    assert any("_norm of" in reason for reason in reasons(model))
