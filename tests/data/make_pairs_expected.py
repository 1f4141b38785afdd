# SPDX-License-Identifier: Apache-2.0
"""Writes pairs_expected.json: what the Python package tokenizers makes of texts and pairs of words
with special tokens, cut to a length by `longest_first`.

Run in the repository's root. Word wI is token 10 + I; [CLS] and [SEP] are 2 and 3.
"""
import json
import pathlib

from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = 40
BERT = {"begin": [2], "middle": [3], "end": [3], "second_type": True}
ROBERTA = {"begin": [2], "middle": [3, 3], "end": [3], "second_type": False}
NAMES = {2: "[CLS]", 3: "[SEP]"}


def tokenizer_of(form):
    words = {f"w{i}": 10 + i for i in range(WORDS)}
    out = Tokenizer(models.WordLevel({"[UNK]": 0, "[CLS]": 2, "[SEP]": 3, **words}, unk_token="[UNK]"))
    out.pre_tokenizer = pre_tokenizers.WhitespaceSplit()

    def named(part, type_id=0):
        return [f"{NAMES[token]}:{type_id}" for token in form[part]]

    second = int(form["second_type"])
    out.post_processor = processors.TemplateProcessing(
        single=[*named("begin"), "$A:0", *named("end")],
        pair=[*named("begin"), "$A:0", *named("middle"), f"$B:{second}", *named("end", second)],
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return out


def text_of(first, count):
    return " ".join(f"w{i}" for i in range(first, first + count))


def cases():
    for first in range(7):
        yield BERT, first, None, 2 + 4
        for second in range(7):
            for room in (2, 3, 6, 7):
                yield BERT, first, second, 3 + room
    for first, second, length in ((9, 9, 11), (9, 2, 10), (2, 9, 9), (3, 3, 20), (12, 7, 16)):
        yield ROBERTA, first, second, length
        yield ROBERTA, first, None, length


if __name__ == "__main__":
    rows = []
    for form, first, second, length in cases():
        tokenizer = tokenizer_of(form)
        tokenizer.enable_truncation(length, strategy="longest_first")
        texts = [text_of(0, first)] + ([text_of(20, second)] if second is not None else [])
        encoding = tokenizer.encode(*texts)
        row = {"texts": texts, "length": length, "ids": encoding.ids, "types": encoding.type_ids}
        rows.append({"form": "bert" if form is BERT else "roberta", **row})
    text = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    forms = json.dumps({"bert": BERT, "roberta": ROBERTA})
    pathlib.Path("tests/data/pairs_expected.json").write_text(
        f'{{"forms": {forms},\n"rows": [\n{text}\n]}}\n'
    )
