# SPDX-License-Identifier: Apache-2.0
"""Updates inside the backward pass: what would be another update than that of a step behind it is an error."""
import copy
import gc

import pytest
import torch
from _optimizing import Net, loss_of, same_bits, train
from _projecting import LLAMA, run
from conftest import make as model_of
from torch import distributed

import compact

pytestmark = pytest.mark.usefixtures("one_thread")


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
    with pytest.raises(RuntimeError, match=r"zero_grad\(\) comes after a backward pass that has updated \d+ parameters"):
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
    train(net, optimizer, range(1))  # with the new ones: the error has ended the step


def test_state_that_is_loaded_ends_a_step():
    net = Net()
    optimizer = compact.optim.AdamW(net, release=True)
    train(net, optimizer, range(1))
    weights, state = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    train(net, optimizer, range(1, 2))
    wanted = [p.clone() for p in net.parameters()]
    net.embedding.weight.register_hook(lambda g: optimizer.param_groups[0].update(lr=-1.0))
    with pytest.raises(ValueError, match="learning rate must not be negative"):
        loss_of(net).backward()  # some parameters have been updated, and the last one has not
    assert net.embedding.weight.grad is None
    net.embedding.weight._backward_hooks.clear()
    net.load_state_dict(weights)
    optimizer.load_state_dict(state)
    train(net, optimizer, range(1, 2))
    assert same_bits(wanted, net.parameters())


def test_what_comes_too_late():
    net = Net()
    optimizer = compact.optim.AdamW(net, release=True)
    loss_of(net).backward()
    with pytest.raises(ValueError, match="grad_scale comes too late"):
        optimizer.step(lambda: 1 / 0, grad_scale=torch.ones(1))  # told before the closure
    net.head.weight.grad = torch.zeros_like(net.head.weight)  # as DistributedDataParallel does
    with pytest.raises(RuntimeError, match="has a gradient again after its update"):
        optimizer.step()
    assert net.head.weight.grad is None
    optimizer.zero_grad()
    optimizer.step()
    with pytest.raises(ValueError, match="release must be of type bool, is 1"):
        compact.optim.AdamW(net, release=1)


def test_the_last_optimizer_has_the_parameters():
    net = Net()
    old = compact.optim.AdamW(net, lr=1.0, release=True)
    new = compact.optim.AdamW(net, lr=0.0, weight_decay=0.0, release=True)  # the first is still held, as by its scheduler
    before = copy.deepcopy(net.state_dict())
    loss_of(net).backward()
    new.step()
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values()))
    with pytest.raises(RuntimeError, match="another optimizer .compact.optim.AdamW, release=True. updates"):
        old.step()


class Around(torch.optim.Optimizer):
    """As those that look ahead, it leaves the step to another one."""

    def __init__(self, inside):
        super().__init__(inside.param_groups, {})
        self.base_optimizer = inside
        self.param_groups = inside.param_groups

    def step(self):
        self.base_optimizer.step()


def test_an_optimizer_around_one_that_releases():
    net = Net()
    before = [p.clone() for p in net.parameters()]
    around = Around(compact.optim.AdamW(net, lr=0.1, release=True))
    loss_of(net).backward()
    around.step()
    assert not same_bits(before, net.parameters())


def test_an_optimizer_of_steps_beside_one_that_releases():
    """Its gradients would all have been used."""
    net = Net()
    old = compact.optim.AdamW(net, lr=0.0, weight_decay=0.0, release=True)
    plain = compact.optim.Muon(net)
    before = [p.clone() for p in net.parameters()]
    loss_of(net).backward()
    of_torch = torch.optim.SGD(net.parameters(), lr=1.0)
    with pytest.raises(RuntimeError, match="Muon: another optimizer .compact.optim.AdamW, release=True. updates .* delete it"):
        plain.step()
    with pytest.raises(RuntimeError, match="SGD: another optimizer .compact.optim.AdamW, release=True. updates .* delete it"):
        of_torch.step()
    assert same_bits(before, net.parameters()) and not plain.state
    old.step()
    del old
    loss_of(net).backward()
    assert all(p.grad is not None and not p._post_accumulate_grad_hooks for p in net.parameters())
    plain.step()
    assert not same_bits(before, net.parameters())


def test_hooks_go_with_their_optimizer():
    net = Net()
    optimizer = compact.optim.AdamW(net, release=True)
    del optimizer
    gc.collect()
    loss_of(net).backward()
    assert all(p.grad is not None and not p._post_accumulate_grad_hooks for p in net.parameters())
    torch.optim.SGD(net.parameters(), lr=1e-3).step()


