# SPDX-License-Identifier: Apache-2.0
"""Trains spaces.model: pieces that are runs of spaces, and a normaliser that makes spaces of other
characters. With it a text cut in the wrong place gives other tokens. Run in the repository's root.
"""
import pathlib

import sentencepiece

if __name__ == "__main__":
    words = pathlib.Path("examples/data/pride-and-prejudice.txt").read_text()[:60000].split()
    text = pathlib.Path("tests/data/spaces.tmp.txt")
    lines = []
    for i in range(0, len(words) - 8, 8):
        gap = " " * (2 + i // 8 % 7)
        lines.append(gap + " ".join(words[i : i + 4]) + gap + " ".join(words[i + 4 : i + 8]))
    # Code points, as compatibility normalisation maps them: no-break and wide spaces, a diaeresis.
    rules = pathlib.Path("tests/data/spaces.tmp.tsv")
    rules.write_text("A0\t20\n3000\t20\n2009\t20\n1680\t20\n9\t20\nA\t20\nA8\t20 308\n")
    text.write_text("\n".join(lines) + "\n")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix="tests/data/spaces",
        model_type="bpe",
        vocab_size=600,
        normalization_rule_tsv=str(rules),
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        num_threads=1,
    )
    pathlib.Path("tests/data/spaces.vocab").unlink()
    text.unlink()
    rules.unlink()
    model = sentencepiece.SentencePieceProcessor(model_file="tests/data/spaces.model")
    assert "▁▁▁▁" in model.encode("a    b", out_type=str)
