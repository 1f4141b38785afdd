# SPDX-License-Identifier: Apache-2.0
"""A network of one's own: a small U-Net that says which noise is in an image, as diffusion models train it."""
import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Two convolutions beside what they read; the time is added between them."""

    def __init__(self, channels_in: int, channels: int):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, channels_in), nn.Conv2d(channels_in, channels, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, channels), nn.Conv2d(channels, channels, 3, padding=1)
        self.time = nn.Linear(32, channels)
        self.beside = nn.Conv2d(channels_in, channels, 1) if channels_in != channels else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.conv1(functional.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.beside(x) + self.conv2(functional.silu(self.norm2(h)))


class Denoiser(nn.Module):
    def __init__(self, width: int = 32):
        super().__init__()
        sizes = (width, 2 * width, 4 * width)
        self.first, self.last = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 1, 3, padding=1)
        self.down = nn.ModuleList(Block(a, b) for a, b in zip((width, *sizes), sizes))
        self.middle = nn.ModuleList(Block(sizes[-1], sizes[-1]) for _ in range(4))
        self.up = nn.ModuleList(Block(a + b, b) for a, b in zip((sizes[-1], *sizes[::-1]), sizes[::-1]))
        self.register_buffer("waves", torch.exp(torch.linspace(0, 4, 16)))

    def forward(self, image: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        angles = time[:, None] * self.waves
        time = torch.cat([angles.sin(), angles.cos()], 1)
        x, skips = self.first(image), []
        for block in self.down:
            x = block(x, time)
            skips.append(x)
            x = functional.avg_pool2d(x, 2)
        for block in self.middle:
            x = block(x, time)
        for block, skip in zip(self.up, reversed(skips)):
            x = block(torch.cat([functional.interpolate(x, scale_factor=2.0), skip], 1), time)
        return self.last(x)
