#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Products, convolutions and attention in bfloat16 beside float32, in CPU time of one thread, as ratios.

As the processor does it; `--as-avx2` holds LibTorch's libraries to AVX2, where CompAct multiplies
bfloat16 in tiles of float32. PyTorch's own bfloat16 products and convolutions, measured first, stand
beside.

    COMPACT_PYTHON_LIBRARY=build/python/libcompact_python.so .venv/bin/python bench/bf16_products.py --as-avx2
"""
import argparse
import os
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPES = [(512, 512, 512), (512, 512, 1376), (512, 1376, 512), (1376, 512, 512), (4096, 512, 1376),
          (4096, 1376, 512), (1376, 4096, 512), (512, 4096, 4096), (512, 11008, 4096)]
LAYOUTS = {"x W": (False, False), "x W'": (False, True), "x' y": (True, False)}
# samples, channels in and out, height and width, window, stride, groups: those of ResNets
CONVOLUTIONS = {
    "7 x 7, stride 2": (8, 3, 64, 112, 7, 2, 1), "3 x 3, 64": (32, 64, 64, 28, 3, 1, 1),
    "3 x 3, stride 2, 64 to 128": (32, 64, 128, 28, 3, 2, 1), "3 x 3, 512": (32, 512, 512, 7, 3, 1, 1),
    "1 x 1, 64 to 256": (32, 64, 256, 28, 1, 1, 1), "1 x 1, stride 2, 256 to 512": (32, 256, 512, 14, 1, 2, 1),
    "3 x 3, depthwise, 64": (32, 64, 64, 28, 3, 1, 64), "3 x 3, 4 groups, 64": (32, 64, 64, 28, 3, 1, 4),
    "3 x 3, 16, of 32 x 32": (128, 16, 16, 32, 3, 1, 1),
}  # fmt: skip
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


def seconds(run, rounds=3):
    run()
    least = float("inf")
    for _ in range(rounds):
        start = time.thread_time()
        run()
        least = min(least, time.thread_time() - start)
    return least


def operands(torch, m, k, n, layout):
    of_a, of_b = LAYOUTS[layout]
    a = torch.randn(k, m).t() if of_a else torch.randn(m, k)
    b = torch.randn(n, k).t() if of_b else torch.randn(k, n)
    return a, b, a.bfloat16(), b.bfloat16()


def convolution(torch, name, channels_last, dtype, samples=None):
    """A forward and a backward pass, all gradients."""
    own, inputs, outputs, pixels, window, stride, groups = CONVOLUTIONS[name]
    form = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.randn(samples or own, inputs, pixels, pixels).to(dtype=dtype, memory_format=form)
    w = (0.1 * torch.randn(outputs, inputs // groups, window, window)).to(dtype=dtype, memory_format=form)
    how = ([stride] * 2, [window // 2] * 2, [1, 1], False, [0, 0], groups)
    gy = torch.randn_like(torch.ops.aten.convolution(x, w, None, *how))
    return (lambda: torch.ops.aten.convolution(x, w, None, *how),
            lambda: torch.ops.aten.convolution_backward(gy, x, w, None, *how, [True, True, False]))  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--as-avx2", action="store_true", help="as a processor with AVX2 alone")
    if parser.parse_args().as_avx2 and any(os.environ.get(name) != value for name, value in AVX2.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **AVX2})
    import torch

    torch.set_num_threads(1)
    plain = {}
    for layout in LAYOUTS:  # a small one: loops take long
        _, _, a, b = operands(torch, 256, 256, 256, layout)
        plain[layout] = 2e-9 * 256**3 / seconds(lambda: a @ b, 1)
    maps = [(name, channels_last) for name in CONVOLUTIONS for channels_last in (False, True)]
    own = {
        of: [seconds(b, 1) / seconds(f, 3) for f, b in zip(*(convolution(torch, *of, t, 4) for t in (torch.float32, torch.bfloat16)), strict=True)]
        for of in maps
    }
    sys.path.insert(0, str(ROOT / "python"))
    from compact.base import library

    print(f"bfloat16 products: {library.ops.bf16_products()}; torch {torch.__version__}, "
          f"{torch.backends.cpu.get_cpu_capability()}, one thread, CPU time")
    print("PyTorch's own, 256 x 256 x 256: " + ", ".join(f"{k} {v:.1f} GFLOP/s" for k, v in plain.items()))
    print("\n| rows, inner, columns | layout | float32, GFLOP/s | bfloat16 | time of float32 |\n|---|---|--:|--:|--:|")
    for m, k, n in SHAPES:
        for layout in LAYOUTS:
            a, b, x, y = operands(torch, m, k, n, layout)
            f32, bf16 = seconds(lambda: a @ b), seconds(lambda: x @ y)
            work = 2e-9 * m * k * n
            print(f"| {m}, {k}, {n} | {layout} | {work / f32:.1f} | {work / bf16:.1f} | {bf16 / f32:.2f} |", flush=True)
    attention = torch.nn.functional.scaled_dot_product_attention
    print("\n| attention, 4 x 8 heads of 64 | forward: time of float32 | with backward |\n|---|--:|--:|")
    for tokens in (256, 1024):
        f32 = [torch.randn(4, 8, tokens, 64, requires_grad=True) for _ in range(3)]
        bf16 = [t.detach().bfloat16().requires_grad_() for t in f32]
        forward = [seconds(lambda t=t: attention(*t, is_causal=True)) for t in (f32, bf16)]
        both = [seconds(lambda t=t: attention(*t, is_causal=True).sum().backward()) for t in (f32, bf16)]
        print(f"| {tokens} tokens | {forward[1] / forward[0]:.2f} | {both[1] / both[0]:.2f} |", flush=True)
    print("\n| convolution | layout | float32, ms: forward | backward | bfloat16, time of float32: forward | backward "
          "| PyTorch's own: forward | backward |\n|---|---|--:|--:|--:|--:|--:|--:|")  # fmt: skip
    for name, channels_last in maps:
        f32, bf16 = (convolution(torch, name, channels_last, t) for t in (torch.float32, torch.bfloat16))
        pairs = [[(seconds(f, 1), seconds(b, 1)) for _ in range(5)] for f, b in zip(f32, bf16, strict=True)]
        least = [[min(times) for times in zip(*of, strict=True)] for of in pairs]
        print(f"| {name} | {'channels last' if channels_last else 'channels first'} | " + " | ".join(f"{1e3 * f:.1f}" for f, _ in least) + " | "
              + " | ".join(f"{b / f:.2f}" for f, b in least) + " | " + " | ".join(f"{ratio:.1f}" for ratio in own[name, channels_last]) + " |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
