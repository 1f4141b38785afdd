# SPDX-License-Identifier: Apache-2.0
"""Bad input: exit code 2, one line on standard error that names rule and value, nothing written."""
import os
import unittest

from _program import EXAMPLES, InFolder, run, tiny


class Errors(InFolder):
    def refused(self, expected, *arguments):
        done = run(*arguments, cwd=self.folder)
        lines = done.stderr.splitlines()
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertTrue(lines[0].startswith("compact: error: "), lines[0])
        self.assertIn(expected, lines[0])
        self.assertFalse(self.out.exists())

    def train(self, *more):
        return ["train", *tiny(self.folder, f"--output_dir={self.out}"), *more]

    def without(self, flag):
        return [a for a in self.train() if not a.startswith(f"--{flag}=")]

    def file(self, name, content):
        path = self.folder / name
        path.write_bytes(content)
        return path

    def test_commands(self):
        self.refused("did you mean `train`", "trian")
        self.refused("unknown command", "--frobnicate")
        self.refused("did you mean `--version`?", "--verison")
        self.refused("did you mean `models`", "list", "modls")
        self.refused("did you mean `train`", "help", "trian")
        self.refused("`help` takes one command", "help", "train", "plan")

    def test_flags(self):
        for arguments, expected in [
            (["--learning_rat=1"], "unknown flag `--learning_rat`; did you mean `--learning_rate`?"),
            (["--zzzzzzzzzzzz"], "see `compact train --help`"),
            (["--batch_size=4"], "did you mean `--per_device_train_batch_size` or "
                                 "`--per_device_eval_batch_size`?"),
            (["--lr=1"], "unknown flag `--lr`: here it is --learning_rate"),
            (["--use_lora"], "here it is --use_peft"),
            (["--mixed_precision=bf16"], "here it is --dtype bfloat16"),
            (["--steps=1"], "unknown flag `--steps`; see `compact train --help`"),
            (["-"], "unknown flag `-`"),
            (["--bf16"], "unknown flag `--bf16`: here it is --dtype bfloat16"),
            (["--gradient_checkpointing=true"], "here it is --preset recompute"),
            (["--use_liger_kernel"], "`--use_liger_kernel`: layers and the loss are fused by --preset exact"),
            (["--optim=adamw_bnb_8bit"], "`adamw_bnb_8bit`: here it is --optim adamw --optim_state_dtype float8"),
            (["--activation_offloading"], 'here it is --set "slot layers.* = offload", on a GPU'),
            (["--no_cuda"], "here it is --device cpu"),
            (["--neftune_noise_alpha=5"], "embeddings get no noise"),
            (["--report_to=none"], "TensorBoard's events and metrics.jsonl are always in"),
            (["--policy", "--seed=1"], "--policy: a value is missing before `--seed=1`"),
            (["--set", "--seed", "1"], "--set: a value is missing before `--seed`"),
            (["--tokenizer=gpt2"], "known: bytes sentencepiece:file=PATH"),
            (["--tokenizer=bpe:file=missing.json"], "missing.json"),
            (["-x"], "unknown flag `-x`"),
            (["stray"], "unexpected argument `stray`"),
            (["--budget", "10", "GiB"], "unexpected argument `GiB`: values follow a flag, each in one word"),
            (["--seed=1", "--seed=2"], "--seed is given twice, as `1` and as `2`"),
            (["--seed"], "--seed: a value is missing"),
            (["--seed=1.5"], "--seed: must be an integer, is `1.5`"),
            (["--learning_rate=nan"], "--learning_rate: must be a finite number, is `nan`"),
            (["--learning_rate=-2"], "--learning_rate must be at least 0, or -1, is -2"),
            (["--overwrite_output_dir=maybe"], "must be true or false, is `maybe`"),
            (["--dtype=fp8"], "`fp8`"),
            (["--per_device_eval_batch_size=0"], "--per_device_eval_batch_size"),
            (["--optim=adamx"], "did you mean `adamw`"),
            (["--lr_scheduler_type=cosin"], "did you mean `cosine`"),
            (["--preset=exat"], "no preset `exat`; did you mean `exact`?"),
            (["--preset=compact", "--rank=-1"], "--rank"),
            (["--preset=compact", "--rank=4096"], "4096"),
            (["--set", "slot layers.*.mlp.gat_up = recompute"], "gat_up"),
            (["--set", "slot * = recomputed"], "recomputed"),
            (["--set", "nonsense"], "nonsense"),
            (["--policy=missing.policy"], "missing.policy"),
            (["--resume_from_checkpoint=missing"], "--resume_from_checkpoint takes `latest`, or a folder as "),
            (["--validation_file=missing.txt"], "missing.txt"),
            (["--tokenizer=byte"], "did you mean `bytes`"),
        ]:
            with self.subTest(arguments=arguments):
                self.refused(expected, *self.train(*arguments))

    def test_needed_flags(self):
        for flag in ["model", "train_file", "output_dir"]:
            self.refused(f"--{flag}", *self.without(flag))
        self.refused("--model NAME (see `compact list models`) or --model_name_or_path DIR, "
                     "--train_file FILE, --output_dir DIR are needed; for example: --model ",
                     "train")
        self.refused("--train_file FILE, --output_dir DIR are needed", "compare", "--model=llama-tiny")
        self.refused("--data_dir DIR is needed", "train", "--task=glue", "--model=bert-tiny",
                     f"--output_dir={self.out}")
        self.refused("--model_name_or_path", "eval")
        self.refused("--model_name_or_path", "generate")
        self.refused("--input", "prepare", "--output=x.bin")
        self.refused("--output", "prepare", "--input=x.txt")

    def test_unknown_model(self):
        self.refused("did you mean `llama-tiny`", *self.without("model"), "--model=llama-tyni")
        self.refused("did you mean `gpt2`?", *self.without("model"), "--model=gpt2-small")

    def test_configuration_files(self):
        toml = self.file("run.toml", b"max_step = 3\n")
        self.refused("did you mean `max_steps`", *self.train(f"--config={toml}"))
        broken = self.file("broken.toml", b"max_steps = = 3\n")
        self.refused("broken.toml", *self.train(f"--config={broken}"))
        self.refused("missing.toml", *self.train("--config=missing.toml"))
        typed = self.file("run.json", b'{"max_steps": "many"}')
        self.refused("many", *self.train(f"--config={typed}"))

    def test_training_files(self):
        for name, content, expected in [
            ("empty.txt", b"", "empty.txt"),
            ("binary.txt", b"ab\0cd" * 100, "binary.txt"),
            ("image.png", b"\x89PNG", "image.png"),
            ("short.txt", b"too short", "32"),
            ("bad.jsonl", b'{"txt": "no such field"}\n', "bad.jsonl"),
        ]:
            with self.subTest(name=name):
                path = self.file(name, content)
                self.refused(expected, *self.without("train_file"), f"--train_file={path}")
        self.refused("missing.txt", *self.without("train_file"), "--train_file=missing.txt")

    def test_token_file_cut_anywhere(self):
        text = self.file("text.txt", (EXAMPLES / "hard-times.txt").read_bytes()[:3000])
        tokens = self.folder / "tokens.bin"
        self.assertEqual(run("prepare", f"--input={text}", f"--output={tokens}").returncode, 0)
        whole = tokens.read_bytes()
        for length in [1, 7, 20, 63, 64, 1000, len(whole) - 1]:
            with self.subTest(length=length):
                cut = self.file("cut.bin", whole[:length])
                self.refused("cut.bin", *self.without("train_file"), f"--train_file={cut}")

    def test_output_folder(self):
        self.refused("not-a-folder", *self.without("output_dir"),
                     f"--output_dir={self.file('not-a-folder', b'x')}")
        full = self.folder / "full"
        full.mkdir()
        (full / "mine").write_text("x")
        self.refused("is not empty", *self.without("output_dir"), f"--output_dir={full}")
        self.assertEqual(os.listdir(full), ["mine"])
        if os.geteuid() != 0:  # root may write anywhere
            self.refused("not writable", *self.without("output_dir"), "--output_dir=/proc/x")

    def test_outputs_before_any_work(self):
        here = ["--model_name_or_path=none", "--validation_file=none"]
        for output in ("none/x.json", self.folder):
            self.refused(f"{output}: cannot", "eval", *here, f"--json={output}")
            self.refused(f"{output}: cannot", "plan", "--model=none", f"--json={output}")
        self.refused("none/x.html: cannot", "plan", "--model=none", "--pareto", "--chart=none/x.html")
        self.refused("none/x: cannot", "prepare", f"--input={EXAMPLES / 'hard-times.txt'}",
                     "--output=none/x")
        self.refused("is not a folder", "visualize", *here,
                     f"--output_dir={self.file('not-a-folder', b'x')}")

    def test_models(self):
        empty = self.folder / "empty"
        empty.mkdir()
        here = ["--validation_file=x"]
        for command in [["generate"], ["eval", *here], ["visualize", "--output_dir=x", *here],
                        self.without("model"), ["plan"]]:
            self.refused("--model_name_or_path llama-tiny: there is no such folder; models are not "
                         "downloaded", *command, "--model_name_or_path=llama-tiny")
            self.refused(f"{empty}: has no config.json", *command,
                         f"--model_name_or_path={empty}")
        broken = self.folder / "broken"
        broken.mkdir()
        (broken / "config.json").write_text("{")
        self.refused("config.json", "generate", f"--model_name_or_path={broken}")
        (broken / "config.json").write_text('{"model_type": "gru"}')
        self.refused("gru", "generate", f"--model_name_or_path={broken}")
        self.refused("--temperature", "generate", "--model_name_or_path=x", "--temperature=-1")

    def test_compare(self):
        arguments = ["compare", *tiny(self.folder, f"--output_dir={self.out}")]
        self.refused("did you mean `exact`", *arguments, "--presets=off,exat")
        self.refused("comes twice", *arguments, "--presets=off,off")
        self.refused("did you mean `--presets`", *arguments, "--preset=off")

    def test_prepare_leaves_nothing(self):
        bad = self.file("bad.jsonl", b'{"text": "fine"}\n{"text": 3}\n')
        target = self.folder / "tokens.bin"
        self.refused("bad.jsonl", "prepare", f"--input={bad}", f"--output={target}", "--strict")
        self.assertEqual(sorted(os.listdir(self.folder)), ["bad.jsonl"])


if __name__ == "__main__":
    unittest.main()
