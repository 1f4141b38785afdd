# SPDX-License-Identifier: Apache-2.0
"""The README's lines in Python run as they stand there."""
import copy
import pathlib
import re
import textwrap

import torch
from conftest import inputs, make
from torch import nn

import compact


def test_the_readme():
    text = (pathlib.Path(__file__).resolve().parents[2] / "README.md").read_text()
    section = re.search(r"^## In Python\n(.*?)^## ", text, re.S | re.M)[1]
    lines = textwrap.dedent("\n".join(line for line in section.splitlines() if line.startswith("    ") or not line))
    model, x = make("llama"), torch.randn(4, 8)
    net = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1))
    names = {"model": model, "net": net, "other": copy.deepcopy(net), "x": x, "ids": inputs("llama")["input_ids"]}
    exec(compile(lines, "README.md", "exec"), names)
    rows = compact.report(model).layers
    assert all(row.served for row in rows) and names["loss"].grad_fn is not None
