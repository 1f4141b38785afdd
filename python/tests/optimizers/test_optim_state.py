# SPDX-License-Identifier: Apache-2.0
"""The state that optimizers keep, and what becomes of it in files, copies and Trainer."""
import copy

from _optimizing import BF16, F32, give_gradients, make, Net, parameters, same_bits, tensors, train
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict

import compact

pytestmark = pytest.mark.usefixtures("one_thread")


# -- what is kept -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "moments, master, wanted",
    [
        ("f32", False, 2 * 4 * 300_100 + 2 * 4 * 50),
        ("bf16", False, 2 * 2 * 300_100 + 2 * 2 * 50),
        # Rows of 1000 have four scales, the row of 100 has one; a short vector stays f32.
        ("f8", False, 2 * (300_100 + 4 * (300 * 4 + 1)) + 2 * 4 * 50),
        ("f8", True, 2 * (300_100 + 4 * (300 * 4 + 1)) + 2 * 4 * 50 + 4 * 300_150),
    ],
)
def test_bytes_of_state(moments, master, wanted):
    params = parameters((300, 10, 100), (1, 100), (50,), dtype=BF16)
    optimizer = compact.optim.AdamW(params, moments=moments, master_weights=master)
    give_gradients(params, 0)
    optimizer.step()
    assert sum(t.nbytes for t in tensors(optimizer) if t.dim() > 0) == wanted


def test_8_bits_take_1_02_bytes_an_element():
    params = parameters((64, 1024), (65536,))
    optimizer = compact.optim.AdamW(params, moments="f8")
    give_gradients(params, 0)
    optimizer.step()
    for state in optimizer.state.values():
        for name in ("exp_avg", "exp_avg_sq"):
            assert state[name].nbytes + state[name + "_scales"].nbytes == 65536 * (1 + 4 / 256)

CASES = [
    (kind, moments, dtype, master)
    for kind in ("AdamW", "Muon")
    for moments in ("f32", "bf16", "f8")
    for dtype, master in ((F32, False), (BF16, False), (BF16, True))
]


@pytest.mark.parametrize("kind, moments, dtype, master", CASES)
def test_resumes_bit_for_bit(kind, moments, dtype, master, tmp_path):
    settings = {"lr": 1e-2, "moments": moments, "master_weights": master, "seed": 7}
    net = Net().to(dtype)
    optimizer = make(kind, net, **settings)
    train(net, optimizer, range(4))
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "saved.pt")
    train(net, optimizer, range(4, 8))

    saved = torch.load(tmp_path / "saved.pt", weights_only=True)
    again = Net(seed=1).to(dtype)
    again.load_state_dict(saved["net"])
    resumed = make(kind, again)  # everything it was set to comes from the file
    resumed.load_state_dict(saved["optimizer"])
    train(again, resumed, range(4, 8))
    assert same_bits(net.parameters(), again.parameters())
    assert same_bits(tensors(optimizer), tensors(resumed))
    wanted = {"f32": F32, "bf16": BF16, "f8": torch.uint8}[moments]
    state = resumed.state[again.layers[0].up.weight]
    assert state["exp_avg" if kind == "AdamW" else "momentum_buffer"].dtype == wanted
    assert ("master" in state) == master


@pytest.mark.parametrize("flat", [False, True])
def test_distributed_checkpoints(flat, tmp_path):
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    net, other = Net().to(BF16), Net(seed=1).to(BF16)
    optimizer = compact.optim.AdamW(net.parameters(), lr=1e-2, moments="f8")
    train(net, optimizer, range(3))
    dcp.save(get_optimizer_state_dict(net, optimizer, options=options), checkpoint_id=tmp_path, no_dist=True)
    again = compact.optim.AdamW(other.parameters(), moments="f8")
    before = [p.detach().clone() for p in other.parameters()]
    state = get_optimizer_state_dict(other, again, options=options)
    assert same_bits(before, other.parameters())  # what makes the state moves no weight
    dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
    set_optimizer_state_dict(other, again, state, options=options)
    assert same_bits(tensors(optimizer), tensors(again))
    assert again.param_groups[0]["lr"] == 1e-2
    other.load_state_dict(net.state_dict())
    train(net, optimizer, range(3, 5))
    train(other, again, range(3, 5))
    assert same_bits(net.parameters(), other.parameters())


