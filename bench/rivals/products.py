#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The floor of a training step: its matrix products alone (forward and both gradients of every
linear layer and the head), at the speed that torch reaches on the device for these sizes. Prints
one line of JSON.

    python products.py --model llama-60m --dtype bf16 --device cuda --batch 16 --block 256
"""
import argparse
import json
import sys
import time

from hf_llama import MODELS, UNAVAILABLE, choose_products


def layers(model):
    """(inputs, outputs, how often in the model) of its linear layers; queries, keys and values are one
    product, and so are gate and up."""
    n, m, count = model["hidden_size"], model["intermediate_size"], model["num_hidden_layers"]
    head = n // model["num_attention_heads"]
    qkv = n + 2 * model["num_key_value_heads"] * head
    return [(n, qkv, count), (n, n, count), (n, 2 * m, count), (m, n, count), (n, model["vocab_size"], 1)]


def operations(model, block):
    """Operations of a token's step in sequences of `block` tokens: these products, and causal attention's."""
    products = sum(count * 6 * inputs * outputs for inputs, outputs, count in layers(model))
    return products + 6 * model["num_hidden_layers"] * model["hidden_size"] * block


def seconds_of(torch, a, dtype, inputs, outputs):
    """The least time of three for y = x wᵀ, gx = g w and gw = gᵀ x."""
    x, w, g = (torch.randn(*shape, device=a.device, dtype=dtype) for shape in
               ((a.batch * a.block, inputs), (outputs, inputs), (a.batch * a.block, outputs)))  # fmt: skip
    wait = torch.cuda.synchronize if a.device == "cuda" else lambda: None
    times = []
    for _ in range(4):  # of which the first warms up
        wait()
        begin = time.perf_counter()
        x @ w.t()
        g @ w
        g.t() @ x
        wait()
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--model", choices=MODELS, default="llama-60m")
    p.add_argument("--dtype", choices=["f32", "bf16"], default="bf16")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--block", type=int, default=256)
    p.add_argument("--threads", type=int, default=2, help="CPU threads")
    p.add_argument("--matmul", choices=["default", "onednn"], default="default", help="f32 products on the CPU")
    a = p.parse_args()
    try:
        import torch
    except ImportError as e:
        print(f"not run: {e}", file=sys.stderr)
        return UNAVAILABLE
    if a.device == "cuda" and not torch.cuda.is_available():
        print("not run: no CUDA device", file=sys.stderr)
        return UNAVAILABLE
    torch.set_num_threads(a.threads)
    choose_products(torch, a.matmul)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[a.dtype]
    step = flops = 0
    for inputs, outputs, count in layers(MODELS[a.model]):
        step += count * seconds_of(torch, a, dtype, inputs, outputs)
        flops += count * 6 * a.batch * a.block * inputs * outputs
    print(json.dumps({
        "program": "products", "model": a.model, "dtype": a.dtype, "device": a.device, "batch": a.batch, "block": a.block,
        "step_seconds": round(step, 6), "tflops": round(flops / step / 1e12, 3),
        "tokens_per_second": round(a.batch * a.block / step, 1), "torch": torch.__version__,
    }))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
