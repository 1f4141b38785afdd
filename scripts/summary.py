#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Summary of a JUnit file written by ctest: failures with their output, skips with their reasons,
and last a line `N passed, N failed, N skipped`. Exit code 1 where something failed."""
import collections
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")  # a test may print what XML forbids


def reason(output):
    """Why a test was skipped: what GTEST_SKIP() or a line `SKIP: reason` said."""
    found = re.search(r"^SKIP:\s*(.+)$", output, re.M) or re.search(
        r": Skipped\n(.*?)\n*^\[", output, re.M | re.S
    )
    return " ".join(found[1].split()) if found else ""


def main(path):
    tree = ElementTree.fromstring(CONTROL.sub("", pathlib.Path(path).read_text(errors="replace")))
    passed, failed, skipped = 0, [], collections.defaultdict(list)
    for case in tree.iter("testcase"):
        name, status = case.get("name"), case.get("status")
        output = case.findtext("system-out") or ""
        if status == "run":
            passed += 1
        elif case.find("skipped") is not None or status == "disabled":
            message = case.find("skipped")
            what = message.get("message", "") if message is not None else "disabled"
            said = "SKIP_RE" in what or "SKIP_RET" in what
            if status == "notrun" and not said:  # the program is missing: not a skip
                failed.append((name, what))
            elif why := reason(output) if said else what:
                skipped[why].append(name)
            else:
                failed.append((name, "skipped without saying why"))
        else:
            silent = "no output: it crashed or ran past its time limit; see Testing/Temporary/LastTest.log"
            failed.append((name, output.strip() or silent))
    for name, output in failed:
        print(f"FAILED {name}")
        print("\n".join("    " + line for line in output.splitlines()[-60:]))
    for why, names in sorted(skipped.items()):
        print(f"skipped: {why}")
        for name in names:
            print(f"    {name}")
    print(f"{passed} passed, {len(failed)} failed, {sum(map(len, skipped.values()))} skipped")
    return 1 if failed or not passed and not skipped else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
