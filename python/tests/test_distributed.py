# SPDX-License-Identifier: Apache-2.0
"""Two processes under DDP, FSDP2 and FSDP1: gradients as one process has them with both batches, and any
network rebuilt bit for bit as it is without."""
import json
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
    ("any-ddp", "resnet50", "exact"),
    ("any-ddp-unused-autocast", "qwen3_moe", "exact"),
    ("any-ddp-apply", "t5", "exact"),
    ("any-fsdp", "bert", "exact"),
    ("any-fsdp-autocast", "llama_eager", "exact"),
    ("any-fsdp-apply", "whisper", "exact"),
    ("any-flat", "nano_gpt", "exact"),
    ("any-flat-whole-autocast", "mixtral", "exact"),
    ("any-flat-whole-apply", "t5", "exact"),
]


@pytest.fixture(scope="module")
def output(request):
    """The output of each chosen case: "" where both processes passed, else their text. Two processes run one case after
    another; two more go on where they failed."""
    todo = [i.callspec.id for i in request.session.items if i.path == request.path]
    found = {}
    while todo:
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d",
             "--rdzv-endpoint=localhost:0", str(pathlib.Path(__file__).with_name("_ranks.py")), json.dumps(todo)],
            env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        while todo and done.stdout.count(f"passed {todo[0]};") == 2:
            found[todo.pop(0)] = ""
        if todo:
            found[todo.pop(0)] = f"exit code {done.returncode}\n" + done.stdout[-4000:] + done.stderr[-8000:]
    return found


@pytest.mark.parametrize("case", ["/".join(case) for case in CASES])
def test_two_processes(case, output):
    assert not output[case], output[case]
