# SPDX-License-Identifier: Apache-2.0
"""scripts/summary.py: counts, reasons of skips, and a skip without one, which is a failure."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SUMMARY = pathlib.Path(__file__).parents[2] / "scripts/summary.py"


def case(name, output, status="run", skipped=""):
    message = f'<skipped message="{skipped}"/>' if skipped else ""
    return (f'<testcase name="{name}" status="{status}">{message}'
            f"<system-out>{output}</system-out></testcase>")


class Summary(unittest.TestCase):
    def of(self, *cases):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "tests.xml"
            path.write_text(f'<testsuite>{"".join(cases)}</testsuite>')
            done = subprocess.run([sys.executable, SUMMARY, path], capture_output=True, text=True)
        return done.returncode, done.stdout

    def test_no_test_is_a_failure(self):
        self.assertEqual(self.of(), (1, "0 passed, 0 failed, 0 skipped\n"))

    def test_skips_say_why(self):
        python = case("a", "SKIP: no data\n", "notrun", "SKIP_RETURN_CODE=77")
        google = case("b", "x.cpp:3: Skipped\nno GPU\n\n[  SKIPPED ] B.b", "notrun",
                      "SKIP_REGULAR_EXPRESSION_MATCHED")
        code, text = self.of(python, google, case("c", "fine"))
        self.assertEqual(code, 0, text)
        self.assertIn("skipped: no data\n    a\n", text)
        self.assertIn("skipped: no GPU\n    b\n", text)
        self.assertTrue(text.endswith("1 passed, 0 failed, 2 skipped\n"), text)

    def test_a_skip_without_a_reason_fails(self):
        for output in ("", "skipped: no data\n", "x.cpp:3: Skipped\n\n[  SKIPPED ] B.b"):
            code, text = self.of(case("a", output, "notrun", "SKIP_RETURN_CODE=77"))
            self.assertEqual(code, 1, text)
            self.assertIn("without saying why", text)
            self.assertTrue(text.endswith("0 passed, 1 failed, 0 skipped\n"), text)


if __name__ == "__main__":
    unittest.main()
