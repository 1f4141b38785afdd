# SPDX-License-Identifier: Apache-2.0
"""Several processes train the model of one: the same bits where both add two numbers, whatever saves
and resumes; and what ends one of them ends all, with one message and one exit code."""
import hashlib
import json
import os
import random
import shutil
import signal
import struct
import time
import unittest

import _ranks
from _program import InFolder, run, tiny
from _ranks import Ranks

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def weights(path):
    """A digest of every tensor but a batch norm's statistics, which every rank has of its own images."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    return {
        name: hashlib.sha256(data[8 + size + entry["data_offsets"][0] : 8 + size + entry["data_offsets"][1]]).hexdigest()
        for name, entry in header.items()
        if name != "__metadata__" and not name.endswith(STATISTICS)
    }


def losses(folder):
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(r["step"], r.get("loss"), r.get("grad_norm"), r.get("eval_loss")) for r in rows]


class SeveralRanks(InFolder):
    def text(self, *more, steps=8):
        usual = [f for f in tiny(self.folder) if not f.startswith("--max_steps=")]
        return [*usual, f"--max_steps={steps}", *more]

    def sequences(self, *more):
        data = self.folder / "reviews.tsv"
        words = ["good", "fine", "bad", "poor", "and", "so", "it", "was"]
        draw = random.Random(3)
        rows = [(" ".join(draw.choices(words, k=12)), draw.choice("ab")) for _ in range(64)]
        data.write_text("text\tlabel\n" + "".join(f"{t}\t{label}\n" for t, label in rows))
        vocabulary = self.folder / "vocab.txt"
        vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
        return ["--task=text-classification", "--model=bert-tiny", f"--train_file={data}",
                f"--tokenizer=wordpiece:file={vocabulary}", "--text_column=text", "--max_seq_length=16",
                "--per_device_train_batch_size=4", "--max_steps=6", "--logging_steps=1", "--device=cpu",
                f"--cache_dir={self.folder / 'cache'}", *more]  # fmt: skip

    def images(self, *more):
        data = self.folder / "train.bin"
        draw = random.Random(5)
        data.write_bytes(b"".join(bytes([i % 10]) + draw.randbytes(3072) for i in range(48)))
        return ["--task=image-classification", "--model=resnet20", "--width_mult=0.25", f"--train_file={data}",
                "--per_device_train_batch_size=4", "--max_steps=5", "--logging_steps=1", "--device=cpu",
                "--optim=sgd", "--learning_rate=0.05", f"--cache_dir={self.folder / 'cache'}", *more]  # fmt: skip

    def graphs(self, *more):
        data = self.folder / "graphs.txt"
        draw = random.Random(9)
        lines = ["24"]
        for graph in range(24):
            nodes = 5 + graph % 4
            lines.append(f"{nodes} {graph % 2}")
            for node in range(nodes):
                near = sorted({(node + 1) % nodes, (node - 1) % nodes, draw.randrange(nodes)} - {node})
                lines.append(" ".join(map(str, [node % 3, len(near), *near])))
        data.write_text("\n".join(lines) + "\n")
        return ["--task=graph-classification", "--model=gat", f"--train_file={data}", "--validation_split=0.2",
                "--per_device_train_batch_size=2", "--max_steps=6", "--logging_steps=1", "--device=cpu",
                f"--cache_dir={self.folder / 'cache'}", *more]  # fmt: skip

    def finished(self, flags, size, output):
        """The folder of a run on so many ranks, whose micro-batches are those of four."""
        out = self.folder / output
        parts = [f"--gradient_accumulation_steps={self.parts // size}", f"--output_dir={out}"]
        done = Ranks([*flags, *parts], size).finish()
        for code, _, errors in done:
            self.assertEqual(code, 0, errors)
        for _, text, errors in done[1:]:
            self.assertEqual((text, errors), ("", ""))  # one speaks for all
        return out

    parts = 2

    def same(self, flags, evaluated=True, alike=True):
        one, two = (self.finished(flags, size, f"on{size}") for size in (1, 2))
        self.assertEqual(weights(one / "model.safetensors"), weights(two / "model.safetensors"))
        rows = [[r[: 4 if evaluated else 3] for r in losses(folder)] for folder in (one, two)]
        self.assertEqual(*rows)
        self.as_planned(two, 2, alike)

    def as_planned(self, folder, size, alike=True):
        """`alike`: samples are; else plans are of the largest."""
        results = json.loads((folder / "all_results.json").read_text())
        self.assertEqual(results["ranks"], size)
        peaks, plans = (results[f"memory/rank_{which}peak_bytes"] for which in ("", "planned_"))
        self.assertEqual(len(peaks), size)
        for peak, plan in zip(peaks, plans):
            self.assertLess(abs(peak - plan) if alike else peak - plan, 2000, results)
        return results

    def test_language_models(self):
        cases = {
            "f32": ["--eval_steps=3", "--weight_decay=0.1"],
            "bf16": ["--dtype=bfloat16"],
            "masters": ["--dtype=bfloat16", "--master_weights=true", "--max_grad_norm=0.1"],
            "projected": ["--preset=compact", "--update_proj_gap=3"],
            "muon, 8-bit moments": ["--preset=compact", "--update_proj_gap=3", "--optim=muon",
                                    "--optim_state_dtype=float8"],
            "quantized": ["--preset=gact-l1"],
            "bits": ["--preset=gact-l2", "--bits_interval=4"],
            "chosen": ["--preset=auto", "--budget=15MiB"],
            "all state": ["--zero=0", "--preset=compact", "--update_proj_gap=3"],
            "sums of owners": ["--zero=2", "--dtype=bfloat16"],
            "weights of owners": ["--zero=3", "--eval_steps=3", "--save_steps=4"],
            "weights of owners, projected": ["--zero=3", "--preset=compact", "--update_proj_gap=3",
                                             "--dtype=bfloat16", "--optim=muon"],
            "weights of owners, bits": ["--zero=3", "--preset=gact-l2", "--bits_interval=4",
                                        "--master_weights=true", "--dtype=bfloat16"],
        }  # fmt: skip
        for name, more in cases.items():
            with self.subTest(name):
                self.same(self.text("--overwrite_output_dir=true", *more))

    def test_sums_of_passes(self):
        self.parts = 4
        flags = self.text("--optim=sgd", "--momentum=0", "--learning_rate=0.05", steps=3)
        rows = [losses(self.finished([*flags, f"--zero={zero}"], 2, f"zero{zero}")) for zero in range(4)]
        for other in rows[1:]:
            for (_, a, b, _), (_, c, d, _) in zip(rows[0], other):
                if a is not None:
                    self.assertAlmostEqual(a, c, delta=1e-4)
                    self.assertAlmostEqual(b, d, delta=1e-3)

    def test_plan_is_of_the_heaviest(self):
        flags = ["--model=llama-tiny", "--tokenizer=bytes", "--block_size=32", "--optim=muon", "--zero=2",
                 "--gradient_accumulation_steps=2", "--per_device_train_batch_size=2", "--threads=1"]  # fmt: skip
        done = run("plan", *flags, "--world_size=3", f"--json={self.folder / 'plan.json'}")
        self.assertEqual(done.returncode, 0, done.stderr)
        planned = json.loads((self.folder / "plan.json").read_text())["peak_bytes"]
        self.parts = 6
        more = ["--optim=muon", "--zero=2"]
        results = self.as_planned(self.finished(self.text(*more), 3, "three"), 3)
        self.assertLess(abs(planned - max(results["memory/rank_peak_bytes"])), 2000)

    def test_accumulation(self):
        self.parts = 4  # two ranks add pairs, and so does one in f32 sums of the pairs' order
        flags = self.text("--learning_rate=1e-3")
        four, two = (self.finished(flags, size, f"on{size}") for size in (4, 2))
        for (step, a, _, _), (same, b, _, _) in zip(losses(four), losses(two)):
            self.assertEqual(step, same)
            if a is not None:
                self.assertAlmostEqual(a, b, delta=1e-4)

    def test_deterministic_sums(self):
        cases = {
            "f32": ["--zero=0", "--weight_decay=0.1"],
            "bf16": ["--dtype=bfloat16"],
            "masters": ["--dtype=bfloat16", "--master_weights=true", "--max_grad_norm=0.1"],
            "projected": ["--preset=compact", "--update_proj_gap=3"],
            "muon, 8-bit moments": ["--preset=compact", "--update_proj_gap=3", "--optim=muon",
                                    "--optim_state_dtype=float8", "--dtype=bfloat16"],
        }  # fmt: skip
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
            (["--zero=2"], "goes with --zero 0 and 1"),
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
        self.same(self.graphs("--preset=gact-l1", "--overwrite_output_dir=true"), alike=False)

    def test_data_do_not_depend_on_ranks(self):
        flags = self.text("--learning_rate=1e-12")
        self.parts = 4
        all_losses = [losses(self.finished(flags, size, f"on{size}")) for size in (1, 2, 4)]
        for other in all_losses[1:]:
            for (_, a, *_), (_, b, *_) in zip(all_losses[0], other):
                if a is not None:
                    self.assertAlmostEqual(a, b, delta=2e-6)

    def test_resume_on_other_ranks(self):
        flags = self.text("--save_steps=4", "--preset=compact", "--update_proj_gap=3")
        whole = self.finished(flags, 2, "whole")
        parts = sorted(f.name for f in (whole / "checkpoint-4").glob("optimizer*"))
        self.assertEqual(parts, [f"optimizer-0000{k}-of-00002.safetensors" for k in (1, 2)])
        for size, zero in ((1, 1), (2, 0), (2, 1), (2, 2), (2, 3)):
            with self.subTest(size=size, zero=zero):
                more = [f"--resume_from_checkpoint={whole / 'checkpoint-4'}", f"--zero={zero}"]
                out = self.finished([*flags, *more], size, f"resumed{size}{zero}")
                self.assertEqual(weights(out / "model.safetensors"), weights(whole / "model.safetensors"))
        wrong = Ranks([*flags, f"--resume_from_checkpoint={whole / 'checkpoint-4'}",
                       f"--output_dir={self.folder / 'wrong'}"], 1).finish()  # fmt: skip
        self.assertEqual(wrong[0][0], 2)
        self.assertIn("a step has 2 samples of 1 ranks, but had 4 of 2", wrong[0][2])

    def test_resume_on_four(self):
        self.parts = 4
        flags = self.text("--save_steps=4", "--preset=compact", "--update_proj_gap=3")
        two = self.finished(flags, 2, "two")
        checkpoint = f"--resume_from_checkpoint={two / 'checkpoint-4'}"
        four = self.finished([*flags, checkpoint], 4, "four")
        again = self.finished([*flags, checkpoint], 4, "again")
        self.assertEqual(weights(four / "model.safetensors"), weights(again / "model.safetensors"))
        for (step, a, *_), (_, b, *_) in zip(losses(two)[4:], losses(four)):
            if a is not None and step is not None:
                self.assertAlmostEqual(a, b, delta=1e-3)
        parts = list((four / "checkpoint-8").glob("optimizer-*-of-00004.safetensors"))
        self.assertEqual(len(parts), 4)

    def test_parts_are_pytorchs(self):
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        import torch.distributed.checkpoint as dcp
        flags = self.text("--save_steps=4", steps=4)
        folder = self.finished(flags, 2, "two") / "checkpoint-4"
        parts = self.folder / "parts"
        parts.mkdir()
        for part in folder.glob("optimizer-*"):
            (parts / part.name).symlink_to(part)
        import safetensors.torch
        wanted = {}
        for part in parts.iterdir():
            wanted |= safetensors.torch.load_file(part)
        self.assertIn("embedding.m", wanted)
        read = {name: value.new_zeros(value.shape) for name, value in wanted.items()}
        dcp.load(read, storage_reader=HuggingFaceStorageReader(str(parts)))
        for name, value in wanted.items():
            self.assertTrue(read[name].equal(value), name)

    def test_part_that_cannot_be_written(self):
        flags = self.text("--save_steps=4", f"--output_dir={self.out}")
        ranks = Ranks(flags, limits={1: 4096})
        done = ranks.finish()
        self.assertEqual([d[0] for d in done], [0, 0], done)
        self.assertRegex(done[0][1] + done[0][2], "warning: the run goes on without checkpoint-4: rank 1: .*optimizer-00002-of-00002")
        self.assertEqual(list(self.out.glob("checkpoint-*")), [])
        self.assertEqual(list(self.out.glob(".compact-tmp-*")), [])
        self.assertTrue((self.out / "model.safetensors").exists())

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

    def test_resume_without_a_part(self):
        flags = self.text("--save_steps=4", steps=4)
        whole = self.finished(flags, 2, "whole")
        other = self.folder / "other"
        shutil.copytree(whole, other)
        (other / "checkpoint-4/optimizer-00001-of-00002.safetensors").unlink()
        more = ["--resume_from_checkpoint=m/checkpoint-4", f"--output_dir={self.out}"]
        ranks = Ranks([*flags, *more], cwds={0: self.folder / "a", 1: self.folder / "b"},
                      links={"a": whole, "b": other}, folder=self.folder)  # fmt: skip
        self.one_message(ranks, 2, "rank 1: m/checkpoint-4/optimizer-00001-of-00002.safetensors")

    def one_message(self, ranks, code, words, seconds=120):
        done = ranks.finish(seconds)
        self.assertEqual([d[0] for d in done], [code] * len(done), done)
        lines = [line for d in done for line in d[2].splitlines()]
        self.assertEqual(len(lines), 1, lines)
        self.assertIn(words, lines[0])
        return lines[0]

    def test_bad_input(self):
        flags = self.text(f"--output_dir={self.out}")
        self.one_message(Ranks(flags, own_flags={1: ["--learning_rate=5"]}), 2,
                         "rank 1 was started with other options than rank 0: --learning_rate 5 in place of")  # fmt: skip
        self.one_message(Ranks([*flags, "--set=slot no.such = keep"]), 2, "matches no slot")
        self.one_message(Ranks([*flags, "--set=grad * = full:release=true", "--max_grad_norm=0"]), 2,
                         "release=true updates it before the gradients of all 2 ranks are known")  # fmt: skip
        self.assertIn("MASTER_ADDR is not set", run_alone({"WORLD_SIZE": "2", "RANK": "0"}, flags))
        self.assertIn("RANK is not set", run_alone({"WORLD_SIZE": "2"}, flags))
        self.assertIn("RANK must be an integer in [0, 1], is `2`", run_alone({"WORLD_SIZE": "2", "RANK": "2"}, flags))
        self.assertIn("`compare` is for one process, this is rank 0 of 2",
                      run_alone({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1234"},
                                flags, "compare"))  # fmt: skip

    def test_not_finite(self):
        flags = self.text(f"--output_dir={self.out}", "--learning_rate=1e5", "--weight_decay=10", steps=50)
        line = self.one_message(Ranks(flags), 3, "stopped before the update")
        self.assertRegex(line, r"error: rank [01]: step \d+: ")

    def test_interrupt_saves_once(self):
        flags = self.text(f"--output_dir={self.out}", steps=100000)
        ranks = Ranks(flags)
        self.addCleanup(ranks.kill)
        self.wait_for(self.out / "metrics.jsonl")
        ranks.all[1].send_signal(signal.SIGINT)  # one is enough
        done = ranks.finish()
        self.assertEqual([d[0] for d in done], [130, 130], done)
        self.assertEqual(len(list(self.out.glob("checkpoint-*"))), 1)

    def test_other_weights(self):
        model = self.finished(self.text(steps=1), 1, "model")
        other = self.finished(self.text("--seed=7", steps=1), 1, "other")
        flags = [f for f in self.text(f"--output_dir={self.out}") if not f.startswith("--model=")]
        ranks = Ranks([*flags, "--model_name_or_path=m"], cwds={0: self.folder / "a", 1: self.folder / "b"},
                      links={"a": model, "b": other}, folder=self.folder)  # fmt: skip
        self.one_message(ranks, 2, "rank 1 has another set of weights")

    def test_restart_keeps_what_is_not_its_own(self):
        kept = self.finished(self.text(steps=1), 1, "kept") / "model.safetensors"
        before = kept.read_bytes()
        run_ = _ranks.torchrun(self.text(f"--output_dir={kept.parent}", steps=2), restarts=1)
        text, _ = run_.communicate(timeout=120)
        self.assertNotEqual(run_.returncode, 0)
        self.assertIn("is not empty", text)
        self.assertEqual(kept.read_bytes(), before)

    def test_long_work_is_no_silence(self):
        """One rank needs longer than --ddp_timeout for its part of an evaluation or of a checkpoint."""
        data = self.text("--ddp_timeout=4", "--validation_split=0.6", "--per_device_eval_batch_size=1", steps=2)
        data = [f for f in data if not f.startswith("--max_eval_samples=")]
        def trained(out):
            metrics = out / "metrics.jsonl"
            return metrics.exists() and metrics.read_text().count("\n") >= 2

        def saving(out):
            return any(f.is_dir() for f in out.glob(".compact-tmp-*"))

        cases = {
            "evaluation": (["--max_eval_samples=6000"], trained, 1),  # which takes seconds
            "checkpoint": (["--max_eval_samples=2", "--save_steps=1"], saving, 0),
        }
        for name, (more, begun, later) in cases.items():
            with self.subTest(name):
                out = self.folder / name
                ranks = Ranks([*data, *more, f"--output_dir={out}"])
                self.addCleanup(ranks.kill)
                end = time.monotonic() + 60
                while not begun(out):
                    self.assertLess(time.monotonic(), end)
                time.sleep(later)
                ranks.all[1].send_signal(signal.SIGSTOP)
                time.sleep(7)
                ranks.all[1].send_signal(signal.SIGCONT)
                done = ranks.finish()
                self.assertEqual([d[0] for d in done], [0, 0], done)

    def wait_for(self, path, seconds=60):
        end = time.monotonic() + seconds
        while not (path.exists() and path.stat().st_size):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)

    def test_gone_or_silent(self):
        for number, words in ((signal.SIGKILL, "another rank has gone"), (signal.SIGSTOP, "did not answer")):
            with self.subTest(number):
                out = self.folder / str(int(number))
                ranks = Ranks(self.text(f"--output_dir={out}", "--ddp_timeout=8", steps=100000))
                self.addCleanup(ranks.kill)
                self.wait_for(out / "metrics.jsonl")
                ranks.all[1].send_signal(number)
                _, errors = ranks.all[0].communicate(timeout=60)
                self.assertEqual(ranks.all[0].returncode, 1)
                self.assertIn(words, errors)

    def test_killed_while_a_checkpoint_is_written(self):
        ranks = Ranks(self.text("--save_steps=1", f"--output_dir={self.out}", "--ddp_timeout=600", steps=100000))
        self.addCleanup(ranks.kill)
        end = time.monotonic() + 60
        while not list(self.out.glob(".compact-tmp-*")):
            self.assertLess(time.monotonic(), end)
        ranks.all[1].send_signal(signal.SIGSTOP)  # in its part, or just before or behind it
        time.sleep(1)
        self.assertIsNone(ranks.all[0].poll())  # waits for it
        ranks.all[1].kill()
        _, errors = ranks.all[0].communicate(timeout=60)
        self.assertEqual(ranks.all[0].returncode, 1)
        self.assertIn("another rank has gone", errors)
        self.assertNotIn("This may", errors)

    def test_killed_under_torchrun(self):
        flags = self.text("--save_steps=1", "--save_total_limit=2", steps=40)
        whole = self.folder / "whole"
        begun = time.monotonic()
        first = _ranks.torchrun([*flags, f"--output_dir={whole}"])
        out, _ = first.communicate(timeout=300)
        self.assertEqual(first.returncode, 0, out)
        took = time.monotonic() - begun
        draw = random.Random(os.environ.get("COMPACT_SEED"))
        for turn in range(int(os.environ.get("COMPACT_RANK_KILLS", 2))):
            target = self.folder / f"killed{turn}"
            run_ = _ranks.torchrun([*flags, f"--output_dir={target}"], restarts=1)
            time.sleep(draw.uniform(0.6, 0.95) * took)
            victims = _ranks.children_of(run_.pid)
            if victims:
                os.kill(draw.choice(victims), signal.SIGKILL)
            text, _ = run_.communicate(timeout=300)
            self.assertEqual(run_.returncode, 0, text)
            self.assertEqual(weights(target / "model.safetensors"), weights(whole / "model.safetensors"))


def run_alone(more, flags, command="train"):
    """The errors of one process in such an environment."""
    before = dict(os.environ)
    os.environ.update(more)
    try:
        done = run(command, *flags)
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert done.returncode == 2, done
    return done.stderr


if __name__ == "__main__":
    unittest.main()
