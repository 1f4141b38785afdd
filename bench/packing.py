#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prompts with completions, padded and packed, in one comparison: samples and tokens a second and peaks
beside each other, and how idle the machine was. Lengths are drawn (log-normal), texts are the novel's.

    python bench/packing.py --model llama-60m --block_size 512 --batch 8
"""
import argparse
import json
import pathlib
import random
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import measuring  # noqa: E402 - after the path


def write_samples(path, a):
    """Bytes are tokens: a sample has those of its texts and an end."""
    novel = (ROOT / "examples/data/pride-and-prejudice.txt").read_text()
    draw = random.Random(7)
    with path.open("w") as out:
        for _ in range(a.samples):
            length = min(max(8, round(draw.lognormvariate(0, 0.8) * a.typical)), a.block_size)
            begin = draw.randrange(len(novel) - length)
            text = novel[begin : begin + length].encode("ascii", "replace").decode()
            out.write(json.dumps({"prompt": text[: length // 3], "completion": text[length // 3 :]}) + "\n")


def rows_of(compared):
    runs = {r["preset"]: r for r in compared["runs"]}
    packing = {k.split("/")[1]: v for k, v in runs["packed"]["results"].items() if k.startswith("packing/")}
    tokens = packing["tokens"] / packing["samples"]
    for name, share in (("padded", packing["padding_share_unpacked"]), ("packed", packing["padding_share"])):
        values = runs[name]["values"]
        samples = values["samples_per_second"]
        yield (f"| {name} | {100 * share:.1f} % | {values['step_seconds']:.3f} | {samples:.2f} | {samples * tokens:,.0f} | "
               f"{values['memory/peak_bytes'] / 2**20:,.0f} | {values['loss']:.3f} |")  # fmt: skip


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--program", default=str(ROOT / "build/compact"))
    p.add_argument("--model", default="llama-60m")
    p.add_argument("--preset", default="exact")
    p.add_argument("--block_size", type=int, default=512)
    p.add_argument("--batch", type=int, default=8, help="rows")
    p.add_argument("--samples", type=int, default=4000)
    p.add_argument("--typical", type=int, default=100, help="tokens of a sample, the median")
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--device", default="cpu")
    p.add_argument("--out", help="a page to write")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder) / "samples.jsonl"
        write_samples(data, a)
        command = [measuring.program_at(a.program), "compare", "--task", "prompt-completion", "--model", a.model,
                   "--train_file", data, "--validation_split", "0", "--tokenizer", "bytes",
                   "--presets", f"padded={a.preset},packed={a.preset} --packing true",
                   "--block_size", a.block_size, "--per_device_train_batch_size", a.batch, "--max_steps", a.steps,
                   "--logging_steps", "1", "--timing_rounds", a.rounds, "--device", a.device,
                   "--output_dir", f"{folder}/runs"]  # fmt: skip
        code, _, errors = measuring.run(command, None)
        if code != 0:
            sys.exit(errors)
        compared = json.loads(pathlib.Path(folder, "runs/compare.json").read_text())
    busy = compared["rounds"]
    lines = [*measuring.origin_lines(f"Padded and packed, {a.model}", measuring.origin(a.device)), "",
             f"{a.batch} rows of up to {a.block_size} tokens, samples of {a.typical} tokens (median), preset `{a.preset}`; "
             f"step times are medians of {busy['count']} rounds in turn, other work took {busy['cores_of_other_work']:.2f} of "
             f"{busy['cores']:.0f} cores. Tokens are those of samples, peaks exact bytes of tensors.", "",
             "| rows | padding | s a step | samples/s | tokens/s | peak, MiB | loss |", "|---|---|---|---|---|---|---|",
             *rows_of(compared)]  # fmt: skip
    measuring.page(lines, a.out and pathlib.Path(a.out))


if __name__ == "__main__":
    main()
