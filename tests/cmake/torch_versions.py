# SPDX-License-Identifier: Apache-2.0
"""The rows and exit codes of scripts/torch_versions.sh, with scripts in place of torch and CMake."""
import os
import shutil
import subprocess
import unittest

from _script import SOURCE, InFolder

CTEST = """#!/bin/sh
while [ $# -gt 0 ]; do
  [ "$1" != --output-junit ] || cp "$RESULTS" "$2"
  shift
done
"""
PASSED, FAILED = (f'<testsuite><testcase name="a" status="{status}"/></testsuite>' for status in ("run", "fail"))


class TorchVersions(InFolder):
    def setUp(self):
        super().setUp()
        shutil.copytree(SOURCE / "scripts", self.folder / "scripts")
        (self.folder / "requirements-test.txt").touch()
        (self.folder / "bench/results").mkdir(parents=True)
        for name, text in [("cmake", "#!/bin/sh\n"), ("ctest", CTEST)]:
            self.command(self.folder / "bin" / name, text)
        self.table = self.folder / "bench/results/torch-versions.md"

    def call(self, results, version="9.9.0"):
        """The exit code."""
        work = self.folder / ".cache/torch-versions" / version
        self.command(work / "venv/bin/python", "#!/bin/sh\n")
        self.command(work / "build/compact", "#!/bin/sh\n")
        (self.folder / "results.xml").write_text(results)
        environment = os.environ | {"COMPACT_SKIP_PACKAGES": "1", "RESULTS": str(self.folder / "results.xml"),
                                    "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}  # fmt: skip
        done = subprocess.run(["bash", self.folder / "scripts/torch_versions.sh", version], env=environment,
                              capture_output=True, text=True, timeout=120)  # fmt: skip
        return done.returncode

    def rows(self):
        return [r for r in self.table.read_text().splitlines() if r.startswith("| 9")] if self.table.exists() else []

    def test_tests_that_pass_give_a_row(self):
        self.assertEqual(self.call(PASSED), 0)
        self.assertRegex(self.rows()[0], r"^\| 9\.9\.0 \| \d+ \| \d+ \| 1 \| 0 \| 0 \| ")
        self.assertEqual(self.call("not asked again"), 0)
        self.assertEqual(len(self.rows()), 1)

    def test_tests_that_fail_give_a_row_and_an_error_every_time(self):
        self.assertEqual(self.call(FAILED), 1)
        self.assertIn("| 0 | 1 | 0 |", self.rows()[0])
        self.assertEqual(self.call(PASSED), 1)
        self.assertEqual(self.call(PASSED, "9.8.0"), 0)

    def test_without_counts_there_is_no_row(self):
        self.assertEqual(self.call("no results"), 1)
        self.assertEqual(self.rows(), [])
        self.assertEqual(self.call(PASSED), 0)


if __name__ == "__main__":
    unittest.main()
