#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Products and attention in bfloat16 beside float32, in CPU time of one thread, as ratios.

As the processor does it; `--as-avx2` holds LibTorch's libraries to AVX2, where CompAct multiplies
bfloat16 in tiles of float32. PyTorch's own bfloat16 products, measured first, stand beside.

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


if __name__ == "__main__":
    main()
