# SPDX-License-Identifier: Apache-2.0
"""stories260K has the likelihoods known of it, and those of Hugging Face on the same tokens: mean
negative log-likelihood per token 1.360 on 60 TinyStories and 4.659 on tiny Shakespeare."""

import os
import pathlib
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
try:
    import sentencepiece
    import stories_folder
    import torch
    import transformers
    import _exchange
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

DATA = pathlib.Path(os.environ.get("COMPACT_DATA", _exchange.ROOT.parent / "shared/data"))
BEGIN = 1  # the token before a text
# Stories follow one another without a mark: one begins at a paragraph that begins like a story.
STORY = re.compile(r"\n\n(?=Once|One day|There was|In a|Lily|Tom)")


def check(name: str, model, rows: list[list[int]], known: float) -> None:
    length = max(map(len, rows)) - 1
    ids = torch.zeros(len(rows), length, dtype=torch.int64)
    targets = torch.full_like(ids, -100)
    for i, row in enumerate(rows):
        ids[i, : len(row) - 1] = torch.tensor(row[:-1])
        targets[i, : len(row) - 1] = torch.tensor(row[1:])
    tokens = (targets != -100).sum().item()
    with torch.no_grad():
        logits = model(ids).logits
    want = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
    for preset in ("off", "exact"):
        got = _exchange.run(model, dict(ids=ids, targets=targets), 1 / tokens, preset, "Exchange")["loss"].item()
        print(f"{name}, {preset}: {got:.4f} over {tokens} tokens; Hugging Face {want:.4f}; known {known}")
        assert abs(got - want) < 2e-6 * want, (got, want)
        assert abs(got - known) < 0.01, (got, known)


def main() -> int:
    folder = DATA / "pretrained/stories260K"
    if not folder.is_dir():
        print(f"SKIP: no {folder} (COMPACT_DATA)")
        return 77
    with tempfile.TemporaryDirectory() as name:
        stories_folder.write_folder(folder, pathlib.Path(name))
        model = transformers.LlamaForCausalLM.from_pretrained(name, attn_implementation="sdpa").eval()
        tokenizer = sentencepiece.SentencePieceProcessor(model_file=f"{name}/tokenizer.model")

    def tokens(text: str) -> list[int]:
        return [BEGIN, *tokenizer.encode(text)]

    stories = STORY.split((DATA / "text/tinystories.txt").read_text(encoding="utf-8"))[:60]
    check("TinyStories", model, [tokens(s)[:256] for s in stories], 1.360)
    plays = (DATA / "text/tinyshakespeare.txt").read_text(encoding="utf-8")
    pieces = [plays[i : i + 1000] for i in range(0, 40_000, 1000)]
    check("tiny Shakespeare", model, [tokens(p)[:512] for p in pieces], 4.659)
    return 0


if __name__ == "__main__":
    sys.exit(main())
