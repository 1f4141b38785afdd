# SPDX-License-Identifier: Apache-2.0
"""Small runs of every kind of network on one rank or several, and what is asked of what they leave."""
import hashlib
import json
import random
import struct
import time

from _program import InFolder, tiny
from _ranks import Ranks

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def weights(path):
    """A digest of every tensor but a batch norm's statistics, which every rank has of its own images."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    return {
        name: hashlib.sha256(data[8 + size + entry["data_offsets"][0] : 8 + size + entry["data_offsets"][1]]).hexdigest()
        for name, entry in header.items()
        if name != "__metadata__" and not name.endswith(STATISTICS)
    }


def losses(folder):
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(r["step"], r.get("loss"), r.get("grad_norm"), r.get("eval_loss")) for r in rows]


class RankRuns(InFolder):
    parts = 2  # micro-batches of a step, of all ranks

    def text(self, *more, steps=8):
        usual = [f for f in tiny(self.folder) if not f.startswith("--max_steps=")]
        return [*usual, f"--max_steps={steps}", *more]

    def sequences(self, *more):
        data = self.folder / "reviews.tsv"
        words = ["good", "fine", "bad", "poor", "and", "so", "it", "was"]
        draw = random.Random(3)
        rows = [(" ".join(draw.choices(words, k=12)), draw.choice("ab")) for _ in range(64)]
        data.write_text("text\tlabel\n" + "".join(f"{t}\t{label}\n" for t, label in rows))
        vocabulary = self.folder / "vocab.txt"
        vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
        return ["--task=text-classification", "--model=bert-tiny", f"--train_file={data}",
                f"--tokenizer=wordpiece:file={vocabulary}", "--text_column=text", "--max_seq_length=16",
                "--per_device_train_batch_size=4", "--max_steps=6", "--logging_steps=1", "--device=cpu",
                f"--cache_dir={self.folder / 'cache'}", *more]  # fmt: skip

    def images(self, *more):
        data = self.folder / "train.bin"
        draw = random.Random(5)
        data.write_bytes(b"".join(bytes([i % 10]) + draw.randbytes(3072) for i in range(48)))
        return ["--task=image-classification", "--model=resnet20", "--width_mult=0.25", f"--train_file={data}",
                "--per_device_train_batch_size=4", "--max_steps=5", "--logging_steps=1", "--device=cpu",
                "--optim=sgd", "--learning_rate=0.05", f"--cache_dir={self.folder / 'cache'}", *more]  # fmt: skip

    def graphs(self, *more):
        data = self.folder / "graphs.txt"
        draw = random.Random(9)
        lines = ["24"]
        for graph in range(24):
            nodes = 5 + graph % 4
            lines.append(f"{nodes} {graph % 2}")
            for node in range(nodes):
                near = sorted({(node + 1) % nodes, (node - 1) % nodes, draw.randrange(nodes)} - {node})
                lines.append(" ".join(map(str, [node % 3, len(near), *near])))
        data.write_text("\n".join(lines) + "\n")
        return ["--task=graph-classification", "--model=gat", f"--train_file={data}", "--validation_split=0.2",
                "--per_device_train_batch_size=2", "--max_steps=6", "--logging_steps=1", "--device=cpu",
                f"--cache_dir={self.folder / 'cache'}", *more]  # fmt: skip

    def finished(self, flags, size, output):
        """The folder of a run on so many ranks, whose micro-batches are those of four."""
        out = self.folder / output
        parts = [f"--gradient_accumulation_steps={self.parts // size}", f"--output_dir={out}"]
        done = Ranks([*flags, *parts], size).finish()
        for code, _, errors in done:
            self.assertEqual(code, 0, errors)
        for _, text, errors in done[1:]:
            self.assertEqual((text, errors), ("", ""))  # one speaks for all
        self.said = done[0][1]
        return out

    def same(self, flags, evaluated=True, alike=True, file="model.safetensors"):
        one, two = (self.finished(flags, size, f"on{size}") for size in (1, 2))
        self.assertEqual(weights(one / file), weights(two / file))
        rows = [[r[: 4 if evaluated else 3] for r in losses(folder)] for folder in (one, two)]
        self.assertEqual(*rows)
        self.as_planned(two, 2, alike)

    def as_planned(self, folder, size, alike=True):
        """`alike`: samples are; else plans are of the largest."""
        results = json.loads((folder / "all_results.json").read_text())
        self.assertEqual(results["ranks"], size)
        peaks, plans = (results[f"memory/rank_{which}peak_bytes"] for which in ("", "planned_"))
        self.assertEqual(len(peaks), size)
        for peak, plan in zip(peaks, plans):
            self.assertLess(abs(peak - plan) if alike else peak - plan, 2000, results)
        return results

    def one_message(self, ranks, code, words, seconds=120):
        done = ranks.finish(seconds)
        self.assertEqual([d[0] for d in done], [code] * len(done), done)
        lines = [line for d in done for line in d[2].splitlines()]
        self.assertEqual(len(lines), 1, lines)
        self.assertIn(words, lines[0])
        return lines[0]

    def wait_for(self, path, seconds=60, lines=1):
        end = time.monotonic() + seconds
        while not (path.exists() and path.read_bytes().count(b"\n") >= lines):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
