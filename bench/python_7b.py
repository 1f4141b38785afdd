# SPDX-License-Identifier: Apache-2.0
"""All weights of a LLaMA-7B trained from Python on a CPU in 16 GiB: planned beside measured bytes, seconds a step.

From new weights, in bfloat16: Muon with moments of 8 bits and updates inside the backward pass, gradients of queries,
keys, values and the MLPs projected, everything that a layer saves rebuilt. Needs 18 GB of memory and some minutes.

    python bench/python_7b.py --steps 3
"""
import argparse
import resource
import sys
import time

import sentencepiece
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import compact

POLICY = """
slot role:{residual,norm,qkv,heads,attention,added,gate_up,gate,product,pre_activation,activation} = recompute
slot role:logits = chunk
grad layers.*.attn.qkv = project:rank=0.0625
grad layers.*.mlp.{gate_up,up,down} = project:rank=0.0625
"""
MUON = {"moments": "f8", "release": True}


def made(layers, device):
    """A LLaMA of 7B's shape, its weights drawn."""
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=4096, intermediate_size=11008, num_hidden_layers=layers, num_attention_heads=32, vocab_size=32000)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3, help="steps that are run (default 3)")
    parser.add_argument("--tokens", type=int, default=512, help="length of the sample (default 512)")
    parser.add_argument("--layers", type=int, default=32, help="layers; 32 are 7B (default)")
    parser.add_argument("--text", default="examples/data/pride-and-prejudice.txt", help="text that is read")
    parser.add_argument("--tokenizer", default="examples/data/austen-2048.model", help="SentencePiece model")
    args = parser.parse_args()

    tokens = sentencepiece.SentencePieceProcessor(model_file=args.tokenizer).encode(open(args.text, encoding="utf-8").read())
    batch = {"input_ids": torch.tensor(tokens[:args.tokens])[None]}
    batch["labels"] = batch["input_ids"].clone()
    plan = compact.plan(made(args.layers, "meta"), batch, policies=POLICY, optimizer=(compact.optim.Muon, MUON), clip=False)
    row = plan["rows"][0]

    start = time.perf_counter()
    with compact.Meter() as meter:
        model = compact.apply(made(args.layers, "cpu"), POLICY)
        optimizer = compact.optim.Muon(model, lr=1e-3, **MUON)
        print(f"weights made in {time.perf_counter() - start:.0f} s", flush=True)
        for step in range(args.steps):
            at = step * args.tokens
            batch["input_ids"] = torch.tensor(tokens[at:at + args.tokens])[None]
            batch["labels"] = batch["input_ids"].clone()
            start = time.perf_counter()
            loss = model(**batch).loss
            value = loss.item()
            loss.backward()
            del loss
            optimizer.step()
            optimizer.zero_grad()
            print(f"step {step + 1}: loss {value:.4f}, {time.perf_counter() - start:.1f} s", flush=True)
            if step == 0:
                print(f"peak of the first step, which makes the moments: {meter.peak:,} bytes", flush=True)
                meter.reset_peak()
        measured = meter.peak
    unit = 1024 if sys.platform == "linux" else 1
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    print(f"{sum(p.numel() for p in made(args.layers, 'meta').parameters()):,} parameters")
    for name in ("weights", "optimizer", "gradients", "saved", "workspace"):
        print(f"{name}, planned: {row[name]:,} bytes")
    print(f"peak, planned: {row['peak']:,} bytes; measured: {measured:,} bytes; resident memory at most {resident:,} bytes")


if __name__ == "__main__":
    main()
