# SPDX-License-Identifier: Apache-2.0
"""Runs a Hugging Face model through tests/models/*exchange_test.cpp, and compares it with itself in float64."""

import copy
import pathlib
import sys
import tempfile

try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from _built_test import ROOT, run_test  # noqa: E402, F401

transformers.utils.logging.disable_progress_bar()
TOLERANCE = 1e-5  # |difference| / |tensor|, per tensor


def run(model, inputs: dict, scale: float, preset: str, test: str, model_folder: str = "") -> dict:
    """Loss, logits and gradients, by name, under a preset of ours; what is written as a model goes to model_folder."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        save_file({**inputs, "scale": torch.tensor(scale, dtype=torch.float64)}, f"{folder}/input.safetensors")
        run_test("models", f"{test}.*", folder, COMPACT_EXCHANGE_PRESET=preset, COMPACT_EXCHANGE_MODEL=model_folder)
        return load_file(f"{folder}/output.safetensors")


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """|got - want| / |want|"""
    got, want = got.double(), want.detach().double()
    return ((got - want).norm() / want.norm().clamp_min(1e-300)).item()


def parameter_gradients(model) -> dict:
    return {name: p.grad for name, p in model.named_parameters()}


def agree(name: str, model, auto, inputs: dict, scale: float, preset: str, test: str, outputs,
          gradients=parameter_gradients) -> None:
    """Logits, loss and every gradient under a preset of ours in f32 are those of the model in float64, and what we write
    is the same model to the class `auto`. outputs(model, inputs) gives logits."""  # fmt: skip
    double, targets = copy.deepcopy(model).double(), inputs["targets"]
    logits = outputs(double, inputs)
    if targets.is_floating_point():
        loss = scale * (logits.squeeze(1) - targets).square().sum()
    else:
        loss = scale * torch.nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum")
    loss.backward()
    want = {**gradients(double), "logits": logits, "loss": loss}
    with tempfile.TemporaryDirectory() as folder:
        got = run(model, inputs, scale, preset, test, folder)
        again = auto.from_pretrained(folder).eval()
    assert type(again) is type(model)
    with torch.no_grad():
        assert torch.equal(outputs(again, inputs), outputs(model, inputs)), f"{name}: other logits when written"
    assert got.keys() == want.keys(), (got.keys() ^ want.keys(), name)
    # Softmax does not feel biases of keys without rotation: theirs are of rounding alone.
    zero = [key for key in want if key.endswith("key.bias")]
    errors = {key: relative_error(got[key], want[key]) for key in want if key not in zero}
    worst = max(errors, key=errors.get)
    print(f"{name:26} {preset:10} worst of {len(errors)} tensors: {errors[worst]:.1e} ({worst})")
    for key, error in errors.items():
        assert want[key].norm() > 0 and error <= TOLERANCE, (name, key, error)
    for key in zero:
        query = want[key.replace("key.bias", "query.bias")]
        assert got[key].norm() <= TOLERANCE * query.norm(), (name, key)
