# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of several processes: parts of the optimizer's state, from which any number of them goes on, also
after one was killed."""
import os
import random
import shutil
import signal
import time
import unittest

import _ranks
from _rank_runs import RankRuns, losses, weights
from _ranks import Ranks


class RankCheckpoints(RankRuns):
    def test_resume_on_other_ranks(self):
        flags = self.text("--save_steps=4", "--preset=compact", "--update_proj_gap=3")
        whole = self.finished(flags, 2, "whole")
        parts = sorted(f.name for f in (whole / "checkpoint-4").glob("optimizer*"))
        self.assertEqual(parts, [f"optimizer-0000{k}-of-00002.safetensors" for k in (1, 2)])
        for size, zero in ((1, 1), (2, 0), (2, 1), (2, 2), (2, 3)):
            with self.subTest(size=size, zero=zero):
                more = [f"--resume_from_checkpoint={whole / 'checkpoint-4'}", f"--zero={zero}"]
                out = self.finished([*flags, *more], size, f"resumed{size}{zero}")
                self.assertEqual(weights(out / "model.safetensors"), weights(whole / "model.safetensors"))
        wrong = Ranks([*flags, f"--resume_from_checkpoint={whole / 'checkpoint-4'}",
                       f"--output_dir={self.folder / 'wrong'}"], 1).finish()  # fmt: skip
        self.assertEqual(wrong[0][0], 2)
        self.assertIn("a step has 2 samples of 1 ranks, but had 4 of 2", wrong[0][2])

    def test_resume_on_four(self):
        self.parts = 4
        flags = self.text("--save_steps=4", "--preset=compact", "--update_proj_gap=3")
        for tree in (False, True):
            with self.subTest(tree=tree):
                both = [*flags, f"--deterministic_reduce={str(tree).lower()}"]
                two = self.finished(both, 2, f"two{tree}")
                four, again = (
                    self.finished([*both, f"--resume_from_checkpoint={two / 'checkpoint-4'}"], 4, f"{name}{tree}")
                    for name in ("four", "again")
                )
                self.assertEqual("summed in another order" in self.said, not tree)
                self.assertEqual(*(weights(f / "model.safetensors") for f in (four, again)))
                rows = [[(r[0], r[1]) for r in losses(f) if r[1] is not None] for f in (two, four)]
                for (step, a), (same, b) in zip(rows[0][4:], rows[1], strict=True):
                    self.assertEqual(step, same)
                    self.assertAlmostEqual(a, b, delta=1e-3)
                if tree:
                    self.assertEqual(*(weights(f / "model.safetensors") for f in (four, two)))
        parts = list((four / "checkpoint-8").glob("optimizer-*-of-00004.safetensors"))
        self.assertEqual(len(parts), 4)

    def test_parts_are_pytorchs(self):
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        import torch.distributed.checkpoint as dcp
        flags = self.text("--save_steps=4", steps=4)
        folder = self.finished(flags, 2, "two") / "checkpoint-4"
        parts = self.folder / "parts"
        parts.mkdir()
        for part in folder.glob("optimizer-*"):
            (parts / part.name).symlink_to(part)
        import safetensors.torch
        wanted = {}
        for part in parts.iterdir():
            wanted |= safetensors.torch.load_file(part)
        self.assertIn("embedding.m", wanted)
        read = {name: value.new_zeros(value.shape) for name, value in wanted.items()}
        dcp.load(read, storage_reader=HuggingFaceStorageReader(str(parts)))
        for name, value in wanted.items():
            self.assertTrue(read[name].equal(value), name)

    def test_part_that_cannot_be_written(self):
        flags = self.text("--save_steps=4", f"--output_dir={self.out}")
        ranks = Ranks(flags, limits={1: 4096})
        done = ranks.finish()
        self.assertEqual([d[0] for d in done], [0, 0], done)
        self.assertRegex(done[0][1] + done[0][2], "warning: the run goes on without checkpoint-4: rank 1: .*optimizer-00002-of-00002")
        self.assertEqual(list(self.out.glob("checkpoint-*")), [])
        self.assertEqual(list(self.out.glob(".compact-tmp-*")), [])
        self.assertTrue((self.out / "model.safetensors").exists())

    def test_resume_without_a_part(self):
        flags = self.text("--save_steps=4", steps=4)
        whole = self.finished(flags, 2, "whole")
        other = self.folder / "other"
        shutil.copytree(whole, other)
        (other / "checkpoint-4/optimizer-00001-of-00002.safetensors").unlink()
        more = ["--resume_from_checkpoint=m/checkpoint-4", f"--output_dir={self.out}"]
        ranks = Ranks([*flags, *more], cwds={0: self.folder / "a", 1: self.folder / "b"},
                      links={"a": whole, "b": other}, folder=self.folder)  # fmt: skip
        self.one_message(ranks, 2, "rank 1: m/checkpoint-4/optimizer-00001-of-00002.safetensors")

    def test_restart_keeps_what_is_not_its_own(self):
        kept = self.finished(self.text(steps=1), 1, "kept") / "model.safetensors"
        before = kept.read_bytes()
        run_ = _ranks.torchrun(self.text(f"--output_dir={kept.parent}", steps=2), restarts=1)
        text, _ = run_.communicate(timeout=120)
        self.assertNotEqual(run_.returncode, 0)
        self.assertIn("is not empty", text)
        self.assertEqual(kept.read_bytes(), before)

    def test_killed_while_a_checkpoint_is_written(self):
        ranks = Ranks(self.text("--save_steps=1", f"--output_dir={self.out}", "--ddp_timeout=600", steps=100000))
        self.addCleanup(ranks.kill)
        end = time.monotonic() + 60
        while not list(self.out.glob(".compact-tmp-*")):
            self.assertLess(time.monotonic(), end)
        ranks.all[1].send_signal(signal.SIGSTOP)  # in its part, or just before or after it
        time.sleep(1)
        self.assertIsNone(ranks.all[0].poll())  # waits for it
        ranks.all[1].kill()
        _, errors = ranks.all[0].communicate(timeout=60)
        self.assertEqual(ranks.all[0].returncode, 1)
        self.assertIn("another rank has gone", errors)
        self.assertNotIn("This may", errors)

    def test_killed_under_torchrun(self):
        flags = self.text("--save_steps=1", "--save_total_limit=2", steps=40)
        whole = self.folder / "whole"
        begun = time.monotonic()
        first = _ranks.torchrun([*flags, f"--output_dir={whole}"])
        out, _ = first.communicate(timeout=300)
        self.assertEqual(first.returncode, 0, out)
        took = time.monotonic() - begun
        draw = random.Random(os.environ.get("COMPACT_SEED"))
        for turn in range(int(os.environ.get("COMPACT_RANK_KILLS", 2))):
            target = self.folder / f"killed{turn}"
            run_ = _ranks.torchrun([*flags, f"--output_dir={target}"], restarts=1)
            time.sleep(draw.uniform(0.6, 0.95) * took)
            victims = _ranks.children_of(run_.pid)
            if victims:
                os.kill(draw.choice(victims), signal.SIGKILL)
            text, _ = run_.communicate(timeout=300)
            self.assertEqual(run_.returncode, 0, text)
            self.assertEqual(weights(target / "model.safetensors"), weights(whole / "model.safetensors"))


if __name__ == "__main__":
    unittest.main()
