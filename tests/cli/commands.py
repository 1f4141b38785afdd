# SPDX-License-Identifier: Apache-2.0
"""Each command on small work: what it prints and writes."""
import json
import math
import shutil
import signal
import subprocess
import unittest

from _program import EXAMPLES, PROGRAM, InFolder, environment, run, tiny

COMMANDS = ["train", "eval", "generate", "prepare", "compare", "merge", "plan", "visualize", "list", "doctor", "docs", "completion"]


class Commands(InFolder):
    def good(self, *arguments):
        done = run(*arguments, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")
        return done.stdout

    def train(self, name, *more):
        out = self.folder / name
        self.good("train", *tiny(self.folder, f"--output_dir={out}", *more))
        return out

    def test_help_and_version(self):
        overview = self.good("--help")
        self.assertEqual(self.good(), overview)
        self.assertEqual(self.good("help"), overview)
        for command in COMMANDS:
            self.assertIn(f"  {command} ", overview)
            text = self.good(command, "--help")
            self.assertIn(f"usage: compact {command}", text)
            self.assertEqual(self.good("help", command), text)
            if command != "list":  # whose one line of kinds is not a flag's
                self.assertLessEqual(max(map(len, text.splitlines())), 100)
        text = self.good("train", "--help")
        self.assertRegex(text, r"--lr_scheduler_type +shape after warm-up \(.*wsd, step\) \[cosine\]")
        self.assertRegex(self.good("--version"), r"^compact \d+\.\d+\.\d+ \((commit [0-9a-f]{10}\+?, )?torch \d+\.\d+")

    def test_docs(self):
        page = self.good("docs")
        for command in COMMANDS:
            self.assertIn(f"\n## compact {command}\n", page)
            self.assertIn(f"(#compact-{command})", page)
            words = [line.split("\t") for line in self.good(command, "--help=words").splitlines()]
            self.assertTrue(all(len(w) == 3 and w[0].startswith("--") for w in words), command)
            text = self.good(command, "--help")
            for flag, _, _ in words:
                self.assertIn(f"| `{flag}` |", page)
                self.assertIn(f"  {flag}", text)
        self.assertIn("| `llama-60m` |", page)
        for line in page.splitlines():  # every row has the cells of its table's head
            if line.startswith("| "):
                self.assertIn(len(line.replace("\\|", "").split("|")), (4, 6), line)

    def test_completion(self):
        def completed(*words):
            script = f"""source <({PROGRAM} completion bash)
                COMP_WORDS=({" ".join(f"'{w}'" for w in words)}) COMP_CWORD={len(words) - 1}
                _compact 2>/dev/null; printf '%s\\n' "${{COMPREPLY[@]}}" """
            done = subprocess.run(["bash", "-c", script], cwd=self.folder, env=environment(), capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            return done.stdout.split()

        self.assertEqual(completed("compact", ""), [*COMMANDS, "--help", "--version"])
        self.assertEqual(completed("compact", "train", "--lr"), ["--lr_scheduler_type"])
        self.assertEqual(completed("compact", "train", "--preset", "exa"), ["exact"])
        self.assertEqual(completed("compact", "train", "--preset", "=", "exa"), ["exact"])
        self.assertEqual(completed("compact", "plan", "--gpu", "h2"), ["h200"])
        self.assertEqual(completed("compact", "train", "--dtype", ""), ["float32", "bfloat16"])
        self.assertEqual(completed("compact", "list", "pr"), ["presets", "projections"])
        (self.folder / "book.txt").write_text("")
        self.assertEqual(completed("compact", "train", "--train_file", "bo"), ["book.txt"])
        for shell in ("zsh", "fish"):
            script = self.good("completion", shell)
            for command in COMMANDS:
                self.assertIn(command, script)
            if shutil.which(shell):
                subprocess.run([shell, "-n"], input=script, text=True, check=True)
        done = run("completion", "tcsh")
        self.assertEqual(done.returncode, 2)
        self.assertIn("SHELL must be bash, zsh or fish, is `tcsh`", done.stderr)

    def test_list(self):
        everything = self.good("list")
        for name in ["llama-60m", "exact", "recompute", "srht", "sentencepiece", "muon", "wsd",
                     "image-classification", "resnet20", "gcn"]:
            self.assertIn(name, everything)
        presets = self.good("list", "presets")
        self.assertIn("compact-paper", presets)
        self.assertRegex(self.good("list", "roles"), r"(?m)^pre_activation +what ")
        self.assertNotIn("llama-60m", presets)
        self.assertRegex(self.good("list", "gpus"), r"(?m)^4090 +RTX 4090: 24.0 GiB at 1.01 TB/s, ")

    def test_doctor(self):
        self.assertIn("all kernels are right", self.good("doctor"))

    def test_print_config(self):
        (self.folder / "run.toml").write_text(
            'learning_rate = 0.5\nmax_steps = 7\ntrain_file = ["a", "b"]\n'
        )
        text = self.good("train", "--config=run.toml", "--max_steps", "9", "--print_config",
                         "--overwrite_output_dir", "--set", "slot a = keep", "slot b = keep")
        for line in ["learning_rate = 0.5", "max_steps = 9", 'train_file = ["a", "b"]',
                     "overwrite_output_dir = true", 'set = ["slot a = keep", "slot b = keep"]',
                     'preset = "exact"']:
            self.assertIn(line + "\n", text)
        # The printed text is a configuration file that says the same.
        (self.folder / "again.toml").write_text(text)
        self.assertEqual(self.good("train", "--config=again.toml", "--print_config"), text)

    def test_what_overview_and_errors_say_to_type_works(self):
        (self.folder / "book.txt").write_bytes((EXAMPLES / "hard-times.txt").read_bytes()[:9000])
        overview = self.good().splitlines()
        said = [line.split()[1:] for line in overview if line.startswith("  compact ")]
        said.append(["train", *run("train").stderr.partition("for example: ")[2].split()])
        self.assertEqual([words[0] for words in said], ["plan", "train", "train"])
        for words in said:
            less = ["--max_steps=1", "--overwrite_output_dir", "--max_eval_samples=1"]
            self.good(*words, *(less if words[0] == "train" else []))

    def test_a_run_says_little_unless_asked(self):
        out = self.folder / "run"
        shown = self.good("train", *tiny(self.folder, f"--output_dir={out}"))
        head, steps = shown.split("step 1/4")[0], shown.count("\nstep ")
        self.assertLessEqual(len(head.splitlines()), 10, head)
        self.assertLessEqual(len(shown.splitlines()), 10 + steps + 4, shown)
        tables = (out / "memory.txt").read_text()
        for part in ["layers.*.mlp.norm", "at the peak, in ", "memory of step 2"]:
            self.assertIn(part, tables)
            self.assertNotIn(part, shown)
        self.assertIn(f"{out}/memory.txt", shown)
        self.assertRegex(shown, r"\nmeasured peak .* in step 2: as planned\n")
        long = self.good("train", *tiny(self.folder, f"--output_dir={out}",
                                        "--overwrite_output_dir", "--verbose"))
        for line in (out / "memory.txt").read_text().splitlines():
            self.assertIn(line, long)

    def test_prepare_and_train_on_token_file(self):
        tokenizer = f"--tokenizer=sentencepiece:file={EXAMPLES / 'austen-2048.model'}"
        text = self.good("prepare", "--input", EXAMPLES / "hard-times.txt", "--output=tokens.bin",
                         tokenizer)
        self.assertRegex(text, r"tokens\.bin: [\d,]+ tokens from 1 documents in 1 files")
        flags = [f for f in tiny(self.folder) if not f.startswith("--train_file=")]
        self.good("train", *flags, "--train_file=tokens.bin", tokenizer, "--output_dir=out")
        self.assertEqual(run("train", *flags, "--train_file=tokens.bin", "--output_dir=bytes",
                             cwd=self.folder).returncode, 2)

    def test_folders_of_texts_and_of_a_tokenizer(self):
        texts = self.folder / "texts"
        (texts / "deep").mkdir(parents=True)
        story = (EXAMPLES / "hard-times.txt").read_text()
        (texts / "b.txt").write_text(story[:20000])
        (texts / "deep/a.jsonl").write_text(json.dumps({"text": story[20000:30000]}))
        (texts / "notes.md").write_text("no text")
        spec = f"--tokenizer=sentencepiece:file={EXAMPLES / 'austen-2048.model'}"
        flags = [f for f in tiny(self.folder) if not f.startswith("--train_file=")]
        self.good("train", *flags, "--train_file", texts / "b.txt", texts / "deep/a.jsonl", spec, "--output_dir=named")
        self.good("train", *flags, f"--train_file={texts}", "--tokenizer=named", "--output_dir=out")
        self.assertEqual(*((self.folder / name / "model.safetensors").read_bytes() for name in ("named", "out")))
        self.good("prepare", "--input", texts, "--tokenizer=named", "--output=texts.tokens")
        self.good("eval", "--model_name_or_path=out", "--validation_file=texts.tokens", "--block_size=32", "--tokenizer=named")
        (self.folder / "none").mkdir()
        done = run("train", *flags, "--train_file=none", spec, "--output_dir=x", cwd=self.folder)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("none: the folder holds no .txt and no .jsonl file", done.stderr)

    def test_train_eval_generate(self):
        spec = f"sentencepiece:file={EXAMPLES / 'austen-2048.model'}"
        out = self.train("out", f"--tokenizer={spec}", "--overwrite_output_dir")
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([r["step"] for r in rows if "loss" in r], [1, 2, 3, 4])
        results = json.loads((out / "all_results.json").read_text())

        text = EXAMPLES / "pride-and-prejudice.txt"
        shown = self.good("eval", f"--model_name_or_path={out}", f"--validation_file={text}",
                          "--block_size=32", "--max_eval_samples=4", "--json=eval.json",
                          f"--cache_dir={self.folder / 'cache'}")
        figures = json.loads((self.folder / "eval.json").read_text())
        self.assertEqual(figures["eval_tokens"], 128)
        self.assertAlmostEqual(figures["eval_perplexity"], math.exp(figures["eval_loss"]), places=3)
        self.assertLess(abs(figures["eval_loss"] - results["eval_loss"]), 1.0)
        self.assertIn("eval_loss", shown)
        done = run("eval", f"--model_name_or_path={out}", f"--validation_file={text}",
                   "--block_size=32", "--max_eval_samples=1", "--dtype=bf16", "--max_seq_length=64",
                   f"--cache_dir={self.folder / 'cache'}", cwd=self.folder)
        self.assertEqual((done.returncode, done.stderr), (0,
                         "warning: --max_seq_length takes no effect: it is for text-classification, glue\n"))

        arguments = ["generate", f"--model_name_or_path={out}", "--prompt=It is a truth",
                     "--max_new_tokens=20", "--seed=3"]
        first = self.good(*arguments)
        self.assertTrue(first.startswith("It is a truth"))
        # Another run by the settings of this one leaves it alone.
        refused = run("train", f"--config={out / 'train_config.json'}", cwd=self.folder)
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn("is not empty", refused.stderr)
        self.assertGreater(len(first), len("It is a truth\n"))
        self.assertEqual(self.good(*arguments), first)
        self.assertNotEqual(self.good(*arguments, "--temperature=5"), first)
        three = self.good(*arguments, "--num_samples=3").split("\n----------\n")
        self.assertEqual(len(three), 3)
        self.assertEqual(three[0] + "\n", first)

    def test_generate_without_anything_to_say(self):
        out = self.train("out")
        shown = self.good("generate", f"--model_name_or_path={out}", "--prompt=abc",
                          "--max_new_tokens=0", "--num_samples=2")
        self.assertEqual(shown, "abc\n----------\nabc\n")

    def test_layers_that_config_json_does_not_have_are_said(self):
        def less(folder, key, value):
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps(config | {key: value}))

        unread = "warning: .* tensors of blocks are not in the model that config.json describes"
        text = self.train("text")
        less(text, "num_hidden_layers", 1)
        self.assertRegex(run("generate", f"--model_name_or_path={text}").stderr, unread)

        records = self.folder / "images.bin"  # CIFAR-10's
        records.write_bytes(b"".join(bytes([i % 10]) + bytes([20 * i] * 3072) for i in range(12)))
        images = self.folder / "images"
        self.good("train", "--task=image-classification", "--model=resnet20", "--width_mult=0.25",
                  f"--train_file={records}", "--max_steps=1", "--device=cpu",
                  "--per_device_train_batch_size=2", f"--output_dir={images}")
        less(images, "blocks", [3, 3, 2])
        done = run("visualize", f"--model_name_or_path={images}", f"--validation_file={records}",
                   "--layers=stem", f"--output_dir={self.folder / 'pictures'}", "--device=cpu")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, unread)

    def test_a_run_that_was_done_keeps_what_was_measured(self):
        out = self.train("out", "--save_steps=4")
        tables = (out / "memory.txt").read_text()
        self.good("train", *tiny(self.folder, f"--output_dir={out}", "--save_steps=4",
                                 "--resume_from_checkpoint=latest"))
        results = json.loads((out / "all_results.json").read_text())
        for name in ["step_seconds", "tokens_per_second", "memory/peak_bytes", "memory/held_bytes",
                     "memory/saved_bytes", "memory/resident_bytes"]:
            self.assertGreater(results.get(name, 1), 0, name)
        self.assertEqual(results["steps"], 4)
        self.assertIn("eval_loss", results)
        again = (out / "memory.txt").read_text()
        self.assertTrue(again.startswith(tables), again)
        self.assertIn("resumed at step 4\n", again)

    def test_compare(self):
        out = self.folder / "cmp"
        policy = self.folder / "mine.policy"
        policy.write_text("slot layers.*.mlp.silu = recompute\n")
        shown = self.good("compare",
                          f"--presets=off,exact,{policy},less=auto --budget 100%,"
                          "muon=compact --optim muon --learning_rate 4e-3",
                          *tiny(self.folder, f"--output_dir={out}"))
        self.assertRegex(shown, r"step 4/4")
        self.assertRegex(shown, r"(?m)^mine ")
        report = json.loads((out / "compare.json").read_text())
        off, exact, mine, less, muon = report["runs"]
        self.assertEqual([r["preset"] for r in report["runs"]],
                         ["off", "exact", "mine", "less", "muon"])
        self.assertLessEqual(less["relative_to_first"]["memory/peak_bytes"], 1)
        self.assertEqual(less["curves"]["loss"], off["curves"]["loss"])
        config = json.loads((out / "muon/train_config.json").read_text())
        self.assertEqual((config["optim"], config["learning_rate"]), ("muon", 0.004))
        self.assertIn("--optim muon<br>--learning_rate 4e-3", (out / "compare.html").read_text())
        self.assertEqual(len(off["curves"]["loss"]), 4)
        saved = [r["values"]["memory/saved_bytes"] for r in (off, exact, mine)]
        self.assertLess(saved[1], saved[2])
        self.assertLess(saved[2], saved[0])
        self.assertEqual(mine["curves"]["loss"], off["curves"]["loss"])
        self.assertIn("<svg", (out / "compare.html").read_text())
        # The same again needs permission.
        again = ["compare", "--presets=off", *tiny(self.folder, f"--output_dir={out}")]
        self.assertEqual(run(*again).returncode, 2)
        self.good(*again, "--overwrite_output_dir")

    def test_compare_goes_on_after_a_failure(self):
        out = self.folder / "cmp"
        done = run("compare", "--presets=off,compact", "--rank=4096",
                   *tiny(self.folder, f"--output_dir={out}"))
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stdout, r"compact failed \(exit code 2\): .*4096")
        runs = json.loads((out / "compare.json").read_text())["runs"]
        self.assertEqual([r["exit_code"] for r in runs], [0, 2])

    def test_compare_ends_when_asked(self):
        out = self.folder / "cmp"
        arguments = ["compare", "--presets=off,exact",
                     *tiny(self.folder, f"--output_dir={out}"), "--max_steps=100000"]
        arguments.remove("--max_steps=4")
        child = subprocess.Popen([PROGRAM, *arguments], stdout=subprocess.PIPE, text=True,
                                 env=environment())
        lines = []
        for line in child.stdout:
            lines.append(line)
            if line.startswith("step"):
                child.send_signal(signal.SIGTERM)
                break
        rest = child.stdout.read()
        self.assertEqual(child.wait(60), 143)
        self.assertNotIn("== exact", "".join(lines) + rest)
        self.assertTrue(any(out.glob("off/checkpoint-*")))
        child.stdout.close()


if __name__ == "__main__":
    unittest.main()
