# SPDX-License-Identifier: Apache-2.0
"""Logits, loss and every gradient of vision transformers and residual networks in f32 agree with
Hugging Face's in float64; what we write is the same model there."""

import copy
import pathlib
import sys
import tempfile

try:
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

import _exchange

transformers.utils.logging.disable_progress_bar()
TOLERANCE = 1e-5  # |difference| / |tensor|, per tensor
SHAPES = {
    "ViT": dict(hidden_size=48, intermediate_size=100, num_hidden_layers=3, num_attention_heads=4,
                image_size=12, patch_size=4, num_channels=3, initializer_range=0.15),
    "ResNet": dict(embedding_size=8, hidden_sizes=[8, 16], depths=[2, 1], layer_type="basic"),
}  # fmt: skip
# A kind of model, what differs, classes, preset of ours.
CASES = {
    "ViT": ("ViT", dict(), 3, "off"),
    "ViT, exact": ("ViT", dict(), 3, "exact"),
    "ViT, one layer": ("ViT", dict(num_hidden_layers=1), 2, "recompute"),
    "ViT, no biases": ("ViT", dict(qkv_bias=False, hidden_act="gelu_new", layer_norm_eps=1e-6), 5, "exact"),
    "ViT, oblong": ("ViT", dict(image_size=[8, 20], num_channels=1), 7, "exact"),
    "ResNet": ("ResNet", dict(), 3, "off"),
    "ResNet, exact": ("ResNet", dict(num_channels=1), 4, "exact"),
    "ResNet, bottlenecks": ("ResNet", dict(layer_type="bottleneck", hidden_sizes=[32, 64, 128],
                                           depths=[1, 2, 1]), 3, "exact"),
}  # fmt: skip


def gradients(model) -> dict:
    """By the names that files have."""
    grads = copy.deepcopy(model)
    for parameter, source in zip(grads.parameters(), model.parameters(), strict=True):
        parameter.data = source.grad.clone()
    with tempfile.TemporaryDirectory() as folder:
        grads.save_pretrained(folder)
        return load_file(pathlib.Path(folder) / "model.safetensors")


def check(name: str, kind: str, changes: dict, classes: int, preset: str) -> None:
    torch.manual_seed(sum(name.encode()))
    config = getattr(transformers, f"{kind}Config")(**{**SHAPES[kind], **changes}, num_labels=classes)
    model = transformers.AutoModelForImageClassification.from_config(config).eval()
    for key, buffer in model.named_buffers():
        if key.endswith("running_mean"):
            buffer.normal_(0, 0.2)
        elif key.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.3)
    size = getattr(config, "image_size", 33)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    batch = dict(images=torch.randn(4, config.num_channels, height, width),
                 targets=torch.randint(classes, (4,)))
    scale = 0.25
    double = copy.deepcopy(model).double()
    logits = double(batch["images"].double()).logits
    loss = scale * torch.nn.functional.cross_entropy(logits, batch["targets"], reduction="sum")
    loss.backward()
    told = {key: value for key, value in gradients(double).items()
            if not key.endswith("num_batches_tracked")}  # fmt: skip
    want = {**told, "logits": logits, "loss": loss}
    with tempfile.TemporaryDirectory() as folder:
        got = _exchange.run_test(model, batch, scale, preset, "ImageExchange", folder)
        again = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    assert type(again) is type(model)
    with torch.no_grad():
        assert torch.equal(again(batch["images"]).logits, model(batch["images"]).logits), name
    assert got.keys() == want.keys(), (got.keys() ^ want.keys(), name)
    # Softmax does not feel biases of keys: theirs are of rounding alone.
    errors = {key: _exchange.relative_error(got[key], want[key]) for key in want if not key.endswith("key.bias")}
    worst = max(errors, key=errors.get)
    print(f"{name:20} {preset:10} worst of {len(errors)} tensors: {errors[worst]:.1e} ({worst})")
    for key, error in errors.items():
        assert want[key].norm() > 0 and error <= TOLERANCE, (name, key, error)


def main() -> None:
    for name, case in CASES.items():
        check(name, *case)


if __name__ == "__main__":
    main()
