#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Folders are read here as AutoTokenizer reads them, or refused: tokenizer.json and
tokenizer.model under what tokenizer_config.json may say. What a run writes of its tokenizer gives the same ids and texts in AutoTokenizer as here: every kind of tokenizer
beside every type of model, on awkward strings; or the pair is refused."""

import json
import os
import pathlib
import random
import shutil
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
try:
    import sentencepiece
    import transformers
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path += [str(TESTS), str(TESTS / "data")]  # after `tokenizers`, whose name a file there has
import _tokenizers as made  # noqa: E402
from _built_test import ROOT, run_test  # noqa: E402

transformers.utils.logging.set_verbosity_error()
DATA = pathlib.Path(os.environ.get("COMPACT_DATA", ROOT.parent / "shared/data"))
TEXT = "\n".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))[:12])
TYPES = {t: {"model_type": t} for t in ("llama", "mistral", "qwen2", "qwen3", "phi3", "smollm3", "granite", "olmo2", "gemma2",
                                        "gemma3_text", "gpt2", "roberta")} | {"bert": {"model_type": "bert", "type_vocab_size": 2}}  # fmt: skip
STRINGS = [
    "", " ", "a ", " a", "a b  c   d", "12345 3.14", "café cafe\u0301", "한국어 中文", "😀 x", "ﬁ ß İ", "//\n/foo", "__a_b__",
    " two  spaces ", "Hello, world!", "a\n\nb\tc", "hello world 2023 650841823", "=" * 37, " " * 41, "-" * 50, "▁x", "▁ ▁x",
    "a▁b", "</s>a", "a <s> b", "<unk>b", "x<|user|>y", "x <|user|>  y", "<|user|>", "It's we'LL ÀB", "\u200d\u0301", "\x00\x07",
    "<|endoftext|>", "<|im_start|>user\nhi<|im_end|>\n", "[MASK] [SEP]", "👩‍👩‍👧\n\n\tx", "<0x41>", "naïve façade", "½ Ⅷ ²³ ٣٤",
    "a<|user|>b <|user|> c", "<c><b> <u><p>", "<|image|> <x>a", "<pad> <mask> <|padding|>", "<|other|>b",
    "e\u0301\u0327 Tie\u0302\u0301ng Vie\u0323\u0302t", "\u1100\u1161\u11a8", "a\r\nb", "السَّرِيع", "שׁוּעָ",
]  # fmt: skip
SENTENCEPIECE = {
    "unigram": dict(model_type="unigram"),
    "unigram-bytes": dict(model_type="unigram", normalization_rule_name="identity", byte_fallback=True),
    "spm-bpe": dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
                    split_digits=True),
    "spm-bpe-plain": dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False),
    "spm-bpe-nfkc": dict(model_type="bpe"),
    "spm-bpe-bare": dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity", add_dummy_prefix=False,
                         remove_extra_whitespaces=False, user_defined_symbols=["<|user|>", "  "]),
}  # fmt: skip


def spm(folder: pathlib.Path, settings: dict) -> None:
    folder.mkdir()
    (folder.parent / "text").write_text(TEXT)
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder.parent / "text"), model_prefix=str(folder / "m"), vocab_size=1000, num_threads=1, minloglevel=2,
        character_coverage=1.0, bos_id=1, eos_id=2, unk_id=0, **settings,
    )  # fmt: skip
    (folder / "m.model").rename(folder / "tokenizer.model")
    (folder / "m.vocab").unlink()


def metaspace(kind: str) -> Tokenizer:
    """BPE as LLaMA 2, Gemma and Phi-3 have it in a tokenizer.json."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    marks = normalizers.Replace(" ", "▁")
    if kind == "gemma":
        tokenizer.normalizer = marks
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    elif kind in ("first", "always"):
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=kind, split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), marks])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + ([] if kind == "gemma" else [decoders.Strip(" ", 1, 0)]))
    alphabet = [chr(c) for c in range(33, 127)]
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=1200, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=True)
    words.train_from_iterator([TEXT], trainer)
    learnt = json.loads(words.to_str())["model"]
    tokenizer.model = models.BPE(learnt["vocab"], [tuple(m) for m in learnt["merges"]], unk_token="<unk>", fuse_unk=True,
                                 byte_fallback=True)  # fmt: skip
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>", AddedToken("<|user|>", rstrip=kind == "prepend")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator([TEXT], trainers.WordPieceTrainer(vocab_size=600, special_tokens=made.BERT_SPECIAL, show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def folders(root: pathlib.Path) -> None:
    lines = TEXT.split("\n")
    for kind, settings in SENTENCEPIECE.items():
        spm(root / kind, settings)
    bare = {f"metaspace-{k}": metaspace(k) for k in ("gemma", "first", "always", "prepend")}
    bare |= {"llama3": made.llama3(lines), "smollm2": made.smollm2(lines), "qwen2": made.qwen2(lines), "wordpiece": wordpiece()}
    gpt2 = made.byte_level(models.BPE())
    gpt2.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=900, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    ))  # fmt: skip
    bare |= {"gpt2": gpt2}
    for kind, tokenizer in bare.items():
        (root / kind).mkdir()
        tokenizer.save(str(root / kind / "tokenizer.json"))
    # As transformers saves them: with roles, and words added beside the file.
    for kind, role in (("smollm2", "<|im_end|>"), ("metaspace-first", "</s>")):
        (root / f"{kind}-saved").mkdir()
        saved = PreTrainedTokenizerFast(tokenizer_object=bare[kind], eos_token=role, pad_token="[PAD]")
        saved.add_tokens([AddedToken("<|tool|>", special=True, normalized=False), "zzq"])
        saved.save_pretrained(root / f"{kind}-saved")
    for kind, config in (("spm-bpe-config", {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "bos_token": "<s>"}),):
        shutil.copytree(root / "spm-bpe", root / kind)
        config["added_tokens_decoder"] = {"1000": listed("<|user|>")}
        (root / kind / "tokenizer_config.json").write_text(json.dumps(config))
    (root / "vocab-txt").mkdir()
    words = sorted(bare["wordpiece"].get_vocab().items(), key=lambda item: item[1])
    (root / "vocab-txt/vocab.txt").write_text("".join(word + "\n" for word, _ in words))
    (root / "vocab-txt/tokenizer_config.json").write_text('{"do_lower_case": false, "tokenizer_class": "BertTokenizer"}')
    (root / "pair").mkdir()
    bare["gpt2"].model.save(str(root / "pair"))
    if (DATA / "tokenizers/t5-spiece.model").is_file():
        (root / "t5").mkdir()
        shutil.copyfile(DATA / "tokenizers/t5-spiece.model", root / "t5/tokenizer.model")


