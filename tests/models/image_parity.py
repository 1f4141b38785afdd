# SPDX-License-Identifier: Apache-2.0
"""Logits, loss and every gradient of vision transformers and residual networks in f32 agree with
Hugging Face's in float64; what we write is the same model there."""

import copy
import pathlib
import tempfile

import torch
import transformers
from _exchange import agree
from safetensors.torch import load_file

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
        written = load_file(pathlib.Path(folder) / "model.safetensors")
    return {key: value for key, value in written.items() if not key.endswith("num_batches_tracked")}


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
    agree(name, model, transformers.AutoModelForImageClassification, batch, 0.25, preset, "ImageExchange",
          lambda model, inputs: model(inputs["images"].to(model.dtype)).logits, gradients)  # fmt: skip


def main() -> None:
    for name, case in CASES.items():
        check(name, *case)


if __name__ == "__main__":
    main()
