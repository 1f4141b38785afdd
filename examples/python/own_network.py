# SPDX-License-Identifier: Apache-2.0
"""A network of one's own under a budget: every bit as without it, in less memory.

    python examples/python/own_network.py [--budget 72%] [--steps 10]

Its class is in a file of its own (denoiser.py), since a plan runs it in another process. It returns no
loss, so the plan is told one. Prints the plan, the losses with and without the budget, and both peaks.
"""
import argparse
import copy
import functools

import torch
from denoiser import Denoiser
from torch.nn import functional

import compact


def batch(generator: torch.Generator) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The inputs that the network is called with, and the noise that it is to find."""
    at = torch.linspace(0, 6.28, 32)
    waves, time = torch.rand(16, 2, 1, generator=generator) * 3, torch.rand(16, generator=generator)
    images = torch.sin(waves[:, 0] * at)[:, None, :, None] * torch.sin(waves[:, 1] * at)[:, None, None, :]
    noise = torch.randn(images.shape, generator=generator)
    t = time[:, None, None, None]
    return {"image": (1 - t) * images + t * noise, "time": time}, noise


def train(model: Denoiser, steps: int, budget: str | None) -> tuple[list[float], int]:
    """The losses, and the most bytes of a step."""
    generator = torch.Generator().manual_seed(1)
    given, noise = batch(generator)
    if budget:
        plan = compact.plan(model, given, budget=budget, policies=("plain", "exact"), loss=functools.partial(functional.mse_loss, target=noise))
        print(plan)
        compact.apply(model, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    losses, peak = [], 0
    for _ in range(steps):
        with compact.Meter() as meter:
            loss = functional.mse_loss(model(**given), noise)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        peak = max(peak, meter.peak)
        given, noise = batch(generator)
    return losses, peak


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--budget", default="72%", help="bytes (40MB, 1GiB), or a part of the peak without compact (72%%)")
    p.add_argument("--steps", type=int, default=10)
    arguments = p.parse_args()
    torch.manual_seed(0)
    model = Denoiser()
    plain, most = train(copy.deepcopy(model), arguments.steps, None)
    losses, peak = train(model, arguments.steps, arguments.budget)
    print(compact.report(model).network)
    print(f"last loss {losses[-1]:.4f}, without a budget {plain[-1]:.4f}; all losses are equal: {losses == plain}")
    print(f"beside weights and moments a step takes {peak / 2**20:.1f} MiB, without a budget {most / 2**20:.1f}")


if __name__ == "__main__":
    main()
