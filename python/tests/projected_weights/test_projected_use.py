# SPDX-License-Identifier: Apache-2.0
"""Projected gradients beside what others do with a model: nobody sees carriers, and nothing is lost without an error."""
import copy
import gc
import io
import pickle
import weakref

from _projecting import carriers, LLAMA, PERIOD, run
from conftest import error, gradients, inputs, make
import pytest
import torch
from torch import nn
import transformers

import compact


def test_copies_are_of_the_copied_weight():
    model, given = make("llama"), inputs("llama")
    compact.apply(model, LLAMA)
    run(model, compact.optim.AdamW(model.parameters(), lr=1e-2), range(PERIOD + 1))
    wanted = gradients(model, given)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        for path, c in carriers(other).items():
            assert c.weight is other.get_submodule(path).weight and c.projected.draw() == 1
        assert len({id(c.projected) for c in carriers(other).values()}) == len({id(c.projected) for c in carriers(model).values()})
        assert error(gradients(other, given)[1], wanted[1]) == 0
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        optimizer = compact.optim.AdamW(other.parameters(), lr=1e-2)
        optimizer.zero_grad()
        run(other, optimizer, range(PERIOD))
        assert all(torch.equal(before[n], p) for n, p in model.named_parameters())


def test_what_others_see(tmp_path):
    model, own = make("llama"), make("llama")
    compact.apply(model, LLAMA)
    run(model, compact.optim.AdamW(model.parameters(), lr=1e-2), range(2))
    model.save_pretrained(tmp_path)
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), loaded.state_dict().values()))
    assert model.load_state_dict(own.state_dict()) == nn.modules.module._IncompatibleKeys([], [])
    ids = inputs("llama")["input_ids"][:, :8]
    generated = model.eval().generate(ids, max_new_tokens=4, do_sample=False)
    assert torch.equal(generated, own.eval().generate(ids, max_new_tokens=4, do_sample=False))
    compact.remove(model)
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in own.named_parameters()]
    assert all(p.requires_grad for p in model.parameters()) and not carriers(model)
    assert error(gradients(model.train(), inputs("llama"))[1], gradients(own.train(), inputs("llama"))[1]) == 0
    compact.apply(model, LLAMA)  # and again


def test_frozen_weights_stay_frozen():
    model, given = make("llama"), inputs("llama")
    model.model.layers[0].self_attn.q_proj.weight.requires_grad_(False)
    compact.apply(model, LLAMA)
    model(**given).loss.backward()
    attention = model.model.layers[0].self_attn
    assert attention.q_proj.carrier.grad is None and attention.k_proj.carrier.grad is not None
    compact.remove(model)
    assert not attention.q_proj.weight.requires_grad and attention.k_proj.weight.requires_grad


def test_a_model_is_freed_without_a_collection():
    model = compact.apply(make("llama"), LLAMA)
    seen = weakref.ref(model)
    gc.collect()
    gc.disable()
    try:
        del model
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("settings", [{"fused": True}, {"foreach": True}, {"foreach": False}])
def test_another_optimizer_is_noticed(settings):
    model = compact.apply(make("llama"), LLAMA)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **settings)
    model(**inputs("llama")).loss.backward()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match="AdamW has been given carriers: compact.optim.AdamW and compact.optim.Muon alone"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    c = next(iter(carriers(model).values()))
    c.data = torch.ones(c.shape)
    with torch.no_grad():
        c.add_(1)
    with pytest.raises(RuntimeError, match="the carrier of layers.0.* was modified"):
        model(**inputs("llama"))


@pytest.mark.parametrize("kind", [torch.optim.AdamW, compact.optim.AdamW])
def test_an_optimizer_that_was_made_before(kind):
    model = make("llama")
    early = kind(model.parameters(), lr=1e-2)
    compact.apply(model, LLAMA)
    by_name = kind([p for n, p in model.named_parameters() if n.endswith("weight")], lr=1e-2)
    model(**inputs("llama")).loss.backward()
    for optimizer in (early, by_name):
        with pytest.raises(RuntimeError, match="whose gradient is projected, and not its carrier"):
            optimizer.step()
    late = compact.optim.AdamW(model.parameters(), lr=1e-2)
    late.step()
    for again in (False, True):
        compact.remove(model)
        if again:
            compact.apply(model, LLAMA)
        model(**inputs("llama")).loss.backward()
        with pytest.raises(RuntimeError, match="of a policy that was taken back" if not again else "and not its carrier"):
            late.step()


def test_models_that_cannot_have_them():
    shared = make("llama")
    shared.model.layers[1].mlp.down_proj.weight = shared.model.layers[0].mlp.down_proj.weight
    hooked = make("llama")
    hooked.model.layers[0].mlp.up_proj.weight.register_post_accumulate_grad_hook(lambda p: None)
    for model, text in ((shared, "is the weight of several modules"), (hooked, "has a hook for its gradient")):
        with pytest.raises(ValueError, match=text):
            compact.apply(model, LLAMA)
        assert all(p.requires_grad for p in model.parameters()) and not carriers(model)
    model = compact.apply(make("llama"), LLAMA)
    with pytest.raises(RuntimeError, match="DataParallel's replicas would lose"):
        model.model.layers[0]._replicate_for_data_parallel()


