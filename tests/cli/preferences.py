# SPDX-License-Identifier: Apache-2.0
"""--task preference beside TRL's DPOTrainer: losses, rewards; with adapters, over ranks, resumed; prepared chats."""
import json
import random
import subprocess
import sys
import unittest

from _program import SOURCE, InFolder, environment, hugging_face, run
from _ranks import Ranks

torch, transformers, trl, peft, datasets, tokenizers = hugging_face("trl", "peft", "datasets", "tokenizers")
DRAW = random.Random(7)
PAIRS = [
    {"prompt": f"{a} plus {b} is", "chosen": f" {a + b}" + " indeed" * DRAW.randrange(3), "rejected": f" {a * b + 1}" + "." * DRAW.randrange(4)}
    for a, b in ((DRAW.randrange(99), DRAW.randrange(99)) for _ in range(8))
]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
RATE, STEPS = 2e-3, 5


class Preferences(InFolder):
    def setUp(self):
        super().setUp()
        words = tokenizers.Tokenizer(tokenizers.models.BPE())
        words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        words.decoder = tokenizers.decoders.ByteLevel()
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
        special = ["<pad>", "<|im_start|>", "<|im_end|>"]
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=special, show_progress=False, initial_alphabet=alphabet)
        words.train_from_iterator([row["prompt"] + row["chosen"] for row in PAIRS], trainer)
        self.tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|im_end|>", pad_token="<pad>", chat_template=TEMPLATE)
        torch.manual_seed(5)
        config = transformers.LlamaConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=len(words.get_vocab()), max_position_embeddings=128, initializer_range=0.2,
            bos_token_id=None, eos_token_id=2, pad_token_id=0)  # fmt: skip
        self.start = self.folder / "start"
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(self.start)
        self.tokenizer.save_pretrained(self.start)
        self.data = self.write("pairs.jsonl", PAIRS)

    def write(self, name, rows):
        path = self.folder / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def flags(self, out, *more):
        flags = ["--task=preference", f"--model_name_or_path={self.start}", f"--train_file={self.data}", f"--output_dir={self.folder / out}",
                 "--block_size=64", "--per_device_train_batch_size=8", f"--max_steps={STEPS}", "--logging_steps=1", "--weight_decay=0",
                 f"--learning_rate={RATE}", "--lr_scheduler_type=constant", "--validation_split=0", f"--validation_file={self.data}",
                 "--max_grad_norm=0", "--device=cpu", *more]  # fmt: skip
        return ["train", *(f"{name}={value}" for name, value in dict(flag.split("=", 1) for flag in flags).items() if value)]

    def train(self, out, *more):
        done = run(*self.flags(out, *more), cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def losses(self, out):
        rows = map(json.loads, (self.folder / out / "metrics.jsonl").read_text().splitlines())
        return [row["loss"] for row in rows if "loss" in row]

    def trl(self, rows=PAIRS, model=None, rate=RATE, **settings):
        """The losses of TRL's steps over all pairs, and its evaluation after them; the reference is the start."""
        network = model or transformers.AutoModelForCausalLM.from_pretrained(self.start)
        reference = transformers.AutoModelForCausalLM.from_pretrained(self.start)
        args = trl.DPOConfig(
            output_dir=self.folder / "trl", per_device_train_batch_size=8, per_device_eval_batch_size=8, max_steps=STEPS, logging_steps=1, learning_rate=rate,
            lr_scheduler_type="constant", warmup_steps=0, weight_decay=0, max_grad_norm=0, max_length=65, report_to=[], use_cpu=True,
            bf16=False, gradient_checkpointing=False, disable_tqdm=True, save_strategy="no", **settings)  # fmt: skip
        trainer = trl.DPOTrainer(network, reference, args=args, train_dataset=datasets.Dataset.from_list(rows),
                                 eval_dataset=datasets.Dataset.from_list(rows), processing_class=self.tokenizer)  # fmt: skip
        trainer.train()
        said = trainer.evaluate()
        rows = [row for row in trainer.state.log_history if "loss" in row]
        self.margins = [row["rewards/margins"] for row in rows]
        return [row["loss"] for row in rows], said

    def check(self, out, losses, said):
        for step, (ours, theirs) in enumerate(zip(self.losses(out), losses, strict=True)):
            self.assertAlmostEqual(ours, theirs, delta=2e-5 * max(1, abs(theirs)), msg=f"step {step}")
        rows = [row for row in map(json.loads, (self.folder / out / "metrics.jsonl").read_text().splitlines()) if "margin" in row]
        for ours, theirs in zip(rows, self.margins, strict=True):
            self.assertAlmostEqual(ours["margin"], theirs, delta=1e-4 * max(1, abs(theirs)))
        results = json.loads((self.folder / out / "all_results.json").read_text())
        names = {"loss": "loss", "rewards/accuracies": "accuracy", "rewards/margins": "margin",
                 "rewards/chosen": "reward_chosen", "rewards/rejected": "reward_rejected"}  # fmt: skip
        for theirs, ours in names.items():
            self.assertAlmostEqual(results[f"eval_{ours}"], said[f"eval_{theirs}"], delta=1e-4 * max(1, abs(said[f"eval_{theirs}"])), msg=ours)

    def test_losses_and_rewards_are_those_of_trl(self):
        for more, settings in (
            ([], {}),
            (["--beta=0.4", "--preset=recompute"], {"beta": 0.4}),
            (["--loss_type=hinge"], {"loss_type": "hinge"}),
            (["--loss_type=ipo", "--preset=off"], {"loss_type": "ipo"}),
        ):
            with self.subTest(more):
                self.train("out", "--overwrite_output_dir=true", *more)
                losses, said = self.trl(**settings)
                self.assertLess(losses[-1], losses[0])
                self.check("out", losses, said)

    def test_chats_of_a_prepared_folder(self):
        """The answers' last turns, which TRL learns with the line's end behind them: this template has none."""
        template = TEMPLATE.replace("'<|im_end|>\n'", "'<|im_end|>'")
        self.tokenizer.chat_template = template
        self.tokenizer.save_pretrained(self.start)
        turn = lambda role, text: [{"role": role, "content": text}]  # noqa: E731
        rows = [
            {"prompt": turn("system", "Add.") + turn("user", row["prompt"]), "chosen": turn("assistant", row["chosen"]), "rejected": turn("assistant", row["rejected"])}
            for row in PAIRS
        ]
        command = [sys.executable, SOURCE / "python/compact/prepare", "--data", self.write("chats.jsonl", rows), "--tokenizer", self.start,
                   "--output", self.folder / "made"]  # fmt: skip
        done = subprocess.run([str(c) for c in command], env=environment() | {"HF_DATASETS_CACHE": str(self.folder / "cache")}, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--task preference", done.stdout)
        made = self.folder / "made"
        self.train("out", f"--train_file={made}", f"--validation_file={made}")
        self.check("out", *self.trl(rows))

    def test_adapters_begin_at_their_base(self):
        """LoRA: the reference is the model without adapters. peft loads them; TRL's loss of that model is ours."""
        self.train("out", "--use_peft=true", "--lora_r=4", "--learning_rate=2e-2")
        losses = self.losses("out")
        self.assertAlmostEqual(losses[0], 0.693147, delta=1e-5)
        self.assertLess(losses[-1], 0.5)
        whole = peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(self.start), self.folder / "out", is_trainable=True)
        said = self.trl(model=whole, rate=0)[1]
        results = json.loads((self.folder / "out/all_results.json").read_text())
        self.assertAlmostEqual(results["eval_loss"], said["eval_loss"], delta=1e-4)
        self.assertAlmostEqual(results["eval_margin"], said["eval_rewards/margins"], delta=1e-3)
        coded = self.train("coded", "--use_peft=true", "--load_in_4bit=true")
        self.assertIn("scored   16 pairs by the model", coded)

    def test_plans_without_data_and_under_a_budget(self):
        done = run("plan", "--task=preference", f"--model_name_or_path={self.start}", "--block_size=32", "--preset=exact", "--device=cpu")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = run("train", *self.flags("auto", "--preset=auto", "--budget=8MiB")[1:])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, "as planned|less than planned for the longest")

    def test_two_ranks_score_and_train_as_one(self):
        self.train("one")
        flags = self.flags("two", "--per_device_train_batch_size=4", "--zero=2")[1:]
        for code, _, errors in Ranks(flags).finish():
            self.assertEqual(code, 0, errors)
        for step, (one, two) in enumerate(zip(self.losses("one"), self.losses("two"), strict=True)):
            self.assertAlmostEqual(one, two, delta=1e-5, msg=f"step {step}")
        ends = [json.loads((self.folder / out / "all_results.json").read_text())["eval_margin"] for out in ("one", "two")]
        self.assertAlmostEqual(*ends, delta=1e-4)


if __name__ == "__main__":
    unittest.main()