def listed(content: str, **flags: bool) -> dict:
    return {"content": content, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True} | flags


SPM = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
ROLES = [f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]
CLASSES = {
    # name: (tokenizer, type of the model or none, tokenizer_config.json)
    "bert-default": ("wordpiece", "bert", {}),
    "bert-bare": ("wordpiece-bare", "bert", {}),
    "bert-bare-class": ("wordpiece-bare", None, {"tokenizer_class": "BertTokenizerFast"}),
    "bert-roles": ("wordpiece-bare", "bert", {"cls_token": "[SEP]", "sep_token": "[MASK]"}),
    "bert-cased": ("wordpiece", "bert", {"tokenizer_class": "BertTokenizer", "do_lower_case": False}),
    "bert-cased-file": ("wordpiece-cased", "bert", {"tokenizer_class": "BertTokenizer"}),
    "bert-accents": ("wordpiece", "bert", {"strip_accents": False}),
    "bert-cased-accents": ("wordpiece", "bert", {"do_lower_case": False, "strip_accents": True}),
    "bert-chinese": ("wordpiece", "bert", {"tokenize_chinese_chars": False}),
    "bert-fast": ("wordpiece-cased", "bert", {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}),
    "gpt2-prefix": ("gpt2", "gpt2", {"add_prefix_space": True}),
    "gpt2-plain": ("smollm2", "gpt2", {"tokenizer_class": "GPT2Tokenizer"}),
    "gpt2-fast-prefix": ("gpt2", "gpt2", {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True}),
    "roberta": ("roberta", "roberta", {}),
    "roberta-prefix": ("roberta", "roberta", {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True}),
    "roberta-fast": ("roberta", "roberta", {"tokenizer_class": "PreTrainedTokenizerFast"}),
    "qwen3": ("smollm2", "qwen3", {}),
    "qwen2-type": ("llama3", "qwen2", {"tokenizer_class": "PreTrainedTokenizerFast"} | {
        role: "<|end_of_text|>" for role in ("eos_token", "unk_token", "pad_token")}),
    "llama3-class": ("llama3", "llama", {"tokenizer_class": "LlamaTokenizerFast"}),
    "spm-new": ("spm-bpe-plain", "llama", {"tokenizer_class": "LlamaTokenizer", **SPM}),
    "spm-fast-bos": ("spm-bpe-plain", "llama", {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, **SPM}),
    "spm-legacy": ("spm-bpe-plain", "llama", {"tokenizer_class": "LlamaTokenizer", "legacy": True, **SPM}),
    "spm-no-prefix": ("spm-bpe-plain", "smollm3", {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False, **SPM}),
    "spm-backend": ("spm-bpe-plain", "llama", {"tokenizer_class": "PreTrainedTokenizerFast", **SPM}),
    "spm-backend-new": ("spm-bpe-plain", "mistral", {"tokenizer_class": "LlamaTokenizer", "legacy": False, **SPM}),
    "spm-none": ("spm-bpe-plain", "llama", None),
    "electra": ("wordpiece-cased", "electra", {}),
    "electra-class": ("wordpiece-bare", None, {"tokenizer_class": "ElectraTokenizer"}),
    "distilbert": ("wordpiece-cased", "distilbert", {"tokenizer_class": "DistilBertTokenizerFast", "do_lower_case": False}),
    "neox": ("gpt2", "gpt_neox", {"pad_token": "<|endoftext|>"}),
    "neox-class": ("llama3", "llama", {"tokenizer_class": "GPTNeoXTokenizerFast"} | dict.fromkeys(ROLES, "<|end_of_text|>")),
    "neox-prefix": ("smollm2", None, {"tokenizer_class": "GPTNeoXTokenizer", "add_prefix_space": True, "pad_token": None}),
    "neox-fast": ("llama3", "gpt_neox", FAST),
    "codegen": ("llama3", "phi", {"tokenizer_class": "CodeGenTokenizer"} | dict.fromkeys(ROLES, "<|end_of_text|>")),
    "no-defaults": ("roberta", "gpt2", {"unk_token": None, "bos_token": None, "eos_token": "</s>"}),
    "llama3-no-bos": ("llama3", "llama", FAST | {"add_bos_token": False, "bos_token": "<|begin_of_text|>"}),
    "llama3-bos": ("llama3", "llama", FAST | {"add_bos_token": True, "bos_token": "<|end_of_text|>"}),
    "list-strips": ("metaspace-first", None, FAST | {"added_tokens_decoder": {
        "0": listed("<unk>"), "1": listed("<s>", single_word=True), "2": listed("</s>", special=False),
        "1200": listed("<|user|>", lstrip=True, rstrip=True)}}),
    "list-normal": ("smollm2", None, FAST | {"added_tokens_decoder": {"0": listed("<|endoftext|>", normalized=True, lstrip=True)}}),
    "list-other": ("metaspace-first", None, FAST | {"added_tokens_decoder": {"7": listed("<|user|>"), "1200": listed("<|other|>")}}),
    "list-gpt2": ("gpt2", "gpt2", {"added_tokens_decoder": {"0": listed("<|endoftext|>", rstrip=True), "7": listed("<|user|>")}}),
    "new-roles": ("llama3", "llama", FAST | {
        "unk_token": "<u>", "cls_token": "<c>", "bos_token": "<b>", "pad_token": "<p>", "eos_token": "<|end_of_text|>",
        "image_token": "<|image|>", "extra_special_tokens": ["<x>"]}),
    "gemma2-prepend": ("metaspace-prepend", "gemma2",
                       {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "mask_token": "<unk>"}),
} | {
    f"{kind}-{model_type}-{name}": (f"metaspace-{kind}", model_type, {"tokenizer_class": "LlamaTokenizer"} | config)
    for kind in ("prepend", "first", "always")
    for model_type, name, config in (
        ("llama", "new", {}), ("qwen3", "null", {"legacy": None}), ("smollm3", "fast", {"tokenizer_class": "LlamaTokenizerFast"}),
        ("gemma2", "new", {"legacy": False}), ("gpt2", "new", {}), ("llama", "legacy", {"legacy": True}), ("mistral", "new", {}),
        ("llama", "none", {"add_prefix_space": False}), ("phi3", "new", {"add_prefix_space": False}),
        ("llama", "backend", {"tokenizer_class": "PreTrainedTokenizerFast"}),
    )
}  # fmt: skip
REFUSED = {
    # name: (tokenizer, type of the model or none, tokenizer_config.json, what the error says)
    "split-special": ("metaspace-first", "llama", {"split_special_tokens": True}, "split_special_tokens true is not known here"),
    "unigram-llama": ("unigram", "llama", {"tokenizer_class": "LlamaTokenizer"}, "which takes pieces and merges alone"),
    "other-model": ("gpt2", "bert", {}, "which makes one of WordPiece"),
    "codellama": ("metaspace-prepend", "llama", {"tokenizer_class": "CodeLlamaTokenizer"}, "reads it as CodeLlamaTokenizer, which"),
    "camembert": ("unigram", None, {"tokenizer_class": "CamembertTokenizer"}, "tokenizer.model: transformers reads it as CamembertTok"),
    "spm-t5": ("unigram", "t5", {}, "reads it as T5Tokenizer, which makes a tokenizer of it by rules that are not known here"),
    "spm-gemma": ("spm-bpe-plain", "gemma2", {}, "reads it as GemmaTokenizer, which"),
    "pair-qwen": ("pair", None, {"tokenizer_class": "Qwen2Tokenizer"}, "vocab.json: transformers reads it as Qwen2Tokenizer"),
    "vocab-mpnet": ("vocab-txt", "mpnet", {}, "vocab.txt: transformers reads it as MPNetTokenizer"),
    "neox-pad": ("gpt2", "gpt_neox", {}, "adds `<|padding|>` (pad_token) to a vocabulary that lacks it; name one that it has, or null"),
    "roberta-lacks": ("gpt2", "roberta", {"cls_token": "a", "sep_token": "b"}, "adds `<s>` (bos_token)"),
    "qwen2-lacks": ("roberta", "qwen2", FAST, "beside a model of this type it does so with every tokenizer"),
    "list-lacks": ("roberta", "gpt2", {"eos_token": "</s>", "bos_token": None, "unk_token": None, "added_tokens_decoder": {}},
                   "added_tokens_decoder of tokenizer_config.json lacks it"),
    "bert-without-cls": ("wordpiece", "bert", {"cls_token": "[BEGIN]"}, "puts `[BEGIN]` (cls_token) around texts"),
}  # fmt: skip


