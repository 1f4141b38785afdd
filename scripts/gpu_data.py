# SPDX-License-Identifier: Apache-2.0
"""Small made data for every task, and the flags of compact train that go with it. Standard library only."""
import json
import pathlib
import random
import struct
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def npy(dtype, shape, values):
    """Bytes of numpy's file form, version 1."""
    head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({shape},), }}"
    head = head.ljust(117) + "\n"  # 128 bytes with the ten before it
    code = {"<f4": "f", "<i4": "i", "<i8": "q"}[dtype]
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack(f"<{len(values)}{code}", *values)


def write_graph(path, nodes=1700, classes=4, features=16):
    """A ring of nodes in classes, told by their features, in the form of Planetoid's archives."""
    draw = random.Random(1)
    neighbours = [sorted({(n - 1) % nodes, (n + 1) % nodes, (n + classes) % nodes}) for n in range(nodes)]
    arrays = {
        "adj_data": ("<f4", [1.0] * sum(map(len, neighbours))),
        "adj_indices": ("<i4", [m for row in neighbours for m in row]),
        "adj_indptr": ("<i4", [sum(map(len, neighbours[:n])) for n in range(nodes + 1)]),
        "adj_shape": ("<i8", [nodes, nodes]),
        "attr_data": ("<f4", [1.0] * (2 * nodes)),
        "attr_indices": ("<i4", [f for n in range(nodes) for f in (n % classes, draw.randrange(classes, features))]),
        "attr_indptr": ("<i4", list(range(0, 2 * nodes + 1, 2))),
        "attr_shape": ("<i8", [nodes, features]),
        "labels": ("<i8", [n % classes for n in range(nodes)]),
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, (dtype, values) in arrays.items():
            archive.writestr(name + ".npy", npy(dtype, len(values), values))


def write_graph_set(path, count=40):
    """Rings of 5 or 6 tagged nodes in two classes."""
    lines = [str(count)]
    for i in range(count):
        nodes = 5 + i % 2
        lines.append(f"{nodes} {i % 2}")
        lines += [f"{(n + i) % 3} 2 {(n - 1) % nodes} {(n + 1) % nodes}" for n in range(nodes)]
    path.write_text("\n".join(lines) + "\n")


def write_images(path, count=120):
    """Records of CIFAR-10 whose brightness tells the class."""
    draw = random.Random(2)
    path.write_bytes(b"".join(bytes([i % 10]) + bytes(20 * (i % 10) + draw.randrange(40) for _ in range(3072)) for i in range(count)))


def write_texts(folder):
    """Sentences of few words, as .tsv with a header and as CoLA without; and their vocabulary."""
    draw, words = random.Random(3), "a film that is very not it was".split()
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", *words]) + "\n")
    (folder / "glue/CoLA").mkdir(parents=True, exist_ok=True)
    for name in ("train.tsv", "dev.tsv"):
        rows = [(" ".join(draw.choices(words, k=draw.randint(1, 9))) + (" good" if i % 2 else " bad"), i % 2) for i in range(80)]
        (folder / name).write_text("sentence\tlabel\n" + "".join(f"{text}\t{'yes' if label else 'no'}\n" for text, label in rows))
        (folder / "glue/CoLA" / name).write_text("".join(f"made\t{label}\t\t{text}\n" for text, label in rows))
    prompts = [{"prompt": f"twice {37 * i} is ", "completion": str(74 * i)} for i in range(40)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(p) + "\n" for p in prompts))


def make_data(folder):
    folder.mkdir(parents=True, exist_ok=True)
    write_graph(folder / "graph.npz")
    write_graph_set(folder / "graphs.txt")
    write_images(folder / "images.bin")
    write_texts(folder)


def tasks(data):
    """Task -> its flags of compact train."""
    vocabulary = f"--tokenizer=wordpiece:file={data / 'vocab.txt'}"
    held_out = "--validation_split=0.25"
    return {
        "language-modeling": [
            "--model=llama-tiny", "--tokenizer=bytes", "--block_size=64",
            f"--train_file={ROOT / 'examples/data/hard-times.txt'}", "--max_eval_samples=8"],
        "prompt-completion": [
            "--model=llama-tiny", "--tokenizer=bytes", "--block_size=32", f"--train_file={data / 'prompts.jsonl'}", held_out],
        "text-classification": [
            "--model=bert-tiny", vocabulary, "--max_seq_length=24", "--dropout=0",
            f"--train_file={data / 'train.tsv'}", f"--validation_file={data / 'dev.tsv'}"],
        "glue": ["--task_name=cola", "--model=bert-tiny", vocabulary, "--max_seq_length=24", "--dropout=0", f"--data_dir={data / 'glue'}"],
        "image-classification": [
            "--model=resnet20", "--width_mult=0.5", f"--train_file={data / 'images.bin'}", held_out],
        "node-classification": ["--model=gcn", f"--train_file={data / 'graph.npz'}"],
        "graph-classification": ["--model=gat", f"--train_file={data / 'graphs.txt'}", held_out],
    }  # fmt: skip
