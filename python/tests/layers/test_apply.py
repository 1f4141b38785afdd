# SPDX-License-Identifier: Apache-2.0
"""The parts that apply() leaves as they were, the models it refuses, and the state it leaves behind."""
import copy
import gc
import io
import pickle
import weakref

from _device import DEVICE
from _reasons import reasons
from _threads import in_threads
from conftest import MODELS, applied, error, gradients, inputs, make, same
import pytest
import torch
import transformers

import compact
from compact.base import library


@pytest.mark.parametrize("name", MODELS)
def test_state_dict_and_names_stay(name):
    model = make(name)
    before = {n: p.clone() for n, p in model.state_dict().items()}
    modules = [(n, type(m)) for n, m in model.named_modules()]
    with applied(model, "exact"):
        assert [(n, type(m)) for n, m in model.named_modules()] == modules
        after = model.state_dict()
        assert list(after) == list(before)
        assert all(torch.equal(before[n], after[n]) for n in before)
        gradients(model, inputs(name))


@pytest.mark.parametrize("name", ["llama", "bert", "gpt2"])
@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
def test_copies_work_by_themselves(name, way):
    model, given = make(name), inputs(name)
    compact.apply(model, "exact")
    _, wanted = gradients(model, given)
    if way == "deepcopy":
        other = copy.deepcopy(model)
    elif way == "pickle":
        other = pickle.loads(pickle.dumps(model))
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()  # the copy must not read them
    _, got = gradients(other, given)
    assert all(torch.equal(got[n], wanted[n]) for n in wanted)
    assert all(layer.calls == 1 for layer in compact.report(other).layers)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "vit"])
def test_save_pretrained_and_load(name, tmp_path):
    model, given = make(name), inputs(name)
    compact.apply(model, "recompute")
    wanted = gradients(model, given)[1]
    model.save_pretrained(tmp_path)
    other = type(model).from_pretrained(tmp_path, dtype=torch.float32).train()
    assert compact.report(other).policy is None
    assert error(gradients(other, given)[1], wanted) < 1e-5


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2"])
def test_generate(name):
    model, ids = make(name).eval(), inputs(name)["input_ids"][:1]
    settings = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    wanted = model.generate(ids, **settings)
    compact.apply(model, "exact")
    assert torch.equal(model.generate(ids, **settings), wanted)
    gradients(model, inputs(name))
    assert model.generate(ids, **settings).shape == wanted.shape
    assert not reasons(model)


def test_remove_restores():
    model, given = make("llama"), inputs("llama")
    before = gradients(model, given)[1]
    attributes = {n: set(m.__dict__) for n, m in model.named_modules()}
    compact.apply(model, "exact")
    gradients(model, given)
    assert compact.remove(model) is model
    assert {n: set(m.__dict__) for n, m in model.named_modules()} == attributes
    after = gradients(model, given)[1]
    assert all(torch.equal(before[n], after[n]) for n in before)
    assert str(compact.report(model)) == "compact: not applied"
    compact.remove(model)


@pytest.mark.parametrize(
    "policy,text",
    [
        ("exakt", "did you mean `exact`"),
        ("slot layers.*.mlp.gate_op = recompute", "layers.*.mlp.gate_op"),
        ("slot layers.*.attn.input = recompute", "keep"),
        ("slot layers.*.mlp.gate_up = quantise:bits=4", "quantize"),
        ("grad layers.*.mlp.gate_op = project:rank=0.5", "layers.*.mlp.gate_op"),
        ("nowhere/none.policy", "none.policy"),
    ],
)
def test_bad_policies(policy, text):
    model = make("llama")
    with pytest.raises(ValueError, match=text.replace("*", r"\*").replace("?", r"\?")):
        compact.apply(model, policy)
    assert compact.report(model).policy is None
    gradients(model, inputs("llama"))


def test_policies_of_files_and_texts(tmp_path):
    path = tmp_path / "mine.policy"
    path.write_text("slot layers.0.mlp.gate_up = quantize:bits=4\n")
    model = make("llama")
    compact.apply(model, str(path))
    gradients(model, inputs("llama"))
    slots = {slot: how for layer in compact.report(model).layers for slot, how, *_ in layer.slots}
    assert slots["layers.0.mlp.gate_up"].startswith("quantize:bits=4")
    assert slots["layers.1.mlp.gate_up"] == "keep"
    path.write_text("slot layers.0.mlp.gate_op = keep\n")
    with pytest.raises(ValueError, match="mine.policy:1: pattern `layers.0.mlp.gate_op` matches no slot"):
        compact.apply(make("llama"), path)


