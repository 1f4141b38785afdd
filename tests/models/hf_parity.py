# SPDX-License-Identifier: Apache-2.0
"""Logits, loss and every gradient agree with Hugging Face LlamaForCausalLM in f32."""

import sys

try:
    import torch
    import transformers
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

import _exchange

TOLERANCE = 1e-5  # |difference| / |tensor|, per tensor
CASES = {
    "heads": dict(),
    "grouped": dict(num_key_value_heads=2),
    "one key": dict(num_key_value_heads=1, num_hidden_layers=1),
    "tied": dict(tie_word_embeddings=True),
    "grouped and tied": dict(num_key_value_heads=2, tie_word_embeddings=True, rope_theta=500.0),
    "wide heads": dict(head_dim=24, rms_norm_eps=1e-5),
    "odd": dict(hidden_size=36, num_attention_heads=6, num_key_value_heads=3, intermediate_size=41,
                vocab_size=97, head_dim=6),
}  # fmt: skip


def reference(model, ids: torch.Tensor, targets: torch.Tensor, scale: float) -> dict:
    logits = model(ids).logits
    loss = scale * torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum"
    )
    loss.backward()
    out = {name: p.grad for name, p in model.named_parameters()}
    return {**out, "logits": logits, "loss": loss}


def check(name: str, changes: dict, preset: str) -> None:
    torch.manual_seed(sum(name.encode()))
    shape = dict(hidden_size=48, intermediate_size=100, num_hidden_layers=3, num_attention_heads=4,
                 num_key_value_heads=4, vocab_size=128, max_position_embeddings=64,
                 initializer_range=0.15)  # fmt: skip
    config = transformers.LlamaConfig(**{**shape, **changes}, attn_implementation="sdpa")
    model = transformers.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.normal_(1, 0.3)
    ids = torch.randint(config.vocab_size, (3, 33))
    targets = ids.roll(-1, 1)
    targets[:, -1] = -100
    targets[1, 4:9] = -100
    scale = 1 / (targets != -100).sum().item()
    want = reference(model, ids, targets, scale)
    got = _exchange.run(model, ids, targets, scale, preset)
    assert got.keys() == want.keys(), (got.keys() ^ want.keys(), name)
    errors = {key: _exchange.relative_error(got[key], want[key]) for key in want}
    worst = max(errors, key=errors.get)
    print(f"{name:18} {preset:10} worst of {len(errors)} tensors: {errors[worst]:.1e} ({worst})")
    for key, value in want.items():
        assert value.norm() > 0, key
        assert errors[key] <= TOLERANCE, (name, key, errors[key])


def main() -> None:
    for name, changes in CASES.items():
        check(name, changes, "off")
    check("grouped and tied", CASES["grouped and tied"], "recompute")


if __name__ == "__main__":
    main()