def classes(root: pathlib.Path) -> None:
    """Folders whose tokenizer_config.json or type of model changes what the tokenizer's file says."""
    for name, tokenizer in (("wordpiece-bare", wordpiece()), ("wordpiece-cased", wordpiece())):
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=name == "wordpiece-bare")
        written = json.loads(tokenizer.to_str())
        if name == "wordpiece-bare":
            written["post_processor"] = None
        (root / name).mkdir()
        (root / name / "tokenizer.json").write_text(json.dumps(written))
    roberta = made.byte_level(models.BPE())
    roberta.train_from_iterator(TEXT.split("\n"), trainers.BpeTrainer(
        vocab_size=900, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    ))  # fmt: skip
    roberta.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), True, False)
    (root / "roberta").mkdir()
    roberta.save(str(root / "roberta/tokenizer.json"))
    for name, (kind, model_type, config, *_) in (CLASSES | REFUSED).items():
        folder = root / f"class-{name}"
        shutil.copytree(root / kind, folder)
        if config is not None:
            (folder / "tokenizer_config.json").write_text(json.dumps(config))
        if model_type:
            (folder / "config.json").write_text(json.dumps({"model_type": model_type}))


known: dict[tuple, tuple[list, list]] = {}


def encoded(there: object, lines: list[str]) -> tuple[list[list[int]], list[str]]:
    """Ids of lines and their texts by a tokenizer of transformers; one that is as an earlier one is not asked again."""
    key = (type(there), there.backend_tokenizer.to_str(), there.clean_up_tokenization_spaces, there.split_special_tokens, len(lines))
    if key not in known:
        ids = there(lines, add_special_tokens=False)["input_ids"]
        known[key] = ids, [there.decode(of_line, skip_special_tokens=True) for of_line in ids]
    return known[key]


