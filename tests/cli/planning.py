# SPDX-License-Identifier: Apache-2.0
"""`compact plan`, and training under a budget."""
import json
import os
import re
import time
import unittest
from unittest import mock

from _planning import BATCH, MODEL, Plans
from _program import run, tiny


class Planning(Plans):
    def test_plan_adds_up(self):
        result, text = self.plan("--preset=exact")
        for key in ["weights_bytes", "gradients_bytes", "optimizer_bytes", "saved_bytes",
                    "workspace_bytes", "peak_bytes", "peak_at", "slots"]:
            self.assertIn(key, result)
        self.assertEqual(sum(result["at_peak"].values()), result["peak_bytes"])
        self.assertEqual(sum(s["stored_bytes"] for s in result["slots"]), result["saved_bytes"])
        self.assertEqual(max(result["moments"].values()), result["peak_bytes"])
        self.assertIn(f"{result['peak_bytes']:,}", text)
        off, _ = self.plan("--preset=off")
        self.assertGreater(off["peak_bytes"], result["peak_bytes"])

    def test_a_plan_of_images_needs_none(self):
        for model in ("resnet20", "vit-mini"):
            done = run("plan", "--task=image-classification", f"--model={model}", "--preset=exact", "--image_size=32")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("at the peak", done.stdout)

    def test_a_line_says_that_a_plan_runs(self):
        with mock.patch.dict(os.environ, {"COMPACT_PLANNING_LINE_AFTER": "0"}):
            message, _ = self.plan("--preset=auto", "--budget=1MiB", code=4)
            done, _ = self.train("run", "--preset=exact")
            out = self.folder / "compared"
            compared = run("compare", *tiny(self.folder, f"--output_dir={out}"), "--presets=off", "--timing_rounds=0")
        self.assertTrue(message.startswith("compact: planning llama-tiny: looks for the policy to take\n"), message)
        self.assertEqual(done.stderr, "compact: planning llama-tiny\n")
        self.assertEqual(compared.stderr, "compact: planning llama-tiny\n")
        with mock.patch.dict(os.environ, {"COMPACT_PLANNING_LINE_AFTER": "1000000"}):
            self.assertEqual(self.train("run", "--overwrite_output_dir", "--preset=exact")[0].stderr, "")

    def test_a_run_takes_what_was_planned(self):
        for flags in (["--preset=exact"], ["--preset=compact", "--gradient_accumulation_steps=2"],
                      ["--preset=recompute", "--dtype=bfloat16"]):
            done, out = self.train("run", "--overwrite_output_dir", *flags)
            self.assertEqual(done.returncode, 0, done.stderr)
            table = (out / "memory.txt").read_text()
            row = re.search(r"^  peak +([\d,]+) +([\d,]+) +([+-]\d+)$", table, re.M)
            planned, measured = (int(row[i].replace(",", "")) for i in (1, 2))
            self.assertLessEqual(abs(measured - planned), planned / 100, table)
            results = json.loads((out / "all_results.json").read_text())
            self.assertEqual(results["memory/planned_peak_bytes"], planned)

    def test_auto_meets_its_budget_and_resumes(self):
        peaks = {p: self.plan(f"--preset={p}")[0]["peak_bytes"]
                 for p in ("off", "recompute")}
        budget = (peaks["off"] + peaks["recompute"]) // 2
        flags = ["--preset=auto", f"--budget={budget}B", "--save_steps=2"]
        done, out = self.train("auto", *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        results = json.loads((out / "all_results.json").read_text())
        self.assertLessEqual(results["memory/peak_bytes"], budget)
        policy = (out / "policy.txt").read_text()
        self.assertEqual((out / "checkpoint-2/policy.txt").read_text(), policy)
        done, _ = self.train("auto", *flags, f"--resume_from_checkpoint={out / 'checkpoint-2'}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("resumed from", done.stdout)
        again = json.loads((out / "all_results.json").read_text())
        self.assertEqual(again["eval_loss"], results["eval_loss"])

    def test_auto_mixes_codecs(self):
        flags = ["--preset=auto", "--allow=quantize"]
        message, _ = self.plan(*flags, "--budget=1MiB", code=4)
        least = re.search(r"least peak of what is allowed is [^(]*\(([\d,]+) B\)", message)[1]
        budget = int(least.replace(",", "")) * 101 // 100
        done, out = self.train("mixed", *flags, f"--budget={budget}B")
        self.assertEqual(done.returncode, 0, done.stderr)
        results = json.loads((out / "all_results.json").read_text())
        self.assertLessEqual(results["memory/peak_bytes"], budget)
        policy = (out / "policy.txt").read_text()
        self.assertRegex(policy, r"slot layers\.\S+ = quantize:bits=[248]\n")
        self.assertIn("moment * = f8", policy)
        self.assertLess(results["eval_loss"], 6)  # ln 257 is 5.5

    def test_a_run_resumes_under_its_own_peak(self):
        peak = self.plan("--preset=exact")[0]["peak_bytes"]
        flags = ["--preset=exact", f"--budget={peak}B", "--save_steps=2",
                 "--per_device_eval_batch_size=64", "--max_eval_samples=64"]
        done, out = self.train("tight", *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        done, _ = self.train("tight", *flags, f"--resume_from_checkpoint={out / 'checkpoint-2'}")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_converted_products_are_measured_before_memory_is_limited(self):
        with mock.patch.dict(os.environ, COMPACT_BF16_PRODUCTS="converted"):
            flags = ["--preset=exact", "--dtype=bfloat16"]
            peak = self.plan(*flags)[0]["peak_bytes"]
            done, _ = self.train("converted", *flags, f"--budget={peak}B")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"\(products: \w+, bf16 in tiles of f32, .*: \d+ GFLOP/s")

    def test_release_needs_all_gradients_elsewhere(self):
        flags = ["--preset=exact", "--set=grad * = full:release=true"]
        done, out = self.train("clipped", *flags)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--max_grad_norm 0", done.stderr)
        self.assertFalse(out.exists())
        done, _ = self.train("released", *flags, "--max_grad_norm=0")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_without_data_the_vocabulary_is_the_model_s(self):
        flags = ["--device=cpu", "--block_size=64", BATCH + "2"]
        own = run("plan", "--model=llama-60m", *flags, cwd=self.folder)
        self.assertEqual(own.returncode, 0, own.stderr)
        self.assertIn("vocabulary 32,000 (the model's own)", own.stdout)
        text = self.folder / "a.txt"
        text.write_text("words\n" * 200)
        for more in (["--tokenizer=bytes"], [f"--train_file={text}"]):
            read = run("plan", "--model=llama-60m", *flags, *more, cwd=self.folder)
            self.assertEqual(read.returncode, 0, read.stderr)
            self.assertRegex(read.stdout, "vocabulary 257,")

    def test_what_takes_no_effect(self):
        _, text = self.plan("--allow=quantize", "--augment=false")
        self.assertIn("warning: --allow takes no effect: it is for --preset auto\n", text)
        self.assertIn("warning: --augment takes no effect: it is for image-classification\n", text)

    def test_short_names_of_types(self):
        for short in ("bf16", "bfloat16"):
            done = run("plan", *MODEL, f"--dtype={short}", "--print_config", cwd=self.folder)
            self.assertIn('dtype = "bfloat16"', done.stdout)
            self.assertNotIn("bf16\"", done.stdout)
        short, text = self.plan("--preset=exact", "--dtype=bf16")
        self.assertEqual(short, self.plan("--preset=exact", "--dtype=bfloat16")[0])
        self.assertIn(", bfloat16 on cpu", text)

    def test_a_vocabulary_is_the_tokenizers_or_the_models_own(self):
        words = self.folder / "words.txt"
        words.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]))
        for task, model, tokenizer, own, read in [
            ("language-modeling", "llama-60m", "bytes", "32,000", "257"),
            ("prompt-completion", "llama-60m", "bytes", "32,000", "257"),
            ("text-classification", "bert-tiny", f"wordpiece:file={words}", "30,522", "7"),
        ]:
            with self.subTest(task=task):
                plan = ["plan", f"--task={task}", f"--model={model}", "--device=cpu"]
                self.assertIn(f", vocabulary {own} (the model's own), ", run(*plan).stdout)
                self.assertIn(f", vocabulary {read}, ",
                              run(*plan, f"--tokenizer={tokenizer}").stdout)
        done = run("plan", "--task=text-classification", "--model=bert-tiny", "--tokenizer=bytes")
        self.assertEqual(done.returncode, 2)
        self.assertIn("does not say how sentences begin and end", done.stderr)

    def test_layers_are_ranges(self):
        peaks = {p: self.plan(f"--preset={p}", "--model=llama-60m")[0]["peak_bytes"]
                 for p in ("exact", "recompute")}
        budget = (peaks["exact"] + peaks["recompute"]) // 2
        result, text = self.plan("--preset=auto", "--model=llama-60m", f"--budget={budget}B")
        self.assertRegex(result["policy"], r"layers\.\{[^}]*\.\.")
        self.assertIn(result["policy"].splitlines()[0], text)
        self.assertRegex(text, r"\n  layers\.\{[^}]*\.\.[^}]*\}\.\S+ +recompute ")
        policy = self.folder / "chosen.policy"
        policy.write_text(result["policy"])
        again, _ = self.plan("--preset=off", f"--policy={policy}", "--model=llama-60m")
        self.assertEqual(again["peak_bytes"], result["peak_bytes"])
        message, _ = self.plan("--preset=off", "--set=slot layers.{3..1}.mlp.norm = keep", code=2)
        self.assertIn("{3..1}", message)

    def test_plan_and_train_agree(self):
        for flags in ([], ["--threads=1"], ["--dtype=bfloat16"],
                      ["--set=grad * = full:release=true", "--max_grad_norm=0"]):
            plan, _ = self.plan("--preset=exact", *flags)
            _, out = self.train("agree", "--overwrite_output_dir", "--preset=exact", *flags)
            results = json.loads((out / "all_results.json").read_text())
            self.assertEqual(results["memory/planned_peak_bytes"], plan["peak_bytes"], flags)

    def test_budgets_that_cannot_be_met(self):
        message, _ = self.plan("--preset=auto", "--budget=1MiB", code=4)
        self.assertIn("cannot be met", message)
        self.assertIn("least peak", message)
        done, out = self.train("small", "--budget=1MiB")
        self.assertEqual(done.returncode, 4)
        self.assertIn("--budget", done.stderr)
        # Beside a word on planning that takes long.
        lines = [line for line in done.stderr.splitlines() if not line.startswith("compact: planning ")]
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertFalse(out.exists())

    def test_bad_input(self):
        for flags, expected in [
            (["--budget=0GiB"], "`0GiB`"),
            (["--budget=-1GiB"], "`-1GiB`"),
            (["--budget=10X"], "`10X`"),
            (["--budget=nanGiB"], "`nanGiB`"),
            (["--preset=auto"], "needs a --budget"),
            (["--preset=auto", "--budget=1GiB", "--rank=0.5"], "--rank"),
            (["--allow=everything"], "no such value `everything`"),
            (["--max_batch"], "needs a --budget"),
            (["--chart=page.html"], "--pareto"),
            (["--device=cuda", "--gpu=h20"], "no GPU `h20`"),
            (["--gpu=h200"], "--gpu h200 takes effect with --device cuda only"),
            (["--device_tflops=100"], "--device cuda only"),
            (["--device=cuda", "--device_gbps=-1"], "must be positive"),
            (["--set=grad * = full:relase=true"], "relase"),
            (["--set=slot role:qkv = tile"], "slot `role:qkv` = tile: `layers.0.attn.qkv` cannot be made for some tokens at a time"),
            (["--threads=100000"], "--threads"),
            (["--world_size=4294967298"], "--world_size must be in [1, 65536]"),
            (["--zero=2"], "--zero 2 takes effect with --world_size above 1 only"),
            (["--reduce_dtype=bfloat16"], "--world_size above 1 only"),
            (["--world_size=3", "--deterministic_reduce=true"], "a power of two, is 3"),
            ([f"{BATCH}9000000000000"], "--per_device_train_batch_size"),
            (["--pareto", f"--chart={self.folder / 'none/page.html'}"], "none"),
            (["--pareto", f"--chart={self.folder / 'page.png'}"], "a page's name ends in .html"),
        ]:
            message, _ = self.plan(*flags, code=2)
            self.assertIn(expected, message)
            self.assertEqual(len(message.splitlines()), 1, message)

    def test_a_broken_cache_is_made_anew(self):
        flags = ["--preset=auto", "--budget=1GiB"]
        self.plan(*flags)
        cache = self.folder / "cache/speed.json"
        whole = cache.read_text()
        negative = json.dumps({k: {**v, "bytes": -1.0} for k, v in json.loads(whole).items()})
        short = json.dumps({k: {**v, "block": [1.0]} for k, v in json.loads(whole).items()})
        for broken in (whole[:40], "", "[]", '{"cpu": 3}', negative, short):
            cache.write_text(broken)
            self.plan(*flags)
            self.assertIsInstance(json.loads(cache.read_text()), dict)

    def test_predicted_times_say_where_speeds_come_from(self):
        flags = ["--preset=auto", "--budget=1GiB"]
        cache = self.folder / "cache/speed.json"

        def line(**changes):
            if cache.exists():
                known = json.loads(cache.read_text())
                cache.write_text(json.dumps({k: {**v, **changes} for k, v in known.items()}))
            _, text = self.plan(*flags)
            return next(row for row in text.splitlines() if row.startswith("auto"))

        day = 24 * 3600
        self.assertRegex(line(), rf"; speed: measured on this machine, \d+ threads?, now \({cache}\)$")
        self.assertIn(f", 3 days ago ({cache})", line(measured=int(time.time()) - 3 * day - 60))
        self.assertIn(f", 40 days ago, which is long: delete {cache} to have it", line(measured=int(time.time()) - 40 * day - 60))
        self.assertIn(f", now ({cache})", line(processor="of another machine"))  # measured again
        self.assertNotIn("of another machine", cache.read_text())

    def test_largest_batch(self):
        result, text = self.plan("--max_batch", "--budget=40MiB", "--preset=exact")
        batch = result["max_batch"]
        self.assertIn(f"max batch {batch}", text)
        self.assertLessEqual(result["peak_bytes"], 40 << 20)
        more, _ = self.plan("--preset=exact", f"{BATCH}{batch + 1}")
        self.assertGreater(more["peak_bytes"], 40 << 20)

    def test_largest_batches_grow_with_the_budget(self):
        for flags in (["--preset=auto"], ["--preset=auto", "--device=cuda"]):
            before = 0
            for mib in (100, 101, 140):
                result, _ = self.plan("--max_batch", f"--budget={mib}MiB", *flags)
                self.assertGreaterEqual(result["max_batch"], before)
                before = result["max_batch"]
                peak = result.get("reserved_bytes", result["peak_bytes"])
                self.assertLessEqual(peak, mib << 20)

    def test_curve_of_auto_needs_no_budget(self):
        result, text = self.plan("--preset=auto", "--pareto")
        self.assertTrue(result["lossless"])
        self.assertEqual(result["added_flops"], 0)
        self.assertIn("predicted step time against peak", text)
        self.assertGreater(len(result["pareto"]["lossless"]), 3)

    def test_curve(self):
        page = self.folder / "curve.html"
        result, _ = self.plan("--pareto", f"--chart={page}")
        curve = result["pareto"]
        self.assertEqual({p["name"] for p in curve["presets"]},
                         {"off", "exact", "recompute", "compact-paper"})
        for name in ("lossless", "lossy"):
            if name == "lossless":  # projected gradients also make the optimizer faster
                seconds = [p["step_seconds"] for p in curve[name]]
                self.assertEqual(seconds, sorted(seconds, reverse=True))
            peaks = [p["peak_bytes"] for p in curve[name]]
            self.assertEqual(peaks, sorted(peaks))
        self.assertIn("<svg", page.read_text())
        for p in curve["lossy"]:  # each gives something that no lossless one does
            self.assertFalse([q for q in curve["lossless"] if q["peak_bytes"] <= p["peak_bytes"] and q["step_seconds"] <= p["step_seconds"]])
        for p in (curve["presets"][1], curve["lossless"][0], curve["lossless"][-1], curve["lossy"][0]):
            again, _ = self.plan(*p["flags"].split())
            self.assertEqual(again["peak_bytes"], p["peak_bytes"], p["flags"])


if __name__ == "__main__":
    unittest.main()
