# SPDX-License-Identifier: Apache-2.0
"""Small runs of adapters beside a base that transformers wrote."""
import json

from _program import InFolder, hugging_face, run

torch, transformers, peft, tensor_files = hugging_face("peft", "safetensors.torch")
TEXT = "".join(chr(33 + i * i % 90) for i in range(32))
FLAGS = ["--tokenizer=bytes", "--block_size=32", "--per_device_train_batch_size=2", "--max_steps=6", "--logging_steps=1",
         "--validation_split=0", "--device=cpu", "--lora_dropout=0", "--learning_rate=1e-2",
         "--lr_scheduler_type=constant", "--max_grad_norm=0", "--use_peft=true"]  # fmt: skip


class AdapterRuns(InFolder):
    usual = FLAGS

    def setUp(self):
        super().setUp()
        torch.manual_seed(1)
        config = transformers.LlamaConfig(
            hidden_size=32, intermediate_size=45, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=257, max_position_embeddings=64, bos_token_id=None, eos_token_id=256,
            pad_token_id=None, initializer_range=0.1)  # fmt: skip
        self.base = self.folder / "base"
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(self.base)
        self.text = self.folder / "text.txt"
        self.text.write_text(TEXT * 40 + TEXT[:30])  # of which 40 blocks are made, all alike

    def done(self, *arguments):
        done = run(*arguments, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def refused(self, *arguments):
        done = run(*arguments, cwd=self.folder)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        return done.stderr

    def flags(self, out, *more):
        given = {flag.split("=")[0] for flag in more}
        usual = [f"--model_name_or_path={self.base}", f"--train_file={self.text}", f"--output_dir={self.folder / out}",
                 f"--cache_dir={self.folder / 'cache'}", *self.usual]  # fmt: skip
        return [f for f in usual if f.split("=")[0] not in given] + list(more)

    def train(self, out, *more):
        return self.done("train", *self.flags(out, *more))

    def adapters(self, out):
        return (self.folder / out / "adapter_model.safetensors").read_bytes()

    def loss_of(self, folder, *more):
        self.done("eval", f"--validation_file={self.text}", "--block_size=32", "--device=cpu", "--json=eval.json",
                  f"--cache_dir={self.folder / 'cache'}", f"--model_name_or_path={folder}", "--tokenizer=bytes", *more)  # fmt: skip
        return json.loads((self.folder / "eval.json").read_text())["eval_loss"]

    def check_losses(self, out, model, start, rate, within):
        """A run's losses are peft's over steps of AdamW, from the adapters that the run `start` left."""
        model = peft.PeftModel.from_pretrained(model, self.folder / start, is_trainable=True)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate, weight_decay=0)
        ids = torch.tensor([list(TEXT.encode())] * 2)
        labels = torch.tensor([list((TEXT[1:] + TEXT[0]).encode())] * 2)
        rows = [json.loads(line) for line in (self.folder / out / "metrics.jsonl").read_text().splitlines()]
        said = [row["loss"] for row in rows if "loss" in row]
        for step, loss in enumerate(said):
            own = torch.nn.functional.cross_entropy(model(ids).logits.flatten(0, 1), labels.flatten())
            self.assertAlmostEqual(own.item(), loss, delta=within * loss, msg=f"step {step}")
            own.backward()
            optimizer.step()
            optimizer.zero_grad()
        return said

    def check_same(self, model, other, within):
        for (name, one), (named, two) in zip(model.named_parameters(), other.named_parameters(), strict=True):
            self.assertEqual(name, named)
            torch.testing.assert_close(one, two, rtol=0, atol=within)