def read_here_as_there(root: pathlib.Path, lines: list[str]) -> int:
    bad = 0
    for name in CLASSES:
        folder = root / f"class-{name}"
        assert not (folder / "refused").is_file(), (name, (folder / "refused").read_text())
        there = AutoTokenizer.from_pretrained(folder)
        ours = json.loads((folder / "ids.json").read_text())
        ids, _ = encoded(there, lines)
        wrong = [n for n in range(len(lines)) if ids[n] != ours[n]]
        for n in wrong[:3]:
            print(f"{name}: {ascii(lines[n])[:100]}\n    here {ours[n][:20]}\n    there {ids[n][:20]}")
        begin, middle, end = json.loads((folder / "format.json").read_text())
        a, b = lines.index("café cafe\u0301"), lines.index("a b  c   d")
        one, two = begin + ours[a] + end, begin + ours[a] + middle + ours[b] + end
        if there(lines[a])["input_ids"] != one or there(lines[a], lines[b])["input_ids"] != two:
            print(f"{name}: sentences\n    here {two}\n    there {there(lines[a], lines[b])['input_ids']}")
            bad += 1
        bad += len(wrong)
    for name, (*_, rule) in REFUSED.items():
        refused = (root / f"class-{name}" / "refused").read_text()
        assert rule in refused, (name, refused)
    print(f"{len(CLASSES)} folders read as there, {len(REFUSED)} refused")
    return bad


