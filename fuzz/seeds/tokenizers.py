# SPDX-License-Identifier: Apache-2.0
"""Files of tokenizers, and text for them."""
import json

from seeds.common import ROOT


def sentencepiece():
    yield "spaces", (ROOT / "tests/data/spaces.model").read_bytes()
    yield "empty", b"\n\0"
    yield "length", b"\n\xff\xff\xff\xff\x0f"


SMALL_BPE = {"version": "1.0", "added_tokens": [], "normalizer": None,
             "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
             "post_processor": None, "decoder": {"type": "ByteLevel"},
             "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "</s>": 3}, "merges": ["a b"]}}


SMALL_WORDPIECE = {"version": "1.0", "added_tokens": [
                       {"id": 0, "content": "[SEP]", "special": True, "normalized": False,
                        "single_word": False, "lstrip": False, "rstrip": False}],
                   "normalizer": {"type": "BertNormalizer", "clean_text": True,
                                  "handle_chinese_chars": True, "strip_accents": None,
                                  "lowercase": True},
                   "pre_tokenizer": {"type": "BertPreTokenizer"},
                   "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 0],
                                      "cls": ["[CLS]", 1]},
                   "model": {"type": "WordPiece", "unk_token": "[UNK]",
                             "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                             "vocab": {"[SEP]": 0, "[CLS]": 1, "[UNK]": 2, "it": 3, "##s": 4}}}


def tokenizer_file():
    yield "vocabulary", b"\0[PAD]\n[UNK]\n[CLS]\n[SEP]\nit\n##s\n"
    yield "twice", b"\0[UNK]\n[UNK]\n[CLS]\n[SEP]\n"
    yield "wordpiece", b"\1" + json.dumps(SMALL_WORDPIECE).encode()
    yield "bpe", b"\2" + json.dumps(SMALL_BPE).encode()
    split = {**SMALL_BPE, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$|\\p{L}"},
                                            "behavior": "Isolated", "invert": False}}
    yield "slow_expression", b"\2" + json.dumps(split).encode()
    huge = json.loads(json.dumps(SMALL_BPE))
    huge["model"]["vocab"]["ab"] = 2**62
    yield "huge_id", b"\2" + json.dumps(huge).encode()
    yield "deep", b"\2" + b'{"model":' * 2000
    yield "pair", b'\3{"a": 0, "b": 1, "ab": 2, "</s>": 3}\0#version: 0.2\na b\n'
    yield "unknown_merge", b'\3{"a": 0}\0a zz\n'


def encode():
    yield "words", "The cab, abab unaB 日本 e\u0301".encode()
    yield "long", b"ab" * 4000
    yield "invalid", b"\xff\xc0\x80\xed\xa0\x80 a\0b"
    yield "marks", ("a" + "\u0301" * 2000).encode()
