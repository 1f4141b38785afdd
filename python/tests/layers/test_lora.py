# SPDX-License-Identifier: Apache-2.0
"""Layers with LoRA's adapters of peft inside: gradients beside the model's own, and what changes in them later."""
import copy
import pickle

from _device import DEVICE
import pytest
import torch
from _planning import measured
from _reasons import reasons
from _training import text, train
from conftest import MODELS, applied, error, gradients, in_double, inputs, make
from test_families import distance
from torch import nn

import compact
import compact.hf

peft = pytest.importorskip("peft")

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TARGETS = {
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "bert": ["query", "key", "value", "dense"],
    "roberta": ["query", "key", "value", "dense"],
    "vit": ["q_proj", "v_proj", "fc1", "fc2"],
}


def settings(name, **more):
    kwargs = {"r": 4, "lora_alpha": 6, "init_lora_weights": False, "target_modules": TARGETS.get(name, "all-linear")}
    return peft.LoraConfig(**kwargs | {"fan_in_fan_out": name == "gpt2"} | more)


def adapted(name, **more):
    torch.manual_seed(3)
    return peft.get_peft_model(make(name), settings(name, **more))


@pytest.mark.parametrize("name", MODELS)
def test_gradients(name):
    model, given = adapted(name), inputs(name, padded=name == "llama")
    loss, wanted = in_double(model, given)
    assert all("lora_" in n or "classifier" in n for n in wanted)
    results = {}
    for policy in ("off", "exact", "recompute"):
        with applied(model, policy):
            results[policy] = gradients(model, given)
        assert abs(results[policy][0] - loss) < 3e-6 * loss
        assert error(results[policy][1], wanted) < 2e-5
    for n, g in results["exact"][1].items():
        assert torch.equal(g, results["recompute"][1][n]), n
    assert error(results["off"][1], results["exact"][1]) < 1e-5


def test_frozen_weights_hold_nothing():
    given, held = inputs("llama"), {}
    for key, model in {
        "whole": make("llama"),
        "all": adapted("llama"),
        "some": adapted("llama", target_modules=["q_proj", "v_proj"]),
        "last": adapted("llama", target_modules=list(ALL), layers_to_transform=[1]),
    }.items():
        with applied(model, "off"):
            gradients(model, given)
            held[key] = [row.held for row in compact.report(model).layers]
    assert held["whole"] > held["some"]
    assert held["all"][1] > held["some"][1]
    # The input of the last layer's first norm has no gradient: neither that nor its statistics are held.
    assert held["last"] == [0, held["all"][1] - 3 * 40 * (64 + 1) * 4]


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
@pytest.mark.parametrize("way", ["bfloat16", "autocast"])
def test_types(name, way):
    """As near to float64 as the model's own forward pass; adapters of a model in bfloat16 are float32."""
    torch.manual_seed(3)
    base = make(name).bfloat16() if way == "bfloat16" else make(name)
    model, given = peft.get_peft_model(base, settings(name)), inputs(name)
    _, wanted = in_double(model, given)
    assert all(p.dtype == torch.float32 for n, p in model.named_parameters() if "lora_" in n)

    def run():
        model.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=way == "autocast"):
            loss = model(**given).loss
        loss.backward()
        return {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}

    plain = run()
    with applied(model, "exact"):
        got = run()
    with applied(model, "recompute"):
        again = run()
    assert all(torch.equal(got[n], again[n]) for n in got)
    assert distance(got, wanted) < 1.6 * distance(plain, wanted)  # both are noise of bfloat16


def test_dropout():
    model, given = adapted("llama", lora_dropout=0.4), inputs("llama")
    results = []
    with applied(model, "exact"):
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            results.append(gradients(model, given))
    with applied(model, "recompute"):
        torch.manual_seed(1)
        results.append(gradients(model, given))
    assert results[0][0] == results[1][0] == results[3][0] != results[2][0]
    assert all(torch.equal(g, results[3][1][n]) for n, g in results[0][1].items())
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    with applied(model, "exact"):
        assert abs(gradients(model, given)[0] - in_double(model, given)[0]) < 1e-5


