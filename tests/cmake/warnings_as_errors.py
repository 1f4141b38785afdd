# SPDX-License-Identifier: Apache-2.0
"""Warnings are errors where developers and CI ask for it, and nowhere else."""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("COMPACT_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
BUILD = pathlib.Path(os.environ.get("COMPACT_BUILD_DIR", SOURCE / "build"))
TORCH = re.search(r"^TORCH_DIR:PATH=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.M)[1]


def commands(*options):
    """The compiler's commands of a configured folder, of sources of ours."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["cmake", "-S", SOURCE, "-B", folder, "-G", "Ninja", f"-DTORCH_DIR={TORCH}", *options],
                              capture_output=True, text=True)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return [e["command"] for e in json.loads((pathlib.Path(folder) / "compile_commands.json").read_text())]


class Warnings(unittest.TestCase):
    def test_users_have_warnings_alone(self):
        package = [f"-DCOMPACT_{part}=OFF" for part in ("PROGRAM", "TESTS", "BENCH")]
        for options in ([], package, ["--preset", "release"]):
            for command in commands(*options):
                self.assertIn("-Wall", command)
                self.assertNotIn("-Werror", command)

    def test_developers_have_errors(self):
        for command in commands("-DCOMPACT_WERROR=ON", "-DCOMPACT_BENCH=OFF"):
            self.assertIn("-Werror", command)
        presets = json.loads((SOURCE / "CMakePresets.json").read_text())["configurePresets"]
        strict = {p["name"] for p in presets if p.get("inherits") == "developer"}
        self.assertEqual(strict, {"debug", "asan", "tsan", "fuzz"})

    def test_scripts_for_users_ask_for_none(self):
        asked = {p.name for p in SOURCE.glob("scripts/*.sh") if "COMPACT_WERROR=ON" in p.read_text()}
        self.assertEqual(asked, {"lib.sh", "test.sh", "compilers.sh"})  # the first two explain it
        # The scripts that the README has users run configure the folder that train.sh builds in.
        asks = re.compile(r"^[^#]*COMPACT_WERROR=ON", re.M)
        for name in set(re.findall(r"scripts/\w+\.sh", (SOURCE / "README.md").read_text())) | {"scripts/lib.sh"}:
            self.assertIsNone(asks.search((SOURCE / name).read_text()), name)
        self.assertRegex((SOURCE / ".ci/run").read_text(), asks)


if __name__ == "__main__":
    unittest.main()
