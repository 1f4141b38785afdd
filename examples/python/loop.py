# SPDX-License-Identifier: Apache-2.0
"""A plain training loop: a small LLaMA on the bytes of a book, in less memory.

    python examples/python/loop.py [--policy exact | --budget 50%] [--steps 30]

Prints the loss, what layers held, and the peak beside that of the model as it is. With a budget it plans
first, and takes the fastest way that fits.
"""
import argparse
import pathlib

import torch
import transformers

import compact

BOOK = pathlib.Path(__file__).resolve().parents[1] / "data" / "pride-and-prejudice.txt"


def small_llama() -> transformers.LlamaForCausalLM:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=256, hidden_size=128, intermediate_size=352, num_hidden_layers=6,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        )
    ).train()  # fmt: skip


BATCH, LENGTH = 8, 128
OPTIMIZER = (compact.optim.AdamW, {"lr": 1e-3, "weight_decay": 0.0})


def train(policy: str | None, steps: int) -> tuple[float, int]:
    """The loss of the last step and the peak in bytes; policy None: without compact."""
    book = torch.tensor(list(BOOK.read_bytes()))
    draw = torch.Generator().manual_seed(1)
    with compact.Meter() as meter:
        model = small_llama()
        if policy:
            compact.apply(model, policy=policy)
        optimizer = OPTIMIZER[0](model.parameters(), **OPTIMIZER[1])
        for _ in range(steps):
            starts = torch.randint(0, len(book) - LENGTH, (BATCH,), generator=draw)
            ids = torch.stack([book[i : i + LENGTH] for i in starts])
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if policy:
            print(compact.report(model))
        return loss.item(), meter.peak


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--policy", default="exact", help=f"one of {', '.join(compact.presets())}, a file or a text")
    p.add_argument("--budget", help="bytes (40MB, 1GiB), or a part of the peak without compact (50%%), in place of a policy")
    p.add_argument("--steps", type=int, default=30)
    a = p.parse_args()
    if a.budget:
        plan = compact.plan(small_llama(), BATCH, LENGTH, budget=a.budget, optimizer=OPTIMIZER)
        print(plan)
        a.policy = plan.policy
    plain, plain_peak = train(None, a.steps)
    loss, peak = train(a.policy, a.steps)
    print(f"without compact: loss {plain:.4f}, peak {plain_peak / 2**20:.1f} MiB")
    print(f"{'auto' if a.budget else a.policy}: loss {loss:.4f}, peak {peak / 2**20:.1f} MiB, {peak / plain_peak:.2f} of it")


if __name__ == "__main__":
    main()