def test_the_mean_over_dropouts_is_that_of_the_models_own():
    """Means over 300 passes each; bounds of 4.5 deviations."""
    model, given = adapted("llama", lora_dropout=0.3), inputs("llama")
    found = []
    for policy in (None, "exact"):
        torch.manual_seed(1)
        if policy:
            compact.apply(model, policy)
        found.append(torch.stack([gradients(model, given)[1]["base_model.model.model.layers.0.self_attn.q_proj.lora_B.default.weight"].flatten() for _ in range(300)]))
    means, variances = [f.mean(0) for f in found], [f.var(0) / 300 for f in found]
    assert ((means[0] - means[1]).abs() < 4.5 * (variances[0] + variances[1]).sqrt()).all()
    assert 0.8 < float((variances[1].sum() / variances[0].sum())) < 1.25


def trained(model):
    return {n for n, p in model.named_parameters() if p.grad is not None}


def beside(model, given):
    """Passes give what the model's own forward gives, and are served."""
    plain = copy.deepcopy(model)
    compact.remove(plain)
    loss, wanted = gradients(plain, given)
    got_loss, got = gradients(model, given)
    assert abs(loss - got_loss) < 1e-5 and error(got, wanted) < 1e-4
    return compact.report(model).layers


def test_adapters_that_change_later():
    model, given = make("llama"), inputs("llama")
    compact.apply(model, "exact")
    beside(model, given)
    torch.manual_seed(3)
    lora = peft.get_peft_model(model, settings("llama", target_modules=["q_proj", "v_proj"]))
    assert beside(lora, given)[0].calls == 2 and len(trained(lora)) == 8
    lora.add_adapter("second", settings("llama", r=2, target_modules=["k_proj", "v_proj", "down_proj"]))
    lora.set_adapter("second")
    assert beside(lora, given)[0].calls == 3 and len(trained(lora)) == 12
    lora.base_model.set_adapter(["default", "second"])
    assert beside(lora, given)[0].calls == 4 and len(trained(lora)) == 20
    lora.set_adapter("default")
    lora.base_model.model.model.layers[0].self_attn.q_proj.scaling["default"] = 0.5
    beside(lora, given)
    with lora.disable_adapter():
        lora.base_model.model.model.embed_tokens.weight.requires_grad_(True)
        assert beside(lora, given)[0].calls == 6 and len(trained(lora)) == 1
        lora.base_model.model.model.embed_tokens.weight.requires_grad_(False)
    beside(lora, given)
    whole = lora.merge_and_unload()
    for p in whole.parameters():
        p.requires_grad_(True)
    assert beside(whole, given)[0].calls == 8
    assert not reasons(whole)


def test_another_adapter_of_the_same_settings():
    model, given = adapted("llama"), inputs("llama")
    model.add_adapter("second", settings("llama"))
    compact.apply(model, "exact")
    for active in ("default", "second", ["default", "second"], ["second", "second"], "default"):
        model.base_model.set_adapter(active)
        beside(model, given)
    assert not reasons(model)
    heard = []
    b = model.base_model.model.model.layers[0].self_attn.q_proj.lora_B
    b["second"].register_forward_hook(lambda *_: heard.append(1))
    model.base_model.set_adapter("second")
    beside(model, given)
    assert heard and "hook" in " ".join(reasons(model))


def taken_out(product):
    """As FullyShardedDataParallel has a bias that is a part of a flat parameter."""
    del product._parameters["bias"]
    product.__dict__["bias"] = torch.ones(4)


