# SPDX-License-Identifier: Apache-2.0
"""Runs a Hugging Face model through tests/models/*exchange_test.cpp."""

import os
import pathlib
import subprocess
import tempfile

import torch
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(
    model, ids: torch.Tensor, targets: torch.Tensor, scale: float, preset: str, model_folder: str = ""
) -> dict:
    """Loss, logits and gradients, by name, of a decoder under a preset of ours."""
    return run_test(model, {"ids": ids, "targets": targets}, scale, preset, "Exchange", model_folder)


def run_test(model, inputs: dict, scale: float, preset: str, test: str, model_folder: str = "") -> dict:
    """The same by a test of ours on its inputs; what it writes as a model goes to model_folder."""
    build = pathlib.Path(os.environ.get("COMPACT_BUILD_DIR", ROOT / "build"))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model.save_pretrained(folder)
        save_file(
            {
                **inputs,
                "scale": torch.tensor(scale, dtype=torch.float64),
            },
            folder / "input.safetensors",
        )
        result = subprocess.run(
            [build / "tests/models_test", f"--gtest_filter={test}.*"],
            env={
                **os.environ,
                "COMPACT_EXCHANGE": name,
                "COMPACT_EXCHANGE_PRESET": preset,
                "COMPACT_EXCHANGE_MODEL": str(model_folder),
                "OMP_WAIT_POLICY": "PASSIVE",
            },
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0 and "PASSED  ] 1 test" in result.stdout, result.stdout + result.stderr
        return load_file(folder / "output.safetensors")


def run_configs(folder: pathlib.Path) -> None:
    """Reads and writes config.json of every folder in this one, NAME into NAME_back."""
    build = pathlib.Path(os.environ.get("COMPACT_BUILD_DIR", ROOT / "build"))
    result = subprocess.run(
        [build / "tests/models_test", "--gtest_filter=ConfigExchange.*"],
        env={**os.environ, "COMPACT_EXCHANGE": str(folder), "OMP_WAIT_POLICY": "PASSIVE"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0 and "PASSED  ] 1 test" in result.stdout, result.stdout + result.stderr


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """|got - want| / |want|"""
    got, want = got.double(), want.detach().double()
    return ((got - want).norm() / want.norm().clamp_min(1e-300)).item()
