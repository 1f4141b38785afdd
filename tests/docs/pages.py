#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""README and pages: links lead somewhere, commands and flags exist, code is that of examples that run."""
import ast
import functools
import os
import pathlib
import re
import shlex
import subprocess
import sys
import textwrap
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("COMPACT_BUILD_DIR", ROOT / "build")) / "compact"
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))
RESULTS = sorted((ROOT / "bench/results").glob("*.md"))
LINK = re.compile(r'(?:\]\(|(?:src|srcset)=")([^)"\s]+)(?=[)"])')


def without_code(text):
    """The text of a page without its indented blocks."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("    "))


def blocks(path):
    """Its indented blocks, dedented; long commands in one line."""
    found, block = [], []
    for line in [*path.read_text().splitlines(), "end"]:
        if line.startswith("    ") or (block and not line.strip()):
            block.append(line)
        elif block:
            found.append(textwrap.dedent("\n".join(block)).strip().replace("\\\n", " "))
            block = []
    return found


@functools.cache
def anchors(path):
    """Names of a page's headings, as in links to them."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", without_code(path.read_text()), re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        found.add(re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-"))
    return found


@functools.cache
def flags(command):
    done = subprocess.run([PROGRAM, command, "--help=words"], capture_output=True, text=True, check=True)
    return {line.split("\t")[0] for line in done.stdout.splitlines()} | {"--help"}


class Pages(unittest.TestCase):
    def test_links(self):
        for page in PAGES + RESULTS:
            for link in LINK.findall(page.read_text()):
                if "://" in link:
                    continue
                path, _, anchor = link.partition("#")
                target = (page.parent / path).resolve() if path else page
                with self.subTest(page=page.name, link=link):
                    self.assertTrue(target.exists())
                    if anchor and target.suffix == ".md":
                        self.assertIn(anchor, anchors(target))

    def test_every_result_is_told_of(self):
        linked = {(p.parent / link.split("#")[0]).resolve() for p in PAGES for link in LINK.findall(p.read_text())}
        self.assertEqual([p.name for p in RESULTS if p not in linked], [])

    def test_code_fits_its_column(self):
        for page in PAGES:
            fenced = code = False
            before = ""
            for line in page.read_text().splitlines():
                fenced ^= line.startswith("```")
                code = line.startswith("    ") and (code or not before)  # else a list goes on
                before = line
                if fenced or code:
                    self.assertLessEqual(len(line.removeprefix("    ")), 88, f"{page.name}: {line}")

    def test_the_readme_is_short(self):
        self.assertLessEqual(len((ROOT / "README.md").read_text().splitlines()), 130)

    def test_commands(self):
        """Checks the commands, flags and scripts that pages call."""
        called = 0
        for page in PAGES:
            for line in (line for block in blocks(page) for line in block.splitlines()):
                words = shlex.split(line.replace("...", " "), comments=True) if re.match(r"(build[\w-]*/)?compact [a-z]", line) else []
                with self.subTest(page=page.name, line=line):
                    if words:
                        called += 1
                        known = flags(words[1]) if PROGRAM.exists() else set()
                        for word in words[2:]:
                            if word.startswith("--") and known:
                                self.assertIn(word.split("=")[0], known)
                    for script in re.findall(r"^(?:\w+=\S* )*((?:scripts|\.ci)/[\w./]+)", line):
                        self.assertTrue(os.access(ROOT / script, os.X_OK))
        self.assertGreater(called, 20)

    def test_python(self):
        """Python in pages is Python, and calls what the package has."""
        names = set(re.findall(r'"(\w+)"', re.search(r"__all__ = \[(.*?)\]", (ROOT / "python/compact/__init__.py").read_text(), re.S)[1]))
        seen = 0
        for page in PAGES:
            for block in blocks(page):
                if not re.search(r"^(import compact|compact\.\w+\(|with compact\.|optimizer = compact\.|trainer = |model = peft)", block, re.M):
                    continue
                seen += 1
                with self.subTest(page=page.name, block=block):
                    ast.parse(block)
                    for name in re.findall(r"\bcompact\.(\w+)", block):
                        self.assertIn(name, names | {"hf", "optim"})
        self.assertGreater(seen, 8)

    def test_cpp_is_of_an_example(self):
        """Lines of one program, in its order."""

        def bare(line):
            return re.sub(r"\s*//.*", "", line).strip()

        program = [bare(line) for line in (ROOT / "examples/train_step.cpp").read_text().splitlines()]
        text = (ROOT / "README.md").read_text()
        section = text[text.index("## In C++") : text.index("## In Python")]
        lines = [bare(line) for line in section.splitlines() if line.startswith("    ")]
        self.assertGreater(len(lines), 5)
        for line in lines:
            self.assertIn(line, program)
            program = program[program.index(line) + 1 :]

    @unittest.skipUnless(PROGRAM.exists(), f"there is no {PROGRAM}")
    def test_the_reference_is_of_the_program(self):
        done = subprocess.run([PROGRAM, "docs"], capture_output=True, text=True, check=True)
        self.assertEqual((ROOT / "docs/commands.md").read_text(), done.stdout, "build/compact docs > docs/commands.md mends it")


if __name__ == "__main__":
    if not PROGRAM.exists():
        print(f"SKIP: there is no {PROGRAM}")
        sys.exit(77)
    unittest.main()