def test_texts_that_copy_presets(tmp_path):
    for name in set(compact.presets()) - {"pool", "pool-quant"}:  # for convolutional networks
        text = "\ufeff" + compact.policy_text(name) + "\n"
        path = tmp_path / "rank=2.txt"
        path.write_text(text)
        for policy in (text, str(path), path):
            assert compact.report(compact.apply(make("llama"), policy)).policy == compact.policy_text(name)


def test_refusals():
    model = make("llama")
    compact.apply(model)
    with pytest.raises(ValueError, match="has a policy already"):
        compact.apply(model)


def test_frozen_weights():
    model, given = make("llama"), inputs("llama")
    for n, p in model.named_parameters():
        p.requires_grad_("v_proj" in n or "layers.1.mlp.up_proj" in n)
    wanted = gradients(copy.deepcopy(model), given)[1]
    with applied(model, "exact"):
        got = gradients(model, given)[1]
    assert len(got) == 3 and error(got, wanted) < 1e-5


def test_a_weight_changed_in_place_is_an_error():
    for autocast in (False, True):
        model, given = make("llama"), inputs("llama")
        compact.apply(model, "exact")
        with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
            loss = model(**given).loss
        with torch.no_grad():
            model.model.layers[0].mlp.down_proj.weight.add_(1)
        sizes = ", ".join(map(str, model.model.layers[0].mlp.down_proj.weight.shape))
        with pytest.raises(RuntimeError, match=f"`layers.0`: a tensor that the backward pass reads, .{sizes}., was changed in place"):
            loss.backward()
        gradients(model, given)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_weight_given_other_memory_is_an_error(name, autocast):
    """Torch's own backward pass reads old matrices and new vectors then."""
    model, given = make(name), inputs(name)
    compact.apply(model, "recompute")
    layer = (model.model.layers if name == "llama" else model.transformer.h)[0]
    for weight in layer.parameters():
        with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
            loss = model(**given).loss
        weight.data = weight.data.clone()
        with pytest.raises(RuntimeError, match="was given other memory since the forward pass"):
            loss.backward()
    gradients(model, given)


def test_retain_graph_and_second_backward():
    model, given = make("llama"), inputs("llama")
    with applied(model, "exact"):
        loss = model(**given).loss
        loss.backward(retain_graph=True)
        once = {n: p.grad.clone() for n, p in model.named_parameters()}
        loss.backward()
        assert all(torch.allclose(p.grad, 2 * once[n]) for n, p in model.named_parameters())
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()


