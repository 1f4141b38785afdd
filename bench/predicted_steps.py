#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted times of training steps on one GPU of `compact list gpus`: ResNet-50 and LLaMA-350M under
presets, by what they consist of. Nothing runs on a GPU: the figures are the plan's.

    python bench/predicted_steps.py [--program build/compact] [--gpu h200]
"""
import argparse
import datetime
import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESNET = ["--task", "image-classification", "--model", "resnet50", "--image_size", "224",
          "--per_device_train_batch_size", "64", "--optim", "sgd"]
LLAMA = ["--model", "llama-350m", "--per_device_train_batch_size", "128", "--block_size", "256"]
TABLES = [  # title, flags, presets
    ("ResNet-50, 64 images of 224 x 224, bf16", [*RESNET, "--dtype", "bfloat16"],
     ["off", "exact", "gact-l1", "pool", "pool-quant"]),
    ("ResNet-50, 64 images of 224 x 224, f32", RESNET,
     ["off", "exact", "gact-l1", "pool", "pool-quant"]),
    ("ResNet-50, 64 images of 224 x 224, f32 with products in TF32",
     [*RESNET, "--matmul_precision", "high"], ["off", "exact", "gact-l1", "pool", "pool-quant"]),
    ("LLaMA-350M, 128 x 256 tokens, bf16, AdamW", [*LLAMA, "--dtype", "bfloat16"],
     ["off", "exact", "recompute", "gact-l1", "compact"]),
]
PARTS = ["products", "other layers", "codecs", "loss", "optimizer"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--program", default=str(ROOT / "build/compact"))
    p.add_argument("--gpu", default="h200")
    p.add_argument("--out", default=str(ROOT / "bench/results/predicted-steps.md"))
    a = p.parse_args()

    def plan(flags):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "plan.json"
            subprocess.run([a.program, "plan", "--device", "cuda", "--gpu", a.gpu, *flags,
                            "--json", str(out)], check=True, stdout=subprocess.DEVNULL)
            return json.loads(out.read_text())

    lines = [
        f"# Steps predicted for one GPU: {a.gpu}",
        "",
        f"{datetime.date.today()}, `bench/predicted_steps.py --gpu {a.gpu}`; machine: no GPU, all "
        "figures are predicted and none was measured on one. A step is planned on tensors without "
        "memory; every operation takes as long as its products or as its bytes, whichever is "
        "longer, and they run one after another. Launches and waits are not counted, so that small "
        "steps take longer than is said here. The speeds are those of the card's data sheet times "
        "what training is assumed to reach: 65 % of products, 85 % of bytes (`kReachedProducts` and "
        "`kReachedBytes` of `compact/plan/gpu_card.h`, round figures that nothing was measured "
        "for). Milliseconds; GB of 10^9 bytes; `reserved` is the caching allocator's, modelled.",
    ]
    for title, flags, presets in TABLES:
        rows = []
        for preset in presets:
            r = plan([*flags, "--preset", preset])
            parts = {part["name"]: part for part in r["time"]["parts"]}
            flops, moved = (sum(part[key] for part in parts.values()) for key in ("flops", "bytes"))
            rows.append(f"| {preset} | {r['reserved_bytes'] / 2**30:.2f} | {flops * 1e-12:.2f} | "
                        f"{moved * 1e-9:.1f} | {parts['codecs']['bytes'] * 1e-9:.1f} | "
                        + " | ".join(f"{parts[name]['seconds'] * 1e3:.2f}" for name in PARTS)
                        + f" | {r['time']['seconds'] * 1e3:.1f} |")
        lines += ["", f"{title}; {r['time']['speed']}:", "",
                  "| preset | reserved GiB | TFLOP | GB | of codecs | " + " | ".join(PARTS) + " | step |",
                  "|---" * (len(PARTS) + 6) + "|", *rows]
    pathlib.Path(a.out).write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
