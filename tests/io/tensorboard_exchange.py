# SPDX-License-Identifier: Apache-2.0
"""TensorBoard reads the scalars written in C++. Skipped where TensorBoard is not installed."""

import pathlib
import sys
import tempfile

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    print("SKIP: the Python package tensorboard is not installed")
    sys.exit(77)
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from _built_test import run_test  # noqa: E402


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        run_test("io", "Exchange.TensorBoard", name)
        events = EventAccumulator(name)
        events.Reload()
        assert sorted(events.Tags()["scalars"]) == ["memory/peak_bytes", "train/loss"]
        loss = events.Scalars("train/loss")
        assert [e.step for e in loss] == [1, 2, 300]
        assert [e.wall_time for e in loss] == [1001.0, 1002.0, 1300.0]
        assert abs(loss[2].value - 1 / 300) < 1e-9
        assert events.Scalars("memory/peak_bytes")[1].value == 2e9


if __name__ == "__main__":
    main()
