#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peak against time of networks that the library does not know, under budgets of what they save.

A step is a forward and a backward pass with compact.saved_tensors("exact", budget=...), beside plain
PyTorch, torch's checkpointing of every block, of one block in two and in three, and selective checkpointing, which keeps
products and attention. Peaks are exact bytes of tensors beyond the weights, all gradients included.
Ways take turns; times are medians. Gradients of all ways are compared in bits. With --compile also
torch.compile with its activation_memory_budget, after the others and compared to a thousandth. The
floor is the time of the plain step's products alone, at the speed of a large one. On a GPU networks
are larger, and those of language are in bfloat16.

    python bench/any_budget.py --threads 2 --rounds 9 --compile
    python bench/any_budget.py --device cuda --rounds 9 --out bench/results
"""
import argparse
import contextlib
import functools
import gc
import os
import pathlib
import statistics
import sys
import time

DEVICE = "cuda" if {"cuda", "--device=cuda"} & set(sys.argv) else "cpu"
os.environ["COMPACT_TEST_DEVICE"] = DEVICE  # on which the tests' networks are made
ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "python/tests"), str(ROOT / "examples/python")]
import _any_networks  # noqa: E402
import denoiser  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from measuring import origin, origin_lines, slug_of, write  # noqa: E402
from torch._functorch import config as functorch_config  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import compact  # noqa: E402

TOKENS, WIDTH, LAYERS, HEADS = ((2, 256), 192, 12, 6) if DEVICE == "cpu" else ((8, 2048), 2048, 16, 16)
IMAGES = (4, 112, 16) if DEVICE == "cpu" else (64, 224, 64)  # how many, of so many pixels; the network's width
PARTS = ("60%", "40%", "30%", "25%", "20%", "15%")
COMPILED = (0.5, 0.3, 0.1)
aten = torch.ops.aten


def tokens(vocabulary=1024):
    return torch.randint(10, vocabulary, TOKENS)


def in_type(model):
    return model.to(torch.float32 if DEVICE == "cpu" else torch.bfloat16)


def decoder(kind, blocks_of, **settings):
    ids = tokens()
    config = getattr(transformers, f"{kind}Config")(vocab_size=1024, use_cache=False, attn_implementation="sdpa", **settings)
    name = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    model = in_type(getattr(transformers, name)(config))
    return model, lambda m: m(input_ids=ids, labels=ids).loss, blocks_of(model)


def gated(kind, **settings):
    shape = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": 2}
    return decoder(kind, lambda m: m.model.layers, **shape, **settings)


def gpt2():
    dropout = {"attn_pdrop": 0, "resid_pdrop": 0, "embd_pdrop": 0}
    return decoder("GPT2", lambda m: m.transformer.h, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=TOKENS[1], **dropout)


def whisper():
    rows, count = TOKENS
    ids, frames = tokens(), torch.randn(rows, 80, 2 * count)
    config = transformers.WhisperConfig(
        d_model=WIDTH, encoder_layers=LAYERS // 2, decoder_layers=LAYERS // 2, encoder_attention_heads=HEADS, decoder_attention_heads=HEADS,
        encoder_ffn_dim=4 * WIDTH, decoder_ffn_dim=4 * WIDTH, vocab_size=1024, max_source_positions=count, max_target_positions=count, dropout=0.0,
        use_cache=False, attn_implementation="sdpa", pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    model = in_type(transformers.WhisperForConditionalGeneration(config))
    return model, lambda m: m(input_features=frames.to(m.dtype), labels=ids).loss, [*model.model.encoder.layers, *model.model.decoder.layers]


def unet():
    count, pixels, width = IMAGES
    image, noise, times = torch.randn(count, 1, pixels, pixels), torch.randn(count, 1, pixels, pixels), torch.rand(count)
    model = denoiser.Denoiser(width)
    return model, lambda m: (m(image, times) - noise).square().mean(), [*model.down, *model.middle, *model.up]


def resnet50():
    model, loss_of = _any_networks.resnet50(*IMAGES)
    return model, loss_of, model.blocks


NETWORKS = {  # of each a model, its loss, and the blocks that are checkpointed
    "Llama": lambda: gated("Llama", intermediate_size=WIDTH * 8 // 3 // 64 * 64),
    "Mixtral": lambda: gated("Mixtral", intermediate_size=WIDTH * 4 // 3 // 64 * 64, num_local_experts=4, num_experts_per_tok=2),
    "GPT-2": gpt2,
    "Whisper": whisper,
    "ResNet-50": resnet50,
    "UNet": unet,
}

KEPT = {
    aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten._grouped_mm.default, aten.convolution.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default, aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default, aten._scaled_dot_product_cudnn_attention.default,
}  # fmt: skip


def keeps_products(context, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op in KEPT else CheckpointPolicy.PREFER_RECOMPUTE


@contextlib.contextmanager
def checkpointed(blocks, **how):
    """These blocks run again in the backward pass, by torch's checkpointing."""
    for block in blocks:
        block.forward = functools.partial(checkpoint, type(block).forward.__get__(block), use_reentrant=False, **how)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def now():
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def step(model, loss_of, around=contextlib.nullcontext):
    """Seconds, peak in bytes and gradients of a step, its forward pass in around()."""
    for p in model.parameters():
        p.grad = None
    gc.collect()
    torch.manual_seed(1)
    with compact.Meter() as meter:
        start = now()
        with around():
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
            step(model, loss_of)
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        return False
    return True


