#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel as `pip install .` does, lists what is in it, and uses it from a folder of its own."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
USE = """
import pathlib, torch, transformers, compact
config = transformers.LlamaConfig(vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                                  num_attention_heads=2, num_key_value_heads=2)
model = compact.apply(transformers.LlamaForCausalLM(config), policy="exact")
ids = torch.randint(0, 100, (2, 8))
model(input_ids=ids, labels=ids).loss.backward()
assert compact.report(model).layers[0].calls == 1
print(pathlib.Path(compact.__file__).parent, compact.__version__)
"""


def run(*command, **more):
    # A compiler's threads are as many as the machine has.
    env = os.environ | {"CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count())} | more.pop("env", {})
    return subprocess.run(command, capture_output=True, text=True, env=env, **more)


def main():
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
        done = run(*pip, "wheel", str(ROOT), "--no-deps", "--wheel-dir", folder)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
        (wheel,) = place.glob("*.whl")
        minor, cuda = re.match(r"\d+\.\d+", torch.__version__)[0], torch.version.cuda
        local = f"torch{minor}" + (f".cu{cuda.replace('.', '')}" if cuda else "")
        assert re.fullmatch(rf"compact_train-[0-9.]+\+{local}-py3-none-linux_\w+\.whl", wheel.name), wheel.name
        contents = zipfile.ZipFile(wheel)
        names = contents.namelist()
        (metadata,) = (contents.read(n).decode() for n in names if n.endswith(".dist-info/METADATA"))
        assert f"\nRequires-Dist: torch=={minor}.*\n" in metadata, metadata[:2000]
        modules = {str(p.relative_to(ROOT / "python")) for p in (ROOT / "python" / "compact").rglob("*.py")}
        library = {"compact/libcompact_python.so", "compact/libcompact_python.torch", "compact/py.typed"}
        others = {n for n in names if ".dist-info/" not in n}
        assert others == modules | library, others ^ (modules | library)
        target = place / "installed"
        done = run(*pip, "install", "--no-deps", "--no-index", "--target", str(target), str(wheel))
        assert done.returncode == 0, done.stderr
        env = {"PYTHONPATH": str(target), "COMPACT_PYTHON_LIBRARY": "", "PYTHONWARNINGS": "ignore"}
        done = run(sys.executable, "-c", USE, cwd=folder, env=env)
        assert done.returncode == 0 and str(target) in done.stdout, done.stdout + done.stderr
        print(done.stdout, end="")

        stamp = target / "compact" / "libcompact_python.torch"
        stamp.write_text("1.13.1\n")
        done = run(sys.executable, "-c", "import compact", cwd=folder, env=env)
        assert done.returncode != 0 and "compact was built for torch 1.13.1, and this is torch" in done.stderr
        (target / "compact" / "libcompact_python.so").unlink()
        done = run(sys.executable, "-c", "import compact", cwd=folder, env=env)
        assert "libcompact_python.so is missing: install the package" in done.stderr, done.stderr
        print(f"{wheel.name}: {len(names)} files, {wheel.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