def every(root: pathlib.Path) -> None:
    """A folder for every class and every type of model that transformers has a tokenizer for."""
    types = {kind: c.removesuffix("Fast") for kind, c in TOKENIZER_MAPPING_NAMES.items() if c}
    special = {"smollm2": "<|endoftext|>", "metaspace-prepend": "<unk>", "wordpiece-cased": "[UNK]"}
    rows = []
    for c in {*types.values(), "DistilBertTokenizer", "CodeLlamaTokenizer"}:
        rows += [(f"every-class-{c}-{tokenizer}", tokenizer, "llama", {"tokenizer_class": c}) for tokenizer in special]
    own = {"BertTokenizer": "wordpiece-cased", "GemmaTokenizer": "metaspace-prepend"}
    for kind, c in types.items():
        rows.append((f"every-{kind}", own.get(c, "smollm2"), kind, {}))
        rows.append((f"every-{kind}-named", "smollm2", kind, {"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": True}))
    for name, tokenizer, kind, config in rows:
        (root / name).mkdir()
        (root / name / "tokenizer.json").symlink_to(root / tokenizer / "tokenizer.json")
        (root / name / "tokenizer_config.json").write_text(json.dumps(config | dict.fromkeys(ROLES, special[tokenizer])))
        (root / name / "config.json").write_text(json.dumps({"model_type": kind}))


