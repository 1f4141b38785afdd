# SPDX-License-Identifier: Apache-2.0
"""Projected gradients: carriers take G P, updates go through P^T, and nobody else sees them."""
import copy
import gc
import io
import os
import pathlib
import pickle
import subprocess
import sys
import weakref

from conftest import error, gradients, inputs, make, MODELS
import pytest
import torch
import transformers
from torch import nn

import compact
from compact._carriers import Carrier

PERIOD = 4
TEXT = f"""slot role:{{norm,heads,gate,product}} = recompute
slot role:logits = chunk
grad layers.*.attn.qkv = project:rank=0.25,period={PERIOD}
grad layers.*.mlp.{{gate_up,up,down}} = project:rank=0.5,period={PERIOD}
"""
LLAMA = TEXT.replace("{gate_up,up,down}", "{gate_up,down}")


def policy_of(name):
    if name in ("gpt2", "bert", "roberta", "vit"):
        text = TEXT.replace("{gate_up,up,down}", "{up,down}").replace("{norm,heads,gate,product}", "norm")
        return text if name == "gpt2" else text.replace("slot role:logits = chunk\n", "")
    return LLAMA


def carriers(model):
    return {n.removesuffix(".carrier"): p for n, p in model.named_parameters() if isinstance(p, Carrier)}


def projection(c):
    return c.projected.matrix(c.weight.device, c.weight.dtype)


@pytest.mark.parametrize("name", [*MODELS])
def test_gradients_are_those_of_weights_projected(name):
    own, model, given = make(name), make(name), inputs(name)
    loss, wanted = own(**given).loss, dict(own.named_parameters())
    loss.backward()
    compact.apply(model, policy_of(name))
    assert list(model.state_dict()) == list(own.state_dict())
    got = model(**given).loss
    got.backward()
    assert abs(got.item() - loss.item()) < 1e-5
    found = carriers(model)
    assert len(found) >= 3 * len(compact.report(model).layers) - 2
    for path, c in found.items():
        gradient = wanted[path + ".weight"].grad
        gradient = gradient.t() if c.transposed else gradient
        assert error({"": c.grad}, {"": gradient @ projection(c)}) < 1e-4, path
        assert not c.weight.requires_grad and c.weight.grad is None
    for path, p in model.named_parameters():
        if p.requires_grad and not isinstance(p, Carrier):
            # Keys' biases have gradients that are 0 but for rounding.
            assert (p.grad - wanted[path].grad).norm() < 1e-4 * wanted[path].grad.norm() + 1e-8, path


def test_projections_are_right_on_average():
    model, given = make("llama"), inputs("llama")
    compact.apply(model, LLAMA)
    c = carriers(model)["model.layers.0.mlp.down_proj"]
    gradient = dict(make("llama").named_parameters())
    own = make("llama")
    own(**given).loss.backward()
    gradient = own.model.layers[0].mlp.down_proj.weight.grad
    draws, n, r = 400, c.weight.shape[1], c.shape[1]
    mean = torch.zeros_like(gradient)
    for draw in range(draws):
        c.projected.redraw(draw)
        p = projection(c)
        mean += gradient @ p @ p.T / draws
    # The mean of |G P P^T - G|^2 is |G|^2 (n / r - 1) at most; 5 deviations to spare.
    assert error({"": mean}, {"": gradient}) < 5 * (n / r / draws) ** 0.5
    assert error({"": mean}, {"": gradient}) > 0


def stepped(c, moments, lr, step):
    """What AdamW makes of a carrier's gradient from zero, by torch's own."""
    p = nn.Parameter(torch.zeros(c.shape))
    p.grad = c.grad.clone()
    optimizer = torch.optim.AdamW([p], lr=lr, weight_decay=0)
    if step > 1:
        optimizer.state[p] = {"step": torch.tensor(float(step - 1)), **{k: v.clone() for k, v in moments.items()}}
    optimizer.step()
    return p.detach(), {k: optimizer.state[p][k] for k in ("exp_avg", "exp_avg_sq")}


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_updates(name):
    model, given = make(name), inputs(name)
    compact.apply(model, policy_of(name))
    optimizer = compact.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    path, c = next((n, p) for n, p in carriers(model).items() if "mlp" in n)
    moments = {}
    for step in range(1, PERIOD + 1):
        optimizer.zero_grad()
        model(**given).loss.backward()
        before, p_old = c.weight.detach().clone(), projection(c)
        update, moments = stepped(c, moments, 1e-2, step)
        optimizer.step()
        through = update @ p_old.T
        wanted = before * (1 - 1e-2 * 0.1) + (through.T if c.transposed else through)
        assert error({"": c.weight.detach()}, {"": wanted}) < 1e-5, step
        assert c.is_zero() and c.projected.draw() == step // PERIOD
    # Moments follow into the next projection: exactly, were both bases orthonormal.
    overlap = p_old.T @ projection(c)
    rank, width = overlap.shape[0], p_old.shape[0]
    state = optimizer.state[c]
    assert error({"": state["exp_avg"]}, {"": moments["exp_avg"] @ overlap * (rank / width)}) < 1e-4
    assert bool((state["exp_avg_sq"] >= 0).all()) and int(state["step"]) == PERIOD


