#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The choices of scripts/cuda.sh under various conditions, with folders and commands that stand for
torch, nvcc and nvidia-smi."""
import os
import subprocess
import unittest

from _script import SOURCE, InFolder

ASK = 'set -euo pipefail; source "$0/scripts/lib.sh"; own_environment=no; nvcc_environment() { echo "$HERE"; }; choose_preset; echo "$preset ${cuda_architectures:-}"'


class CudaChoice(InFolder):
    def setUp(self):
        super().setUp()
        (self.folder / "torch/lib").mkdir(parents=True)

    def torch(self, cuda):
        (self.folder / "torch/version.py").write_text(f"from typing import Optional\ncuda: Optional[str] = {cuda!r}\nhip = None\n")
        if cuda:
            (self.folder / "torch/lib/libtorch_cuda.so").touch()

    def command(self, name, text):
        return super().command(name, "#!/bin/sh\n" + text + "\n")

    def choose(self, **more):
        """(what was said, preset and architectures)"""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA", "COMPACT_CUDA"))}
        environment |= {
            "HERE": str(self.folder / "nvcc"), "TORCH_DIR": str(self.folder / "torch"), "COMPACT_NVCC": "pip", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/nowhere",
            "PIP_EXTRA_INDEX_URL": "", "PATH": f"{self.folder}:{os.environ['PATH']}",
        } | {k: str(v) for k, v in more.items()}  # fmt: skip
        done = subprocess.run(["bash", "-c", ASK, SOURCE], env=environment, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        *said, last = done.stdout.splitlines()
        return said, last.split()

    def test_the_cpu_build_where_nothing_asks_for_cuda(self):
        self.torch("13.0")
        self.assertEqual(self.choose(COMPACT_CUDA="0"), ([], ["release"]))
        self.command("nvidia-smi", "exit 9")
        if not os.path.exists("/dev/nvidia0"):
            self.assertEqual(self.choose(), ([], ["release"]))

    def test_the_kernels_for_the_gpus_here(self):
        self.torch("13.0")
        self.command("nvidia-smi", 'case "$*" in *compute_cap*) echo 9.0; echo 8.6; echo 9.0;; esac')
        nvcc = self.command("nvcc", 'echo "Cuda compilation tools, release 13.0, V13.0.88"')
        said, chosen = self.choose(CUDACXX=nvcc)
        self.assertEqual(chosen, ["cuda", "86;90"])
        self.assertEqual(len(said), 1)
        self.assertIn(str(nvcc), said[0])

    def test_what_is_missing_is_said_in_one_line(self):
        nvcc = self.command("nvcc", 'echo "Cuda compilation tools, release 12.8, V12.8.61"')
        self.torch(None)
        self.check_note(self.choose(COMPACT_CUDA="1", CUDACXX=nvcc), "is for the CPU")
        self.torch("12.4")
        broken = self.command("broken", 'case "$*" in *version*) echo "release 12.4";; *) exit 1;; esac')
        self.check_note(self.choose(COMPACT_CUDA="1", CUDACXX=broken), "does not work with this C++ compiler")
        self.check_note(self.choose(COMPACT_CUDA="1"), "install the CUDA toolkit 12.4")

    def test_a_gpu_that_the_toolkit_does_not_know(self):
        self.torch("13.0")
        self.command("nvidia-smi", 'case "$*" in *compute_cap*) echo 9.0; echo 6.1;; esac')
        nvcc = self.command("nvcc", 'case "$*" in *sm_61*) exit 1;; esac; echo "release 13.0"')
        self.check_note(self.choose(CUDACXX=nvcc), "does not compile for the GPU here, sm_61")

    def check_note(self, answer, part):
        said, chosen = answer
        self.assertEqual(chosen, ["release"])
        self.assertEqual(len(said), 1, said)
        self.assertIn(part, said[0])

    def test_no_nvcc_from_pip(self):
        self.torch("99.9")  # a version that no environment of this folder has
        said, chosen = self.choose(COMPACT_CUDA="1")
        self.assertEqual(chosen, ["release"])
        self.assertIn("no nvcc 99.9 from pip", said[-1])


if __name__ == "__main__":
    unittest.main()
