# SPDX-License-Identifier: Apache-2.0
"""scripts/summary.py: counts of single tests, reasons of skips, and a skip without one, which is a
failure."""
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


def single(name, inner="", status="run"):
    return f'<testcase name="{name}" classname="Suite" status="{status}">{inner}</testcase>'


class Summary(unittest.TestCase):
    def of(self, *cases, **results):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "tests.xml"
            path.write_text(f'<testsuite>{"".join(cases)}</testsuite>')
            for name, singles in results.items():
                file = path.parent / f"base.{name}.xml"
                file.write_text(f"<testsuites><testsuite>{singles}</testsuite></testsuites>")
            done = subprocess.run([sys.executable, SUMMARY, path, folder], capture_output=True, text=True)
        return done.returncode, done.stdout

    def test_no_test_is_a_failure(self):
        self.assertEqual(self.of(), (1, "0 passed, 0 failed, 0 skipped\n"))

    def test_skips_say_why(self):
        code, text = self.of(case("a", "SKIP: no data\n", "notrun", "SKIP_RETURN_CODE=77"), case("c", "fine"))
        self.assertEqual(code, 0, text)
        self.assertIn("skipped: no data\n    a\n", text)
        self.assertTrue(text.endswith("1 passed, 0 failed, 1 skipped\n"), text)

    def test_a_skip_without_a_reason_fails(self):
        for output in ("", "skipped: no data\n"):
            code, text = self.of(case("a", output, "notrun", "SKIP_RETURN_CODE=77"))
            self.assertEqual(code, 1, text)
            self.assertIn("without saying why", text)
            self.assertTrue(text.endswith("0 passed, 1 failed, 0 skipped\n"), text)

    def test_a_suite_counts_as_its_tests(self):
        singles = single("A") + single("B") + single("C", '<skipped message="/x/y.cpp:3&#x0A;no GPU&#x0A;"/>')
        code, text = self.of(case("base.Suite", ""), Suite=singles)
        self.assertEqual(code, 0, text)
        self.assertIn("skipped: no GPU\n    base.Suite.C\n", text)
        self.assertTrue(text.endswith("2 passed, 0 failed, 1 skipped\n"), text)

    def test_what_fails_in_a_suite_is_named(self):
        singles = single("A") + single("B", '<failure message="x">y.cpp:4\n1 is not 2</failure>')
        code, text = self.of(case("base.Suite", "", "fail"), Suite=singles)
        self.assertEqual(code, 1, text)
        self.assertIn("FAILED base.Suite.B\n    y.cpp:4\n    1 is not 2\n", text)
        self.assertTrue(text.endswith("1 passed, 1 failed, 0 skipped\n"), text)

    def test_a_suite_that_ends_badly_fails(self):
        """after its last test, in the middle, or without a test; or where a skip says nothing"""
        for status, results in [("fail", {"Suite": single("A")}), ("fail", {}), ("run", {"Suite": ""}),
                                ("run", {"Suite": single("A", '<skipped message="/x/y.cpp:3&#x0A;"/>')})]:  # fmt: skip
            code, text = self.of(case("base.Suite", "", status), **results)
            self.assertEqual(code, 1, text)
            self.assertIn(", 1 failed, 0 skipped\n", text)


if __name__ == "__main__":
    unittest.main()
