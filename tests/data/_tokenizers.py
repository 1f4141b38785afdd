# SPDX-License-Identifier: Apache-2.0
"""Inputs of tests/data/tokenizers.py for both libraries: texts, and tokenizers made with the Python package."""

import json
import pathlib
import random
import sys
import tarfile
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SCRIPTS = [
    "Η γρήγορη καφέ αλεπού ΠΗΔΆ ΌΔΟΣ ὀδός", "Съешь же ещё этих МЯГКИХ булок ё й", "הַשּׁוּעָל הַחוּם שלום", "الثعلب البني السَّرِيع",
    "तेज़ भूरी लोमड़ी क्षत्रिय", "দ্রুত বাদামী শিয়াল", "விரைவான பழுப்பு", "ดิจิทัล สวัสดีครับ", "ພາສາລາວ", "မြန်မာဘာသာ",
    "ភាសាខ្មែរ", "ქართული ᲥᲐᲠᲗᲣᲚᲘ", "Հայերեն լեզու", "አማርኛ ቋንቋ", "日本語のテスト、カタカナ。ｶﾞ", "敏捷的棕色狐狸𠀀𪜀", "빠른 갈색 여우 한국어",
    "ᏣᎳᎩ ꮳꮃꭹ", "ᚠᛇᚻ᛫ᛒᛦᚦ", "𝔗𝔥𝔢 𝓺𝓾𝓲𝓬𝓴 𝟙𝟚𝟛 ℵ₀ ∑∫√", "ǅ ǈ İstanbul ıssız STRASSE straße ﬁn ſ's Å Å é",
]  # fmt: skip
EMOJI = ["👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "❤️‍🔥", "1️⃣", "🫠", "☺", "🧑🏿‍🚀"]
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\x0b", "\x0c", "\x85", "\xa0", "\u1680", "\u2003", "\u2028", "\u2029", "\u202f", "\u3000", "\u200b", "\ufeff"]  # fmt: skip
PIECES = ["don't", "I'LL", "we've", "IT'S", "'ſ", "x'ſy", "12345", "3.14159", "a_b", "--", "...", "http://x.y/z?q=1", "C++", "$9.99", "½", "Ⅷ", "²³", "٣٤", "word", "The", "ing", "\u0301", "e\u0301\u0327", "a\u0327\u0301\u0334", "\x00", "\x07", "\x7f", "\x9f", "\ufffd", "\u200d", "\xad", "\ue000", "\U000e0001"]  # fmt: skip
SPECIAL = ["<|endoftext|>", "<s>", "</s>", "<mask>", "[MASK]", "[SEP]", "[sep]", "<|begin_of_text|>", "<|eot", "<extra>", "Yesterday", "yesterday"]  # fmt: skip


def real_lines(data: pathlib.Path, most: int) -> list[str]:
    """Lines of the texts in `data`; of the tar file, of members spread over it."""
    lines: list[str] = []
    for name in ("tinyshakespeare.txt", "tinystories.txt", "wikitext2-valid.txt"):
        lines += (data / "text" / name).read_text(encoding="utf-8", errors="replace").split("\n")
    with tarfile.open(data / "text/british-fiction.tar.xz") as archive:
        for member in archive:
            if member.isfile() and len(lines) < most:
                text = archive.extractfile(member).read().decode("utf-8", errors="replace")
                lines += text.split("\n")[:4000]
    return [line for line in lines if line][:most]


def made_lines(seed: int = 1) -> list[str]:
    """Every code point in context, and random strings of awkward pieces."""
    draw = random.Random(seed)
    points = [chr(c) for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000]
    lines = [f"a{''.join(points[i:i + 1])}b 1{points[i]} {points[i]}" for i in range(0, 0x3400)]
    lines += [" x".join(points[i : i + 16]) for i in range(0x3400, len(points), 16)]
    # Marks after others: canonical order.
    marks = [p for p in points if p in "\u0301\u0327\u0334\u05b0\u0e38" or 0x300 <= ord(p) < 0x370 or 0x1AB0 <= ord(p) < 0x1B00]
    lines += ["a" + "".join(draw.choices(marks, k=4)) + "z" for _ in range(3000)]
    every = SCRIPTS + EMOJI + PIECES + SPECIAL
    for _ in range(30000):
        parts = []
        for _ in range(draw.randint(1, 12)):
            parts.append(draw.choice(every))
            if draw.random() < 0.7:
                parts.append(draw.choice(SPACES) if draw.random() < 0.4 else " ")
        lines.append("".join(parts))
    # Apart, as some programs write text, and the syllables of Korean in parts.
    lines += [unicodedata.normalize("NFD", line) for line in SCRIPTS + lines[-2000:]]
    lines += ["Cafe\u0301 Caf\u00e9 Cafe", *("".join(draw.choices("\u1100\u1112\u1161\u1175\u11a8\u11c2", k=6)) for _ in range(500))]
    lines += ["", " ", "x" * 99, "x" * 100, "x" * 101, "é" * 100, "ab" * 5000, "\n" * 1000, " " * 3000 + "a", "'" * 300]
    lines += ["".join(draw.choices("abcdefgh ", k=20000)), "1" * 5000, "日" * 2000, "🙂" * 1000, "e\u0301" * 2000]
    return lines


def bert(vocab: pathlib.Path, lowercase: bool) -> Tokenizer:
    words = {line: i for i, line in enumerate(vocab.read_text(encoding="utf-8").splitlines())}
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", words["[SEP]"]), ("[CLS]", words["[CLS]"]))
    tokenizer.add_special_tokens(BERT_SPECIAL)
    return tokenizer


def bert_variant(vocab: pathlib.Path) -> Tokenizer:
    """Every setting other than usual, and added tokens of all kinds."""
    tokenizer = bert(vocab, True)
    tokenizer.normalizer = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=False)
    tokenizer.add_tokens([AddedToken("Yesterday", normalized=True), AddedToken("<extra>", lstrip=True, rstrip=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("word", single_word=True, normalized=False)])
    return tokenizer


def byte_level(model: models.BPE, add_prefix_space: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def gpt2(data: pathlib.Path) -> Tokenizer:
    folder = data / "tokenizers"
    tokenizer = byte_level(models.BPE.from_file(str(folder / "gpt2-encoder.json"), str(folder / "gpt2-vocab.bpe")))
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def roberta(data: pathlib.Path) -> Tokenizer:
    """GPT-2's merges with RoBERTa's special tokens and post-processor, and a space put before."""
    tokenizer = gpt2(data)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True)])
    ids = [(t, tokenizer.token_to_id(t)) for t in ("</s>", "<s>")]
    tokenizer.post_processor = processors.RobertaProcessing(*ids, trim_offsets=True, add_prefix_space=True)
    return tokenizer


def trained(lines: list[str], steps: list, special: list[str], size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges="<|begin_of_text|>" in special))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def llama3(lines: list[str]) -> Tokenizer:
    steps = [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    tokenizer = trained(lines, steps, ["<|begin_of_text|>", "<|end_of_text|>"], 6000)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B",
                special_tokens=[("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))],
            ),
        ]
    )  # fmt: skip
    return tokenizer


def qwen2(lines: list[str]) -> Tokenizer:
    steps = [pre_tokenizers.Split(Regex(QWEN2), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    tokenizer = trained(lines, steps, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], 6000)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken("Cafe\u0301", normalized=True)])
    return tokenizer


def smollm2(lines: list[str]) -> Tokenizer:
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    return trained(lines, steps, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], 4000)


def with_pairs_as_text(path: pathlib.Path) -> None:
    """Merges as "a b", as older files have them."""
    root = json.loads(path.read_text())
    root["model"]["merges"] = [" ".join(m) for m in root["model"]["merges"]]
    path.write_text(json.dumps(root))