def every_as_there(root: pathlib.Path) -> int:
    bad = same = 0
    folders = sorted(root.glob("every-*"))
    for folder in folders:
        refused = (folder / "refused").read_text() if (folder / "refused").is_file() else ""
        try:
            there = AutoTokenizer.from_pretrained(folder)
        except Exception as error:
            there = error
        as_it_is = type(there) is PreTrainedTokenizerFast
        if refused:
            wrong = as_it_is and "transformers reads it" in refused
        else:
            ours = json.loads((folder / "ids.json").read_text())
            wrong = isinstance(there, Exception) or there(STRINGS, add_special_tokens=False)["input_ids"] != ours
            same += not wrong
        if wrong:
            print(f"{folder.name}: {type(there).__name__} there{', refused here: ' + refused if refused else ''}")
        bad += wrong
    print(f"{len(folders)} folders of every class and type of model: {same} read as there")
    return bad


def tie(folder: pathlib.Path, one: list[int], other: list[int]) -> bool:
    """Whether a unigram model holds two ways to cut a text equally likely: sums in float32 and in float64 differ."""
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    if model["type"] != "Unigram":
        return False
    one, other = (sum(model["vocab"][i][1] for i in ids) for ids in (one, other))
    return abs(one - other) <= 1e-6 * abs(one)


def main() -> int:
    draw = random.Random(5)
    lines = STRINGS + draw.sample(made.made_lines(), 1200) + TEXT.split("\n")[:200]
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        folders(root)
        classes(root)
        every(root)
        (root / "few").write_text(json.dumps(STRINGS))
        (root / "lines").write_text(json.dumps(lines))
        (root / "types").write_text(json.dumps(TYPES))
        run_test("tasks", "TokenizerFolders.*", name)
        qwen2 = ("qwen2", "class-qwen2-type", "class-qwen3")
        bad += read_here_as_there(root, lines) + every_as_there(root)
        for folder in sorted(path for path in root.iterdir() if path.is_dir() and not (path / "refused").is_file() and not path.name.startswith("every-")):
            ours = json.loads((folder / "ids.json").read_text())
            texts = json.loads((folder / "texts.json").read_text())
            for model_type in TYPES:
                saved = folder / model_type
                if (saved / "refused").is_file():
                    assert model_type == "qwen2" and folder.name not in qwen2, (folder.name, model_type)
                    assert "read every tokenizer" in (saved / "refused").read_text().replace("reads", "read")
                    continue
                if not saved.is_dir():  # beside its own type and LLaMA's alone
                    continue
                assert model_type != "qwen2" or folder.name in qwen2, folder.name
                there = AutoTokenizer.from_pretrained(saved)
                ids, decoded = encoded(there, lines)
                wrong = [n for n in range(len(lines)) if ids[n] != ours[n] and not tie(saved, ours[n], ids[n])]
                other = [n for n in range(len(lines)) if ids[n] == ours[n] and decoded[n] != texts[n]]
                if wrong or other:
                    print(f"{folder.name} beside {model_type}: {len(wrong)} with other ids, {len(other)} with other text")
                    for n in wrong[:3]:
                        print(f"  {ascii(lines[n])[:100]}\n    here {ours[n][:20]}\n    there {ids[n][:20]}")
                    for n in other[:3]:
                        print(f"  decoded {ascii(texts[n])[:100]}\n    there {ascii(decoded[n])[:100]}")
                bad += len(wrong) + len(other)
                typed = "token_type_ids" in there("a", "b")
                assert not typed or model_type == "bert", (folder.name, model_type)
            print(f"{folder.name}: {len(lines)} strings beside {len(TYPES)} types of models")
        begun = AutoTokenizer.from_pretrained(root / "spm-bpe-config/llama")("a<|user|>")["input_ids"]
        assert begun[0] == 1 and begun[-1] == 1000, begun
        for kind in ("wordpiece", "vocab-txt"):
            assert AutoTokenizer.from_pretrained(root / kind / "bert")("a", "b")["token_type_ids"][-1] == 1, kind
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
