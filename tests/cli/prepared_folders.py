# SPDX-License-Identifier: Apache-2.0
"""Folders of `python -m compact.prepare` under the program: the same loss as of the rows that it reads itself, plans,
resuming bit for bit, tokenizers that it cannot read, and what a run leaves."""
import json
import os
import shutil
import subprocess
import sys
import unittest

from _program import EXAMPLES, PROGRAM, SOURCE, InFolder, environment, hugging_face, run

torch, transformers, tokenizers, datasets, numpy, Image = hugging_face("tokenizers", "datasets", "numpy", "PIL.Image")
os.environ["VIRTUAL_ENV"] = sys.prefix  # whose Python the program calls
LINES = [line for line in (EXAMPLES / "hard-times.txt").read_text().split("\n") if line][:400]
SHAPE = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=256)  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PAIRS = [{"prompt": f"{a} + {b} = ", "completion": str(a + b)} for a in range(6) for b in range(7)]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_level():
    words = tokenizers.Tokenizer(tokenizers.models.BPE())
    words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=500, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    words.train_from_iterator(LINES, trainer)
    return words


def unigram():
    """as T5's, which the program does not read from a tokenizer.json"""
    words = tokenizers.Tokenizer(tokenizers.models.Unigram())
    words.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    words.decoder = tokenizers.decoders.Metaspace()
    words.train_from_iterator(LINES, tokenizers.trainers.UnigramTrainer(vocab_size=300, special_tokens=SPECIAL + ["<unk>"], unk_token="<unk>", show_progress=False))
    return words


