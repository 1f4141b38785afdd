# SPDX-License-Identifier: Apache-2.0
"""Loads the library of C++ classes and operators, for the torch that it was built for."""
import hashlib
import os
import pathlib

import torch

from .torch_private import registered_interfaces

# A hash of the operators and classes that the library of these sources registers. A change of one of them on purpose
# changes this line alone: the error below says the new value.
_REGISTERED = "ef64a5457265"
NAME = "libcompact_python.so"


def _built_for(path):
    """The version of torch that the library was built for, which its build wrote beside it."""
    stamp = path.with_suffix(".torch")
    return stamp.read_text().strip() if stamp.is_file() else None


def _load():
    given = os.environ.get("COMPACT_PYTHON_LIBRARY")
    path = pathlib.Path(given) if given else pathlib.Path(__file__).parents[1] / NAME
    if not path.is_file():
        raise ImportError(
            f"compact: {path} is missing: install the package with `pip install .` "
            "in its source folder, or set COMPACT_PYTHON_LIBRARY to a library that was built"
        )
    built, here = _built_for(path), torch.__version__
    # C++ classes of torch change between minor versions: another one would crash or compute nonsense.
    if built and built.split("+")[0].split(".")[:2] != here.split("+")[0].split(".")[:2]:
        raise ImportError(
            f"compact was built for torch {built}, and this is torch {here}: run "
            "`pip install --force-reinstall --no-deps .` in its source folder"
        )
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise ImportError(f"compact: cannot load {path}, built for torch {built}: {error}") from error
    text = "\n".join(registered_interfaces("compact"))
    found = hashlib.sha256(text.encode()).hexdigest()[:12]
    if found != _REGISTERED:
        raise ImportError(
            f"compact: {path} has the interfaces {found}, and the Python package is for {_REGISTERED}: one of them is older. "
            "`pip install --force-reinstall --no-deps .` in the source folder makes both anew, a build the library; "
            f'where an interface was changed on purpose, write _REGISTERED = "{found}" in {__file__}'
        )
    return path


PATH = _load()
classes = torch.classes.compact
ops = torch.ops.compact
ops.choose_bf16_products()
__version__ = ops.version()
TYPES = (torch.float32, torch.bfloat16)  # of elements, that it computes in
_devices = frozenset(ops.devices())  # types that it has kernels for
_planned = None  # in a process that plans: the type of the planned device


def kind_of(x):
    """The type of the device that a tensor is on; in a plan, of the planned one."""
    kind = x.device.type
    return _planned if kind == "meta" and _planned else kind


def can_compute_on(kind):
    """Whether it has kernels for a type of device; plans, which compute nothing, need none."""
    return kind in _devices or kind == _planned


def prepare_planning(device, gpu):
    """Makes this process plan for "cpu" or "cuda", there for a GPU with the figures `gpu`."""
    global _planned
    ops.prepare_planning(device, *gpu)
    _planned = device
