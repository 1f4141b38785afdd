# SPDX-License-Identifier: Apache-2.0
"""The results of earlier calls that scripts/gpu_tasks.py keeps, with a script in place of the program."""
import subprocess
import sys
import unittest

from _script import SOURCE, InFolder

TRAINS = """#!/bin/sh
echo >> "$0.runs"
for flag in "$@"; do
  case $flag in --output_dir=*) out=${flag#*=};; esac
done
mkdir -p "$out"
for step in 1 2; do echo "{\\"step\\": $step, \\"loss\\": 2.5}"; done > "$out/metrics.jsonl"
"""
FAILS = "#!/bin/sh\nexit 3\n"


class GpuTasks(InFolder):
    def call(self, text, *more):
        """(exit code, the last line)"""
        program = self.command("program", text)
        command = [sys.executable, SOURCE / "scripts/gpu_tasks.py", "--device=cpu", "--steps=2", "--presets", "exact",
                   f"--program={program}", f"--folder={self.folder / 'check'}", *more]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout.splitlines()[-1]

    def runs(self):
        return len((self.folder / "program.runs").read_text().splitlines())

    def test_what_is_done_stays_done_for_the_same_program(self):
        one = ["--tasks", "glue"]
        self.assertEqual(self.call(TRAINS, *one), (0, "1 runs as they should be, 0 not, 0 left for another time"))
        self.assertEqual((self.call(TRAINS, *one)[0], self.runs()), (0, 1))
        self.assertEqual(self.call(FAILS, *one), (1, "0 runs as they should be, 1 not, 0 left for another time"))

    def test_only_what_was_asked_for_is_counted(self):
        self.call(FAILS, "--tasks", "glue", "language-modeling")
        fails_at_one = TRAINS.replace("echo >>", 'case "$*" in *task=glue*) exit 3;; esac; echo >>')
        self.assertEqual(self.call(fails_at_one)[1], "6 runs as they should be, 1 not, 0 left for another time")
        self.assertEqual(self.call(fails_at_one, "--tasks", "language-modeling"),
                         (0, "1 runs as they should be, 0 not, 0 left for another time"))


if __name__ == "__main__":
    unittest.main()
