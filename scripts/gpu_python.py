#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package on a device: Hugging Face models under compact.apply and compact.saved_tensors
beside the same without it (losses of some steps, in float32 and under autocast to bfloat16), Trainer
in bf16, and plans beside measured bytes. A page and JSON; every row runs in a process of its own, and
what is there of the same build is not run again.

    PYTHONPATH=gpu-pack/python python scripts/gpu_python.py --device cuda --out results
"""
import argparse
import contextlib
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
from measuring import Rows, end_with_children, exit_code, failure, gib, hash_of, origin_lines, program_at, run  # noqa: E402

SCOPE = "slot * = quantize:bits=8"  # of compact.saved_tensors, around the model as it is
LOSSY = ("gact-l1", "gact-l3", SCOPE)
POLICIES = ("off", "exact", "recompute", *LOSSY)
# Relative, for the first loss of lossless policies, and as much more with every step, since AdamW's
# first steps follow the gradients' signs; ten times that for other policies.
TOLERANCE = {"f32": 2e-3, "bf16": 0.02}
PLAN_GOAL = 0.02
SIZES = {  # of a device: hidden, layers, heads, batch, tokens
    "cuda": {"llama": (1024, 8, 16, 8, 512), "bert": (768, 6, 12, 16, 128)},
    "cpu": {"llama": (64, 2, 4, 2, 64), "bert": (64, 2, 4, 2, 32)},
}
NAMES = [f"{model}, {way}" for model in ("llama", "bert") for way in ("f32", "bf16", "Trainer, bf16", "plan")]


def model_of(kind, size):
    import torch
    import transformers

    torch.manual_seed(0)
    hidden, layers, heads = size[:3]
    shape = {"hidden_size": hidden, "intermediate_size": hidden * 5 // 2, "num_hidden_layers": layers, "num_attention_heads": heads}
    if kind == "llama":
        config = transformers.LlamaConfig(**shape, num_key_value_heads=heads // 2, vocab_size=8192, max_position_embeddings=2048)
        return transformers.LlamaForCausalLM(config).train()
    config = transformers.BertConfig(**shape, vocab_size=8192, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return transformers.BertForSequenceClassification(config).train()


def batch_of(kind, size, device):
    import torch

    ids = torch.randint(8192, size[3:], generator=torch.Generator().manual_seed(1))
    if kind == "llama":
        return {"input_ids": ids.to(device), "labels": ids.to(device)}
    mask = torch.ones_like(ids)
    mask[::2, size[4] * 3 // 4 :] = 0
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device), "labels": torch.arange(size[3], device=device) % 2}


def steps(kind, size, device, policy, half, count=4):
    """(losses, bytes at the highest step's peak or None) of AdamW; policy None: without compact."""
    import torch

    import compact

    model, batch = model_of(kind, size).to(device), batch_of(kind, size, device)
    scoped = policy == SCOPE
    if policy and not scoped:
        compact.apply(model, policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    losses = []
    for number in range(count):
        if number == 2 and device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with torch.autocast(device, torch.bfloat16, enabled=half), compact.saved_tensors(SCOPE) if scoped else contextlib.nullcontext():
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss))
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    own = [row.name for row in compact.report(model).layers if row.own_forward] if policy and not scoped else []
    if own:
        raise SystemExit(f"{policy}: {own[0]} ran its own forward")
    return losses, peak


def beside_plain(kind, size, device, half):
    plain, peak = steps(kind, size, device, None, half)
    found = {"plain": (plain[-1], peak)}
    for policy in POLICIES:
        losses, peak = steps(kind, size, device, policy, half)
        tolerance = TOLERANCE["bf16" if half else "f32"] * (10 if policy in LOSSY else 1)
        for number, (ours, theirs) in enumerate(zip(losses, plain), 1):
            if not abs(ours - theirs) <= number * tolerance * max(abs(theirs), 0.1):
                raise SystemExit(f"{policy}: a loss of {ours:.4f} in step {number}, without compact {theirs:.4f}")
        found[policy] = (losses[-1], peak)
    return "; ".join(f"{name} {loss:.4f}" + (f" in {gib(bytes_)} GiB" if bytes_ else "") for name, (loss, bytes_) in found.items())


