# SPDX-License-Identifier: Apache-2.0
"""Metadata of a wheel, which is for one minor version of torch: `0.1.0+torch2.13`, or
`0.1.0+torch2.13.cu130` with a torch for CUDA, and a dependency on that minor version. A source
archive is for every torch. pyproject.toml names this file."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
NO_TORCH = """there is no torch to build the wheel for. Looked at: TORCH_DIR, the Python that builds ({}), \
VIRTUAL_ENV, CONDA_PREFIX, .venv, python3. pip looks into its own environment; `python -m build` makes a new one \
to build in, so there activate the environment that has torch, or set TORCH_DIR to its site-packages/torch"""
FIND = "import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec('torch').origin).parent)"


def torch_folder():
    """The folder of the torch to build for, which CMake takes from the environment."""
    if given := os.environ.get("TORCH_DIR"):
        return pathlib.Path(given)
    folders = [os.environ.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX")] + [ROOT / ".venv"]
    pythons = [sys.executable, *(f"{f}/bin/python" for f in folders if f), shutil.which("python3")]
    for python in filter(os.path.exists, filter(None, pythons)):
        # -E: what builds has set PYTHONPATH to a folder of its own.
        found = subprocess.run([python, "-E", "-c", FIND], capture_output=True, text=True)
        if found.returncode == 0:
            return pathlib.Path(found.stdout.strip())
    sys.exit(NO_TORCH.format(sys.executable))


def torch_version(folder):
    """("2.13", "" or "cu130") of the Python package of torch in a folder."""
    path = folder / "version.py"
    if not path.is_file():
        sys.exit(f"TORCH_DIR {folder} has no version.py: it must be the folder of a Python package of torch")
    text = path.read_text()
    minor = re.search(r"^__version__ = '(\d+\.\d+)", text, re.M)
    if not minor:
        sys.exit(f"{path}: has no line __version__ = '2.13.0...'")
    cuda = re.search(r"^cuda\b[^=]*= '(\d+)\.(\d+)", text, re.M)
    return minor[1], "cu" + "".join(cuda.groups()) if cuda else ""


class Provider:
    """Called by scikit-build-core."""

    def build_state(self, state):
        self.state = state

    def dynamic_wheel(self, settings):
        return {"dependencies": True}

    def dynamic_metadata(self, settings, project):
        text = (ROOT / "CMakeLists.txt").read_text()
        version = re.search(r"project\(CompAct VERSION ([0-9.]+)", text)[1]
        if self.state == "sdist":
            return {"version": version, "dependencies": ["torch>=2.10"]}
        folder = torch_folder()
        minor, cuda = torch_version(folder)
        os.environ["TORCH_DIR"] = str(folder)
        local = f"torch{minor}.{cuda}" if cuda else f"torch{minor}"
        return {"version": f"{version}+{local}", "dependencies": [f"torch=={minor}.*"]}