def run(model, optimizer, steps):
    losses = []
    for step in steps:
        given = inputs("llama")
        given["input_ids"] = (given["input_ids"] + step) % 200
        given["labels"] = given["input_ids"]
        loss = model(**given).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


MAKERS = {
    "AdamW": lambda model: compact.optim.AdamW(model.parameters(), lr=1e-2),
    "AdamW, f8": lambda model: compact.optim.AdamW(model.parameters(), lr=1e-2, moments="f8"),
    "Muon": lambda model: compact.optim.Muon(model, lr=1e-2),
}


@pytest.mark.parametrize("optimizer", MAKERS)
def test_going_on_from_a_checkpoint(optimizer):
    whole = compact.apply(make("llama"), LLAMA)
    run_of = MAKERS[optimizer](whole)
    wanted = run(whole, run_of, range(3 * PERIOD))
    first = compact.apply(make("llama"), LLAMA)
    optimizer_of = MAKERS[optimizer](first)
    losses = run(first, optimizer_of, range(PERIOD + 2))
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": optimizer_of.state_dict()}, file)
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    second = make("llama", seed=1)
    second.load_state_dict(saved["model"])
    compact.apply(second, LLAMA)
    going_on = MAKERS[optimizer](second)
    going_on.load_state_dict(saved["optimizer"])
    assert losses + run(second, going_on, range(PERIOD + 2, 3 * PERIOD)) == wanted
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), second.state_dict().values()))


@pytest.mark.parametrize("dtype", ["bf16", "autocast", "masters"])
def test_types(dtype):
    model = make("llama") if dtype == "autocast" else make("llama").bfloat16()
    compact.apply(model, LLAMA)
    optimizer = compact.optim.AdamW(model.parameters(), lr=1e-2, master_weights=dtype == "masters")
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "autocast"):
        losses = run(model, optimizer, [0] * 12)
    assert losses[-1] < losses[0] - 0.5
    assert all(c.is_zero() and c.dtype == c.weight.dtype for c in carriers(model).values())
    if dtype == "masters":
        c = next(iter(carriers(model).values()))
        assert torch.equal(optimizer.state[c]["master"].bfloat16(), c.weight)


