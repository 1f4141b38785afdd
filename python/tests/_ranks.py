# SPDX-License-Identifier: Apache-2.0
"""One of two processes that train models: DDP, FSDP2 or FSDP1 ("flat"), beside one process with both batches. Any network,
rebuilt ("any"): beside itself without a scope, bit for bit."""
import contextlib
import copy
import datetime
import json
import sys

import torch
import torch.distributed as dist
from _any_networks import build
from _process_end import end_process
from conftest import inputs, make
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import compact

torch.set_num_threads(1)


def full(t):
    return t.full_tensor() if hasattr(t, "full_tensor") else t


def shard(model, order):
    """Layers as units of their own, before or after apply()."""
    layers = next(m for m in model.modules() if isinstance(m, (torch.nn.ModuleList, torch.nn.Sequential)))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if order.endswith("bf16") else MixedPrecisionPolicy()
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    if hasattr(model, "lm_head") and "head" in order:
        fully_shard(model.lm_head, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def step(*optimizers):
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def shard_flat(model, whole, units=True):
    """FullyShardedDataParallel, with layers as units: their parameters are parts of one flat tensor."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    layers = next(m for m in model.modules() if isinstance(m, (torch.nn.ModuleList, torch.nn.Sequential)))
    wrap = ModuleWrapPolicy({type(layer) for layer in layers}) if units else None
    return FullyShardedDataParallel(model, auto_wrap_policy=wrap, device_id=torch.device("cpu"), use_orig_params=whole)


def same_weights(trained, reference, most):
    from torch.distributed.fsdp import FullyShardedDataParallel

    with FullyShardedDataParallel.summon_full_params(trained):
        named = [(n.replace("_fsdp_wrapped_module.", ""), p.detach()) for n, p in trained.named_parameters()]
        wanted = dict(reference.named_parameters())
        assert {n for n, _ in named} == wanted.keys()
        for n, p in named:
            assert float((p - wanted[n]).norm() / wanted[n].norm()) < most, n


def train(way, name, policy):
    rank, size = dist.get_rank(), dist.get_world_size()
    model, given = make(name), inputs(name, batch=4)
    if way.endswith("lora"):
        import peft

        targets = ["q_proj", "v_proj", "down_proj"]
        model = peft.get_peft_model(model, peft.LoraConfig(target_modules=targets, r=4, init_lora_weights=False))
    reference = copy.deepcopy(model)
    share = 1
    if way == "ddp-empty":  # the second rank has no target: its loss is NaN, its gradients are 0
        given["labels"][2:] = -100
        share = size
    own = {k: v[2 * rank : 2 * rank + 2] for k, v in given.items()}
    if way in ("ddp", "ddp-lora", "ddp-empty"):
        compact.apply(model, policy)
        trained = DistributedDataParallel(model)
    elif way == "ddp-unused":
        compact.apply(model, policy)
        trained = DistributedDataParallel(model, find_unused_parameters=True)
    elif way.startswith("flat-after"):
        trained = shard_flat(model, whole="whole" in way, units="root" not in way)
        compact.apply(model, policy)
    elif way.startswith("flat"):
        compact.apply(model, policy)
        trained = shard_flat(model, whole="whole" in way)
    elif way.startswith("fsdp-after"):
        shard(model, way)
        compact.apply(model, policy)
        trained = model
    else:
        compact.apply(model, policy)
        shard(model, way)
        trained = model
    steps = 3
    ours = torch.optim.SGD(trained.parameters(), lr=0.1)
    theirs = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(steps):
        loss = trained(**own).loss
        loss.backward()
        mean = loss.detach().nan_to_num()
        dist.all_reduce(mean)
        wanted = reference(**given).loss / share
        wanted.backward()
        loose = way.endswith("bf16")
        assert abs(mean / size - wanted) < (0.02 if loose else 1e-5), (mean / size, wanted)
        if way.startswith("flat"):
            step(ours, theirs)
            same_weights(trained, reference, 1e-6)
            continue
        trainable = [q for q in reference.parameters() if q.requires_grad]
        largest = max(float(q.grad.norm()) for q in trainable)
        for (n, p), q in zip([(n, p) for n, p in model.named_parameters() if p.requires_grad], trainable):
            got = full(p.grad)
            error = float((got - q.grad).norm() / (q.grad.norm() + 1e-4 * largest))
            assert error < (0.1 if loose else 5e-5), (n, error)
        step(ours, theirs)
    for layer in compact.report(model).layers:
        assert layer.served_as and layer.calls == steps and not layer.own_forward, layer
    assert name != "llama" or policy == "off" or f"in chunks, {steps} passes" in compact.report(model).loss


def same_bits(way, name, policy):
    """The pass of a whole network in a scope, or of the network that apply() took, twice for each step."""

    def trained(scoped):
        model, loss_of = build(name, "autocast" if "autocast" in way else "f32")
        if scoped and "apply" in way:
            compact.apply(model, policy)
        if "fsdp" in way:
            shard(model, way)
        elif "flat" in way:
            model = shard_flat(model, whole="whole" in way)
        else:
            model = DistributedDataParallel(model, find_unused_parameters="unused" in way)
        scope = compact.saved_tensors(policy, model=model) if scoped and "apply" not in way else contextlib.nullcontext()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        torch.manual_seed(5 + dist.get_rank())
        found = []
        for i in range(4):
            last = i % 2 == 1
            if "fsdp" in way:
                model.set_requires_gradient_sync(last)
            with contextlib.nullcontext() if last or "fsdp" in way else model.no_sync():
                with scope, torch.autocast("cpu", torch.bfloat16, enabled="autocast" in way):
                    loss = loss_of(model)
                loss.backward()
            found.append(loss.detach())
            if last:
                local = [p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad for p in model.parameters() if p.grad is not None]
                found += [g.clone() for g in local]
                step(optimizer)
        if scoped:
            saved = scope.report() if "apply" not in way else compact.report(model if "fsdp" in way else model.module).saved
            assert saved.stored < 0.8 * saved.bytes, saved
        return found + [b.clone() for b in model.buffers()]

    wanted, got = trained(False), trained(True)
    assert len(got) == len(wanted) and all(map(torch.equal, got, wanted))


def main(cases):
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    for case in json.loads(cases):
        (same_bits if case.startswith("any") else train)(*case.split("/"))
        print(f"passed {case};", flush=True)
    end_process()


if __name__ == "__main__":
    main(sys.argv[1])
