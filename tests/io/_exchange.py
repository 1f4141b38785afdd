# SPDX-License-Identifier: Apache-2.0
"""Runs one test of tests/io/exchange_test.cpp in a folder."""

import os
import pathlib
import subprocess


def run(test: str, folder: pathlib.Path) -> None:
    root = pathlib.Path(__file__).resolve().parents[2]
    build = pathlib.Path(os.environ.get("COMPACT_BUILD_DIR", root / "build"))
    result = subprocess.run(
        [build / "tests/io_test", f"--gtest_filter=Exchange.{test}"],
        env={**os.environ, "COMPACT_EXCHANGE": str(folder), "OMP_WAIT_POLICY": "PASSIVE"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0 and "PASSED  ] 1 test" in result.stdout, result.stdout
