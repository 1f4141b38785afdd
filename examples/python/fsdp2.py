# SPDX-License-Identifier: Apache-2.0
"""Several processes with FSDP2: each layer is a unit, and its weights come and go as its block runs.

    torchrun --nproc-per-node=2 examples/python/fsdp2.py [--policy exact] [--steps 30]
"""
import argparse

import torch
import torch.distributed as dist
from loop import BOOK, small_llama
from torch.distributed.fsdp import fully_shard

import compact


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--policy", default="exact")
    p.add_argument("--steps", type=int, default=30)
    a = p.parse_args()
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)  # where fully_shard gathers and nccl meets

    model = compact.apply(small_llama().to(device), policy=a.policy)
    mesh = dist.device_mesh.init_device_mesh(device.type, (size,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = compact.optim.AdamW(model.parameters(), lr=1e-3, moments="f8", weight_decay=0.0)

    book = torch.tensor(list(BOOK.read_bytes()))
    draw = torch.Generator().manual_seed(1 + rank)  # each process has texts of its own
    for step in range(a.steps):
        starts = torch.randint(0, len(book) - 128, (8,), generator=draw)
        ids = torch.stack([book[i : i + 128] for i in starts]).to(device)
        loss = model(input_ids=ids, labels=ids).loss
        # Before the backward pass, not last: where a thread of gloo frees its tensor while Python (before 3.14)
        # ends, the process aborts.
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1}: loss {mean.item() / size:.4f}", flush=True)
    if rank == 0:
        print(compact.report(model), flush=True)
    dist.barrier()  # a process that ends with an error makes torchrun stop the others, the report unprinted
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