def test_an_exception_leaves_a_usable_model():
    model, given = make("llama"), inputs("llama")
    wanted = gradients(model, given)[1]
    with applied(model, "exact"):
        handle = model.model.norm.register_forward_hook(lambda *a: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(**given)
        handle.remove()
        loss = model(**given).loss
        handle = model.model.embed_tokens.weight.register_hook(lambda g: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loss.backward()
        handle.remove()
        assert error(gradients(model, given)[1], wanted) < 1e-5


def test_type_and_device_moves():
    model, given = make("llama"), inputs("llama")
    with applied(model, "exact"):
        gradients(model, given)
        model.bfloat16()
        _, got = gradients(model, given)
        assert all(p.grad.dtype == torch.bfloat16 for p in model.parameters())
        model.float()
        gradients(model, given)
    mixed = make("llama")
    compact.apply(mixed, "exact")
    mixed.model.layers[0].mlp.down_proj.bfloat16()
    with pytest.raises(ValueError, match="mlp.down.weight is BFloat16"):
        gradients(mixed, given)
    half = make("llama")
    compact.apply(half, "exact")
    gradients(half.half(), given)
    assert reasons(half) == {"it computes in torch.float16"}


def test_a_model_destroyed_before_its_graph():
    model, given = make("llama"), inputs("llama")
    compact.apply(model, "exact")
    weights = [model.model.layers[0].mlp.down_proj.weight]
    loss = model(**given).loss
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None
    loss.backward()
    assert weights[0].grad is not None


def test_nothing_is_left_behind():
    """1,000 steps, and 100 times apply and remove: no byte more, and no reference."""
    model, given = make("bert"), inputs("bert", batch=3, length=8)
    compact.apply(model, "gact-l1")
    for _ in range(3):
        gradients(model, given)
    model.zero_grad()
    gc.collect()
    with compact.Meter() as meter:
        for _ in range(1000):
            model.zero_grad()
            model(**given).loss.backward()
        model.zero_grad()
        gc.collect()
        assert meter.now == 0
        compact.remove(model)
        for _ in range(100):
            compact.apply(model, "exact")
            model(**given).loss.backward()
            compact.remove(model)
        model.zero_grad()
        gc.collect()
        assert meter.now == 0
    compact.apply(model, "exact")
    state = weakref.ref(model.bert.encoder.layer[0].__dict__["_compact"])
    compact.remove(model)
    gc.collect()
    assert state() is None


def test_threads():
    """Two threads with a model of their own, and two with the same one."""
    given = inputs("llama")
    models = [make("llama", seed) for seed in (0, 1)]
    wanted = [gradients(m, given)[0] for m in models]
    for m in models:
        compact.apply(m, "exact")

    def work(number):
        for _ in range(20):
            loss = models[number % 2](**given).loss
            assert abs(loss.item() - wanted[number % 2]) < 1e-5

    in_threads(work, range(4))


def test_a_library_of_other_sources_is_refused(monkeypatch):
    here = library._REGISTERED
    monkeypatch.setattr(library, "_REGISTERED", "0123456789ab")
    with pytest.raises(ImportError, match=f'has the interfaces {here}, and the Python package is for 0123456789ab.*_REGISTERED = "{here}" in .*library.py'):
        library._load()


def test_shallow_copies():
    """They share modules and parameters with the model, and outlive it."""
    wanted, given = gradients(make("llama"), inputs("llama"))[1], inputs("llama")
    model = compact.apply(make("llama"))
    for other in (copy.copy(model), copy.deepcopy(copy.copy(model))):
        assert error(gradients(other, given)[1], wanted) < 1e-4
    other.training = False  # of the copy alone
    assert other(**given).logits is not None and model(**given).logits is None
    other = copy.copy(model)
    del model
    gc.collect()
    assert error(gradients(other, given)[1], wanted) < 1e-4
    assert error(gradients(copy.deepcopy(other), given)[1], wanted) < 1e-4
    assert all(row.calls > 0 and not row.own_forward for row in compact.report(other).layers)
    compact.remove(other)
    assert same(gradients(other, given)[1], wanted)


def test_pickles_of_another_version():
    model = compact.apply(make("llama"))
    for change in (lambda state: state.pop("numbers"), lambda state: state.update(older=1)):
        state = model.model.layers[0].__dict__["_compact"]
        changed = state.__getstate__()
        change(changed)
        with pytest.raises(pickle.UnpicklingError, match="another version of the package.*(numbers|older).*state_dict"):
            type(state).__new__(type(state)).__setstate__(changed)


def test_a_shallow_copy_of_a_layer_with_modules_of_its_own():
    model = compact.apply(make("llama"))
    layer = model.model.layers[0]
    other = copy.copy(layer)
    other._modules = other._modules | {"mlp": copy.deepcopy(layer.mlp)}
    hidden = torch.randn(2, 8, layer.hidden_size)
    rotary = model.model.rotary_emb(hidden, torch.arange(8)[None])
    other(hidden, position_embeddings=rotary).sum().backward()
    assert all(p.grad is not None for p in other.mlp.parameters()) and all(p.grad is None for p in layer.mlp.parameters())


def test_tokens_share_no_scale_of_codes():
    """Rows of 96 are not cut by groups of 256: a token's gradient does not depend on how large its neighbours are."""
    error = {}
    for factor in (1, 1000):
        model = make("llama")
        ids = inputs("llama")["input_ids"]
        large = ids % 4 == 0
        with torch.no_grad():
            model.model.embed_tokens.weight[::4] *= factor
        made = []
        for policy in (None, "gact-l1"):
            if policy:
                compact.apply(model, policy)
            embeddings = model.model.embed_tokens(ids).detach().requires_grad_()
            model(inputs_embeds=embeddings, labels=ids).loss.backward()
            made.append(embeddings.grad[:, :-1][~large[:, :-1]])
        error[factor] = ((made[1] - made[0]).norm(dim=-1) / made[0].norm(dim=-1)).max()
    assert error[1000] < 2 * error[1] < 0.5, error


def test_heads_share_no_scale_of_codes():
    """The same of heads that have norms."""
    error = {}
    ids = inputs("llama")["input_ids"]
    for factor in (1, 1000):
        torch.manual_seed(0)
        sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64}
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(vocab_size=200, **sizes)).train()
        queries = model.model.layers[0].self_attn.q_proj.weight
        with torch.no_grad():
            queries[:64] *= factor  # which the norm takes away
        made = []
        for policy in (None, "gact-l1"):
            if policy:
                compact.apply(model, policy)
            made.append(torch.autograd.grad(model(input_ids=ids, labels=ids).loss, queries)[0][64:])
        error[factor] = (made[1] - made[0]).norm() / made[0].norm()
    assert error[1000] < 1.5 * error[1] < 0.5, error