@pytest.mark.parametrize(
    "text, change",
    [
        ("an adapter has a bias", lambda q: setattr(q.lora_A.default, "bias", nn.Parameter(torch.ones(4)))),
        ("an adapter has a bias", lambda q: taken_out(q.lora_A.default)),
        ("an adapter's scale is trained", lambda q: q.scaling.update(default=nn.Parameter(torch.tensor(1.5)))),
        ("an adapter's scale is nan", lambda q: q.scaling.update(default=torch.tensor(float("nan")))),
        ("drops a part of 1.0", lambda q: setattr(q.lora_dropout.default, "p", 1.0)),
        ("an adapter with dropout is float16", lambda q: [m.half() for m in (q.lora_A, q.lora_B)]),
        ("lora.layer.Linear", lambda q: setattr(q, "_cast_input_dtype", lambda x, dtype: 2 * x)),
    ],
)
@pytest.mark.parametrize("when", ["before apply", "later"])
def test_adapters_that_a_block_cannot_have(text, change, when):
    model, given = adapted("llama", lora_dropout=0.25), inputs("llama")
    q = model.base_model.model.model.layers[0].self_attn.q_proj
    if when == "before apply":
        change(q)
    compact.apply(model, "exact")
    if when == "later":
        gradients(model, given)
        change(q)
        if "cast" in str(change.__code__.co_consts):
            return  # a helper of one module is asked for where modules change, alone
    for _ in range(2):
        gradients(model, given)
    layers = compact.report(model).layers
    assert not layers[0].served and layers[1].served
    assert text in (layers[0].reason or " ".join(layers[0].own_forward))


def test_patched_adapters(monkeypatch):
    own = peft.tuners.lora.layer.Linear.forward
    monkeypatch.setattr(peft.tuners.lora.layer.Linear, "forward", lambda self, x, *a, **k: 1.1 * own(self, x, *a, **k))
    model = compact.apply(adapted("llama"), "exact")
    assert all("lora.layer.Linear" in row.reason for row in compact.report(model).layers)


def test_merged_adapters():
    model, given = adapted("llama"), inputs("llama")
    compact.apply(model, "exact")
    before = gradients(model, given)
    model.merge_adapter()
    model.base_model.model.model.embed_tokens.weight.requires_grad_(True)
    beside(model, given)
    model.unmerge_adapter()
    model.base_model.model.model.embed_tokens.weight.requires_grad_(False)
    after = gradients(model, given)
    assert abs(before[0] - after[0]) < 1e-5 and error(after[1], before[1]) < 1e-3
    assert not reasons(model)


@pytest.mark.parametrize(
    "text,make_model",
    [
        ("runs code of peft.tuners.lora.dora", lambda m: peft.get_peft_model(m, settings("llama", use_dora=True))),
        ("q_proj", lambda m: peft.get_peft_model(m, settings("llama", alora_invocation_tokens=inputs("llama")["input_ids"][0, :2].tolist(), task_type="CAUSAL_LM"))),
        ("an adapter has a bias", lambda m: peft.get_peft_model(m, settings("llama", lora_bias=True))),
        ("peft.tuners.ia3", lambda m: peft.get_peft_model(m, peft.IA3Config(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]))),
        ("peft.tuners.loha", lambda m: peft.get_peft_model(m, peft.LoHaConfig(target_modules=["q_proj"], init_weights=False))),
    ],
)  # fmt: skip
def test_others_run_the_layers_own_forward(text, make_model):
    given, model = inputs("llama"), make("llama")
    compact.apply(model, "exact")
    torch.manual_seed(3)
    later = make_model(model)
    rows = beside(later, given)
    assert rows[0].calls == 0 and text in next(iter(rows[0].own_forward))
    torch.manual_seed(3)
    before = make_model(make("llama"))
    compact.apply(before, "exact")
    assert all(text in row.reason for row in compact.report(before).layers)
    rows = beside(before, given)
    assert rows[0].served_as is None and text in str(compact.report(before)) and "in chunks" in compact.report(before).loss


