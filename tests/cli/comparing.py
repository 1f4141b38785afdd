# SPDX-License-Identifier: Apache-2.0
"""`compact compare`: what a run takes in words, and what is said of one that could not begin."""
import json
import unittest

from _program import InFolder, run, tiny


class Comparing(InFolder):
    def compare(self, presets, *more, code=0, rounds=0):
        """The runs of compare.json by name."""
        done = run("compare", f"--presets={presets}",
                   *tiny(self.folder, f"--output_dir={self.out}", *more), f"--timing_rounds={rounds}",
                   cwd=self.folder)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        runs = json.loads((self.out / "compare.json").read_text())["runs"]
        return {r["preset"]: r for r in runs}

    def refused(self, expected, presets):
        done = run("compare", f"--presets={presets}",
                   *tiny(self.folder, f"--output_dir={self.out}"), cwd=self.folder)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn(expected, done.stderr)
        self.assertFalse(self.out.exists())

    def test_figures_are_those_of_this_comparison(self):
        self.compare("off,exact")
        runs = self.compare("off --budget 1MiB,exact,part=auto --budget 90%",
                            "--overwrite_output_dir", code=4)
        self.assertEqual([r["exit_code"] for r in runs.values()], [4, 0, 2])
        self.assertEqual(runs["off"]["results"], None)
        self.assertEqual(runs["off"]["curves"]["loss"], [])
        self.assertEqual(runs["off"]["values"]["memory/peak_bytes"], None)
        self.assertEqual(runs["exact"]["relative_to_first"]["memory/peak_bytes"], None)
        self.assertGreater(runs["exact"]["values"]["memory/peak_bytes"], 0)
        self.assertIn("left no peak", runs["part"]["message"])

    def test_step_times_are_measured_in_turn(self):
        runs = self.compare("off,exact", "--eval_steps=1", "--save_steps=1", rounds=2)
        for name, run_ in runs.items():
            with self.subTest(name=name):
                self.assertEqual(len(run_["rounds"]), 2)
                self.assertGreater(min(run_["rounds"]), 0)
                self.assertEqual(run_["values"]["step_seconds"], sum(run_["rounds"]) / 2)
                self.assertFalse((self.out / name / "measured").exists())
        json_ = json.loads((self.out / "compare.json").read_text())
        self.assertEqual(json_["rounds"]["count"], 2)
        self.assertIn("other work took", (self.out / "compare.html").read_text())

    def test_presets_that_fit_the_task_where_none_are_named(self):
        # Names of runs are checked before data are read.
        for task, named in (("node-classification", "gact-l1"), ("language-modeling", "compact")):
            done = run("compare", f"--task={task}", "--train_file=none", f"--output_dir={self.out}",
                       f"--model={'gcn' if task[0] == 'n' else 'llama-tiny'}", cwd=self.folder)
            self.assertIn(f"== {named} (3 of 3)", done.stdout, done.stderr)

    def test_where_no_run_begins_the_comparison_before_stays(self):
        self.compare("off")
        page = (self.out / "compare.html").read_text()
        again = self.compare("off", "--overwrite_output_dir", "--budget=1MiB", code=4)
        self.assertEqual(again["off"]["exit_code"], 0)
        self.assertEqual((self.out / "compare.html").read_text(), page)

    def test_words_in_quotes(self):
        here = self.folder / "my policies"
        here.mkdir()
        (here / "a, b.policy").write_text("slot layers.*.mlp.silu = recompute\n")
        runs = self.compare('off,"my policies/a, b.policy" --seed 3,'
                            "kept=exact --set 'slot layers.{0,1}.mlp.silu = recompute' "
                            '"slot layers.*.mlp.norm = keep" --seed=3')
        policy = (self.out / "kept/policy.txt").read_text()
        self.assertIn("slot layers.{0,1}.mlp.silu = recompute\nslot layers.*.mlp.norm = keep", policy)
        self.assertEqual(list(runs), ["off", "a, b", "kept"])
        self.assertIn("--set 'slot layers.{0,1}.mlp.silu = recompute'", runs["kept"]["flags"])
        self.assertEqual(json.loads((self.out / "a, b/train_config.json").read_text())["seed"], 3)

    def test_words_that_no_run_can_take(self):
        (self.folder / "mine.policy").write_text("slot layers.*.mlp.silu = recompute\n")
        for presets, expected in [
            ('off,x=exact --set "slot * = recomputed"', "recomputed"),
            ("off,x=exact --policy missing.policy", "missing.policy"),
            ("off,x=exact --optim sgd --optim adamw", "x: --optim is given twice"),
            ("off,mine.policy --policy mine.policy", "mine: --policy is given twice"),
            ('off,x=exact --set "slot * = keep', "a quote `\"` is not closed"),
        ]:
            with self.subTest(presets=presets):
                self.refused(expected, presets)


if __name__ == "__main__":
    unittest.main()