def ways_of(model, loss_of, blocks):
    """The ways to take a step, by name, each as what its forward pass runs in; and the bytes that PyTorch saves."""
    selective = functools.partial(create_selective_checkpoint_contexts, keeps_products)
    ways = {
        "PyTorch": contextlib.nullcontext,
        "checkpointing, every block": lambda: checkpointed(blocks),
        "checkpointing, 1 block in 2": lambda: checkpointed(blocks[::2]),
        "checkpointing, 1 block in 3": lambda: checkpointed(blocks[::3]),
        "selective checkpointing": lambda: checkpointed(blocks, context_fn=selective),
    }
    off = compact.saved_tensors("off", model=model)
    step(model, loss_of, lambda: off)
    scopes = {"exact, no budget": compact.saved_tensors("exact", model=model)}
    for part in PARTS:
        # In bytes, so that what cannot be kept is refused.
        scopes[f"budget {part}"] = compact.saved_tensors("exact", model=model, budget=int(off.bytes * float(part[:-1]) / 100))
    return {**ways, **{way: lambda scope=scope: scope for way, scope in scopes.items()}}, scopes, off.bytes


def compiled_rows(model, loss_of, wanted, rounds):
    """Seconds and peaks of torch.compile, by way; what does not run is a reason instead."""
    found = {}
    for part in COMPILED:
        torch.compiler.reset()
        with functorch_config.patch(activation_memory_budget=part):
            network = torch.compile(model)
            try:
                turns = [step(network, loss_of) for _ in range(rounds + 3)][3:]
            except Exception as error:
                found[part] = f"does not run ({type(error).__name__})"
                continue
        for ours, theirs in zip(turns[0][2], wanted, strict=True):
            assert (ours - theirs).norm() <= (1e-3 if DEVICE == "cpu" else 5e-2) * theirs.norm() + 1e-6, "torch.compile: other gradients"
        found[part] = statistics.median(t[0] for t in turns), max(t[1] for t in turns)
    torch.compiler.reset()
    return {f"torch.compile, activation_memory_budget {part}": row for part, row in found.items()}


def measure(name, a):
    """The lines of one network's part of the page."""
    torch.manual_seed(0)
    model, loss_of, blocks = NETWORKS[name]()
    model.train()
    ways, scopes, saved = ways_of(model, loss_of, list(blocks))
    times, peaks, refused, wanted = {}, {}, {}, None
    strictly = is_strict(model, loss_of)
    for turn in range(a.rounds + 1):
        for way, around in ways.items():
            if way in refused:
                continue
            try:
                with contextlib.nullcontext() if turn else same_bits_twice(strictly):
                    seconds, peaks[way], gradients = step(model, loss_of, around)
            except ValueError as error:
                refused[way] = str(error)
                continue
            if turn:
                times.setdefault(way, []).append(seconds)
            else:
                wanted = wanted or [g.clone() for g in gradients]
                assert all(map(torch.equal, gradients, wanted)), f"{way}: other gradients"
    rows = {way: "refused" if way in refused else (statistics.median(times[way]), peaks[way]) for way in ways}
    if a.compile:
        rows |= compiled_rows(model, loss_of, wanted, a.rounds)
    del wanted, gradients
    floor = seconds_of_products(model, loss_of)
    plain, peak = rows["PyTorch"]
    lines = ["", f"## {name}", "", "| | held + rebuilt at a time | peak MiB | beside PyTorch | step s | beside PyTorch |", "|---|---|---|---|---|---|"]
    for way, row in rows.items():
        if isinstance(row, str):
            lines.append(f"| {way} | {row} | | | | |")
            continue
        seconds, bytes_ = row
        held = f"{scopes[way].stored / saved:.2f} + {scopes[way].span / saved:.2f}" if way in scopes else ""
        lines.append(f"| {way} | {held} | {bytes_ / 2**20:.1f} | {bytes_ / peak:.3f} | {seconds:.3f} | {seconds / plain:.2f} |")
    lines.append(f"| products alone | | | | {floor:.3f} | {floor / plain:.2f} |")
    gradients = sum(p.nbytes for p in model.parameters())
    return [*lines, "", f"Saved: {saved / 2**20:.1f} MiB; gradients: {gradients / 2**20:.1f} MiB."]


def about():
    (rows, tokens), (count, pixels, width) = TOKENS, IMAGES
    kind = "float32" if DEVICE == "cpu" else "bfloat16"
    return [
        f"A forward and a backward pass of {LAYERS} blocks of width {WIDTH} on {rows} × {tokens} tokens in {kind} (Whisper: half of the blocks in its encoder;",
        f"ResNet-50 and UNet: {count} images of {pixels} × {pixels} in float32, with {width} channels at first), plain, checkpointed and in",
        "`compact.saved_tensors(\"exact\", budget=...)`. Budgets are bytes, as parts of what plain PyTorch saves; what cannot be kept is refused. Gradients of",
        "all rows but torch.compile's are equal in bits. Peaks are bytes of tensors beyond the weights, with all gradients.",
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--compile", action="store_true", help="also torch.compile, which takes minutes")
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
