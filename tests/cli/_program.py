# SPDX-License-Identifier: Apache-2.0
"""Runs the program of this build."""
import importlib
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("COMPACT_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
PROGRAM = pathlib.Path(os.environ.get("COMPACT_BUILD_DIR", SOURCE / "build")) / "compact"
EXAMPLES = SOURCE / "examples/data"

if not PROGRAM.exists():
    print(f"SKIP: there is no {PROGRAM}")
    sys.exit(77)


def hugging_face(*packages):
    """torch, transformers and these packages, without a network, bars and warnings; the test is skipped where one is missing."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    try:
        found = [importlib.import_module(package) for package in ("torch", "transformers", *packages)]
    except ImportError as error:
        print(f"SKIP: {error}")
        sys.exit(77)
    found[1].utils.logging.set_verbosity_error()
    found[1].utils.logging.disable_progress_bar()
    return found


def environment():
    return os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "2"}


def run(*arguments, cwd=None):
    """The finished process, with text of both outputs."""
    command = [PROGRAM, *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=300
    )


def tiny(folder, *more):
    """Flags of a training run of a second or two, with everything it writes below `folder`."""
    return [
        "--model=llama-tiny",
        f"--train_file={EXAMPLES / 'hard-times.txt'}",
        "--block_size=32",
        "--per_device_train_batch_size=2",
        "--max_steps=4",
        "--logging_steps=1",
        "--max_eval_samples=4",
        "--device=cpu",
        f"--cache_dir={folder / 'cache'}",
        *more,
    ]


class InFolder(unittest.TestCase):
    """Tests that write below `self.folder`, a run into `self.out`."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.out = self.folder / "out"