class PreparedFolders(InFolder):
    def good(self, *arguments):
        done = run(*arguments, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def model(self, words):
        folder = self.folder / "model"
        roles = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"} | ({"unk_token": "<unk>"} if words.token_to_id("<unk>") else {})
        saved = transformers.PreTrainedTokenizerFast(tokenizer_object=words, chat_template=TEMPLATE, **roles)
        saved.save_pretrained(folder)
        torch.manual_seed(3)
        config = transformers.LlamaConfig(vocab_size=len(saved), eos_token_id=saved.eos_token_id, bos_token_id=None, pad_token_id=0, **SHAPE)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        return folder, saved

    def write(self, name, rows):
        path = self.folder / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def prepared(self, data, name="prepared", *more):
        out = self.folder / name
        command = [sys.executable, SOURCE / "python/compact/prepare", "--data", data, "--tokenizer", self.folder / "model", "--output", out, *more]
        env = environment() | {"HF_DATASETS_CACHE": str(self.folder / "cache")}
        done = subprocess.run([str(c) for c in command], env=env, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        return out

    def flags(self, data, out, *more):
        """A run of six steps; `more` goes above what is here, and takes it away where it has no value."""
        flags = ["--task=prompt-completion", f"--model_name_or_path={self.folder / 'model'}", f"--train_file={data}",
                 "--block_size=64", "--max_steps=6", "--save_steps=3", "--logging_steps=1", "--per_device_train_batch_size=4",
                 f"--output_dir={self.folder / out}", "--device=cpu", *more]  # fmt: skip
        last = dict(flag.split("=", 1) for flag in flags)
        return ["train", *(f"{name}={value}" for name, value in last.items() if value)]

    def weights(self, out):
        return (self.folder / out / "model.safetensors").read_bytes()

    def losses(self, out):
        rows = map(json.loads, (self.folder / out / "metrics.jsonl").read_text().splitlines())
        return [{k: v for k, v in row.items() if "loss" in k} for row in rows]

    def test_pairs_train_as_the_program_reads_them(self):
        model, _ = self.model(byte_level())
        rows = self.write("rows.jsonl", PAIRS)
        folder = self.prepared(rows)
        self.good(*self.flags(rows, "own"))
        done = self.good(*self.flags(folder, "made"))
        self.assertEqual(self.losses("made"), self.losses("own"))
        self.assertEqual(self.weights("made"), self.weights("own"))
        self.assertIn("as planned", done.stdout)
        for more in (["--preset=recompute", "--block_size=9"], ["--preset=gact-l1"], ["--truncation=start", "--block_size=4"]):
            for data, out in ((rows, "own"), (folder, "made")):
                self.good(*self.flags(data, out, "--overwrite_output_dir=true", *more))
            self.assertEqual(self.weights("made"), self.weights("own"), more)
        plans = [self.good("plan", "--task=prompt-completion", f"--model_name_or_path={model}", f"--train_file={d}").stdout for d in (rows, folder)]
        self.assertEqual(*(plan.split("\nmachine")[0] for plan in plans))
        # A run evaluates what is prepared by its task, whatever file it had; the tokenizer's files and what the
        # model's folder says of generating are as they were.
        evals = [self.good("eval", f"--model_name_or_path={self.folder / 'made'}", f"--validation_file={d}").stdout for d in (rows, folder)]
        self.assertEqual(*evals)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
            self.assertEqual((self.folder / "made" / name).read_bytes(), (model / name).read_bytes(), name)

    def test_chats_of_any_tokenizer(self):
        """their loss is that of transformers on the targets, and they resume bit for bit"""
        model, tokenizer = self.model(unigram())
        talks = self.talks()
        folder = self.prepared(self.write("talks.jsonl", [{"messages": t} for t in talks]))
        network = transformers.AutoModelForCausalLM.from_pretrained(model)
        total = count = 0
        marked = TEMPLATE.replace("m.content + '<|im_end|>\n' }}", "}}{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}"
                                  "{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}").replace("'\n' + }}", "'\n' }}")  # fmt: skip
        for talk in talks:
            made = tokenizer.apply_chat_template(talk, chat_template=marked, return_dict=True, return_assistant_tokens_mask=True)
            ids, mask = torch.tensor([made["input_ids"]]), torch.tensor([made["assistant_masks"]]).bool()
            with torch.no_grad():
                logits = network(ids).logits[0, :-1]
            each = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
            total, count = total + each[mask[0, 1:]].sum().item(), count + int(mask[0, 1:].sum())
        more = ["--block_size=256", f"--validation_file={folder}", "--eval_steps=6"]
        # A step that changes nothing: the loss is the model's.
        self.good(*self.flags(folder, "still", *more, "--learning_rate=1e-30", "--weight_decay=0"))
        result = json.loads((self.folder / "still/all_results.json").read_text())
        self.assertEqual(result["eval_tokens"], count)
        self.assertAlmostEqual(result["eval_loss"], total / count, delta=2e-5)
        self.good(*self.flags(folder, "whole", *more))
        self.good(*self.flags(folder, "parts", *more))
        self.good(*self.flags(folder, "parts", *more, f"--resume_from_checkpoint={self.folder / 'parts/checkpoint-3'}"))
        self.assertEqual(self.weights("parts"), self.weights("whole"))
        there = transformers.AutoTokenizer.from_pretrained(self.folder / "whole")
        self.assertEqual(there.apply_chat_template(talks[0], return_dict=True)["input_ids"],
                         tokenizer.apply_chat_template(talks[0], return_dict=True)["input_ids"])  # fmt: skip
        done = run("generate", f"--model_name_or_path={self.folder / 'whole'}", "--prompt=a")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("a model of type `Unigram` is not known here; known: WordPiece, BPE; `python -m compact.prepare`", done.stderr)

    def test_text_is_what_the_program_makes_of_it(self):
        model, _ = self.model(byte_level())
        rows = self.write("rows.jsonl", [{"text": "\n".join(LINES[i : i + 20])} for i in range(0, 400, 20)])
        folder = self.prepared(rows)
        more = ["--task=language-modeling", "--block_size=32"]
        self.good(*self.flags(rows, "own", *more, f"--cache_dir={self.folder / 'cache'}"))
        self.good(*self.flags(folder, "made", *more))
        self.assertEqual(self.weights("made"), self.weights("own"))
        new = ["--model=llama-tiny", "--model_name_or_path=", f"--tokenizer=prepared:file={folder / 'prepared.json'}"]
        self.good(*self.flags(folder, "new", *more, *new))
        self.assertEqual(json.loads((self.folder / "new/config.json").read_text())["vocab_size"], 500)

    def talks(self):
        return [[{"role": r, "content": line[:60]} for r, line in zip(("user", "assistant") * 2, LINES[i : i + 4])] for i in range(0, 40, 4)]

    def test_the_program_calls_it(self):
        """for what it does not read itself; all arguments are passed on"""
        self.model(byte_level())
        rows = [{"messages": talk} for talk in self.talks()]
        chats = self.write("chats.jsonl", rows)
        datasets.Dataset.from_list(rows).to_parquet(self.folder / "chats.parquet")
        want = (self.prepared(chats, "own", "--max_length", "100", "--truncation", "start", "--train_on", "completion") / "samples.tokens").read_bytes()
        tokenizer, texts = f"--tokenizer={self.folder / 'model'}", self.write("texts.jsonl", [{"text": line} for line in LINES])
        more = [tokenizer, "--max_length=100", "--truncation=start", "--train_on", "completion"]
        for name, given in (("a", ["--input", chats]), ("b", ["--data", chats]), ("c", ["--input=chats.parquet"]), ("d", ["--data=chats.parquet", "--num_proc=2"])):
            done = self.good("prepare", *given, *more, f"--output={name}")
            self.assertIn("is for python/compact/prepare, run by ", done.stderr)
            self.assertEqual((self.folder / name / "samples.tokens").read_bytes(), want, name)
        done = run("prepare", "--data", chats, *more, "--output=a", cwd=self.folder)
        self.assertEqual(done.returncode, 1)
        self.assertIn("a: is not empty; --overwrite replaces it", done.stderr)
        # Text goes to Python for a tokenizer that is not known here, and stays here otherwise.
        self.assertNotIn("python", self.good("prepare", "--input", texts, tokenizer, "--output=here.tokens").stderr)
        self.model(unigram())
        self.assertIn("a model of type `Unigram` is not known here", self.good("prepare", "--input", texts, tokenizer, "--output=there").stderr)
        self.assertTrue((self.folder / "there/prepared.json").exists())
        # Without a Python it says what would help.
        (self.folder / "far").mkdir()
        far = shutil.copy(PROGRAM, self.folder / "far/compact")
        env = {k: v for k, v in environment().items() if k not in ("VIRTUAL_ENV", "CONDA_PREFIX")} | {"PATH": "/none"}
        done = subprocess.run([far, "prepare", "--data", "chats.parquet", *more, "--output=e"], env=env, cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, r"--data: that is for `python -m compact.prepare`, and no Python here has its packages: `.*/\.venv/bin/pip install datasets transformers`")

    def test_images_become_an_archive(self):
        random = numpy.random.default_rng(1)
        for split in ("train", "test"):
            for i in range(16):
                file = self.folder / "pets" / split / ("cat", "ant")[i % 2] / f"{i}.webp"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(random.integers(0, 128, (32, 32, 3), dtype=numpy.uint8) + numpy.uint8(127 * (i % 2))).save(file, lossless=True)
        for split in ("train", "test"):
            done = self.good("prepare", "--data=pets", f"--split={split}", f"--output={split}.tar")
            self.assertIn(f"{split}.tar: 16 images of 2 classes (ant, cat), 16 of them made PNG", done.stdout)
        done = self.good("train", "--task=image-classification", "--model=resnet20", "--width_mult=0.25", "--train_file=train.tar", "--validation_file=test.tar",
                         "--max_steps=20", "--per_device_train_batch_size=8", "--learning_rate=0.01", "--output_dir=out", "--device=cpu")  # fmt: skip
        self.assertIn("data     16 images, 3 x 32 x 32, 2 classes, validation 16", done.stdout)
        self.assertEqual(json.loads((self.folder / "out/config.json").read_text())["class_names"], ["ant", "cat"])
        self.assertEqual(json.loads((self.folder / "out/all_results.json").read_text())["eval_accuracy"], 1)

    def test_generate_answers_chats(self):
        words = byte_level()
        end = ("<|endoftext|>", words.token_to_id("<|endoftext|>"))
        words.post_processor = tokenizers.processors.TemplateProcessing(single=f"{end[0]} $A", special_tokens=[end])  # not of chats
        model, tokenizer = self.model(words)
        network = transformers.AutoModelForCausalLM.from_pretrained(model)

        def answer(chat):
            ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True, return_tensors="pt")["input_ids"]
            self.assertNotEqual(ids[0, 0], end[1])
            made = network.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)[0, ids.shape[1] :]
            return tokenizer.decode([i for i in made if i != tokenizer.eos_token_id], skip_special_tokens=False)

        flags = ["generate", f"--model_name_or_path={model}", "--max_new_tokens=40", "--temperature=0", "--device=cpu"]
        for name, chat in enumerate([[{"role": "system", "content": "Short."}, *self.talks()[0][:3]], [{"role": "user", "content": "Who\nis it?"}]]):
            for said in (chat, {"messages": chat}):
                (self.folder / "turns.json").write_text(json.dumps(said))
                got = self.good(*flags, "--chat", "--prompt_file=turns.json").stdout
                self.assertEqual(got, answer(chat) + "\n", name)
        self.assertEqual(self.good(*flags, "--chat", "--prompt=Who\nis it?").stdout, got)
        (self.folder / "prompt.txt").write_text("Who\nis it?\n")
        self.assertEqual(self.good(*flags, "--chat", "--prompt_file=prompt.txt").stdout, got)
        plain = self.good(*flags, "--prompt_file=prompt.txt").stdout
        self.assertEqual(plain, self.good(*flags, "--prompt=Who\nis it?").stdout)
        # A string ends it wherever it lies in tokens.
        text = plain.removeprefix("Who\nis it?").removesuffix("\n")
        for begin, size in ((3, 4), (8, 1), (9, 7)):
            stop = text[begin : begin + size]
            cut = self.good(*flags, "--prompt=Who\nis it?", "--stop", "not there", stop).stdout
            self.assertEqual(cut, "Who\nis it?" + text[: text.index(stop)] + "\n")
        (self.folder / "turns.json").write_text(json.dumps(self.talks()[0]))
        for more, rule in (
            (["--prompt_file=turns.json", "--chat"], "--chat: compact.prepare: the last message must not be the assistant's"),
            (["--prompt_file=turns.json", "--prompt=a"], "either --prompt or --prompt_file"),
            (["--chat"], "--chat: --prompt or --prompt_file is needed"),
            (["--chat", "--prompt=a", "--tokenizer=bytes"], "--chat: --tokenizer must be a folder with a chat template, is bytes"),
        ):
            done = run(*flags, *more, cwd=self.folder)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(rule, done.stderr)

    def test_refusals(self):
        self.model(byte_level())
        rows = self.write("rows.jsonl", PAIRS)
        folder = self.prepared(rows)
        texts = self.prepared(self.write("texts.jsonl", [{"text": line} for line in LINES]), "texts")

        def error(*arguments):
            done = run(*arguments, cwd=self.folder)
            self.assertNotEqual(done.returncode, 0, done.stdout)
            return done.stderr

        said = error(*self.flags(folder, "out", "--task=language-modeling"))
        self.assertIn("samples.tokens: holds samples, not text: --task prompt-completion trains on it", said)
        self.assertIn("holds text, not samples: --task language-modeling trains on it", error(*self.flags(texts, "out")))
        self.assertIn("was made with the tokenizer `prepared:file=prepared.json`", error(*self.flags(folder, "out", "--tokenizer=bytes")))
        (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text() + " ")
        self.assertIn("must be the one in use", error(*self.flags(folder, "out")))
        card = json.loads((folder / "prepared.json").read_text())
        for change, rule in (
            ({"files": ["../model/tokenizer.json"]}, 'a file of the tokenizer must be a name, is "../model/tokenizer.json"'),
            ({"ends": []}, "must have an end of text"),
            ({"ends": [500]}, "a number of the tokenizer must be below 500, is 500"),
            ({"vocabulary": -1}, "below 1073741825, is -1"),
            ({"begin": 3}, "`begin` of the tokenizer must be a list"),
        ):
            (folder / "prepared.json").write_text(json.dumps(card | {"tokenizer": card["tokenizer"] | change}))
            self.assertIn(rule, error(*self.flags(folder, "out")))


if __name__ == "__main__":
    unittest.main()
