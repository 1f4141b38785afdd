# SPDX-License-Identifier: Apache-2.0
"""Updates inside the backward pass: the same weights in bits, without gradients that stay; and what is refused."""
import copy
import gc
import io

import pytest
import torch
import transformers
from _optimizing import BF16, Net, batch, make, one_thread, same_bits, train
from conftest import inputs, make as model_of
from torch import nn
from torch.nn import functional

import compact

_ = one_thread


def loss_of(net, step=0):
    x, y = batch(step)
    return functional.cross_entropy(net(x).float(), y)


@pytest.mark.parametrize("dtype, settings", [(torch.float32, {}), (BF16, {"moments": "f8"}), (BF16, {"master_weights": True})])
@pytest.mark.parametrize("kind", ["AdamW", "Muon"])
def test_weights_are_those_of_other_steps(kind, dtype, settings):
    nets = [Net().to(dtype), Net().to(dtype)]
    optimizers = [make(kind, net, release=release, **settings) for net, release in zip(nets, (False, True))]
    for net, optimizer in zip(nets, optimizers):
        train(net, optimizer, range(5))
    assert same_bits(nets[0].parameters(), nets[1].parameters())
    of_both = [[t for p in net.parameters() for t in optimizer.state[p].values()] for net, optimizer in zip(nets, optimizers)]
    assert same_bits(*of_both)
    assert all(p.grad is None for p in nets[1].parameters())
    assert optimizers[1].releases and not optimizers[0].releases


PROJECTED = """grad layers.*.attn.qkv = project:rank=0.25,period=2
grad layers.*.mlp.* = project:rank=0.25,period=2"""


@pytest.mark.parametrize("policy", ["exact", "recompute", PROJECTED])
@pytest.mark.parametrize("name", ["llama", "llama, biases, tied", "gpt2", "bert"])
def test_models_that_are_applied_to(name, policy):
    given, results = inputs(name, batch=2, length=32), []
    for release in (False, True):
        model = model_of(name)
        compact.apply(model, policy)
        optimizer = compact.optim.AdamW(model, lr=1e-2, release=release)
        losses = []
        for _ in range(5):
            loss = model(**given).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        results.append((losses, list(model.parameters())))
    assert results[0][0] == results[1][0] and same_bits(results[0][1], results[1][1])


def test_a_step_takes_less_by_the_gradients():
    def peak(release):
        gc.collect()
        with compact.Meter() as meter:
            net = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(8)))
            optimizer = compact.optim.AdamW(net, release=release)
            x = torch.ones(2, 256)
            for step in range(2):
                net(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                if step == 0:
                    meter.reset_peak()
            return meter.peak

    # One of eight gradients is there at a time, beside inputs of two rows.
    saved = peak(False) - peak(True)
    assert 0 <= 7 * 256 * 256 * 4 - saved <= 8 * 2 * 256 * 4


@pytest.mark.parametrize("release", [False, True])
def test_plans_are_what_is_measured(release):
    settings = {"release": release}
    given = inputs("llama", batch=2, length=64)
    plan = compact.plan(model_of("llama"), given, policies=["exact"], optimizer=(compact.optim.AdamW, settings), clip=False)
    gc.collect()
    with compact.Meter() as meter:
        model = model_of("llama")
        compact.apply(model, "exact")
        optimizer = compact.optim.AdamW(model, **settings)
        here = {key: t.clone() for key, t in given.items()}
        for step in range(2):
            loss = model(**here).loss
            loss.backward()
            del loss
            optimizer.step()
            optimizer.zero_grad()
            if step == 0:
                meter.reset_peak()
        assert meter.peak - 8 * len(list(model.parameters())) == plan["rows"][0]["peak"]  # counts of steps are on the host
    with pytest.raises(ValueError, match="clip=False"):
        compact.plan(model, given, optimizer=(compact.optim.AdamW, {"release": True}))


def test_gradients_are_not_accumulated():
    net = Net()
    optimizer = compact.optim.AdamW(net, release=True)
    loss_of(net).backward()
    with pytest.raises(RuntimeError, match="a second gradient of .* before step"):
        loss_of(net).backward()
    optimizer.step()
    loss_of(net).backward()


def test_gradients_are_not_thrown_away():
    """A pass whose gradients were not wanted has changed the weights: it is told."""
    net = Net()
    optimizer = compact.optim.AdamW(net, release=True)
    loss_of(net).backward()
    with pytest.raises(RuntimeError, match=r"zero_grad\(\) comes behind a backward pass that has updated \d+ parameters"):
        optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()


def test_an_exception_half_way():
    net = Net()
    optimizer = compact.optim.AdamW(net, release=True)
    net.embedding.weight.register_hook(lambda g: 1 / 0)  # the last gradient
    with pytest.raises(ZeroDivisionError):
        loss_of(net).backward()
    with pytest.raises(RuntimeError, match="a second gradient"):
        loss_of(net).backward()
    net.embedding.weight._backward_hooks.clear()
    optimizer.step()
    train(net, optimizer, range(2))
    assert int(optimizer.state[net.embedding.weight]["step"]) == 2 and int(optimizer.state[net.head.weight]["step"]) == 3


def test_settings_that_change_behind_the_backward_pass():
    net = Net()
    optimizer = compact.optim.AdamW([{"params": net.layers.parameters()}, {"params": net.head.parameters()}], lr=1e-2, release=True)
    optimizer.param_groups[1]["lr"] = 2e-2  # before it
    loss_of(net).backward()
    optimizer.param_groups[1]["weight_decay"] = 0.5
    with pytest.raises(RuntimeError, match="settings of group 1 have changed .* weight_decay was 0.01 and is 0.5"):
        optimizer.step()
    optimizer.param_groups[1]["weight_decay"] = 0.01
    optimizer.step()


def test_what_comes_too_late():
    net = Net()
    optimizer = compact.optim.AdamW(net, release=True)
    loss_of(net).backward()
    with pytest.raises(ValueError, match="grad_scale comes too late"):
        optimizer.step(grad_scale=torch.ones(1))
    net.head.weight.grad = torch.zeros_like(net.head.weight)  # as DistributedDataParallel does
    with pytest.raises(RuntimeError, match="has a gradient again behind its update"):
        optimizer.step()
    net.head.weight.grad = None
    optimizer.step()
    with pytest.raises(ValueError, match="release must be of type bool, is 1"):
        compact.optim.AdamW(net, release=1)


def test_the_last_optimizer_has_the_parameters():
    net = Net()
    old = compact.optim.AdamW(net, lr=1.0, release=True)
    with pytest.raises(RuntimeError, match="SGD: another optimizer .compact.optim.AdamW, release=True. updates"):
        torch.optim.SGD(net.parameters(), lr=1e-3).step()
    new = compact.optim.AdamW(net, lr=0.0, weight_decay=0.0, release=True)  # the first is still held, as by its scheduler
    before = copy.deepcopy(net.state_dict())
    loss_of(net).backward()
    new.step()
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values()))
    with pytest.raises(RuntimeError, match="another optimizer .compact.optim.AdamW, release=True. updates"):
        old.step()
    del new
    plain = compact.optim.AdamW(net, release=False)
    with pytest.raises(RuntimeError, match="given to an optimizer that was made later"):
        old.step()
    loss_of(net).backward()
    assert all(p.grad is not None and not p._post_accumulate_grad_hooks for p in net.parameters())
    plain.step()


