# SPDX-License-Identifier: Apache-2.0
"""Every test is in a lane of .ci/run, a lane is only left out where nothing that it reads has changed,
and CONTRIBUTING.md lists the lanes."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("COMPACT_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
BUILD = pathlib.Path(os.environ.get("COMPACT_BUILD_DIR", SOURCE / "build"))
BY_HAND = {"tests/cuda_on_cpu/mutants.py"}  # breaks kernels, one by one


def bash(script, **more):
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, **more)


def lanes():
    """(names, the paths that each conditional one reads)"""
    done = bash('set -eu; source scripts/lib.sh; source scripts/lanes.sh; echo "${lanes[*]}"\n'
                'for l in "${!lane_inputs[@]}"; do echo $l ${every_lane_inputs[*]} ${lane_inputs[$l]}; done', cwd=SOURCE)  # fmt: skip
    names, *inputs = done.stdout.splitlines()
    return names.split(), {words[0]: words[1:] for words in map(str.split, inputs)}


class EveryTest(unittest.TestCase):
    """of the lane `tests`, which is all that ctest knows of this build"""

    def setUp(self):
        done = subprocess.run(["ctest", "--test-dir", BUILD, "--show-only=json-v1"], capture_output=True, text=True)
        tests = json.loads(done.stdout)["tests"]
        self.names = {t["name"] for t in tests}
        self.commands = {t["name"]: t.get("command", []) for t in tests}

    def test_suites_of_googletest(self):
        files = sorted(SOURCE.glob("tests/*/*_test.cpp"))
        self.assertGreater(len(files), 100)
        for file in files:
            layer = file.parent.name.replace("cuda_on_cpu", "kernels")
            for suite in re.findall(r"^(?:TYPED_)?TEST(?:_F|_P)?\((\w+),", file.read_text(), re.M):
                name = re.compile(rf"{layer}\.(\w+/)?{suite}(/\w+)?")
                self.assertTrue(any(map(name.fullmatch, self.names)), f"{file}: {suite}")

    def test_scripts(self):
        for file in SOURCE.glob("tests/*/*.py"):
            if not file.name.startswith(("_", "make_")) and str(file.relative_to(SOURCE)) not in BY_HAND:
                self.assertIn(f"{file.parent.name}.py_{file.stem}", self.names)

    def test_the_python_package(self):
        if "python.package" not in self.names:
            self.skipTest("this build has no Python package")
        whole, networks = (self.commands[f"python.{name}"] for name in ("package", "networks"))
        self.assertEqual([str(SOURCE / "python/tests")], [c for c in whole if c.startswith("/") and c.endswith("tests")])
        left = {c.removeprefix("--ignore=") for c in whole if c.startswith("--ignore")}
        self.assertTrue(left and left <= set(networks))
        self.assertIn("python.wheel", self.names)

    def test_what_one_lane_leaves_out_another_runs(self):
        run = (SOURCE / ".ci/run").read_text()
        others = re.search(r"others='(.+)'", run)[1]
        left = {n for n in self.names if re.search(others, n)}
        lanes = re.findall(r"^lane_\w+\(\) \{ count_tests \w+ -R '(.+)'; \}", run, re.M)
        self.assertEqual(left, {n for n in self.names if any(re.search(lane, n) for lane in lanes)})
        self.assertIn("data.py_tokenizers", left)


class Conditional(unittest.TestCase):
    def test_lanes_read_what_they_say(self):
        """whatever the sources of a lane include, from the sources that its CMake file names"""
        _, inputs = lanes()
        fuzz = (SOURCE / "fuzz/CMakeLists.txt").read_text()
        globs = [g for g in re.findall(r"\$\{PROJECT_SOURCE_DIR\}/(compact/\S+\.cpp)", fuzz)]
        self.assertGreater(len(globs), 10)
        roots = {"fuzz": [*SOURCE.glob("fuzz/**/*.cpp"), *(f for g in globs for f in SOURCE.glob(g))],
                 "cuda": [*SOURCE.glob("compact/kernels/**/*.c*"), SOURCE / "tests/kernels/kernel_check.cpp"],
                 "compilers": [f for folder in ("bench", "compact", "tests") for f in SOURCE.glob(f"{folder}/**/*.cpp")],
                 "older": [*SOURCE.glob("compact/**/*.cpp"), *SOURCE.glob("tests/*/*.cpp")],
                 "networks": [f for layer in ("base", "kernels", "codecs", "ops", "networks", "models", "plan", "json", "io", "parallel", "optim", "python")
                              for f in SOURCE.glob(f"compact/{layer}/**/*.cpp")],
                 "tokenizers": [*(f for layer in ("base", "data", "json") for f in SOURCE.glob(f"compact/{layer}/**/*.cpp")),
                                *SOURCE.glob("tests/data/tokenizer_exchange_test.cpp")],
                 "wheel": [*SOURCE.glob("compact/**/*.cpp"), *SOURCE.glob("python/compact/**/*.py")]}  # fmt: skip
        self.assertEqual(inputs.keys(), roots.keys())
        for lane, files in roots.items():
            todo, seen = [f.relative_to(SOURCE) for f in files], set()
            while todo:
                file = todo.pop()
                if file in seen or not (SOURCE / file).exists():
                    continue
                seen.add(file)
                self.assertTrue(any(file.is_relative_to(p) for p in inputs[lane]), f"{lane} reads {file}")
                text = (SOURCE / file).read_text()
                todo += map(pathlib.Path, re.findall(r'^#include "((?:compact|tests|fuzz|cmake)/[^"]+)"', text, re.M))
            self.assertGreater(len(seen), 20)
        # Inputs that no #include names: run by tests, compiled in, or doing the work.
        for lane, path in (("older", "tests/optim/_oracle.py"), ("wheel", "presets"), ("compilers", "presets"), ("compilers", "scripts/syntax.py")):
            self.assertIn(path, inputs[lane])

    def test_run_again_where_anything_has_changed(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            shutil.copytree(SOURCE / "scripts", folder / "scripts")
            for path in lanes()[1]["fuzz"]:
                if not (folder / path).exists():
                    (folder / path).mkdir(parents=True)
                    (folder / path / "file").write_text(path)

            def runs(version="1", does="true", then="true", cache="cache"):
                """Whether the lane runs in .ci/run's way, which then remembers that it passed."""
                script = f"""set -uo pipefail; source scripts/lib.sh; source scripts/lanes.sh
                  version_of_fuzz() {{ echo {version}; }}
                  ensure_torch() {{ TORCH_DIR={folder}; touch {folder}/version.py; }}
                  key=$(lane_key fuzz); passed_before fuzz "$key" && exit; echo runs; {does} && remember fuzz "$key" && {then} """
                done = bash(script, cwd=folder, env=os.environ | {"XDG_CACHE_HOME": str(folder / cache)})
                return done.stdout.strip() == "runs"

            self.assertTrue(runs(does="false"))
            self.assertTrue(runs())
            self.assertFalse(runs())
            self.assertTrue(runs(version="2"))
            self.assertTrue(runs(does="false", version="$(false)") and not runs())
            changed = folder / "compact/io/file"
            changed.write_text("other")
            self.assertTrue(runs(does="false"))
            self.assertTrue(runs(), "a lane that failed was taken for one that passed")
            changed.rename(folder / "compact/io/renamed")
            self.assertTrue(runs())
            # A committed record holds on another machine, for these bytes alone.
            self.assertTrue(runs(version="3", then='commit_record cuda "$key"', cache="one"))
            self.assertTrue(runs(version="3", then='commit_record fuzz "$key"', cache="two"))
            self.assertEqual(re.findall(r"^(\w+) \w{32} 20\S+$", (folder / ".ci/passed").read_text(), re.M), ["cuda", "fuzz"])
            self.assertFalse(runs(version="3", cache="three"))
            self.assertTrue(runs(version="4", cache="three"))
            changed.with_name("renamed").write_text("more")
            self.assertTrue(runs(version="3", cache="three"))
            self.assertTrue(runs(version="; false") and runs(version="; false"), "no compiler, yet it was remembered")


class Lanes(unittest.TestCase):
    def test_contributing_lists_them(self):
        rows = re.findall(r"^\| `([a-z-]+)` \|", (SOURCE / "CONTRIBUTING.md").read_text(), re.M)
        self.assertEqual([r for r in rows if r in lanes()[0]], lanes()[0])

    def test_one_that_is_not_there_is_refused(self):
        done = bash(".ci/run nonsense", cwd=SOURCE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("unknown argument nonsense; known: --all --record tests", done.stderr)

    def test_every_one_has_a_function(self):
        text = (SOURCE / ".ci/run").read_text()
        self.assertEqual(re.findall(r"^lane_([a-z-]+)\(\)", text, re.M), lanes()[0])


if __name__ == "__main__":
    unittest.main()
