# SPDX-License-Identifier: Apache-2.0
"""The torch that a wheel says it is built for: cmake/wheel_metadata.py."""
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest
import torch

PATH = pathlib.Path(__file__).parents[2] / "cmake" / "wheel_metadata.py"
MINOR = ".".join(torch.__version__.split(".")[:2])


@pytest.fixture
def module(monkeypatch):
    spec = importlib.util.spec_from_file_location("wheel_metadata", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"]})  # it sets TORCH_DIR for CMake
    return module


def metadata(module, state):
    provider = module.Provider()
    provider.build_state(state)
    return provider.dynamic_metadata({}, {})


def fake_torch(folder, version, cuda):
    folder.mkdir()
    (folder / "version.py").write_text(
        f"from typing import Optional\n__version__ = '{version}'\ncuda: Optional[str] = {cuda}\n"
    )
    return folder


def test_a_wheel_is_for_the_torch_of_the_python_that_builds(module):
    found = metadata(module, "wheel")
    assert found["dependencies"] == [f"torch=={MINOR}.*"]
    assert found["version"].partition("+")[2].startswith(f"torch{MINOR}")
    assert pathlib.Path(os.environ["TORCH_DIR"]).samefile(pathlib.Path(torch.__file__).parent)
    assert found == metadata(module, "metadata_wheel") == metadata(module, "editable")


def test_a_source_archive_is_for_all(module):
    assert metadata(module, "sdist")["dependencies"] == ["torch>=2.10"]
    assert "+" not in metadata(module, "sdist")["version"]
    assert "TORCH_DIR" not in os.environ


@pytest.mark.parametrize(
    ("version", "cuda", "local"),
    [("2.14.1+cu130", "'13.0'", "torch2.14.cu130"), ("2.13.0+cpu", "None", "torch2.13"), ("2.15.0a0", "None", "torch2.15")],
)  # fmt: skip
def test_torch_dir_stands_above(module, tmp_path, version, cuda, local):
    os.environ["TORCH_DIR"] = str(fake_torch(tmp_path / "torch", version, cuda))
    assert metadata(module, "wheel")["version"].partition("+")[2] == local


def test_where_there_is_no_torch(module, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    os.environ["PATH"] = str(tmp_path)
    with pytest.raises(SystemExit, match="no torch to build the wheel for.*/nowhere/python.*set TORCH_DIR"):
        module.torch_folder()
    os.environ["VIRTUAL_ENV"] = str(tmp_path)  # as `python -m build` is called
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f"#!/bin/sh\necho {tmp_path / 'torch'}\n")
    python.chmod(0o755)
    assert module.torch_folder() == tmp_path / "torch"
    with pytest.raises(SystemExit, match="has no version.py"):
        module.torch_version(tmp_path)


def test_pyproject_names_it():
    code = "import wheel_metadata; wheel_metadata.Provider().dynamic_wheel"
    subprocess.run([sys.executable, "-c", code], cwd=PATH.parent, check=True)
    assert 'module = "wheel_metadata:Provider"' in (PATH.parents[1] / "pyproject.toml").read_text()
