# SPDX-License-Identifier: Apache-2.0
"""Several processes train the model of one, with the same bits where both add two numbers, or as a tree."""
import json
import unittest

from _program import run
from _rank_runs import RankRuns, losses, weights
from _ranks import Ranks


class SeveralRanks(RankRuns):
    usual = {
        "f32": ["--eval_steps=3", "--weight_decay=0.1"],
        "bf16": ["--dtype=bfloat16"],
        "masters": ["--dtype=bfloat16", "--master_weights=true", "--max_grad_norm=0.1"],
        "projected": ["--preset=compact", "--update_proj_gap=3"],
        "muon, 8-bit moments": ["--preset=compact", "--update_proj_gap=3", "--optim=muon",
                                "--optim_state_dtype=float8"],
    }  # fmt: skip

    def test_language_models(self):
        cases = self.usual | {
            "quantized": ["--preset=gact-l1"],
            "bits": ["--preset=gact-l2", "--bits_interval=4"],
            "chosen": ["--preset=auto", "--budget=15MiB"],
            "all state": ["--zero=0", "--preset=compact", "--update_proj_gap=3"],
            "sums of owners": ["--zero=2", "--dtype=bfloat16"],
            "weights of owners": ["--zero=3", "--eval_steps=3", "--save_steps=4"],
            "weights of owners, projected": ["--zero=3", "--preset=compact", "--update_proj_gap=3",
                                             "--dtype=bfloat16", "--optim=muon"],
            "frozen": ["--preset=exact", "--set=grad {embedding,layers.0.*} = frozen"],
            "weights of owners, frozen": ["--zero=3", "--preset=compact", "--update_proj_gap=3", "--optim=muon",
                                          "--set=grad layers.*.{mlp.down,attn.out} = frozen"],
            "weights of owners, bits": ["--zero=3", "--preset=gact-l2", "--bits_interval=4",
                                        "--master_weights=true", "--dtype=bfloat16"],
        }  # fmt: skip
        for name, more in cases.items():
            with self.subTest(name):
                self.same(self.text("--overwrite_output_dir=true", *more))

    def test_adapters(self):
        base = self.finished(self.text(steps=1), 1, "base")
        flags = [f for f in self.text("--overwrite_output_dir=true") if not f.startswith("--model=")]
        flags += [f"--model_name_or_path={base}", "--use_peft=true", "--learning_rate=1e-2"]
        for more in (["--zero=1"], ["--zero=2", "--dtype=bfloat16"], ["--zero=3", "--optim=muon", "--save_steps=4"]):
            with self.subTest(more):
                self.same([*flags, *more], file="adapter_model.safetensors")

    def test_packed_samples(self):
        data = self.folder / "prompts.jsonl"
        rows = ({"prompt": f"twice {37 * i} is ", "completion": str(74 * i)} for i in range(60))
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        flags = [f for f in self.text("--overwrite_output_dir=true") if not f.startswith(("--train_file=", "--block_size="))]
        flags += ["--task=prompt-completion", f"--train_file={data}", "--packing=true", "--block_size=80"]
        for more in ([], ["--preset=gact-l2", "--bits_interval=4"]):
            with self.subTest(more):
                self.same([*flags, *more], alike=False)

    def test_tied_head(self):
        folder = self.folder / "tied"
        folder.mkdir()
        config = dict(model_type="gpt2", n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=257)
        (folder / "config.json").write_text(json.dumps(config))
        flags = [f for f in self.text("--overwrite_output_dir=true") if not f.startswith("--model=")]
        for zero in range(4):
            with self.subTest(zero=zero):
                self.same([*flags, f"--model_name_or_path={folder}", f"--zero={zero}"])

    def test_sums_of_passes(self):
        self.parts = 4
        flags = self.text("--optim=sgd", "--momentum=0", "--learning_rate=0.05", steps=3)
        rows = [losses(self.finished([*flags, f"--zero={zero}"], 2, f"zero{zero}")) for zero in range(4)]
        for other in rows[1:]:
            for (_, a, b, _), (_, c, d, _) in zip(rows[0], other, strict=True):
                if a is not None:
                    self.assertAlmostEqual(a, c, delta=1e-4)
                    self.assertAlmostEqual(b, d, delta=1e-3)

    def test_plan_is_of_the_heaviest(self):
        flags = ["--model=llama-tiny", "--tokenizer=bytes", "--block_size=32", "--optim=muon", "--zero=2",
                 "--gradient_accumulation_steps=2", "--per_device_train_batch_size=2", "--threads=1"]  # fmt: skip
        done = run("plan", *flags, "--world_size=3", f"--json={self.folder / 'plan.json'}")
        self.assertEqual(done.returncode, 0, done.stderr)
        plan = json.loads((self.folder / "plan.json").read_text())
        self.parts = 6
        more = ["--optim=muon", "--zero=2"]
        results = self.as_planned(self.finished(self.text(*more), 3, "three"), 3)
        self.assertEqual(results["sent_bytes_per_step"], plan["ranks"]["sent_bytes_per_step"])
        self.assertLess(abs(plan["peak_bytes"] - max(results["memory/rank_peak_bytes"])), 2000)

    def test_auto_fits_every_rank(self):
        flags = ["--per_device_train_batch_size=33", "--block_size=64", "--zero=3", "--optim=muon", "--preset=auto"]
        usual = [f for f in self.text() if not f.startswith(("--per_device_train", "--block_size"))]
        self.parts = 4
        results = self.as_planned(self.finished([*usual, *flags, "--budget=26400000B"], 2, "tight"), 2)
        self.assertLessEqual(max(results["memory/rank_peak_bytes"]), 26400000)
        more = ["--budget=26000000B", "--gradient_accumulation_steps=2", f"--output_dir={self.out}"]
        done = Ranks([*usual, *flags, *more]).finish()
        self.assertEqual([d[0] for d in done], [4, 4])
        self.assertIn("--budget 26000000B: what fits one of the 2 ranks does not fit another", done[0][2])
        done = run("plan", "--model=llama-tiny", "--tokenizer=bytes", *flags[1:], "--gradient_accumulation_steps=2",
                   "--world_size=3", "--max_batch", "--budget=24MiB")  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_accumulation(self):
        self.parts = 4  # two ranks add pairs, and so does one in f32 sums of the pairs' order
        flags = self.text("--learning_rate=1e-3")
        four, two = (self.finished(flags, size, f"on{size}") for size in (4, 2))
        for (step, a, _, _), (same, b, _, _) in zip(losses(four), losses(two), strict=True):
            self.assertEqual(step, same)
            if a is not None:
                self.assertAlmostEqual(a, b, delta=1e-4)

    def test_deterministic_sums(self):
        cases = self.usual | {
            "all state": ["--zero=0", "--weight_decay=0.1"],
            "muon in bf16": [*self.usual["muon, 8-bit moments"], "--dtype=bfloat16"],
        }
        self.parts = 4
        for name, more in cases.items():
            with self.subTest(name):
                flags = self.text("--overwrite_output_dir=true", "--deterministic_reduce=true", *more)
                all_runs = [self.finished(flags, size, f"on{size}") for size in (1, 2, 4)]
                for folder in all_runs[1:]:
                    self.assertEqual(*(weights(f / "model.safetensors") for f in (all_runs[0], folder)))
                    self.as_planned(folder, 2 if folder is all_runs[1] else 4)
                    norms = [[(r[0], r[2]) for r in losses(f)] for f in (all_runs[0], folder)]
                    self.assertEqual(*norms)
        for flags in (self.sequences(), self.images()):  # statistics of batch norms are left out
            flags += ["--overwrite_output_dir=true", "--deterministic_reduce=true"]
            four = [weights(self.finished(flags, size, f"on{size}") / "model.safetensors") for size in (1, 2, 4)]
            self.assertEqual(four[0], four[1])
            self.assertEqual(four[0], four[2])
        runs = [self.finished(self.text(*flag), 1, f"order{len(flag)}") for flag in ((), ("--deterministic_reduce=true",))]
        self.assertNotEqual(*(weights(f / "model.safetensors") for f in runs))  # the check finds other orders
        for more, words in (
            (["--gradient_accumulation_steps=3"], "a power of two, is 3"),
            (["--zero=2"], "needs --zero 0 or 1"),
            (["--reduce_dtype=bfloat16"], "needs --reduce_dtype float32"),
        ):
            done = run("train", *self.text("--deterministic_reduce=true", f"--output_dir={self.out}", *more))
            self.assertEqual(done.returncode, 2)
            self.assertIn(words, done.stderr)

    def test_sequences(self):
        self.same(self.sequences())
        self.same(self.sequences("--zero=3", "--overwrite_output_dir=true"))

    def test_images(self):
        self.same(self.images(), evaluated=False)  # by statistics of rank 0's images alone
        self.same(self.images("--zero=3", "--overwrite_output_dir=true"), evaluated=False)

    def test_graphs(self):
        self.same(self.graphs(), alike=False)
        for more in ("--preset=gact-l1", "--zero=3"):
            self.same(self.graphs(more, "--overwrite_output_dir=true"), alike=False)

    def test_data_do_not_depend_on_ranks(self):
        flags = self.text("--learning_rate=1e-12")
        self.parts = 4
        all_losses = [losses(self.finished(flags, size, f"on{size}")) for size in (1, 2, 4)]
        for other in all_losses[1:]:
            for (_, a, *_), (_, b, *_) in zip(all_losses[0], other, strict=True):
                if a is not None:
                    self.assertAlmostEqual(a, b, delta=2e-6)

    def test_doctor(self):
        done = Ranks([], command="doctor").finish()
        self.assertEqual([d[0] for d in done], [0, 0], done)
        self.assertIn("all kernels are right", done[0][1])
        self.assertRegex(done[0][1], r"ranks +2 by gloo: sum of 16.0 MiB in [0-9.]+ ms, [0-9.]+ GB/s each way\n")
        self.assertEqual(done[1][1:], ("", ""))

    def test_best_model(self):
        flags = self.sequences("--eval_steps=2", "--load_best_model_at_end=true", "--validation_split=0.3",
                               "--learning_rate=3e-3", "--max_steps=8", "--per_device_eval_batch_size=3",
                               "--zero=3")  # fmt: skip
        flags = [f for f in flags if f != "--max_steps=6"]
        self.same(flags)
        results = [json.loads((self.folder / f"on{size}/all_results.json").read_text()) for size in (1, 2)]
        for name, value in results[0].items():
            if name.startswith("eval_"):
                self.assertEqual(results[1][name], value, name)


if __name__ == "__main__":
    unittest.main()
