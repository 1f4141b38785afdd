# SPDX-License-Identifier: Apache-2.0
"""Writes sentencepiece_expected.json: what the Python package makes of some texts.

Run in the repository's root with the folder that holds tokenizers/t5-spiece.model as argument.
"""
import json
import pathlib
import sys
import zlib

import numpy
import sentencepiece

TEXTS = [
    "",
    " ",
    "a",
    "It is a truth universally acknowledged",
    "two  spaces,   three",
    " leading and trailing ",
    "line\nend\n\n\ttab",
    "Elizabeth Bennet, 1813: £10,000 a year!",
    "Grüße, naïve café",
    "Чёрный пёс; 日本語のテキスト。 עברית",
    "emoji 😀👍🏽 and \u0000 NUL",
    "non\u00a0breaking \u3000 wide \ufb01 ligature",
    "</s><s><unk> ▁▁",
    "x" * 200,
]

if __name__ == "__main__":
    data = pathlib.Path(sys.argv[1])
    novel = pathlib.Path("examples/data/hard-times.txt").read_text()
    out = {}
    for name, path in (
        ("austen", pathlib.Path("examples/data/austen-2048.model")),
        ("t5", data / "tokenizers" / "t5-spiece.model"),
    ):
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        whole = numpy.array(model.encode(novel), dtype="<u4")
        out[name] = {
            "vocabulary": model.vocab_size(),
            "end_of_text": model.eos_id(),
            "novel_tokens": len(whole),
            "novel_crc32": zlib.crc32(whole.tobytes()),
            "texts": [
                {"text": text, "ids": ids, "decoded": model.decode(ids)}
                for text, ids in zip(TEXTS, model.encode(TEXTS))
            ],
        }
    text = json.dumps(out, ensure_ascii=True, indent=1)
    text = text.replace("\n     ", " ").replace("\n    ]", "]") + "\n"
    pathlib.Path("tests/data/sentencepiece_expected.json").write_text(text)
