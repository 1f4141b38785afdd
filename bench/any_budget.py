#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peak against time of networks that the library does not know, under budgets of what they save.

A step is a forward and a backward pass with compact.saved_tensors("exact", budget=...), beside plain
PyTorch and, where the model has it, its own checkpointing of every block. Peaks are exact bytes of
tensors beyond the weights, all gradients included. Ways take turns; times are medians. Gradients
of all ways are compared in bits. The floor is the time of the plain step's products alone, at the
speed of a large one. On a GPU networks are larger, and those of language are in bfloat16.

    python bench/any_budget.py --threads 2 --rounds 9
    python bench/any_budget.py --device cuda --rounds 9 --out bench/results
"""
import argparse
import contextlib
import gc
import os
import pathlib
import statistics
import sys
import time

DEVICE = "cuda" if {"cuda", "--device=cuda"} & set(sys.argv) else "cpu"
os.environ["COMPACT_TEST_DEVICE"] = DEVICE  # on which the tests' networks are made
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "python/tests"))
import _any_networks  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from measuring import origin, origin_lines, slug_of, write  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import compact  # noqa: E402

TOKENS, WIDTH, LAYERS, HEADS = ((2, 256), 192, 12, 6) if DEVICE == "cpu" else ((8, 2048), 2048, 16, 16)
IMAGES = (4, 112, 16) if DEVICE == "cpu" else (64, 224, 64)  # how many, of so many pixels; the network's width
PARTS = ("60%", "40%", "30%", "25%", "20%", "15%")


def decoder(kind, **settings):
    ids = torch.randint(10, 1024, TOKENS)
    config = getattr(transformers, f"{kind}Config")(vocab_size=1024, use_cache=False, attn_implementation="sdpa", **settings)
    name = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    dtype = torch.float32 if DEVICE == "cpu" else torch.bfloat16
    return getattr(transformers, name)(config).to(dtype), lambda m: m(input_ids=ids, labels=ids).loss


def gated(kind, **settings):
    return decoder(kind, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=2, **settings)


NETWORKS = {
    "Llama": lambda: gated("Llama", intermediate_size=WIDTH * 8 // 3 // 64 * 64),
    "Mixtral": lambda: gated("Mixtral", intermediate_size=WIDTH * 4 // 3 // 64 * 64, num_local_experts=4, num_experts_per_tok=2),
    "GPT-2": lambda: decoder("GPT2", n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=TOKENS[1], attn_pdrop=0, resid_pdrop=0, embd_pdrop=0),
    "ResNet-50": lambda: _any_networks.resnet50(*IMAGES),
}


def now():
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def step(model, loss_of, scope):
    """Seconds, peak in bytes and gradients of a step."""
    for p in model.parameters():
        p.grad = None
    gc.collect()
    torch.manual_seed(1)
    with compact.Meter() as meter:
        start = now()
        if scope is None:
            loss = loss_of(model)
        else:
            with scope:
                loss = loss_of(model)
        loss.backward()
        seconds = now() - start
    return seconds, meter.peak, [p.grad for p in model.parameters() if p.grad is not None]


def seconds_of_products(model, loss_of):
    counter = FlopCounterMode(display=False)
    # It counts attention of grouped heads as the products that it is made of alone.
    with counter, sdpa_kernel(SDPBackend.MATH) if DEVICE == "cuda" else contextlib.nullcontext():
        loss_of(model).backward()
    size = 1024 if DEVICE == "cpu" else 8192
    a = torch.randn(size, size, dtype=next(model.parameters()).dtype)
    times = []
    for _ in range(9):
        start = now()
        torch.mm(a, a)
        times.append(now() - start)
    return counter.get_total_flops() / (2 * size**3) * min(times)


@contextlib.contextmanager
def same_bits_twice(strictly):
    """On a GPU, where attention adds its gradients in any order unless it is told otherwise."""
    if DEVICE == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=not strictly)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def is_strict(model, loss_of):
    """Whether all of the network has operations that give the same bits twice."""
    try:
        with same_bits_twice(True):
            step(model, loss_of, None)
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        return False
    return True


def measure(name, a):
    """The lines of one network's part of the page."""
    torch.manual_seed(0)
    model, loss_of = NETWORKS[name]()
    model.train()
    ways = {"PyTorch": None}
    if hasattr(model, "gradient_checkpointing_enable"):
        ways["checkpointing of every block"] = None
    off = compact.saved_tensors("off", model=model)
    step(model, loss_of, off)
    for part in PARTS:
        # In bytes, so that what cannot be kept is refused.
        ways[f"budget {part}"] = compact.saved_tensors("exact", model=model, budget=int(off.bytes * float(part[:-1]) / 100))
    ways["exact, no budget"] = compact.saved_tensors("exact", model=model)
    times, peaks, refused, wanted = {}, {}, {}, None
    strictly = is_strict(model, loss_of)
    for turn in range(a.rounds + 1):
        for way, scope in ways.items():
            if way in refused:
                continue
            if "every block" in way:
                model.gradient_checkpointing_enable({"use_reentrant": False})
            try:
                with contextlib.nullcontext() if turn else same_bits_twice(strictly):
                    seconds, peaks[way], gradients = step(model, loss_of, scope)
            except ValueError as error:
                refused[way] = str(error)
                continue
            finally:
                if "every block" in way:
                    model.gradient_checkpointing_disable()
            if turn:
                times.setdefault(way, []).append(seconds)
            else:
                wanted = wanted or gradients
                assert all(map(torch.equal, gradients, wanted)), f"{way}: other gradients"
    floor = seconds_of_products(model, loss_of)
    plain, peak = statistics.median(times["PyTorch"]), peaks["PyTorch"]
    lines = ["", f"## {name}", "", "| | held + rebuilt at a time | peak MiB | beside PyTorch | step s | beside PyTorch |", "|---|---|---|---|---|---|"]
    for way, scope in ways.items():
        if way in refused:
            lines.append(f"| {way} | refused | | | | |")
            continue
        seconds = statistics.median(times[way])
        held = "" if scope is None else f"{scope.stored / off.bytes:.2f} + {scope.span / off.bytes:.2f}"
        lines.append(f"| {way} | {held} | {peaks[way] / 2**20:.1f} | {peaks[way] / peak:.3f} | {seconds:.3f} | {seconds / plain:.2f} |")
    lines.append(f"| products alone | | | | {floor:.3f} | {floor / plain:.2f} |")
    gradients = sum(p.nbytes for p in model.parameters())
    return [*lines, "", f"Saved: {off.bytes / 2**20:.1f} MiB; gradients: {gradients / 2**20:.1f} MiB."]


def about():
    (rows, tokens), (count, pixels, _) = TOKENS, IMAGES
    kind = "float32" if DEVICE == "cpu" else "bfloat16"
    return [
        f"A forward and a backward pass of {LAYERS} blocks of width {WIDTH} on {rows} × {tokens} tokens in {kind} (ResNet-50: {count} images of",
        f"{pixels} × {pixels} in float32), plain, checkpointed and in `compact.saved_tensors(\"exact\", budget=...)`. Budgets are bytes, as parts of what",
        "plain PyTorch saves; what cannot be kept is refused. Gradients of all rows are equal in bits. Peaks are bytes of tensors beyond the weights, with",
        "all gradients.",
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", type=pathlib.Path, help="a folder, for the page any-budget-DEVICE.md")
    a = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(a.threads)
    of, page = origin(DEVICE), []
    for name in a.networks:
        lines = measure(name, a)
        print("\n".join(lines), flush=True)
        page += lines
        if a.out:
            write(a.out / f"any-budget-{slug_of(of['device'])}.md", "\n".join([*origin_lines("A byte budget for any network", of), "", *about(), *page, ""]))


if __name__ == "__main__":
    main()
