# SPDX-License-Identifier: Apache-2.0
"""Convolutions under autocast where the processor has no bfloat16 instructions."""
import json
import os
import pathlib
import subprocess
import sys

import torch


def test_convolutions_are_those_of_float32_rounded_and_planned():
    script = pathlib.Path(__file__).with_name("_bf16_convolutions.py")
    threads = {"COMPACT_BF16_PRODUCTS": "converted", "OMP_NUM_THREADS": str(torch.get_num_threads())}
    done = subprocess.run([sys.executable, script], env=os.environ | threads, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("beside plans") == [4, 4], "bytes that the loss of a step takes"
    assert found == {"how": "converted", "forward": True, "weight": True}
