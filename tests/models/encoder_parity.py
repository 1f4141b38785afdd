# SPDX-License-Identifier: Apache-2.0
"""Logits, loss and every gradient of encoders in f32 agree with Hugging Face BERT and RoBERTa in
f64 (in f32 they themselves can be farther from that), and what we write loads there."""

import os
import pathlib

import torch
import transformers
from _exchange import ROOT, agree

SHAPE = dict(hidden_size=48, intermediate_size=100, num_hidden_layers=3, num_attention_heads=4,
             vocab_size=128, max_position_embeddings=64, initializer_range=0.15)  # fmt: skip
# Type of model, what differs, number of labels (1: regression), preset of ours.
CASES = {
    "bert": ("Bert", dict(), 3, "off"),
    "bert, exact": ("Bert", dict(), 3, "exact"),
    "bert, recompute": ("Bert", dict(), 2, "recompute"),
    "bert, one layer": ("Bert", dict(num_hidden_layers=1, hidden_act="gelu_new"), 2, "exact"),
    "bert, regression": ("Bert", dict(), 1, "exact"),
    "roberta": ("Roberta", dict(type_vocab_size=1, layer_norm_eps=1e-5), 3, "off"),
    "roberta, regression": ("Roberta", dict(type_vocab_size=1), 1, "exact"),
    "odd": ("Bert", dict(hidden_size=33, num_attention_heads=3, intermediate_size=41,
                         vocab_size=97, type_vocab_size=3), 5, "exact"),
}  # fmt: skip


def batch_of(config, labels: int) -> dict:
    lengths = torch.tensor([33, 1, 17, 32])
    ids = torch.randint(4, config.vocab_size, (4, 33))
    types = torch.randint(config.type_vocab_size, ids.shape)
    for row, length in enumerate(lengths):
        ids[row, length:] = config.pad_token_id
    # Several texts hold padding tokens that they spell out themselves.
    ids[0, 5:8] = ids[0, 32] = ids[2, 1] = ids[3, 0] = config.pad_token_id
    targets = torch.randn(4) if labels == 1 else torch.randint(labels, (4,))
    return dict(ids=ids, types=types, lengths=lengths, targets=targets)


def outputs_of(model, batch: dict) -> torch.Tensor:
    mask = torch.arange(batch["ids"].shape[1]) < batch["lengths"].unsqueeze(1)
    return model(batch["ids"], attention_mask=mask.long(), token_type_ids=batch["types"]).logits


def compare(name: str, model, labels: int, preset: str) -> None:
    agree(name, model, transformers.AutoModelForSequenceClassification, batch_of(model.config, labels), 0.25, preset,
          "EncoderExchange", outputs_of)  # fmt: skip


def check(name: str, kind: str, changes: dict, labels: int, preset: str) -> None:
    torch.manual_seed(sum(name.encode()))
    config = getattr(transformers, f"{kind}Config")(**{**SHAPE, **changes}, num_labels=labels)
    model = getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.3)
    compare(name, model, labels, preset)


def check_minilm() -> None:
    data = pathlib.Path(os.environ.get("COMPACT_MINILM", ROOT / ".cache/minilm"))
    if not (data / "model.safetensors").exists():
        print("skipped: MiniLM's weights: see scripts/fetch_minilm.sh")
        return
    torch.manual_seed(5)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(data, num_labels=2).eval()
    compare("MiniLM", model, 2, "exact")


def main() -> None:
    for name, case in CASES.items():
        check(name, *case)
    check_minilm()


if __name__ == "__main__":
    main()
