# SPDX-License-Identifier: Apache-2.0
"""The program where Linux's /proc is not mounted, as in some containers."""
import subprocess
import sys
import unittest

from _program import PROGRAM, InFolder, environment, tiny

HIDE = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
        'mount -t tmpfs none /proc && exec "$0" "$@"']


def hidden(*arguments):
    return subprocess.run([*HIDE, *map(str, arguments)], env=environment(), capture_output=True,
                          text=True, timeout=300)


try:
    POSSIBLE = hidden("true").returncode == 0
except FileNotFoundError:
    POSSIBLE = False
if not POSSIBLE:
    print("SKIP: no mount namespaces, which hide /proc")
    sys.exit(77)


class WithoutProc(InFolder):
    def test_there_is_no_limit(self):
        records = self.folder / "images.bin"  # CIFAR-10's, which stay in memory beside the steps
        records.write_bytes(b"".join(bytes([i % 10]) + bytes([20 * i] * 3072) for i in range(12)))
        done = hidden(PROGRAM, "train", "--task=image-classification", "--model=resnet20",
                      "--width_mult=0.25", f"--train_file={records}", "--max_steps=1",
                      "--device=cpu", f"--output_dir={self.out}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("; limit ", done.stdout)

    def test_compare_finds_its_own_program(self):
        done = hidden(PROGRAM, "compare", "--presets=off", "--budget=1GiB",
                      *tiny(self.folder, f"--output_dir={self.out}"))
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
