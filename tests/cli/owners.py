# SPDX-License-Identifier: Apache-2.0
"""A run's folder has one owner: a second process is refused before it changes anything, readers are
not, and a killed owner leaves no lock."""
import json
import signal
import subprocess
import time
import unittest

from _program import EXAMPLES, PROGRAM, InFolder, environment, run, tiny


class Owners(InFolder):
    def flags(self, *more, steps=1000000):
        usual = [f for f in tiny(self.folder) if not f.startswith("--max_steps=")]
        return [*usual, f"--output_dir={self.out}", f"--max_steps={steps}", *more]

    def started(self, command, *more, until):
        """A process that runs until it is killed, once there is `until` in the folder."""
        child = subprocess.Popen([PROGRAM, command, *self.flags(*more)], env=environment(),
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 start_new_session=True)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        while not list(self.out.glob(until)):
            self.assertIsNone(child.poll())
            time.sleep(0.02)
        return child

    def refused(self, owner, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, 2, done.stderr)
        (line,) = done.stderr.splitlines()
        self.assertIn(f"process {owner.pid} on ", line)

    def test_train(self):
        owner = self.started("train", "--save_steps=1", "--save_total_limit=2",
                             until="checkpoint-*")
        self.refused(owner, "train", *self.flags(steps=4))
        self.refused(owner, "train", *self.flags("--overwrite_output_dir", steps=4))
        self.refused(owner, "train", *self.flags("--resume_from_checkpoint=latest"))
        self.refused(owner, "compare", "--presets=off", *self.flags("--overwrite_output_dir"))
        self.assertIsNone(owner.poll())
        owner.send_signal(signal.SIGSTOP)  # so that the checkpoint stays while it is read
        newest = max(self.out.glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))
        read = run("eval", f"--model_name_or_path={newest}", "--max_eval_samples=4",
                   "--block_size=32", f"--validation_file={EXAMPLES / 'hard-times.txt'}",
                   f"--cache_dir={self.folder / 'cache'}")
        self.assertEqual(read.returncode, 0, read.stderr)
        owner.kill()
        owner.wait()
        self.assertTrue((self.out / ".compact-lock").exists())
        done = run("train", *self.flags("--overwrite_output_dir", steps=4))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(list(self.out.glob(".compact-*")), [])
        rows = map(json.loads, (self.out / "metrics.jsonl").read_text().splitlines())
        self.assertEqual([r["step"] for r in rows if "loss" in r], [1, 2, 3, 4])

    def test_compare(self):
        owner = self.started("compare", "--presets=off,exact", until="off/metrics.jsonl")
        again = self.flags("--overwrite_output_dir", steps=4)
        self.refused(owner, "compare", "--presets=off", *again)
        self.refused(owner, "train", *again)
        child = (self.out / "off/.compact-lock").read_text().split()[1]
        self.assertNotEqual(int(child), owner.pid)
        owner.terminate()
        self.assertEqual(owner.wait(), 143)
        self.assertEqual(list(self.out.rglob(".compact-lock")), [])
        done = run("compare", "--presets=off", *again)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