@pytest.mark.parametrize("config", [lambda: settings("llama"), lambda: peft.LoHaConfig(target_modules=["q_proj"], init_weights=False)])
@pytest.mark.parametrize("params", [lambda m: m, lambda m: m.named_parameters(), lambda m: [(n, p) for n, p in m.named_parameters() if p.requires_grad]])
def test_muon_leaves_adapters_to_adamw(config, params):
    model = peft.get_peft_model(make("llama"), config())
    optimizer = compact.optim.Muon(params(model), lr=1e-2, adamw_lr=1e-3)
    of_adapters = {id(p) for p in model.parameters() if p.requires_grad}
    kinds = {(group["kind"], group["lr"]) for group in optimizer.param_groups for p in group["params"] if id(p) in of_adapters}
    assert kinds == {("adamw", 1e-3)}
    gradients(model, inputs("llama"))
    optimizer.step()
    asked = compact.optim.Muon([{"params": [p for p in model.parameters() if p.requires_grad and p.dim() == 2], "kind": "muon"}])
    assert [group["kind"] for group in asked.param_groups] == ["muon"]


def test_muon_takes_matrices_beside_adapters():
    model = adapted("llama", target_modules=["q_proj"])
    for name, p in model.named_parameters():
        p.requires_grad_("lora_" in name or "mlp" in name)
    groups = {group["kind"]: group["param_names"] for group in compact.optim.Muon(model).param_groups}
    assert all("mlp" in name for name in groups["muon"]) and all("lora_" in name for name in groups["adamw"]) and len(groups) == 2


def test_projected_gradients_are_for_other_weights():
    with pytest.raises(ValueError, match="frozen|an adapter is trained in its place"):
        compact.apply(adapted("llama"), "compact")
    model = adapted("llama", target_modules=["q_proj"])
    with pytest.raises(ValueError, match="an adapter is trained in its place; set `full`"):
        compact.apply(model, "grad layers.*.attn.qkv = project:rank=0.25\n")


def test_copies_and_files(tmp_path):
    model, given = adapted("llama"), inputs("llama")
    compact.apply(model, "exact")
    loss, wanted = gradients(model, given)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        got_loss, got = gradients(again, given)
        assert got_loss == loss and all(torch.equal(g, wanted[n]) for n, g in got.items())
        assert compact.report(again).layers[0].calls == 1
    model.save_pretrained(tmp_path)
    read = peft.PeftModel.from_pretrained(make("llama"), tmp_path, is_trainable=True)
    compact.apply(read, "exact")
    assert gradients(read, given)[0] == loss


@pytest.mark.parametrize("checkpointing", [False, True])
def test_trainer(checkpointing, tmp_path):
    found = []
    for policy in (None, "recompute"):
        model = compact.apply(make("llama"), policy) if policy else make("llama")
        torch.manual_seed(3)
        model = peft.get_peft_model(model, settings("llama", lora_dropout=0.0))  # as trainers do that are given peft_config
        more = {"gradient_checkpointing": True} if checkpointing else {}
        found.append(train(model, tmp_path / str(policy), text(), [compact.hf.Callback()] if policy else [], **more)[1])
    assert found[0] == pytest.approx(found[1], abs=2e-4)
    assert not reasons(model) and compact.report(model).layers[0].calls == 6
    assert "in chunks, 6 passes" in compact.report(model).loss


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_plans_are_those_of_a_step(name):
    given = inputs(name, batch=2, length=64)
    plan = compact.plan(adapted(name), given, policies=("plain", "off", "exact", "recompute"))
    assert not plan["failed"]
    for row in plan["rows"]:
        # Numbers in Python that tensors are multiplied by, as scales of adapters.
        beside = 200 if row["policy"] == "plain" else 0
        assert 0 <= measured(name, row["policy"], given, make=adapted) - row["peak"] <= beside, row


def test_a_budget_of_bfloat16_with_adapters_in_float32():
    def half(name):
        torch.manual_seed(3)
        return peft.get_peft_model(make(name).bfloat16(), settings(name, lora_dropout=0.1))

    given = inputs("llama", batch=4, length=96)
    assert compact.plan(half("llama"), (4, 96), policies=(), budget="75%").policy
    plan = compact.plan(half("llama"), given, policies=(), budget="75%")
    assert measured("llama", plan.policy, given, make=half) == plan["rows"][-1]["peak"] <= plan["budget"]