def test_settings_that_are_none():
    net = Net()
    optimizer = compact.optim.AdamW(net, release=True)
    loss_of(net).backward()
    optimizer.param_groups[0]["lr"] = -1.0
    with pytest.raises(ValueError, match="learning rate must not be negative"):
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 1e-3
    train(net, optimizer, range(1))


def test_a_pass_that_breaks_off_between_carriers_of_one_projection():
    model = model_of("llama")
    compact.apply(model, "grad layers.*.attn.qkv = project:rank=0.25,period=2")
    optimizer = compact.optim.AdamW(model, lr=1e-2, release=True)
    broken = model.model.layers[1].self_attn.v_proj.carrier  # one of three that read the same input
    for steps in range(4):  # before the first update, and in the middle of periods
        hook = broken.register_hook(lambda g: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(model, optimizer, range(1))
        hook.remove()
        optimizer.step()
        counts = {int(optimizer.state[p]["step"]) for n, p in model.named_parameters() if "layers.1" in n and n.endswith("carrier")}
        assert counts == {2 * steps + 1}
        assert all(loss > 0 for loss in run(model, optimizer, range(1)))


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda net: compact.optim.AdamW([{"params": net.layers.parameters()}, {"params": net.head.parameters(), "lr": -1.0}]), "learning rate"),
        (lambda net: compact.optim.Muon(net, betas=(0.9, 2.0)), "beta2"),  # its second group
    ],
)
def test_an_optimizer_that_is_not_made_takes_nothing(make, words):
    net = Net()
    optimizer = compact.optim.AdamW(net, release=True)
    with pytest.raises(ValueError, match=words):
        make(net)
    train(net, optimizer, range(2))
    assert int(optimizer.state[net.head.weight]["step"]) == 2


def test_a_shallow_copy_takes_nothing():
    net = Net()
    optimizer = compact.optim.AdamW(net, release=True)
    copied = copy.copy(optimizer)
    train(net, optimizer, range(2))
    with pytest.raises(RuntimeError, match="another optimizer"):
        copied.step()


def test_what_another_optimizer_does_not_change_is_not_refused():
    net = Net()
    optimizer = compact.optim.AdamW([{"params": net.layers.parameters()}, {"params": net.head.parameters()}], release=True)
    plain = compact.optim.AdamW(net)
    net.layers.requires_grad_(False)
    del optimizer.param_groups[1]  # the head is nobody's
    loss_of(net).backward()
    assert net.head.weight.grad is not None
    plain.step()
    net.layers.requires_grad_(True)
    with pytest.raises(RuntimeError, match="AdamW: another optimizer"):
        plain.step()


def test_a_group_that_goes_to_another_optimizer():
    net = Net()
    old = compact.optim.AdamW([{"params": net.layers.parameters()}, {"params": net.head.parameters()}], release=True)
    del old.param_groups[1]
    new = compact.optim.AdamW(net.head, release=True)
    loss_of(net).backward()
    old.step()
    new.step()
    assert int(new.state[net.head.weight]["step"]) == int(old.state[net.layers[0].up.weight]["step"]) == 1


def test_hooks_that_let_go_of_gradients():
    net = Net()
    net.head.weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    optimizer = compact.optim.AdamW(net, release=True)
    with pytest.raises(RuntimeError, match=r"a hook has let go of the gradient of a parameter \(5, 32\)"):
        loss_of(net).backward()
    optimizer.step()


def test_a_process_group_that_comes_later():
    net = Net()
    optimizer = compact.optim.AdamW(net, release=True)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError, match="in a process group release=False"):
            loss_of(net).backward()
        with pytest.raises(ValueError, match="in a process group release=False"):
            compact.optim.AdamW(net, release=True)
    finally:
        distributed.destroy_process_group()
    assert all(p.grad is None for p in net.head.parameters())
    train(net, optimizer, range(1))


def test_policies_that_are_applied_under_an_optimizer():
    """As in a notebook's cell that is run again: the optimizer before is still there."""
    model = model_of("llama")
    for _ in range(2):
        compact.apply(compact.remove(model), LLAMA)
        optimizer = compact.optim.AdamW(model, lr=1e-2, release=True)
        assert all(loss > 0 for loss in run(model, optimizer, range(2)))
    compact.remove(model)
    model.lm_head.weight.register_post_accumulate_grad_hook(lambda p: None)
    layer = model.model.layers[0].mlp.down_proj.weight
    layer.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(ValueError, match="has a hook for its gradient, which it will not have"):
        compact.apply(model, LLAMA)
