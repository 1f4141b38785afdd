# SPDX-License-Identifier: Apache-2.0
"""One of two processes that train a model with projected gradients under DDP, beside one process."""
import datetime
import pathlib
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import compact
from compact.projected_weights.carriers import Carrier

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from _process_end import end_process  # noqa: E402
from conftest import error, inputs, make  # noqa: E402

torch.set_num_threads(1)


def trained(model, optimizer, rows, steps=6):
    """`steps` cross a period; rows of each batch."""
    for step in range(steps):
        given = {k: v[rows] for k, v in inputs("llama", batch=4).items()}
        given["input_ids"] = given["labels"] = (given["input_ids"] + step) % 200
        model(**given).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main(policy):
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank = dist.get_rank()
    model = compact.apply(make("llama"), policy)
    sent = []
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, lambda _, bucket: (sent.append(bucket.buffer().numel()), default(bucket))[1])
    trained(ddp, compact.optim.AdamW(model.parameters(), lr=1e-2), slice(2 * rank, 2 * rank + 2))
    own = compact.apply(make("llama"), policy)
    trained(own, compact.optim.AdamW(own.parameters(), lr=1e-2), slice(0, 4))
    wanted, got = own.state_dict(), model.state_dict()
    assert error(got, wanted) < 1e-4, error(got, wanted)
    others = [None, None]
    dist.all_gather_object(others, {k: v.double().sum().item() for k, v in got.items()})
    assert others[0] == others[1], "ranks have other weights"
    sizes = [p.numel() for p in model.parameters() if p.requires_grad]
    assert sum(sent) == 6 * sum(sizes) and sum(sizes) < sum(p.numel() for p in make("llama").parameters())
    assert all(c.is_zero() for c in model.parameters() if isinstance(c, Carrier))
    try:
        compact.apply(DistributedDataParallel(make("llama")), policy)
    except ValueError as refused:
        assert "apply first, and wrap then" in str(refused), refused
    else:
        raise AssertionError("a wrapped model was taken")
    inside = make("llama")
    for settings in ({"find_unused_parameters": True}, {"static_graph": True}):
        around = DistributedDataParallel(inside, **settings)
        compact.apply(inside, policy)
        try:
            around(**inputs("llama"))
        except RuntimeError as refused:
            assert "does not know a carrier" in str(refused), refused
        else:
            raise AssertionError("carriers that nobody sends were taken")
        try:
            compact.remove(around)
        except RuntimeError as refused:
            assert "does not know its weights" in str(refused), refused
        else:
            raise AssertionError("weights that nobody sends are trained")
        compact.remove(inside)
    sharded = compact.apply(make("llama"), policy)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for layer in sharded.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    try:
        sharded(**inputs("llama"))
    except RuntimeError as refused:
        assert "which fully_shard splits" in str(refused), refused
    else:
        raise AssertionError("split weights were taken")
    end_process()


def default(bucket):
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


if __name__ == "__main__":
    main(sys.argv[1])
