#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether every assignment of keep and recompute trains the same weights, bit for bit, under
--deterministic. In runs of a decoder every block gets an assignment of its own, until each of the
2^slots was in some block; beside them run the presets that are lossless, the same run twice, and
small networks of other kinds. What is compared are the bytes of model.safetensors and all losses.
Writes a page and JSON; what is there of the same program is not run again. Exit code 1 where
something differs or fails, 75 where time ran out.

    python scripts/gpu_bits.py --program gpu-pack/bin/compact --device cuda --folder gpu-pack/work
"""
import argparse
import json
import pathlib
import sys
import tempfile

from gpu_data import ROOT, make_data, tasks
sys.path.insert(0, str(ROOT / "bench"))
from measuring import Rows, end_with_children, exit_code, failure, hash_of, origin_lines, program_at, run  # noqa: E402

BLOCKS = 32
DECODER = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 128,
    "intermediate_size": 352, "num_hidden_layers": BLOCKS, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 512, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "initializer_range": 0.02, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
REFERENCE = "off"
AGAIN = "off, again"
# Networks of other kinds: their task's name among those of gpu_tasks.py, and lossless presets for them.
OTHERS = {"text-classification": ["exact", "recompute"], "image-classification": ["exact"]}


def decoder_flags(a):
    """Flags of a run of the decoder, whose config.json goes into the folder."""
    model = a.folder / "bits-model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps(DECODER))
    text = ROOT / "examples/data/pride-and-prejudice.txt"
    return ["--model_name_or_path", model, "--tokenizer", "bytes", "--block_size", "64", "--train_file", text,
            "--dtype", a.dtype, "--validation_split", "0"]  # fmt: skip


def rebuilt_slots(a):
    """The slots of one block that can be rebuilt, as `layers.N.` leaves of their names."""
    plan = a.folder / "bits-plan.json"
    flags = [*decoder_flags(a)[:6], "--dtype", a.dtype, "--device", a.device]
    code, _, errors = run([a.program, "plan", *flags, "--preset", "recompute", "--json", plan], a.limit)
    if code != 0:
        sys.exit(f"compact plan: {failure(code, errors, a.limit)}")
    found = [s["name"] for s in json.loads(plan.read_text())["slots"] if s["treatment"] == "recompute"]
    # The first block's input is always kept.
    return [name.removeprefix("layers.1.") for name in found if name.startswith("layers.1.")]


def assignment(slots, number):
    """Policy lines that rebuild, in block b, the slots whose bits are set in `number` + b, and keep the
    others."""
    lines = ["slot role:logits = chunk"]
    for block in range(BLOCKS):
        bits = (number + block) % 2 ** len(slots)
        for at, slot in enumerate(slots):
            lines.append(f"slot layers.{block}.{slot} = {'recompute' if bits >> at & 1 else 'keep'}")
    return "\n".join(lines) + "\n"


def runs(a, slots):
    """Row name -> (row that it must equal, flags of the network, flags of the policy)."""
    decoder = decoder_flags(a)
    found = {REFERENCE: (REFERENCE, decoder, ["--preset", "off"]), AGAIN: (REFERENCE, decoder, ["--preset", "off"])}
    for preset in ("exact", "recompute"):
        found[preset] = (REFERENCE, decoder, ["--preset", preset])
    for number in range(0, 2 ** len(slots), BLOCKS):
        policy = a.folder / f"bits-{number}.policy"
        policy.write_text(assignment(slots, number))
        name = f"assignments {number} to {number + BLOCKS - 1} of {2 ** len(slots)}"
        found[name] = (REFERENCE, decoder, ["--preset", "off", "--policy", policy])
    if not (a.folder / "data/prompts.jsonl").exists():  # the last that is written
        make_data(a.folder / "data")
    flags_of = tasks(a.folder / "data")
    for task, presets in OTHERS.items():
        flags = ["--task", task, *flags_of[task]]
        for preset in ("off", *presets):
            found[f"{task}, {preset}"] = (f"{task}, off", flags, ["--preset", preset])
    return found


def train(a, flags, policy, limit):
    """The hash of a run's weights and its losses."""
    with tempfile.TemporaryDirectory(prefix="compact-bits-") as name:
        out = pathlib.Path(name) / "run"
        command = [a.program, "train", *flags, *policy, "--deterministic", "--device", a.device, "--seed", "1", "--max_steps", a.steps,
                   "--logging_steps", "1", "--per_device_train_batch_size", "8", "--threads", "2",
                   "--cache_dir", a.folder / "cache", "--output_dir", out]  # fmt: skip
        code, _, errors = run(command, limit)
        if code != 0:
            return {"status": failure(code, errors.replace(name, "TMP"), limit)}
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        losses = [row["loss"] for row in rows if "loss" in row]
        return {"status": "ok", "weights": hash_of(out / "model.safetensors")[:16], "losses": losses}


def same(row, other):
    return row is not None and other is not None and all(row.get(k) == other.get(k) for k in ("weights", "losses"))


def page(of, rows):
    by_name = {r["name"]: r for r in rows}
    lines = origin_lines("Bits of trained weights under --deterministic", of)
    lines += [f"A decoder of {BLOCKS} blocks, each with another assignment of keep and recompute to its slots, and networks of",
              "other kinds. `weights`: the beginning of the SHA-256 of model.safetensors; equal: weights and all losses, to those",
              "of the run named."]  # fmt: skip
    lines += ["", "| run | weights | last loss | equal to | |", "|---|---|---|---|---|"]
    for r in rows:
        if r["status"] != "ok":
            lines.append(f"| {r['name']} | {r['status']} | | | |")
            continue
        verdict = "" if r["name"] == r["as"] else "yes" if same(r, by_name.get(r["as"])) else "NO"
        other = "" if r["name"] == r["as"] else r["as"]
        lines.append(f"| {r['name']} | {r['weights']} | {r['losses'][-1]:.6f} | {other} | {verdict} |")
    return lines


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--program", default=str(ROOT / "bin/compact"))
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="of the decoder")
    p.add_argument("--folder", type=pathlib.Path, default=ROOT / "work", help="data and policies")
    p.add_argument("--rows", nargs="+", help="only rows whose name contains one of these, and what they must equal")
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--limit", type=float, default=100, help="seconds that a run may take")
    p.add_argument("--minutes", type=float, default=9, help="minutes for everything; then it stops")
    p.add_argument("--out", default=str(ROOT / "bench/results"))
    a = p.parse_args()
    a.folder, a.program = a.folder.resolve(), program_at(a.program)
    end_with_children()
    wanted = runs(a, rebuilt_slots(a))
    if a.rows:
        chosen = {n for n in wanted if any(part in n for part in a.rows)}
        wanted = {n: w for n, w in wanted.items() if n in chosen | {wanted[c][0] for c in chosen}}

    def make(name, limit):
        other, flags, policy = wanted[name]
        return {**train(a, flags, policy, limit), "as": other}

    rows = Rows(a.out, "deterministic", hash_of(a.program, pathlib.Path(__file__), a.steps, a.dtype), a.device, page)
    failed, left = rows.each(wanted, make, a.minutes, a.limit)
    done = [r for r in rows.rows.values() if r["status"] == "ok"]
    different = [r["name"] for r in done if not same(r, rows.rows.get(r["as"]))]
    for name in different:
        print(f"not the bits of {rows.rows[name]['as']}: {name}")
    print(f"{len(done)} runs, {len(different)} of them with other bits, {failed} failed, {left} left for another time")
    return exit_code(failed + len(different), left)


if __name__ == "__main__":
    sys.exit(main())
