# SPDX-License-Identifier: Apache-2.0
"""Files written in C++ load in Python's safetensors and the other way round, bit for bit."""

import pathlib
import sys
import tempfile

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from _built_test import run_test  # noqa: E402

TYPES = {
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Float": torch.float32,
    "Double": torch.float64,
}


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a.contiguous().numpy(force=True).tobytes() == b.contiguous().numpy(force=True).tobytes() \
        if a.dtype != torch.bfloat16 else torch.equal(a.view(torch.int16), b.view(torch.int16))


def main() -> None:
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        source = {n: (torch.randn(4, 3) * 50).to(t) for n, t in TYPES.items()}
        source |= {"odd": torch.ones(7, dtype=torch.uint8), "scalar": torch.tensor(float("nan"))}
        save_file(source, folder / "python.safetensors", metadata={"a": "é"})
        run_test("io", "Exchange.Safetensors", folder)

        back = load_file(folder / "back.safetensors")
        assert back.keys() == source.keys()
        for key, value in source.items():
            assert same(back[key], value), key
        with safe_open(folder / "back.safetensors", "pt") as file:
            assert file.metadata() == {"a": "é"}

        cpp = load_file(folder / "cpp.safetensors")
        values = torch.arange(15).reshape(3, 5)
        for key, dtype in TYPES.items():
            expected = (values % 2 if key == "Bool" else values - 7).to(dtype)
            assert same(cpp.pop(key), expected), key
        assert cpp.pop("scalar").item() == 2.5
        assert cpp.pop("empty").shape == (2, 0, 3)
        assert same(cpp.pop('transposed "é"'), torch.arange(6.0).reshape(2, 3).T)
        assert not cpp
        with safe_open(folder / "cpp.safetensors", "pt") as file:
            metadata = file.metadata()
            assert len(metadata.pop("compact.xxh3")) == 16
            assert metadata == {"format": "pt", "note": "é\n"}
        assert load_file(folder / "none.safetensors") == {}


if __name__ == "__main__":
    main()
