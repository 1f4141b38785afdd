# SPDX-License-Identifier: Apache-2.0
"""Shared by tests of scripts: the sources, a folder, and scripts in place of programs."""
import os
import pathlib
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("COMPACT_SOURCE_DIR", pathlib.Path(__file__).parents[2]))


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def command(self, name, text):
        """A script in the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path