def test_takes_the_state_of_torchs_adamw():
    ours, theirs = parameters((5, 6), (3,)), parameters((5, 6), (3,))
    old, new = torch.optim.AdamW(theirs, lr=1e-2), compact.optim.AdamW(ours)
    for step in range(3):
        give_gradients(theirs, step)
        old.step()
    with torch.no_grad():
        for p, q in zip(ours, theirs):
            p.copy_(q)
    new.load_state_dict(copy.deepcopy(old.state_dict()))
    for ps, optimizer in ((ours, new), (theirs, old)):
        give_gradients(ps, 3)
        optimizer.step()
    for p, q in zip(ours, theirs):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)
    kept = torch.optim.AdamW(theirs, amsgrad=True)
    with pytest.raises(ValueError, match="amsgrad"):
        new.load_state_dict(kept.state_dict())


def test_copies_and_pickles():
    net = Net().to(BF16)
    optimizer = compact.optim.AdamW(net.parameters(), moments="f8")
    train(net, optimizer, range(2))
    copied = copy.deepcopy(optimizer)
    assert same_bits(tensors(optimizer), tensors(copied))
    assert copied.param_groups[0]["moments"] == "f8"


def test_state_that_does_not_fit_changes_nothing():
    net = Net()
    optimizer = compact.optim.AdamW(net.parameters(), moments="bf16")
    train(net, optimizer, range(2))
    kept = copy.deepcopy(optimizer.state_dict())

    def broken(change):
        state = copy.deepcopy(kept)
        change(state)
        return state

    def cast(state):
        state["state"][3]["exp_avg"] = state["state"][3]["exp_avg"].float()

    for change, words in (
        (cast, r"exp_avg of parameter 3 of group 0 must be bfloat16 \(.*\), is float32"),
        (lambda s: s["state"][2].pop("exp_avg_sq"), "the state of parameter 2 of group 0 must be"),
        (lambda s: s["param_groups"][0].update(moments="f8"), "must be .*exp_avg_scales"),
        (lambda s: s["param_groups"][0].update(betas=(2, 0)), "beta1 must be in"),
        (lambda s: s["param_groups"][0]["params"].pop(), "doesn't match the size"),
        (lambda s: s["param_groups"].append({"params": []}), "different number of parameter groups"),
    ):
        with pytest.raises(ValueError, match=words):
            optimizer.load_state_dict(broken(change))
        now = optimizer.state_dict()
        assert now["param_groups"] == kept["param_groups"]
        assert same_bits(tensors(optimizer), [t for s in kept["state"].values() for t in s.values()])
    optimizer.param_groups[0]["moments"] = "f8"
    weights = [p.detach().clone() for p in net.parameters()]
    with pytest.raises(ValueError, match="the state of parameter 0 of group 0 must be"):
        optimizer.step()
    assert same_bits(weights, net.parameters())


# -- Hugging Face's Trainer ---------------------------------------------------------------------------


def trainer(folder, steps, **given):
    import conftest
    import transformers

    rows = [{"input_ids": torch.arange(i, i + 8), "labels": torch.arange(i, i + 8)} for i in range(32)]
    settings = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "per_device_train_batch_size": 4}
    settings |= {"weight_decay": 0.1, "save_steps": 2, "max_steps": steps, "learning_rate": 1e-3}
    arguments = transformers.TrainingArguments(folder, **settings)
    model = given.pop("model", None) or conftest.make("llama")
    return transformers.Trainer(model, arguments, train_dataset=rows, **given)


def test_trainer_with_adamw_resumes(tmp_path):
    settings = (compact.optim.AdamW, {"lr": 1e-3, "moments": "f8"})
    whole = trainer(tmp_path / "a", 4, optimizer_cls_and_kwargs=settings)
    whole.train()
    assert sorted(g["weight_decay"] for g in whole.optimizer.param_groups) == [0.0, 0.1]
    again = trainer(tmp_path / "a", 4, optimizer_cls_and_kwargs=settings)
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    assert same_bits(whole.model.parameters(), again.model.parameters())


def test_trainer_with_muon(tmp_path):
    import conftest

    with pytest.raises(ValueError, match=r"Trainer\(optimizers="):
        trainer(tmp_path, 1, optimizer_cls_and_kwargs=(compact.optim.Muon, {"lr": 1e-3})).train()
    model = conftest.make("llama")
    first = trainer(tmp_path, 2, model=model, optimizers=(compact.optim.Muon(model, lr=1e-3), None))
    first.train()
    muon = [g for g in first.optimizer.param_groups if g["kind"] == "muon"]
    assert len(muon) == 1 and len(muon[0]["params"]) == 2 * 7
    # A function that gives the class: it is then called with the model.
    second = trainer(tmp_path, 2, optimizer_cls_and_kwargs=(lambda: compact.optim.Muon, {"lr": 1e-3}))
    second.train()
    assert same_bits(first.model.parameters(), second.model.parameters())
