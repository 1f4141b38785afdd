#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peak memory and step time of Hugging Face models with and without compact, as ratios of one run.

Every way trains in a fresh process: forward, backward and torch's fused AdamW on tokens of no
meaning. Rounds run each way once, in turn; times are the medians. Bytes are exact, weights,
gradients and moments included. The floor is the step's matrix products alone.

    python bench/python_step.py --shape smollm2-135m --type bf16
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

SHAPES = {
    "smollm2-135m": ("Llama", {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
                               "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152}),
    "qwen2.5-0.5b": ("Qwen2", {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
                               "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936}),
}  # fmt: skip
# name: what is done to the model
WAYS = {
    "PyTorch": "",
    "gradient_checkpointing": "checkpoint",
    "torch.compile": "compile",
    "apply off": "apply off",
    "apply exact": "apply exact",
    "apply recompute": "apply recompute",
    "apply gact-l1": "apply gact-l1",
    "checkpointing, inputs in 8 bits": "checkpoint scope",
    "apply exact, moments in f8": "apply exact f8",
    "apply recompute, moments in f8, release": "apply recompute f8 release",
    "apply auto": "apply auto",
    "apply compact, rank n/8, Muon": "apply compact muon",
}
# Ways that are for GPUs alone, where this does not measure.
NOT_HERE = {"Liger": "its kernels are for GPUs", "checkpointing, inputs on the host": "the model is on the host"}


def model_of(a):
    import transformers

    name, shape = SHAPES[a.shape]
    config = getattr(transformers, f"{name}Config")(**shape, tie_word_embeddings=True, max_position_embeddings=2048)
    return getattr(transformers, f"{name}ForCausalLM")(config).train()


def in_nf4(model):
    """The products of its layers by bitsandbytes, whose weights have 4 bits."""
    import bitsandbytes
    import torch

    products = [(path, m) for path, m in model.named_modules() if isinstance(m, torch.nn.Linear) and path != "lm_head"]
    for path, old in products:
        new = bitsandbytes.nn.Linear4bit(old.in_features, old.out_features, bias=old.bias is not None, compute_dtype=old.weight.dtype, quant_type="nf4")
        new.weight = bitsandbytes.nn.Params4bit(old.weight.data, requires_grad=False, quant_type="nf4", module=new)
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, new.to(old.weight.device))
    model.is_loaded_in_4bit = True
    return model


def run_one(a):
    """One way in this process; its figures as JSON."""
    import torch

    import compact

    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    words = WAYS[a.way].split()
    with compact.Meter() as meter:
        model = model_of(a)
        if a.type == "pure-bf16":
            model.bfloat16()
        if a.nf4:
            model = in_nf4(model)
        if a.lora:
            import peft

            model = peft.get_peft_model(model, peft.LoraConfig(r=a.lora, target_modules="all-linear"))
        if "checkpoint" in words:
            model.gradient_checkpointing_enable()
            if a.lora:
                model.enable_input_require_grads()
        if "auto" in words:
            autocast = torch.bfloat16 if a.type == "bf16" else None
            compact.apply(model, budget=a.budget, batch=(a.batch, a.length), clip=False, autocast=autocast)
        elif "compact" in words:
            compact.apply(model, compact.policy_text("compact").replace("rank=0.25", "rank=0.125"))
        elif "apply" in words:
            compact.apply(model, words[1])
        scope = "slot * = quantize:bits=8" if "scope" in words else None
        called = torch.compile(model) if "compile" in words else model
        if "muon" in words:
            optimizer = compact.optim.Muon(model, lr=1e-3, adamw_lr=1e-4)
        elif "f8" in words:
            optimizer = compact.optim.AdamW(model.parameters(), lr=1e-4, moments="f8", release="release" in words)
        else:
            optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
        ids = torch.randint(0, model.config.vocab_size, (a.batch, a.length))

        def step():
            with torch.autocast("cpu", torch.bfloat16, enabled=a.type == "bf16"):
                with compact.saved_tensors(scope) if scope else contextlib.nullcontext():
                    loss = called(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.item()

        losses = [step(), step()]
        meter.reset_peak()
        seconds = []
        for _ in range(a.steps):
            begin = time.perf_counter()
            losses.append(step())
            seconds.append(time.perf_counter() - begin)
        print(json.dumps({"peak": meter.peak, "seconds": min(seconds), "losses": losses}))


def floor(a):
    """Seconds of the products of a step, made by themselves: forward, and both gradients."""
    import torch

    torch.set_num_threads(a.threads)
    _, s = SHAPES[a.shape]
    n, m, d = s["hidden_size"], s["intermediate_size"], s["hidden_size"] // s["num_attention_heads"]
    kv = s["num_key_value_heads"] * d
    sizes = [(n, n), (n, kv), (n, kv), (n, n), (n, m), (n, m), (m, n)] * s["num_hidden_layers"] + [(n, s["vocab_size"])]
    dtype = torch.float32 if a.type == "f32" else torch.bfloat16
    tokens, total = a.batch * a.length, 0.0
    for width, out in sizes:
        x, w = torch.randn(tokens, width, dtype=dtype), torch.randn(out, width, dtype=dtype)
        gy = torch.randn(tokens, out, dtype=dtype)
        begin = time.perf_counter()
        x @ w.T
        gy @ w
        if not a.lora:
            gy.T @ x
        total += time.perf_counter() - begin
    return total


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    p.add_argument("--type", choices=["f32", "bf16", "pure-bf16"], default="f32", help="bf16: by autocast")
    p.add_argument("--lora", type=int, default=0, help="rank of adapters (peft) around all products, which are trained alone")
    p.add_argument("--nf4", action="store_true", help="with --lora: the layers' weights in 4 bits of bitsandbytes")
    p.add_argument("--budget", default="68%", help="of auto: bytes, or a part of what PyTorch takes")
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--length", type=int, default=256)
    p.add_argument("--steps", type=int, default=2, help="timed steps of a run, behind two that are not")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--ways", help="some of them, divided by semicolons")
    p.add_argument("--way", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.way:
        return run_one(a)
    if a.nf4 and not a.lora:
        sys.exit("--nf4 needs --lora: weights in codes are not trained")
    ways = a.ways.split(";") if a.ways else [way for way in WAYS if not a.lora or "compact" not in way]
    rows = {way: [] for way in ways}
    for _ in range(a.rounds):
        for way in ways:
            command = [sys.executable, __file__, "--way", way]
            for key in ("shape", "type", "lora", "budget", "batch", "length", "steps", "threads"):
                command += [f"--{key}", str(getattr(a, key))]
            command += ["--nf4"] if a.nf4 else []
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"{way}: {done.stderr[-2000:]}")
            rows[way].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"{way}: {rows[way][-1]}", file=sys.stderr)
    import torch
    import transformers

    least = min(floor(a) for _ in range(2))
    print(f"{a.shape}, {a.type}, {a.batch} x {a.length} tokens, AdamW, {a.threads} threads of {platform.processor() or platform.machine()}, "
          f"torch {torch.__version__}, transformers {transformers.__version__}, {datetime.date.today()}, "
          f"{a.rounds} rounds of `{pathlib.Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}`\n")  # fmt: skip
    base = rows[ways[0]]
    print("| | peak MiB | beside PyTorch | step s | beside PyTorch | loss of the last step |\n|---|---|---|---|---|---|")
    seconds_of = {way: statistics.median(r["seconds"] for r in found) for way, found in rows.items()}
    for way, found in rows.items():
        peak = found[0]["peak"]
        ratio, slower = peak / base[0]["peak"], seconds_of[way] / seconds_of[ways[0]]
        name = f"{way}, budget {a.budget}" if way == "apply auto" else way
        print(f"| {name} | {peak / 2**20:,.0f} | {ratio:.2f} | {seconds_of[way]:.2f} | {slower:.2f} | {found[0]['losses'][-1]:.4f} |")
    for way, reason in NOT_HERE.items():
        print(f"| {way} | not here: {reason} | | | | |")
    print(f"| products alone | | | {least:.2f} | {least / seconds_of[ways[0]]:.2f} | |")


if __name__ == "__main__":
    main()