def test_freezing_is_of_carriers():
    model, given = compact.apply(make("llama"), LLAMA), inputs("llama")
    down = model.model.layers[0].mlp.down_proj
    model.requires_grad_(True)
    with pytest.raises(RuntimeError, match="was made trainable"):
        model(**given)
    for c in carriers(model).values():
        c.weight.requires_grad_(False)
    down.carrier.requires_grad_(False)
    model(**given).loss.backward()
    assert down.carrier.grad is None
    compact.remove(model)
    assert not down.weight.requires_grad and sum(not p.requires_grad for p in model.parameters()) == 1


def test_carriers_take_no_memory_after_a_change_of_type():
    model = compact.apply(make("llama"), LLAMA).to(torch.bfloat16)
    assert any(c.untyped_storage().nbytes() > 2 for c in carriers(model).values())
    run(model, compact.optim.AdamW(model.parameters(), lr=1e-2), range(PERIOD + 1))
    assert all(c.untyped_storage().nbytes() == 2 for c in carriers(model).values())


def test_products_of_one_input_of_which_one_is_frozen():
    model = make("llama")
    model.model.layers[0].self_attn.v_proj.weight.requires_grad_(False)
    before = model.model.layers[0].self_attn.v_proj.weight.detach().clone()
    compact.apply(model, LLAMA)
    run(model, compact.optim.AdamW(model.parameters(), lr=1e-2), range(2 * PERIOD + 1))
    attention = model.model.layers[0].self_attn
    assert torch.equal(attention.v_proj.weight, before) and attention.q_proj.carrier.projected.draw() == 2


def test_one_of_several_products_is_frozen_on_the_way():
    model, given = compact.apply(make("llama"), LLAMA), inputs("llama")
    optimizer = compact.optim.AdamW(model.parameters(), lr=1e-2)
    run(model, optimizer, range(2))
    attention = model.model.layers[0].self_attn
    attention.v_proj.carrier.requires_grad_(False)
    before = attention.v_proj.weight.detach().clone()
    run(model, optimizer, range(2 * PERIOD))
    assert torch.equal(attention.v_proj.weight, before) and attention.q_proj.carrier.projected.draw() == 2
    attention.v_proj.carrier.requires_grad_(True)
    model(**given).loss.backward()
    with pytest.raises(ValueError, match="freeze and unfreeze them together"):
        optimizer.step()


def test_frozen_carriers_are_nobodys():
    model, given = compact.apply(make("llama"), LLAMA), inputs("llama")
    for c in carriers(model).values():
        c.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    model(**given).loss.backward()
    optimizer.step()
    assert all(c.is_zero() and c.grad is None for c in carriers(model).values())


def test_other_parameters_named_carrier_are_missed():
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.carrier = compact.apply(make("llama"), LLAMA), nn.Parameter(torch.ones(3))

    around = Around()
    state = around.state_dict()
    assert "carrier" in state and not around.load_state_dict(state).missing_keys
    del state["carrier"]
    with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict: \"carrier\""):
        around.load_state_dict(state)


def test_carriers_lie_where_their_weights_do():
    model, file = compact.apply(make("llama"), LLAMA), io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    read = torch.load(file, map_location="meta", weights_only=False)
    assert all(c.is_meta == c.weight.is_meta for c in carriers(read).values())


def test_a_layers_own_forward_would_lose_gradients():
    model, given = compact.apply(make("llama"), LLAMA), inputs("llama")
    model.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="layers.1 has projected gradients, .* cannot project them: mlp has a hook"):
        model(**given)
    with torch.no_grad():
        model(**given)


def test_a_weight_that_is_replaced():
    model, given = compact.apply(make("llama"), LLAMA), inputs("llama")
    down = model.model.layers[1].mlp.down_proj
    down.weight = nn.Parameter(down.weight.detach().clone(), requires_grad=False)
    with pytest.raises(RuntimeError, match="a weight of layers.1 was replaced"):
        model(**given)


def test_weights_that_are_flat_are_refused():
    model = make("llama")
    product = model.model.layers[0].self_attn.q_proj
    product.weight = torch.nn.Parameter(product.weight.detach().flatten())
    with pytest.raises(ValueError, match="has the shape .4096,., as FullyShardedDataParallel leaves its parts"):
        compact.apply(model, "grad layers.*.attn.qkv = project:rank=0.25\n")
    assert not carriers(model) and all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(
    "line,text",
    [
        ("grad layers.*.attn.qkv = project:rank=0.25,release=true", "release=true, updates inside the backward pass, is for the C"),
        ("grad layers.*.attn.qkv = project:rank=0.25,share=false", "share=false, a projection for each of several products"),
        ("grad layers.*.attn.out = project:rank=0.25", "another operation reads its input"),
        ("grad layers.*.attn.qkv = project:rank=1000", "rank"),
        ("grad layers.*.attn.qqq = project:rank=0.25", "attn.qqq"),
        ("grad layers.*.attn.qkv = full:lr_scale=2", "lr_scale"),
    ],
)
def test_what_is_refused(line, text):
    model = make("llama")
    with pytest.raises(ValueError) as refused:
        compact.apply(model, line + "\n")
    assert text in str(refused.value)
    assert not carriers(model) and all(p.requires_grad for p in model.parameters())
