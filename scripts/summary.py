#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Summary of what ctest wrote: failures with their output, skips with their reasons, and last a line
`N passed, N failed, N skipped`. Exit code 1 where something failed.

  summary.py JUNIT [RESULTS]    RESULTS/NAME.xml has the single tests of the entry NAME, and was
                                written in the same run: a suite of GoogleTest, or pytest"""
import collections
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")  # a test may print what XML forbids


def read(path):
    return ElementTree.fromstring(CONTROL.sub("", path.read_text(errors="replace")))


def reason(output):
    """Why a test was skipped: what a line `SKIP: reason` said."""
    found = re.search(r"^SKIP:\s*(.+)$", output, re.M)
    return " ".join(found[1].split()) if found else ""


class Counts:
    def __init__(self):
        self.passed, self.failed, self.skipped = 0, [], collections.defaultdict(list)

    def fail(self, name, output):
        self.failed.append((name, output))

    def skip(self, name, why):
        if why:
            self.skipped[why].append(name)
        else:
            self.fail(name, "skipped without saying why")

    def single(self, name, case):
        """A test of GoogleTest or pytest: whether it failed."""
        said = [p for p in case if p.tag in ("failure", "error")]
        skipped = case.find("skipped")
        if said:
            self.fail(name, "\n".join(p.text or p.get("message", "") for p in said).strip())
        elif skipped is not None:  # GoogleTest: FILE:LINE, then what GTEST_SKIP() was told
            message = re.sub(r"^.*:\d+\n", "", skipped.get("message", ""))
            self.skip(name, " ".join(message.split()))
        elif case.get("status") == "notrun":  # DISABLED_
            self.skip(name, "disabled")
        else:
            self.passed += 1
        return bool(said)

    def entry(self, case, results):
        """Counts an entry of ctest; where it stands for several tests, a file has these."""
        name, status = case.get("name"), case.get("status")
        output = case.findtext("system-out") or ""
        message = case.find("skipped")
        ran = message is None and status in ("run", "fail")
        file = results and results / (name.replace("/", "-") + ".xml")
        if ran and file and file.exists():
            singles = list(read(file).iter("testcase"))
            prefix = name.partition(".")[0] + "."
            names = [f"{c.get('classname')}.{c.get('name')}" for c in singles]  # pytest's begin with a folder
            wrong = [self.single(n if n.startswith(prefix) else prefix + n, c) for n, c in zip(names, singles)]
            if status == "fail" and not any(wrong):  # after the last of them, or in none
                self.fail(name, output.strip())
            elif not singles:
                self.fail(name, "ran no test")
        elif status == "run":
            self.passed += 1
        elif message is not None or status == "disabled":
            what = message.get("message", "") if message is not None else "disabled"
            said = "SKIP_RE" in what or "SKIP_RET" in what
            if status == "notrun" and not said:  # the program is missing: not a skip
                self.fail(name, what)
            else:
                self.skip(name, reason(output) if said else what)
        else:
            silent = "no output: it crashed or ran past its time limit; see Testing/Temporary/LastTest.log"
            self.fail(name, output.strip() or silent)


def main(junit, results=None):
    counts = Counts()
    for case in read(pathlib.Path(junit)).iter("testcase"):
        counts.entry(case, results and pathlib.Path(results))
    for name, output in counts.failed:
        print(f"FAILED {name}")
        print("\n".join("    " + line for line in output.splitlines()[-60:]))
    for why, names in sorted(counts.skipped.items()):
        print(f"skipped: {why}")
        for name in names:
            print(f"    {name}")
    skipped = sum(map(len, counts.skipped.values()))
    print(f"{counts.passed} passed, {len(counts.failed)} failed, {skipped} skipped")
    return 1 if counts.failed or not counts.passed and not skipped else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
