#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a Hugging Face encoder on a GLUE task, whole or by LoRA (peft), and prints one line of
JSON: scores on the dev set, bytes at the highest step's peak (weights, gradients and optimizer state
included) and the median step time. AdamW, linear schedule, dynamic padding to multiples of 8, as
`compact train --task glue` does it. Memory is counted as in hf_llama.py.

    python hf_sequence.py --task_name cola --data_dir glue/CoLA --model DIR \\
        --allocator build/bench/rivals/libcounting_allocator.so
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

from hf_llama import UNAVAILABLE, CpuMemory, CudaMemory, choose_products


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--task_name", choices=["cola", "sst2"], required=True)
    p.add_argument("--data_dir", type=pathlib.Path, required=True, help="the folder of its files")
    p.add_argument("--model", required=True, help="folder of a Hugging Face encoder")
    p.add_argument("--lora", type=int, default=0, help="rank; 0: all weights are trained")
    p.add_argument("--max_train_samples", type=int, default=0, help="the first so many; 0: all")
    p.add_argument("--max_seq_length", type=int, default=128)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--epochs", type=float, default=3)
    p.add_argument("--learning_rate", type=float, default=5e-5)
    p.add_argument("--warmup", type=float, default=0.1, help="part of all steps")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--threads", type=int, default=2, help="CPU threads")
    p.add_argument("--matmul", choices=["default", "onednn"], default="default", help="as in hf_llama.py")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--allocator", help="libcounting_allocator.so; without it bytes are null on a CPU")
    return p.parse_args()


def rows_of(task, path):
    lines = path.read_text(encoding="utf-8").splitlines()
    if task == "cola":
        fields = [line.split("\t") for line in lines]
        return [f[3] for f in fields], [int(f[1]) for f in fields]
    fields = [line.rsplit("\t", 1) for line in lines[1:]]
    return [f[0] for f in fields], [int(f[1]) for f in fields]


def score_of(task, predicted, labels):
    if task == "sst2":
        return "accuracy", sum(p == y for p, y in zip(predicted, labels)) / len(labels)
    count = {(a, b): 0 for a in (0, 1) for b in (0, 1)}
    for pair in zip(predicted, labels):
        count[pair] += 1
    tp, tn, fp, fn = count[1, 1], count[0, 0], count[1, 0], count[0, 1]
    root = ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)) ** 0.5
    return "matthews_correlation", (tp * tn - fp * fn) / root if root else 0.0


def main():
    a = arguments()
    try:
        import torch
        import transformers

        if a.lora:
            import peft
    except ImportError as e:
        print(f"not run: {e}", file=sys.stderr)
        return UNAVAILABLE
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    choose_products(torch, a.matmul)
    memory = CudaMemory(torch) if a.device == "cuda" else CpuMemory(a.allocator)
    tokenizer = transformers.AutoTokenizer.from_pretrained(a.model)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(a.model, num_labels=2)
    if a.lora:
        model = peft.get_peft_model(
            model,
            peft.LoraConfig(
                task_type="SEQ_CLS", r=a.lora, lora_alpha=2 * a.lora, lora_dropout=0.1,
                target_modules=["query", "key", "value", "intermediate.dense", "output.dense"],
            ),
        )  # fmt: skip
    model.to(a.device).train()

    def encoded(split):
        texts, labels = rows_of(a.task_name, a.data_dir / f"{split}.tsv")
        if split == "train" and a.max_train_samples:
            texts, labels = texts[: a.max_train_samples], labels[: a.max_train_samples]
        ids = tokenizer(texts, truncation=True, max_length=a.max_seq_length)["input_ids"]
        return ids, labels

    def batch_of(ids, labels, chosen):
        longest = max(len(ids[i]) for i in chosen)
        length = min(a.max_seq_length, (longest + 7) // 8 * 8)
        x = torch.full((len(chosen), length), tokenizer.pad_token_id)
        mask = torch.zeros_like(x)
        for row, i in enumerate(chosen):
            x[row, : len(ids[i])] = torch.tensor(ids[i])
            mask[row, : len(ids[i])] = 1
        y = torch.tensor([labels[i] for i in chosen])
        return x.to(a.device), mask.to(a.device), y.to(a.device)

    ids, labels = encoded("train")
    steps = max(1, round(a.epochs * len(ids) / a.batch))
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=a.learning_rate, weight_decay=0.0, fused=True)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(a.warmup * steps), steps)
    order, seconds, peak = [], [], 0
    for _ in range(steps):
        while len(order) < a.batch:
            order += torch.randperm(len(ids)).tolist()
        x, mask, y = batch_of(ids, labels, order[: a.batch])
        order = order[a.batch :]
        memory.wait()
        memory.reset()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        model(x, attention_mask=mask, labels=y).loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        memory.wait()
        seconds.append(time.perf_counter() - start)
        peak = max(peak, memory.peak() or 0)
    model.eval()
    ids, labels = encoded("dev")
    predicted = []
    with torch.no_grad():
        for first in range(0, len(ids), 64):
            x, mask, _ = batch_of(ids, labels, range(first, min(first + 64, len(ids))))
            predicted += model(x, attention_mask=mask).logits.argmax(1).tolist()
    name, score = score_of(a.task_name, predicted, labels)
    print(json.dumps({
        f"eval_{name}": score,
        "memory/peak_bytes": peak or None,
        "step_seconds": statistics.median(seconds[1:] or seconds),
        "steps": steps,
        "trained": sum(p.numel() for p in parameters),
    }))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
