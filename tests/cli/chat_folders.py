# SPDX-License-Identifier: Apache-2.0
"""Folders made like those of chat models: completions are trained on the end at which transformers stops, nothing is
added twice, and what a run leaves is to transformers what the folder was."""
import json
import sys
import unittest

from _program import EXAMPLES, SOURCE, InFolder, hugging_face, run

torch, transformers, tokenizers = hugging_face("tokenizers")
sys.path.append(str(SOURCE / "tests/data"))  # after `tokenizers`
import _tokenizers as made  # noqa: E402

LINES = (EXAMPLES / "hard-times.txt").read_text().split("\n")[:1500]
SHAPE = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=256, initializer_range=0.1)  # fmt: skip
TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + eos_token }}{% endfor %}"


def added(tokenizer, *names, **flags):
    tokenizer.add_special_tokens([tokenizers.AddedToken(n, **flags) for n in names])
    return tokenizer


def plain_end(tokenizer):
    tokenizer.add_tokens([tokenizers.AddedToken("<|done|>", special=False, normalized=False)])
    return tokenizer


def begins(tokenizer, token):
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, tokenizer.token_to_id(token))])
    return tokenizer


def marked(lines, special):
    """BPE as SentencePiece trains it, with spaces as U+2581."""
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
    words = tokenizers.Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=True)
    names = special + [f"<0x{b:02X}>" for b in range(256)]
    words.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=900, special_tokens=names, show_progress=False))
    learnt = json.loads(words.to_str())["model"]
    merges = [tuple(m) for m in learnt["merges"]]
    out = tokenizers.Tokenizer(models.BPE(learnt["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    out.normalizer = normalizers.Replace(" ", "▁")
    out.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return added(out, *special)


# The tokenizer; its roles; the config; where a generation stops, by generation_config.json.
def folders():
    return {
        "Qwen2": (made.qwen2(LINES), dict(eos_token="<|im_end|>", pad_token="<|endoftext|>"), ["<|im_end|>", "<|endoftext|>"]),
        "SmolLM2": (made.smollm2(LINES), dict(eos_token="<|im_end|>", bos_token="<|im_start|>", pad_token="<|im_end|>"), ["<|im_end|>"]),
        "Llama3": (begins(added(made.llama3(LINES), "<|eot_id|>"), "<|begin_of_text|>"),
                   dict(eos_token="<|eot_id|>", bos_token="<|begin_of_text|>"), ["<|end_of_text|>", "<|eot_id|>"]),
        # The eos_token of a first release, which nothing stops at.
        "Llama3Base": (begins(added(made.llama3(LINES), "<|eot_id|>"), "<|begin_of_text|>"),
                       dict(eos_token="<|end_of_text|>", bos_token="<|begin_of_text|>"), ["<|eot_id|>"]),
        "Phi3": (added(marked(LINES, ["<unk>", "<s>", "</s>"]), "<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>", rstrip=True),
                 dict(eos_token="<|endoftext|>", bos_token="<s>", unk_token="<unk>", pad_token="<|endoftext|>"),
                 ["<|endoftext|>", "<|assistant|>", "<|end|>"]),
        "Gemma3": (begins(added(marked(LINES, ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]), "<end_of_turn>"), "<bos>"),
                   dict(eos_token="<eos>", bos_token="<bos>", unk_token="<unk>", pad_token="<pad>"), ["<eos>", "<end_of_turn>"]),
        # Stops at a token that is not marked as special, and at a word.
        "Plain": (plain_end(made.smollm2(LINES)), dict(eos_token="<|endoftext|>", pad_token="<|endoftext|>"), ["<|done|>"]),
        "Word": (made.smollm2(LINES), dict(eos_token="<|endoftext|>", pad_token="<|endoftext|>"), ["Ġthe"]),
    }  # fmt: skip


CONFIGS = {"Qwen2": "Qwen2Config", "SmolLM2": "LlamaConfig", "Llama3": "LlamaConfig", "Llama3Base": "LlamaConfig",
           "Phi3": "Phi3Config", "Gemma3": "Gemma3TextConfig", "Plain": "LlamaConfig", "Word": "LlamaConfig"}  # fmt: skip
CLASSES = {"Qwen2": "Qwen2Tokenizer", "SmolLM2": "GPT2Tokenizer", "Llama3": "PreTrainedTokenizerFast", "Gemma3": "GemmaTokenizer",
           "Plain": "PreTrainedTokenizerFast", "Word": "PreTrainedTokenizerFast"}


class ChatFolders(InFolder):
    @classmethod
    def setUpClass(cls):
        cls.kinds = folders()

    def source(self, kind):
        tokenizer, roles, stops = self.kinds[kind]
        folder = self.folder / kind
        saved = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer.from_str(tokenizer.to_str()), chat_template=TEMPLATE, **roles)
        saved.save_pretrained(folder)
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config["tokenizer_class"] = CLASSES.get(kind, "LlamaTokenizer")
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        ids = [tokenizer.token_to_id(t) for t in stops]
        torch.manual_seed(3)
        more = dict(head_dim=8) if kind == "Gemma3" else {}
        shape = getattr(transformers, CONFIGS[kind])(
            vocab_size=saved.vocab_size + len(saved.get_added_vocab()), eos_token_id=ids[0], pad_token_id=None,
            bos_token_id=saved.bos_token_id, **SHAPE, **more)
        model = transformers.AutoModelForCausalLM.from_config(shape).eval()
        model.generation_config.eos_token_id = ids
        model.save_pretrained(folder)
        (folder / "preprocessor_config.json").write_text('{"kept": 1}')
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates/tool_use.jinja").write_text("tools")
        (folder / "LICENSE").write_text("kept")
        (folder / "README.md").write_text("not kept")
        (folder / "optimizer.pt").write_text("not kept")
        return folder, model, tokenizer, roles, ids

    def good(self, *arguments):
        done = run(*arguments, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def train(self, folder, rows, *more):
        data = self.folder / "rows.jsonl"
        data.write_text("".join(json.dumps(dict(prompt=p, completion=c)) + "\n" for p, c in rows))
        out = self.folder / f"{folder.name}-out"
        done = self.good("train", "--task=prompt-completion", f"--model_name_or_path={folder}", f"--train_file={data}",
                         f"--validation_file={data}", "--block_size=64", "--max_steps=1", "--learning_rate=1e-12",
                         "--per_device_train_batch_size=4", f"--output_dir={out}", "--device=cpu", *more)  # fmt: skip
        return out, done

    def test_completions_end_where_transformers_stops(self):
        for kind in self.kinds:
            with self.subTest(kind):
                folder, model, tokenizer, roles, stops = self.source(kind)
                end = tokenizer.token_to_id(roles["eos_token"])
                end = end if end in stops else stops[0]
                last = tokenizer.decode(stops[-1:], skip_special_tokens=False)
                begin = tokenizer.encode("", add_special_tokens=True).ids
                first = "".join(tokenizer.id_to_token(i) for i in begin)
                rows = [("What is it? ", "Nothing at all."), ("3 + 4 = ", "7" + last), (first + "user: 12 ", "so")]
                total = count = 0
                for prompt, completion in rows:
                    p = tokenizer.encode(prompt, add_special_tokens=False).ids
                    p = p if begin and p[: len(begin)] == begin else begin + p
                    whole = tokenizer.encode(prompt + completion, add_special_tokens=False).ids
                    whole = whole if begin and whole[: len(begin)] == begin else begin + whole
                    whole += [] if whole[-1] in stops else [end]
                    same = next((i for i, (a, b) in enumerate(zip(p, whole)) if a != b), len(p))
                    with torch.no_grad():
                        logits = model(torch.tensor([whole])).logits[0, same - 1 : -1]
                    total += torch.nn.functional.cross_entropy(logits, torch.tensor(whole[same:]), reduction="sum").item()
                    count += len(whole) - same
                out, _ = self.train(folder, rows)
                result = json.loads((out / "all_results.json").read_text())
                self.assertEqual(result["eval_tokens"], count)
                self.assertAlmostEqual(result["eval_loss"], total / count, delta=2e-5)
                # The files that the run leaves.
                trained, there = transformers.AutoTokenizer.from_pretrained(out), transformers.AutoModelForCausalLM.from_pretrained(out)
                self.assertEqual(there.generation_config.eos_token_id, stops)
                self.assertIn(end, stops)
                for text in ("Hello  12 world", "a<|user|> b", first + "x", f"so{last} x", "日本 e\u0301"):
                    self.assertEqual(trained(text, add_special_tokens=False)["input_ids"],
                                     tokenizer.encode(text, add_special_tokens=False).ids, text)  # fmt: skip
                    self.assertEqual(trained(text)["input_ids"], tokenizer.encode(text).ids, text)
                chat = [dict(role="user", content="hi")]
                self.assertEqual(trained.apply_chat_template(chat, tokenize=False), f"user: hi{roles['eos_token']}")
                self.assertEqual(trained.eos_token, roles["eos_token"])
                names = {path.name for path in out.iterdir()}
                self.assertLessEqual({"generation_config.json", "chat_template.jinja", "preprocessor_config.json"}, names)
                self.assertFalse({"README.md", "optimizer.pt"} & names)
                self.assertEqual((out / "LICENSE").read_text(), "kept")
                self.assertEqual(trained.chat_template, {"default": TEMPLATE, "tool_use": "tools"})

    def test_a_tokenizer_from_elsewhere_decides_the_end(self):
        folder, _, tokenizer, *_ = self.source("Llama3Base")
        other = self.folder / "other.json"
        self.kinds["SmolLM2"][0].save(str(other))
        out, _ = self.train(folder, [("3 + 4 = ", "7")], f"--tokenizer=bpe:file={other}")
        end = self.kinds["SmolLM2"][0].token_to_id("<|endoftext|>")
        there = transformers.AutoModelForCausalLM.from_pretrained(out)
        self.assertEqual(there.generation_config.eos_token_id, end)
        self.assertEqual(transformers.AutoTokenizer.from_pretrained(out).eos_token_id, end)
        texts = self.folder / "texts.txt"
        texts.write_text("\n".join(LINES[:400]))
        tokens = self.folder / "texts.tokens"
        self.good("prepare", f"--input={texts}", f"--tokenizer=bpe:file={other}", f"--output={tokens}")
        self.good("eval", f"--model_name_or_path={out}", "--task=language-modeling", f"--validation_file={tokens}", "--block_size=32", "--device=cpu")

    def test_a_prompt_that_begins_gets_no_second_begin(self):
        folder, *_ = self.source("Llama3")
        flags = [f"--model_name_or_path={folder}", "--max_new_tokens=12", "--temperature=0", "--device=cpu"]
        texts = {self.good("generate", f"--prompt={b}It was", *flags).stdout.removeprefix(b) for b in ("", "<|begin_of_text|>")}
        self.assertEqual(len(texts), 1, texts)

    def test_generate_stops_at_every_end(self):
        folder, model, tokenizer, _, stops = self.source("Phi3")
        first = model.generate(torch.tensor([tokenizer.encode("It").ids]), max_new_tokens=1, do_sample=False)[0, -1].item()
        def length():
            done = self.good("generate", f"--model_name_or_path={folder}", "--prompt=It", "--max_new_tokens=9",
                             "--temperature=0", "--device=cpu")  # fmt: skip
            return len(done.stdout.strip().removeprefix("It"))
        self.assertGreater(length(), 0)
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [*stops, first]}))
        self.assertEqual(length(), 0)

    def test_a_tokenizer_that_transformers_would_read_otherwise_is_refused(self):
        tokenizer = self.folder / "digits.json"
        self.kinds["SmolLM2"][0].save(str(tokenizer))
        done = run("train", "--model=qwen2.5-0.5b", f"--tokenizer=bpe:file={tokenizer}", "--max_steps=1", f"--output_dir={self.out}",
                   f"--train_file={EXAMPLES / 'hard-times.txt'}", "--block_size=32", f"--cache_dir={self.folder}")  # fmt: skip
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("transformers reads every tokenizer beside such a model as Qwen2Tokenizer", done.stderr)


if __name__ == "__main__":
    unittest.main()
