# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_check.py in a folder like that of the archive, with scripts in place of the programs."""
import json
import os
import shutil
import subprocess
import sys
import tarfile
import unittest

from _script import SOURCE, InFolder

sys.path.insert(0, str(SOURCE / "scripts"))
import gpu_goals  # noqa: E402

CARDS = "#!/bin/sh\necho 'h100      H100: 79.6 GiB at 3.35 TB/s, products at 989 TFLOP/s in bf16, 67 in f32'\n"
TORCH = "raise ImportError('found, not imported')\n"


class GpuCheck(InFolder):
    def setUp(self):
        super().setUp()
        shutil.copytree(SOURCE / "scripts", self.folder / "scripts", ignore=shutil.ignore_patterns("[!g]*", "__pycache__"))
        shutil.copytree(SOURCE / "bench", self.folder / "bench", ignore=shutil.ignore_patterns("results"))
        (self.folder / "torch").mkdir()
        (self.folder / "torch/__init__.py").write_text(TORCH)
        self.command("bin/compact", CARDS)

    def call(self, *flags):
        """(exit code, what it printed)"""
        command = [sys.executable, self.folder / "scripts/gpu_check.py", "--device=cpu", f"--out={self.folder / 'out'}", *flags]
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        return done.returncode, done.stdout + done.stderr

    def test_one_page_and_one_archive(self):
        self.command("bin/kernel_check", "#!/bin/sh\necho all kernels\n")
        code, text = self.call("--only=kernels,memcheck")
        self.assertEqual(code, 0, text)
        self.assertEqual(sorted(p.name for p in (self.folder / "out").iterdir()), ["goals.md", "results.tar.xz"])
        page = (self.folder / "out/goals.md").read_text()
        self.assertIn("| kernels give what the reference gives | passed | yes |", page)
        self.assertIn("| memcheck | skipped |", page)
        with tarfile.open(self.folder / "out/results.tar.xz") as archive:
            self.assertIn("all kernels", archive.extractfile("results/kernels.log").read().decode())

    def test_what_failed_is_said_and_run_again(self):
        self.command("bin/kernel_check", "#!/bin/sh\necho wrong; exit 3\n")
        code, text = self.call("--only=kernels")
        self.assertEqual((code, "FAILED: kernels" in text), (1, True), text)
        self.assertIn("what the reference gives | FAILED | no |", (self.folder / "out/goals.md").read_text())
        state = json.loads((self.folder / "results/stages.json").read_text())
        self.assertEqual((state["kernels"]["status"], state["kernels"]["tries"]), ("FAILED", 1))
        shutil.rmtree(self.folder / "results")
        code, text = self.call("--only=kernels", f"--resume={self.folder / 'out/results.tar.xz'}")
        self.assertEqual(json.loads((self.folder / "results/stages.json").read_text())["kernels"]["tries"], 2, text)

    def test_bad_input_is_named(self):
        self.assertIn("--only: unknown stage roof", self.call("--only=roof")[1])
        self.assertIn("--minutes and --limit must be positive", self.call("--minutes=0")[1])
        shutil.rmtree(self.folder / "bin")
        self.assertIn("the folder that gpu-pack.tar.xz is unpacked to", self.call()[1])

    def test_parts_of_the_peak_are_those_of_llmq(self):
        """Tokens a second and shares that its own table has."""
        peak = gpu_goals.peak_of(self.folder / "bin/compact", "NVIDIA H100 80GB HBM3")
        self.assertEqual(peak, 989e12)
        self.assertIsNone(gpu_goals.peak_of(self.folder / "bin/compact", "NVIDIA H1000"))
        for model, speed, share in (("llama-qwen-0.5b", 149_300, 0.468), ("llama-qwen-3b", 30_900, 0.593), ("llama-qwen-7b", 13_830, 0.602)):
            row = {"model": model, "row": "exact", "status": "ok", "tokens_per_second": speed, "block": 1024}
            figure, met = gpu_goals.of_peak([row], model, peak)
            self.assertAlmostEqual(float(figure.split("%")[0]) / 100, share, delta=0.002)
            self.assertEqual(gpu_goals.of_peak([{**row, "tokens_per_second": 0.9 * speed}], model, peak)[1], "no")


if __name__ == "__main__":
    unittest.main()
