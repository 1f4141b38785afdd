# SPDX-License-Identifier: Apache-2.0
"""Two processes under DDP, FSDP2 and FSDP1: gradients as one process has them with both batches."""
import os
import pathlib
import subprocess
import sys

import pytest

CASES = [
    ("ddp", "llama", "exact"),
    ("ddp-empty", "llama", "exact"),
    ("ddp-unused", "bert", "recompute"),
    ("fsdp", "llama", "exact"),
    ("fsdp-head", "llama", "recompute"),
    ("fsdp-after", "qwen3", "exact"),
    ("fsdp", "gpt2", "exact"),
    ("fsdp", "vit", "off"),
    ("fsdp-bf16", "llama", "exact"),
    ("ddp-lora", "llama", "exact"),
    ("fsdp-lora", "llama", "recompute"),
    ("flat", "llama", "recompute"),
    ("flat-whole", "llama, biases, tied", "exact"),
    ("flat", "llama, biases, tied", "exact"),
    ("flat-after-whole", "bert", "exact"),
    ("flat-after-root", "llama", "exact"),
]


@pytest.mark.parametrize("way,name,policy", CASES)
def test_two_processes(way, name, policy):
    script = pathlib.Path(__file__).with_name("_ranks.py")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d",
         "--rdzv-endpoint=localhost:0", str(script), way, name, policy],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