def test_bytes():
    model, given = make("llama"), inputs("llama")
    compact.apply(model, LLAMA)
    optimizer = compact.optim.AdamW(model.parameters(), lr=1e-3)
    model(**given).loss.backward()
    optimizer.step()
    for c in carriers(model).values():
        state = optimizer.state[c]
        assert c.untyped_storage().nbytes() == 4 and c.grad.nbytes == 4 * c.numel()
        assert state["exp_avg"].nbytes + state["exp_avg_sq"].nbytes == 8 * c.numel()
        assert c.numel() in (c.weight.numel() // 4, c.weight.numel() // 2)
    rows = compact.plan(make("llama"), given, policies=("exact", LLAMA), optimizer=compact.optim.AdamW)["rows"]
    assert rows[1]["optimizer"] == sum(t.nbytes for s in optimizer.state.values() for k, t in s.items() if k not in ("step", "projection"))
    assert rows[1]["weights"] < rows[0]["weights"] + 200 and rows[1]["peak"] < rows[0]["peak"]


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
    with pytest.raises(RuntimeError, match="somebody wrote to a carrier of layers.0"):
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


STALE = "has a gradient of a projection before the one in force"


def test_gradients_of_the_projection_before():
    model, given = compact.apply(make("llama"), LLAMA), inputs("llama")
    optimizer = compact.optim.AdamW(model.parameters(), lr=1e-2)
    run(model, optimizer, range(PERIOD - 1))
    model(**given).loss.backward()
    optimizer.step()
    with pytest.raises(ValueError, match=STALE):
        optimizer.step()
    loss = model(**given).loss
    with pytest.raises(RuntimeError, match=STALE):
        loss.backward()
    optimizer.zero_grad()
    model(**given).loss.backward()
    optimizer.step()


def test_a_state_that_is_loaded_behind_the_backward_pass():
    model, given = compact.apply(make("llama"), LLAMA), inputs("llama")
    optimizer = compact.optim.AdamW(model.parameters(), lr=1e-2)
    run(model, optimizer, range(PERIOD))
    state = copy.deepcopy(optimizer.state_dict())
    again = compact.apply(make("llama"), LLAMA)
    optimizer = compact.optim.AdamW(again.parameters(), lr=1e-2)
    again(**given).loss.backward()
    optimizer.load_state_dict(state)
    with pytest.raises(ValueError, match=STALE):
        optimizer.step()


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_may_be_cleared_behind_the_forward_pass(to_none):
    """As closures and Lightning do."""
    found = []
    for behind in (False, True):
        model = compact.apply(make("llama"), LLAMA)
        optimizer = compact.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(2 * PERIOD + 1):
            if not behind:
                optimizer.zero_grad(to_none)
            loss = model(**inputs("llama")).loss
            if behind:
                optimizer.zero_grad(to_none)
            loss.backward()
            optimizer.step()
        found.append(loss.item())
    assert found[0] == found[1]


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


@pytest.mark.parametrize("flat", [False, True])
def test_checkpoints_of_torch(flat):
    from torch.distributed.checkpoint import state_dict as of

    options, found = of.StateDictOptions(flatten_optimizer_state_dict=flat), []
    for resumed in (False, True):
        model = compact.apply(make("llama"), LLAMA)
        optimizer = compact.optim.AdamW(model.parameters(), lr=1e-2)
        run(model, optimizer, range(PERIOD + 1))
        if resumed:
            saved = copy.deepcopy(of.get_state_dict(model, optimizer, options=options))
            model = compact.apply(make("llama", seed=1), LLAMA)
            optimizer = compact.optim.AdamW(model.parameters(), lr=1e-2)
            of.set_state_dict(model, optimizer, model_state_dict=saved[0], optim_state_dict=saved[1], options=options)
        run(model, optimizer, range(PERIOD))
        found.append(model.state_dict())
    assert all(torch.equal(t, found[1][n]) for n, t in found[0].items())


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


def test_another_way_to_write_the_same_projection():
    model = compact.apply(make("llama"), "grad layers.*.mlp.down = project:rank=0.5\n")
    optimizer = compact.optim.AdamW(model.parameters(), lr=1e-2)
    run(model, optimizer, range(1))
    again = compact.apply(make("llama"), "grad layers.*.mlp.down = project:rank=86,period=200,type=srht,lr_scale=2\n")
    compact.optim.AdamW(again.parameters(), lr=1e-2).load_state_dict(optimizer.state_dict())


def test_carriers_lie_where_their_weights_do():
    model, file = compact.apply(make("llama"), LLAMA), io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    read = torch.load(file, map_location="meta", weights_only=False)
    assert all(c.is_meta == c.weight.is_meta for c in carriers(read).values())


@pytest.mark.parametrize("other", [{"seed": 5}, {"policy": LLAMA.replace("period=4", "period=5")}])
def test_a_state_of_other_projections(other):
    model = compact.apply(make("llama"), LLAMA)
    optimizer = compact.optim.AdamW(model.parameters(), lr=1e-2)
    run(model, optimizer, range(2))
    second = compact.apply(make("llama"), **{"policy": LLAMA, **other})
    with pytest.raises(ValueError, match="apply the policy that it was trained with, with the same seed"):
        compact.optim.AdamW(second.parameters(), lr=1e-2).load_state_dict(optimizer.state_dict())


def test_a_layers_own_forward_would_lose_gradients():
    model, given = compact.apply(make("llama"), LLAMA), inputs("llama")
    model.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="layers.1 has projected gradients, .* must run that: mlp has a hook"):
        model(**given)
    with torch.no_grad():
        model(**given)


def test_a_weight_that_is_replaced():
    model, given = compact.apply(make("llama"), LLAMA), inputs("llama")
    down = model.model.layers[1].mlp.down_proj
    down.weight = nn.Parameter(down.weight.detach().clone(), requires_grad=False)
    with pytest.raises(RuntimeError, match="a weight of layers.1 was replaced"):
        model(**given)


def test_a_state_that_is_not_loaded():
    model = compact.apply(make("llama"), LLAMA)
    optimizer = compact.optim.AdamW(model.parameters(), lr=1e-2)
    model(**inputs("llama")).loss.backward()
    before = [t.clone() for t in model.state_dict().values()]
    list(carriers(model).values())[-1].projected.redraw(3)
    with pytest.raises(ValueError, match="has projection 3, and its next update is of number 0"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values())), "nothing was changed"


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


def test_two_processes():
    script = pathlib.Path(__file__).with_name("_projected_ranks.py")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d",
         "--rdzv-endpoint=localhost:0", str(script), LLAMA],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]


def test_plans_need_the_optimizer():
    with pytest.raises(ValueError, match="projected gradients need compact.optim"):
        compact.plan(make("llama"), (2, 32), policies=(LLAMA,))