def test_hooks_go_with_their_optimizer():
    net = Net()
    optimizer = compact.optim.AdamW(net, release=True)
    del optimizer
    gc.collect()
    loss_of(net).backward()
    assert all(p.grad is not None and not p._post_accumulate_grad_hooks for p in net.parameters())
    torch.optim.SGD(net.parameters(), lr=1e-3).step()


def test_groups_that_are_put_in_another_order():
    nets = [Net(), Net()]
    for net, release in zip(nets, (False, True)):
        optimizer = compact.optim.AdamW(net, release=release)
        optimizer.param_groups[0]["params"].reverse()
        train(net, optimizer, range(3))
    assert same_bits(nets[0].parameters(), nets[1].parameters())


def test_settings_are_those_of_the_moment_and_gradients_by_hand_count():
    nets, rates = [Net(), Net()], (1e-2, 3e-3, 1e-2)
    for net, release in zip(nets, (False, True)):
        net.head.bias.requires_grad_(False)
        optimizer = compact.optim.AdamW(net.parameters(), release=release)
        for step, rate in enumerate(rates):
            optimizer.param_groups[0]["lr"] = rate
            net.head.bias.requires_grad_(step > 0)  # thawed later
            loss_of(net, step).backward()
            if step == 2:
                net.scale.grad = torch.ones_like(net.scale) if not release else None
            if release and step == 2:
                continue
            optimizer.step()
            optimizer.zero_grad()
    # The gradient that was put in the place of another was used by the first alone.
    assert all(torch.equal(a, b) == (name != "scale") for (name, a), b in zip(nets[0].named_parameters(), nets[1].parameters()))
    net = nn.Linear(4, 4)
    optimizer = compact.optim.AdamW(net, release=True)
    before = net.weight.detach().clone()
    net.weight.grad = torch.ones(4, 4)
    optimizer.step()
    assert not torch.equal(before, net.weight)


def test_closures():
    nets = [Net(), Net()]
    for net, release in zip(nets, (False, True)):
        optimizer = compact.optim.Muon(net, release=release)
        for step in range(3):

            def closure():
                optimizer.zero_grad()
                loss = loss_of(net, step)
                loss.backward()
                return loss

            assert optimizer.step(closure).item() > 0
    assert same_bits(nets[0].parameters(), nets[1].parameters())


def test_copies_release_too():
    net = Net()
    optimizer = compact.optim.AdamW(net, release=True)
    train(net, optimizer, range(2))
    copied_net, copied = copy.deepcopy((net, optimizer))
    buffer = io.BytesIO()
    torch.save((net, optimizer), buffer)
    loaded_net, loaded = torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)
    for a, b in ((net, optimizer), (copied_net, copied), (loaded_net, loaded)):
        train(a, b, range(2, 4))
        assert b.releases and all(p.grad is None for p in a.parameters())
        assert same_bits(net.parameters(), a.parameters())
    state = optimizer.state_dict()
    again = compact.optim.AdamW(Net(), release=True)
    again.load_state_dict(state)
    assert again.releases and "release" not in str(state["param_groups"])


def test_trainer_does_not_clip_what_is_not_there(tmp_path):
    def trainer(norm):
        model = model_of("llama")
        compact.apply(model, "exact")
        given = inputs("llama", batch=4, length=16)
        rows = [{key: t[i] for key, t in given.items()} for i in range(4)]
        return transformers.Trainer(
            model,
            transformers.TrainingArguments(
                str(tmp_path), max_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True, max_grad_norm=norm, save_strategy="no"
            ),
            train_dataset=rows,
            optimizer_cls_and_kwargs=(compact.optim.AdamW, {"release": True}),
            callbacks=[compact.hf.Callback()],
        )

    with pytest.raises(ValueError, match="max_grad_norm=0"):
        trainer(1.0).train()
    assert trainer(0.0).train().training_loss > 0
