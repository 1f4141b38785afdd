# SPDX-License-Identifier: Apache-2.0
"""A failure of one of several processes ends all of them, with one message and one exit code; work that only
takes long does not."""
import os
import signal
import time
import unittest

from _program import run
from _rank_runs import RankRuns
from _ranks import Ranks


class RankFailures(RankRuns):
    def test_bad_input(self):
        flags = self.text(f"--output_dir={self.out}")
        self.one_message(Ranks(flags, own_flags={1: ["--learning_rate=5"]}), 2,
                         "rank 1 was started with other options than rank 0: --learning_rate 5 in place of")  # fmt: skip
        self.one_message(Ranks([*flags, "--set=slot no.such = keep"]), 2, "matches no slot")
        self.one_message(Ranks([*flags, "--set=grad * = full:release=true", "--max_grad_norm=0"]), 2,
                         "release=true updates it before the gradients of all 2 ranks are known")  # fmt: skip
        self.assertIn("MASTER_ADDR is not set", run_alone({"WORLD_SIZE": "2", "RANK": "0"}, flags))
        self.assertIn("RANK is not set", run_alone({"WORLD_SIZE": "2"}, flags))
        self.assertIn("RANK must be an integer in [0, 1], is `2`", run_alone({"WORLD_SIZE": "2", "RANK": "2"}, flags))
        self.assertIn("`compare` is for one process, this is rank 0 of 2",
                      run_alone({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1234"},
                                flags, "compare"))  # fmt: skip

    def test_not_finite(self):
        flags = self.text(f"--output_dir={self.out}", "--learning_rate=1e5", "--weight_decay=10", steps=50)
        line = self.one_message(Ranks(flags), 3, "stopped before the update")
        self.assertRegex(line, r"error: rank [01]: step \d+: ")

    def test_interrupt_saves_once(self):
        flags = self.text(f"--output_dir={self.out}", steps=100000)
        ranks = Ranks(flags)
        self.addCleanup(ranks.kill)
        self.wait_for(self.out / "metrics.jsonl")
        ranks.all[1].send_signal(signal.SIGINT)  # one is enough
        done = ranks.finish()
        self.assertEqual([d[0] for d in done], [130, 130], done)
        self.assertEqual(len(list(self.out.glob("checkpoint-*"))), 1)

    def test_other_weights(self):
        model = self.finished(self.text(steps=1), 1, "model")
        other = self.finished(self.text("--seed=7", steps=1), 1, "other")
        flags = [f for f in self.text(f"--output_dir={self.out}") if not f.startswith("--model=")]
        ranks = Ranks([*flags, "--model_name_or_path=m"], cwds={0: self.folder / "a", 1: self.folder / "b"},
                      links={"a": model, "b": other}, folder=self.folder)  # fmt: skip
        self.one_message(ranks, 2, "rank 1 has another set of weights")

    def stop_a_while(self, ranks):
        """Rank 1 does nothing for longer than --ddp_timeout=4."""
        ranks.all[1].send_signal(signal.SIGSTOP)
        time.sleep(7)
        ranks.all[1].send_signal(signal.SIGCONT)

    def test_a_long_evaluation_is_not_silence(self):
        flags = self.text("--ddp_timeout=4", "--validation_split=0.6", "--per_device_eval_batch_size=1", steps=2)
        flags = [f for f in flags if not f.startswith("--max_eval_samples=")]
        for attempt in range(3):  # on a busy machine the stop may come after that work
            out = self.folder / f"{attempt}"
            ranks = Ranks([*flags, "--max_eval_samples=6000", f"--output_dir={out}"])  # which takes seconds
            self.addCleanup(ranks.kill)
            self.wait_for(out / "metrics.jsonl", lines=2)
            time.sleep(1)
            self.stop_a_while(ranks)
            done = ranks.finish()
            if [d[0] for d in done] == [0, 0]:
                break
        self.assertEqual([d[0] for d in done], [0, 0], done)

    def test_a_long_checkpoint_is_not_silence(self):
        ranks = Ranks(self.text("--ddp_timeout=4", "--save_steps=1", "--save_total_limit=1", f"--output_dir={self.out}",
                                steps=100000))  # fmt: skip
        self.addCleanup(ranks.kill)
        pid = ranks.all[1].pid

        def writes():  # rank 1 its part, which rank 0 waits for; names of unfinished files have the process's number
            return any(self.out.glob(f".compact-tmp-*/.compact-tmp-*-{pid}-*"))

        end = time.monotonic() + 60
        while True:
            self.assertLess(time.monotonic(), end)
            if not writes():
                continue
            ranks.all[1].send_signal(signal.SIGSTOP)
            os.waitpid(pid, os.WUNTRACED)  # returns when it has stopped
            if writes():
                break
            ranks.all[1].send_signal(signal.SIGCONT)
        self.stop_a_while(ranks)
        ranks.all[0].send_signal(signal.SIGINT)
        done = ranks.finish()
        self.assertEqual([d[0] for d in done], [130, 130], done)

    def test_gone_or_silent(self):
        for number, words in ((signal.SIGKILL, "another rank has gone"), (signal.SIGSTOP, "did not answer")):
            with self.subTest(number):
                out = self.folder / str(int(number))
                ranks = Ranks(self.text(f"--output_dir={out}", "--ddp_timeout=8", steps=100000))
                self.addCleanup(ranks.kill)
                self.wait_for(out / "metrics.jsonl")
                ranks.all[1].send_signal(number)
                _, errors = ranks.all[0].communicate(timeout=60)
                self.assertEqual(ranks.all[0].returncode, 1)
                self.assertIn(words, errors)


def run_alone(more, flags, command="train"):
    """The errors of one process in such an environment."""
    before = dict(os.environ)
    os.environ.update(more)
    try:
        done = run(command, *flags)
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert done.returncode == 2, done
    return done.stderr


if __name__ == "__main__":
    unittest.main()
