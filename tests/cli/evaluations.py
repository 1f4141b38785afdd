# SPDX-License-Identifier: Apache-2.0
"""`compact eval`, and files beside the training file, read as the training file was read."""
import contextlib
import json
import os
import pty
import subprocess
import unittest

import _program


def graph(label, tag, nodes=4):
    lines = [f"{tag} 2 {(i + 1) % nodes} {(i - 1) % nodes}" for i in range(nodes)]
    return "\n".join([f"{nodes} {label}", *lines]) + "\n"


class Evaluations(_program.InFolder):
    def compact(self, *arguments):
        done = _program.run(*arguments, f"--cache_dir={self.folder / 'cache'}")
        return done.returncode, done.stdout + done.stderr

    def graphs(self, name, *rows):
        path = self.folder / name
        path.write_text(f"{len(rows)}\n" + "".join(graph(*row) for row in rows))
        return path

    def test_classes_and_tags_of_graphs_are_those_that_the_model_was_trained_on(self):
        rows = [(5, 10), (6, 11), (7, 12)]
        train = self.graphs("train.txt", *rows * 20)
        part = self.graphs("part.txt", *[(6, 11), (7, 12)] * 10)
        run = ["--task=graph-classification", "--model=gcn", "--dropout=0", "--max_steps=60", "--learning_rate=0.05"]
        code, text = self.compact(
            "train", *run, f"--train_file={train}", f"--test_file={part}", "--per_device_train_batch_size=32", f"--output_dir={self.out}"
        )
        self.assertEqual(code, 0, text)
        self.assertEqual(json.loads((self.out / "all_results.json").read_text())["test_accuracy"], 1, text)
        config = json.loads((self.out / "config.json").read_text())
        self.assertEqual((config["graph_labels"], config["node_tags"]), ([5, 6, 7], [10, 11, 12]))
        code, text = self.compact("eval", f"--model_name_or_path={self.out}", f"--validation_file={part}")
        self.assertEqual(code, 0, text)
        self.assertIn("eval_accuracy 1\n", text)
        for other, rule in (((6, 13), "a node of tag 13"), ((8, 11), "a graph of class 8")):
            file = self.graphs("other.txt", *rows, other)
            code, text = self.compact("eval", f"--model_name_or_path={self.out}", f"--validation_file={file}")
            self.assertNotEqual(code, 0)
            self.assertIn(f"has {rule}, which the graphs that the model was trained on do not have", text)

    def test_the_field_of_texts(self):
        file = self.folder / "texts.jsonl"
        rows = [{"text": f"zqx {i * 7919 % 1000} 8!#", "body": "the cat sat on the mat and the dog ran"} for i in range(200)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        run = ["--model=llama-tiny", f"--train_file={file}", "--text_field=body", "--block_size=64", "--max_steps=30"]
        code, text = self.compact("train", *run, f"--output_dir={self.out}")
        self.assertEqual(code, 0, text)
        found = []
        for more in ([], ["--text_field=body"]):
            code, text = self.compact("eval", f"--model_name_or_path={self.out}", f"--validation_file={file}", "--block_size=64", *more)
            self.assertEqual(code, 0, text)
            found.append(text)
        self.assertEqual(found[0], found[1])

    def test_a_terminal_sees_how_far_it_is(self):
        flags = _program.tiny(self.folder, f"--output_dir={self.out}")
        code, text = self.compact("train", *flags)
        self.assertEqual(code, 0, text)
        text = next(flag for flag in flags if flag.startswith("--train_file=")).split("=")[1]
        command = ["eval", f"--model_name_or_path={self.out}", f"--validation_file={text}", "--block_size=32", "--max_eval_samples=64",
                   "--per_device_eval_batch_size=8"]  # fmt: skip
        code, plain = self.compact(*command)
        self.assertEqual(code, 0, plain)
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        done = subprocess.run([_program.PROGRAM, *command, f"--cache_dir={self.folder / 'cache'}"], stdout=theirs, stderr=theirs, env=_program.environment(), timeout=300)
        os.close(theirs)
        shown = ""
        with contextlib.suppress(OSError):  # at the end
            while part := os.read(ours, 1 << 16):
                shown += part.decode()
        self.assertEqual(done.returncode, 0, shown)
        for count in range(8, 64, 8):
            self.assertIn(f"] {count}/64  samples evaluated", shown)
        self.assertEqual(shown.rpartition("\x1b[K")[2].replace("\r", ""), plain)
        self.assertNotIn("samples evaluated", plain)

    def test_pairs(self):
        vocabulary = self.folder / "vocab.txt"
        vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]) + "\n")
        rows = [{"sentence1": "a b", "sentence2": "c" if i % 2 else "d", "label": i % 2} for i in range(16)]
        pairs, singles = self.folder / "pairs.jsonl", self.folder / "singles.jsonl"
        pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
        singles.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "sentence2"}) + "\n" for row in rows))
        run = ["--task=text-classification", "--model=bert-tiny", f"--tokenizer=wordpiece:file={vocabulary}", "--max_steps=2", "--max_seq_length=16"]
        code, text = self.compact("train", *run, f"--train_file={pairs}", "--validation_split=0", f"--output_dir={self.out}")
        self.assertEqual(code, 0, text)
        code, text = self.compact("eval", f"--model_name_or_path={self.out}", f"--validation_file={pairs}")
        self.assertEqual(code, 0, text)
        code, text = self.compact("eval", f"--model_name_or_path={self.out}", f"--validation_file={singles}")
        self.assertNotEqual(code, 0)
        self.assertIn("must have pairs of texts as the training file has", text)

    def test_a_graph_has_no_validation_file(self):
        code, text = self.compact(
            "train", "--task=node-classification", "--model=gcn", "--train_file=a.npz", "--validation_file=b.npz", f"--output_dir={self.out}"
        )
        self.assertNotEqual(code, 0)
        self.assertIn("--validation_file: the nodes of the graph of --train_file are split", text)


if __name__ == "__main__":
    unittest.main()
