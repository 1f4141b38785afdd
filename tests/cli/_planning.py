# SPDX-License-Identifier: Apache-2.0
"""Plans of a tiny model, and the runs that they are of."""
import json

from _program import InFolder, run, tiny

MODEL = ["--model=llama-tiny", "--tokenizer=bytes", "--block_size=64", "--device=cpu"]
BATCH = "--per_device_train_batch_size="


class Plans(InFolder):
    def setUp(self):
        super().setUp()
        self.cache = f"--cache_dir={self.folder / 'cache'}"

    def plan(self, *more, code=0):
        out = self.folder / "plan.json"
        given = {m.split("=")[0] for m in more}
        usual = [f for f in [*MODEL, BATCH + "8"] if f.split("=")[0] not in given]
        done = run("plan", *usual, self.cache, f"--json={out}", *more, cwd=self.folder)
        self.assertEqual(done.returncode, code, done.stderr)
        return json.loads(out.read_text()) if code == 0 else done.stderr, done.stdout

    def train(self, name, *more):
        out = self.folder / name
        usual = [f for f in tiny(self.folder, f"--output_dir={out}", *more)
                 if not f.startswith((BATCH, "--block_size", "--model", "--device="))
                 and (f != "--max_eval_samples=4" or "--max_eval_samples=64" not in more)]
        done = run("train", *MODEL, BATCH + "8", *usual, cwd=self.folder)
        return done, out