def trainer(kind, size, device):
    """Trainer's losses in bf16 with and without compact."""
    import transformers

    import compact.hf

    batch = batch_of(kind, size, "cpu")
    data = [{key: value[i] for key, value in batch.items()} for i in range(size[3])]
    found = []
    for policy in (None, "exact"):
        model = model_of(kind, size) if policy is None else compact.apply(model_of(kind, size), policy)
        callbacks = [compact.hf.Callback()] * (policy is not None)
        with tempfile.TemporaryDirectory() as folder:
            settings = transformers.TrainingArguments(
                output_dir=folder, per_device_train_batch_size=size[3], max_steps=4, logging_steps=1, learning_rate=1e-3, report_to=[],
                save_strategy="no", seed=1, bf16=True, use_cpu=device == "cpu", disable_tqdm=True)  # fmt: skip
            done = transformers.Trainer(model=model, args=settings, train_dataset=data, callbacks=callbacks)
            done.train()
        found.append([row["loss"] for row in done.state.log_history if "loss" in row])
    for number, (ours, theirs) in enumerate(zip(*reversed(found)), 1):
        if not abs(ours - theirs) <= number * TOLERANCE["bf16"] * max(abs(theirs), 0.1):
            raise SystemExit(f"a loss of {ours:.4f}, without compact {theirs:.4f}")
    return f"last loss {found[1][-1]:.4f}, without compact {found[0][-1]:.4f}"


def planned(kind, size, device):
    """Planned peaks beside measured ones; on a CPU measured by compact.Meter."""
    import torch

    import compact

    batch = batch_of(kind, size, "cpu")
    policies = ["plain", "exact", "recompute", "gact-l1"]
    plan = compact.plan(model_of(kind, size), batch, policies=policies, device=device, optimizer=(torch.optim.AdamW, {"fused": True}))
    words, far = [], []
    for row in plan["rows"]:
        policy = None if row["policy"] == "plain" else row["policy"]
        with compact.Meter() as meter:
            peak = steps(kind, size, device, policy, False)[1] or meter.peak
        off = peak / row["peak"] - 1
        words.append(f"{row['policy']} {row['peak'] / 2**20:,.1f} MiB {off:+.2%}")
        if abs(off) > PLAN_GOAL and device == "cuda":
            far.append(row["policy"])
    return "; ".join(words) + (f"; beyond {PLAN_GOAL:.0%}: {', '.join(far)}" if far else "")


def one(name, device):
    kind, way = name.split(", ", 1)
    size = SIZES[device][kind]
    if way == "plan":
        return planned(kind, size, device)
    return trainer(kind, size, device) if way.startswith("Trainer") else beside_plain(kind, size, device, way == "bf16")


def page(of, rows):
    lines = origin_lines("The Python package", of)
    lines += ["Hugging Face's models of random weights: last loss and peak of AdamW's steps without compact and under its policies;",
              "Trainer; and planned peaks with how far the measured ones are from them (on a CPU with what is outside a step)."]  # fmt: skip
    lines += ["", "| row | | |", "|---|---|---|"]
    return lines + [f"| {r['name']} | {r['status']} | {r.get('found', '')} |" for r in rows]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--device", choices=SIZES, default="cuda")
    p.add_argument("--rows", nargs="+", help="only rows whose name contains one of these")
    p.add_argument("--program", default=str(ROOT / "bin/compact"), help="of the library's build, for which rows hold")
    p.add_argument("--limit", type=float, default=60, help="seconds that a row may take")
    p.add_argument("--minutes", type=float, default=9, help="minutes for everything; then it stops")
    p.add_argument("--out", default=str(ROOT / "results"))
    p.add_argument("--one", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.one:
        print(one(a.one, a.device))
        return 0
    end_with_children()

    def make(name, limit):
        code, out, errors = run([sys.executable, __file__, "--device", a.device, "--one", name], limit)
        if code != 0:
            return {"status": failure(code, errors, limit)}
        return {"status": "ok", "found": out.strip().splitlines()[-1]}

    rows = Rows(a.out, "python", hash_of(program_at(a.program), pathlib.Path(__file__)), a.device, page)
    names = [n for n in NAMES if not a.rows or any(part in n for part in a.rows)]
    failed, left = rows.each(names, make, a.minutes, a.limit, workers=3 if a.device == "cuda" else 1)
    print(f"{len(names) - failed - left} rows of the Python package as they should be, {failed} not, {left} left for another time")
    return exit_code(failed, left)


if __name__ == "__main__":
    sys.exit(main())
