# SPDX-License-Identifier: Apache-2.0
"""Trains austen-2048.model, the tokenizer beside this script, from pride-and-prejudice.txt.

Needs `pip install sentencepiece`; made with version 0.2.3. Run in this folder.
"""
import pathlib

import sentencepiece

if __name__ == "__main__":
    sentencepiece.SentencePieceTrainer.train(
        input="pride-and-prejudice.txt",
        model_prefix="austen-2048",
        model_type="bpe",
        vocab_size=2048,
        # Text comes back exactly as it went in: no normalisation, and a byte piece for every byte
        # that no other piece covers.
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        # The trainer never sees a line end, since it reads by lines.
        user_defined_symbols=["\n"],
        split_digits=True,
        character_coverage=1.0,
        max_sentence_length=100000,
        num_threads=1,  # the same model every time
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
    )
    pathlib.Path("austen-2048.vocab").unlink()  # the same pieces once more, as text
