#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers that `transformers` saved are loaded by us, and what we save by AutoTokenizer, with the same ids."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    from transformers import AutoTokenizer, BertTokenizerFast, GPT2TokenizerFast, PreTrainedTokenizerFast
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = pathlib.Path(os.environ.get("COMPACT_DATA", ROOT.parent / "shared/data"))
SENTENCEPIECE = {"bpe": ROOT / "examples/data/austen-2048.model", "unigram": DATA / "tokenizers/t5-spiece.model"}
LINES = ["It is a truth universally acknowledged,", "  Héllo WORLD!  don't", "日本語 [MASK] <|endoftext|> 123", "", "👩‍👩‍👧\n\n\tx"]


def main() -> int:
    tokens = DATA / "tokenizers"
    if not (tokens / "gpt2-vocab.bpe").is_file():
        print(f"SKIP: no {tokens / 'gpt2-vocab.bpe'}")
        return 77
    build = pathlib.Path(os.environ.get("COMPACT_BUILD_DIR", ROOT / "build"))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for kind in ("bert-txt", "cased-txt", "gpt2-pair"):
            (folder / kind).mkdir()
        for kind in ("bert-txt", "cased-txt"):
            shutil.copyfile(tokens / "bert-uncased-vocab.txt", folder / kind / "vocab.txt")
        (folder / "cased-txt/tokenizer_config.json").write_text('{"do_lower_case": false, "tokenizer_class": "BertTokenizer"}')
        shutil.copyfile(tokens / "gpt2-encoder.json", folder / "gpt2-pair/vocab.json")
        shutil.copyfile(tokens / "gpt2-vocab.bpe", folder / "gpt2-pair/merges.txt")
        bert = {lower: BertTokenizerFast.from_pretrained(folder / "bert-txt", do_lower_case=lower) for lower in (True, False)}
        gpt2 = GPT2TokenizerFast.from_pretrained(folder / "gpt2-pair")
        wanted = {"bert-txt": bert[True], "cased-txt": bert[False], "gpt2-pair": gpt2, "bert": bert[True], "cased": bert[False], "gpt2": gpt2}
        for kind in ("bert", "cased", "gpt2"):
            wanted[kind].save_pretrained(folder / kind)
        # A tokenizer.json alone.
        (folder / "json").mkdir()
        shutil.copyfile(folder / "gpt2/tokenizer.json", folder / "json/tokenizer.json")
        wanted["json"] = PreTrainedTokenizerFast(tokenizer_file=str(folder / "json/tokenizer.json"))
        # Models of SentencePiece alone, by what our tokenizer gives.
        for kind, model in SENTENCEPIECE.items():
            (folder / kind).mkdir()
            shutil.copyfile(model, folder / kind / "tokenizer.model")
            wanted[kind] = None
        (folder / "lines").write_text(json.dumps(LINES))
        result = subprocess.run(
            [build / "tests/tasks_test", "--gtest_filter=TokenizerFolders.*"],
            env={**os.environ, "COMPACT_EXCHANGE": name, "OMP_WAIT_POLICY": "PASSIVE"},
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0 and "PASSED  ] 1 test" in result.stdout, result.stdout + result.stderr
        for kind, original in wanted.items():
            ours = json.loads((folder / kind / "ids.json").read_text())
            again = AutoTokenizer.from_pretrained(folder / kind / "saved")
            for line, ids in zip(LINES, ours, strict=True):
                if original is None:
                    # transformers puts no further space before a text that begins with one.
                    if kind == "bpe" and line.startswith(" "):
                        continue
                    assert ids == again(line, add_special_tokens=False)["input_ids"], (kind, line, ids)
                    continue
                assert ids == original(line, add_special_tokens=False)["input_ids"], (kind, line, ids)
                assert ids == again(line, add_special_tokens=False)["input_ids"], (kind, line, "saved")
                assert again(line, line)["input_ids"] == original(line, line)["input_ids"], (kind, line, "pair")
            print(f"{kind}: {len(LINES)} lines the same, {type(again).__name__} loads what we saved")
    return 0


if __name__ == "__main__":
    sys.exit(main())
