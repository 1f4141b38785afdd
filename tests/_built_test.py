# SPDX-License-Identifier: Apache-2.0
"""Runs a C++ test of this build that reads what is in a folder and writes its results there."""
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]


def run_test(layer: str, test: str, folder, **more: str) -> None:
    build = pathlib.Path(os.environ.get("COMPACT_BUILD_DIR", ROOT / "build"))
    result = subprocess.run(
        [build / f"tests/{layer}_test", f"--gtest_filter={test}"], capture_output=True, text=True,
        env={**os.environ, "COMPACT_EXCHANGE": str(folder), "OMP_WAIT_POLICY": "PASSIVE", **more},
    )  # fmt: skip
    assert result.returncode == 0 and "PASSED  ] 1 test" in result.stdout, result.stdout[-4000:] + result.stderr
