# SPDX-License-Identifier: Apache-2.0
"""Logits, loss and every gradient of encoders in f32 agree with Hugging Face BERT and RoBERTa in
f64 (in f32 they themselves can be farther from that), and what we write loads there."""

import copy
import os
import pathlib
import sys
import tempfile

try:
    import torch
    import transformers
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

import _exchange
from _exchange import ROOT

TOLERANCE = 1e-5  # |difference| / |tensor|, per tensor
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


def reference(model, batch: dict, scale: float) -> dict:
    model = copy.deepcopy(model).double()
    logits, targets = outputs_of(model, batch), batch["targets"]
    if targets.is_floating_point():
        loss = scale * (logits.squeeze(1) - targets).square().sum()
    else:
        loss = scale * torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
    loss.backward()
    out = {name: p.grad for name, p in model.named_parameters()}
    return {**out, "logits": logits, "loss": loss}


def compare(name: str, model, labels: int, preset: str) -> None:
    batch = batch_of(model.config, labels)
    scale = 0.25
    want = reference(model, batch, scale)
    with tempfile.TemporaryDirectory() as folder:
        got = _exchange.run_test(model, batch, scale, preset, "EncoderExchange", folder)
        again = type(model).from_pretrained(folder).eval()
        with torch.no_grad():
            same = torch.equal(outputs_of(again, batch), outputs_of(model, batch))
    assert same, f"{name}: what we wrote gives other logits"
    assert got.keys() == want.keys(), (got.keys() ^ want.keys(), name)
    # Softmax does not feel biases of keys: theirs are of rounding alone.
    zero = [key for key in want if key.endswith("self.key.bias")]
    errors = {key: _exchange.relative_error(got[key], want[key]) for key in want if key not in zero}
    worst = max(errors, key=errors.get)
    print(f"{name:22} worst of {len(errors)} tensors: {errors[worst]:.1e} ({worst})")
    for key, error in errors.items():
        assert want[key].norm() > 0 and error <= TOLERANCE, (name, key, error)
    for key in zero:
        query = want[key.replace("self.key", "self.query")]
        assert got[key].norm() <= TOLERANCE * query.norm(), (name, key)


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
