#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes seeds for the fuzz targets: for each reader something sound, and known attacks on its form
(lengths that wrap, offsets that overlap, shapes that overflow, keys given twice, deep nesting, huge
counts, bytes at the end). Only Python's standard library.

    make_seeds.py FOLDER      FOLDER/TARGET/NAME
"""
import gzip
import io
import json
import lzma
import pathlib
import struct
import sys
import tarfile
import zipfile

DEEP = 100_000
HUGE = 2**63 - 1


def tensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def safetensors():
    two = {"a": tensor(), "b": tensor("I8", (3,), (8, 11)), "__metadata__": {"format": "pt"}}
    data = bytes(range(11))
    yield "sound", tensors(two, data)
    yield "bool", tensors({"a": tensor("BOOL", (2,), (0, 2))}, b"\1\2")
    yield "empty", tensors({})
    for name, length in [("wraps", 2**64 - 8), ("negative", 2**63), ("past_end", 10**6), ("zero", 0)]:
        yield "length_" + name, tensors(two, data, length)
    for name, entry in {
        "overlap": tensor("F32", (2,), (4, 12)),
        "descending": tensor("F32", (2,), (8, 0)),
        "past_end": tensor("F32", (2,), (2**62, 2**62 + 8)),
        "overflow": tensor("F32", (2**31, 2**31, 4), (0, 0)),
        "overflow_zero": tensor("F32", (2**62, 2**62, 0), (0, 0)),
        "many_dimensions": tensor("F32", [1] * 1000, (0, 4)),
        "negative": tensor("F32", (-1,), (0, 8)),
        "real": {"dtype": "F32", "shape": [1e300], "data_offsets": [0.5, 8]},
        "dtype": tensor("F9", (2,), (0, 8)),
    }.items():
        yield "entry_" + name, tensors({"a": tensor(), "x": entry}, data)
    one = json.dumps(tensor())
    yield "twice", tensors(f'{{"a":{one},"a":{one}}}'.encode(), data)
    yield "deep", tensors(b'{"a":' + b"[" * DEEP)
    yield "nul", tensors(b'{}\0{"a":1}')
    yield "trailing", tensors(two, data + b"more")


def safetensors_header():
    for name, bytes_ in safetensors():
        yield name, struct.pack("<q", max(len(bytes_) - 8, 0) % 64) + bytes_[8:]


def model_index():
    yield "sound", json.dumps({"weight_map": {"a": "one.safetensors"}}).encode()
    yield "elsewhere", json.dumps({"weight_map": {"a": "../one.safetensors"}}).encode()
    yield "missing", json.dumps({"weight_map": {"b": "one.safetensors"}}).encode()
    yield "itself", json.dumps({"weight_map": {"a": "model.safetensors.index.json"}}).encode()
    yield "kinds", json.dumps({"weight_map": {"a": [1]}}).encode()


def token_file():
    def one(count=3, width=2, vocabulary=10, end=9, spec=b"bytes", length=None, ids=b"\1\0\2\0\3\0"):
        fixed = b"CompActT" + struct.pack(
            "<IIQQQQQII", 1, width, count, vocabulary, end, 5, 0, length if length is not None else len(spec), 0
        )
        text = fixed + spec
        return b"\1" + text + bytes(-len(text) % 64) + ids

    yield "sound", one()
    yield "wide", one(width=4, count=1, ids=b"\1\0\0\0")
    for name, change in {
        "count_wraps": {"count": 2**63 + 3},
        "count_huge": {"count": HUGE},
        "width": {"width": 0},
        "vocabulary": {"vocabulary": 2**64 - 1},
        "end": {"end": 10},
        "spec_long": {"length": 2**32 - 1},
        "spec_past_end": {"length": 60_000},
        "spec_lines": {"spec": b"a\nb"},
        "trailing": {"ids": b"\1\0\2\0\3\0\4"},
        "id_large": {"ids": b"\xff\xff\2\0\3\0"},
    }.items():
        yield name, one(**change)


def json_texts():
    yield "twice", b'{"a":1,"a":2}'
    yield "deep", b"[" * DEEP
    yield "deep_objects", b'{"a":' * DEEP
    yield "number", b"[1e999, -1e999, 18446744073709551616, -9223372036854775809]"
    yield "nul", b'{"a":1}\0x'
    yield "utf8", b'{"a":"\xff\xfe"}'
    yield "escape", b'{"\\ud800": "\\u0000"}'


LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 257,
    "max_position_embeddings": 64,
    "rope_theta": 1e4,
    "rms_norm_eps": 1e-6,
}


def json_config():
    yield "llama", json.dumps(LLAMA).encode()
    for key in LLAMA:
        for value in (0, -1, HUGE, 2**63, 1e300, 0.5, [], {}, None, "x", True):
            if key in ("hidden_size", "rope_theta", "num_attention_heads") or value == HUGE:
                yield f"{key}_{type(value).__name__}_{str(value)[:4]}", json.dumps(
                    LLAMA | {key: value}
                ).encode()
    yield from json_texts()


def train_config():
    toml = {
        "sound": 'model = "llama-tiny"\nmax_steps = 3\nlearning_rate = 1e-3\ntrain_file = ["a", "b"]\nbf16 = true\n',
        "kinds": 'max_steps = "x"\nset = [1]\n',
        "control": 'model = "a\\u0001\\n\\t\\u007f\\"\\\\"\n',
        "dates": "max_steps = 1979-05-27T07:32:00Z\n",
        "huge": "max_steps = 9223372036854775808\nlearning_rate = inf\n",
        "tables": "[a]\n[[b]]\nx.y.z = 1\n",
        "deep": "set = " + "[" * 5000,
        "deep_keys": ".".join("a" * 5000) + " = 1\n",
        "twice": "seed = 1\nseed = 2\n",
    }
    for name, text in toml.items():
        yield "toml_" + name, b"\0" + text.encode()
    yield "json_sound", b"\1" + json.dumps({"max_steps": 3, "set": ["a"], "scale": 0.1}).encode()
    yield "json_wraps", b'\1{"seed": 18446744073709551615}'
    for name, text in json_texts():
        yield "json_" + name, b"\1" + text


def policy():
    root = pathlib.Path(__file__).resolve().parent.parent / "presets"
    for file in sorted(root.glob("*.policy")):
        yield "preset_" + file.stem, b"\1" + file.read_bytes()
    for name, text in {
        "rank": "grad * = project:rank=1e300\n",
        "bits": "slot * = quantize:bits=99999999999999999999\n",
        "group": "slot * = quantize:bits=4,group=0\n",
        "pool": "slot * = pool:size=9223372036854775807\n",
        "chunk": "slot loss.logits = chunk:tokens=-1\n",
        "chain": "slot * = pool:size=4+quantize:bits=2+offload\n",
        "stars": "slot " + "*a" * 200 + " = keep\n",
        "nul": "slot * \0= keep\n",
        "twice": "slot a = keep\nslot a = recompute\n",
    }.items():
        yield name, b"\1" + text.encode()
    for name, text in {
        "chain": "pool:size=4+quantize:bits=2,levels=normal",
        "path": "sentencepiece:file=/a,b=c:d+e",
        "empty": ":=,+",
    }.items():
        yield "spec_" + name, b"\0" + text.encode()


def sentencepiece():
    root = pathlib.Path(__file__).resolve().parent.parent
    yield "spaces", (root / "tests/data/spaces.model").read_bytes()
    yield "empty", b"\n\0"
    yield "length", b"\n\xff\xff\xff\xff\x0f"


SMALL_BPE = {"version": "1.0", "added_tokens": [], "normalizer": None,
             "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
             "post_processor": None, "decoder": {"type": "ByteLevel"},
             "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "</s>": 3}, "merges": ["a b"]}}
SMALL_WORDPIECE = {"version": "1.0", "added_tokens": [
                       {"id": 0, "content": "[SEP]", "special": True, "normalized": False,
                        "single_word": False, "lstrip": False, "rstrip": False}],
                   "normalizer": {"type": "BertNormalizer", "clean_text": True,
                                  "handle_chinese_chars": True, "strip_accents": None,
                                  "lowercase": True},
                   "pre_tokenizer": {"type": "BertPreTokenizer"},
                   "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 0],
                                      "cls": ["[CLS]", 1]},
                   "model": {"type": "WordPiece", "unk_token": "[UNK]",
                             "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                             "vocab": {"[SEP]": 0, "[CLS]": 1, "[UNK]": 2, "it": 3, "##s": 4}}}


def tokenizer_file():
    yield "vocabulary", b"\0[PAD]\n[UNK]\n[CLS]\n[SEP]\nit\n##s\n"
    yield "twice", b"\0[UNK]\n[UNK]\n[CLS]\n[SEP]\n"
    yield "wordpiece", b"\1" + json.dumps(SMALL_WORDPIECE).encode()
    yield "bpe", b"\2" + json.dumps(SMALL_BPE).encode()
    split = {**SMALL_BPE, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$|\\p{L}"},
                                            "behavior": "Isolated", "invert": False}}
    yield "slow_expression", b"\2" + json.dumps(split).encode()
    huge = json.loads(json.dumps(SMALL_BPE))
    huge["model"]["vocab"]["ab"] = 2**62
    yield "huge_id", b"\2" + json.dumps(huge).encode()
    yield "deep", b"\2" + b'{"model":' * 2000
    yield "pair", b'\3{"a": 0, "b": 1, "ab": 2, "</s>": 3}\0#version: 0.2\na b\n'
    yield "unknown_merge", b'\3{"a": 0}\0a zz\n'


def encode():
    yield "words", "The cab, abab unaB 日本 e\u0301".encode()
    yield "long", b"ab" * 4000
    yield "invalid", b"\xff\xc0\x80\xed\xa0\x80 a\0b"
    yield "marks", ("a" + "\u0301" * 2000).encode()


def labelled_texts():
    yield "tsv", b"\0sentence\tlabel\na b\tyes\nc\tno\n"
    yield "jsonl", b'\1{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n'
    yield "values", b"\2sentence\tlabel\na\t1e308\nb\t-2.5\n"
    yield "prompts", b'\3{"prompt": "a", "completion": "b"}\n'
    yield "cola", b"\4gj04\t1\t\tWe sail.\ngj04\t0\t*\tSail we.\n"
    yield "qqp", b"\5id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\ta\tb\t0\n1\t2\n"
    yield "wide", b"\0" + b"\t".join(b"c%d" % i for i in range(3000)) + b"\n"
    yield "twice", b"\0sentence\tsentence\tlabel\na\tb\t1\n"


def compressed(bytes_):
    yield 0, bytes_
    yield 1, gzip.compress(bytes_, mtime=0)
    yield 2, lzma.compress(bytes_)
    # A zstd frame of one raw block.
    head = struct.pack("<IBB", 0xFD2FB528, 0x00, 0x58)
    yield 3, head + struct.pack("<I", len(bytes_) << 3 | 1)[:3] + bytes_


def cifar():
    for kind, bytes_ in compressed(b"\3" + bytes(3072) + b"\11" + bytes(3072)):
        yield f"sound_{kind}", bytes([kind]) + bytes_
        yield f"cut_{kind}", bytes([kind]) + bytes_[:-5]
        yield f"trailing_{kind}", bytes([kind]) + bytes_ + b"x"
    yield "label", b"\0\12" + bytes(3072)


def idx():
    def one(count=2, height=3, width=4, labels=2, pixels=24, values=b"\1\2"):
        text = struct.pack(">II", 0x801, labels) + values
        return bytes([len(text)]) + text + struct.pack(">IIII", 0x803, count, height, width) + bytes(pixels)

    yield "sound", one()
    yield "huge", one(count=2**32 - 1, height=2**32 - 1, width=2**32 - 1)
    yield "large", one(count=2**20, height=4096, width=2)
    yield "zero", one(count=0, pixels=0)
    yield "labels", one(labels=3, values=b"\1\2\3")
    yield "label", one(values=b"\1\377")
    yield "trailing", one(pixels=25)


def jpeg_file():
    return (pathlib.Path(__file__).resolve().parent / "corpus/jpeg/sound").read_bytes()


def tar(names, data, kind=tarfile.REGTYPE):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size, info.type = (len(data) if kind == tarfile.REGTYPE else 0), kind
            info.linkname = "/etc/passwd"
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def image_archive():
    image = jpeg_file()
    sound = tar(["train/cat/1.jpg", "train/dog/2.jpeg"], image)
    yield "sound", sound
    yield "gz", gzip.compress(sound, mtime=0)
    yield "xz", lzma.compress(sound)
    yield "cut", sound[:1200]
    yield "bomb", gzip.compress(tar(["a/b.jpg"], bytes(3 << 20)), mtime=0)
    for name in ("../x.jpg", "/a/b.jpg", "a/../../b.jpg", "a\nb/c.jpg", "x" * 90 + "/" + "y" * 600):
        yield f"name_{len(name)}_{name[0] == '/'}", tar([name], image)
    yield "twice", tar(["a/b.jpg", "a/b.jpg"], image)
    yield "link", tar(["a/b.jpg"], b"", tarfile.SYMTYPE)
    yield "hard_link", tar(["a/b.jpg"], b"", tarfile.LNKTYPE)
    yield "device", tar(["a/b.jpg"], b"", tarfile.CHRTYPE)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cat/1.jpg", image)
    yield "zip", out.getvalue()
    yield "zip_size", out.getvalue().replace(struct.pack("<I", len(image)), b"\xff\xff\xff\x7f")


def jpeg():
    image = jpeg_file()
    at = image.find(b"\xff\xc0") + 5
    yield "cut", image[:-20]
    yield "huge", image[:at] + b"\xff\xff\xff\xff" + image[at + 4 :]
    yield "large", image[:at] + b"\x10\x00\x10\x00" + image[at + 4 :]
    yield "zero", image[:at] + bytes(4) + image[at + 4 :]
    yield "trailing", image + bytes(100)


def npy(descr="<f4", shape="(2, 3)", data=bytes(24), order="False", version=1, length=None):
    text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}"
    text += " " * (-(10 + len(text) + 1) % 64) + "\n"
    size = len(text) if length is None else length
    head = struct.pack("<H", size) if version == 1 else struct.pack("<I", size)
    return b"\x93NUMPY" + bytes([version, 0]) + head + text.encode() + data


def npys():
    yield "sound", npy()
    yield "version2", npy(version=2)
    yield "overflow", npy(shape="(4294967296, 4294967296)", data=b"")
    yield "overflow_zero", npy(shape="(9223372036854775807, 9223372036854775807, 0)", data=b"")
    yield "negative", npy(shape="(-1,)")
    yield "dimensions", npy(shape="(1,1,1,1,1,1)")
    yield "fortran", npy(order="True")
    yield "objects", npy(descr="|O")
    yield "big", npy(descr=">f4")
    yield "length", npy(length=65535)
    yield "trailing", npy(data=bytes(25))


def array(descr, values):
    kind = {"<i4": "i", "<i8": "q", "<f4": "f"}[descr]
    return npy(descr, f"({len(values)},)", struct.pack(f"<{len(values)}{kind}", *values))


def graph_npz():
    sound = {
        "adj_data": array("<f4", [1, 1, 1]),
        "adj_indices": array("<i4", [1, 2, 0]),
        "adj_indptr": array("<i4", [0, 2, 3, 3]),
        "adj_shape": array("<i8", [3, 3]),
        "attr_data": array("<f4", [1, 0.5]),
        "attr_indices": array("<i4", [0, 1]),
        "attr_indptr": array("<i4", [0, 1, 2, 2]),
        "attr_shape": array("<i8", [3, 2]),
        "labels": array("<i8", [0, 1, 0]),
    }

    def one(change, method=zipfile.ZIP_STORED):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", method) as archive:
            for name, bytes_ in (sound | change).items():
                archive.writestr(name + ".npy", bytes_)
        return out.getvalue()

    yield "sound", one({})
    yield "deflated", one({}, zipfile.ZIP_DEFLATED)
    for name, change in {
        "nodes": {"adj_shape": array("<i8", [HUGE, HUGE])},
        "features": {"attr_shape": array("<i8", [3, HUGE])},
        "columns": {"attr_shape": array("<i8", [3, 2**27])},
        "index": {"adj_indices": array("<i4", [1, 2, 2**31 - 1])},
        "negative": {"adj_indices": array("<i4", [1, 2, -1])},
        "descends": {"adj_indptr": array("<i4", [0, 3, 2, 3])},
        "starts": {"adj_indptr": array("<i4", [0, 2, 3, 2**31 - 1])},
        "labels": {"labels": array("<i8", [0, HUGE, 0])},
        "label_negative": {"labels": array("<i8", [0, -(2**63), 0])},
        "nan": {"attr_data": array("<f4", [float("nan"), 1])},
    }.items():
        yield name, one(change)


def graph_set_file():
    yield "sound", b"2\n2 0\n0 1 1\n3 1 0\n1 5\n0 0\n"
    yield "attributes", b"1\n2 0\n0 1 1 0.5 1\n3 1 0 0.25 2\n"
    yield "graphs", b"9223372036854775807\n2 0\n"
    yield "nodes", b"1\n9223372036854775807 0\n"
    yield "nodes_many", b"1\n134217728 0\n"
    yield "degree", b"1\n1 0\n0 9223372036854775807 0\n"
    yield "neighbour", b"1\n2 0\n0 1 7\n0 0\n"
    yield "tags", b"1\n2 0\n-9223372036854775808 0\n9223372036854775807 0\n"
    yield "label", b"1\n1 -9223372036854775808\n0 0\n"
    yield "nan", b"1\n1 0\n0 0 nan\n"


def graph_set_folder():
    sound = [b"1, 2\n2, 1\n", b"1\n1\n2\n", b"1\n-1\n", b"3\n4\n3\n", b"0.5, 1\n1, 2\n3, 4\n"]
    yield "sound", b"\0".join(sound)
    yield "bare", b"\0".join(sound[:3])
    for name, (place, text) in {
        "node": (0, b"1, 99\n"),
        "node_huge": (0, b"1, 9223372036854775807\n"),
        "between": (0, b"1, 3\n"),
        "graph": (1, b"1\n1\n1048577\n"),
        "graph_zero": (1, b"0\n1\n2\n"),
        "labels": (2, b"1\n"),
        "attributes": (4, b"1\n1, 2\n3\n"),
    }.items():
        yield name, b"\0".join(sound[:place] + [text] + sound[place + 1 :])


def json_field():
    yield "sound", b'{"id": 3, "text": "a\\u00e9\\ud83d\\ude00b", "more": [1, {"text": 2}]}'
    yield "half", b'{"text": "\\ud800"}'
    yield "kinds", b'{"text": 1}'
    yield from json_texts()


def documents():
    text, lines = b"It was the best of times,\n", b'{"text": "a"}\n\n{"text": "b\xff"}\n'
    for name, first, bytes_ in (("text", 0, text), ("lines", 1, lines), ("nul", 0, b"a\0b"), ("no_field", 1, b"{}\n")):
        for kind, packed in compressed(bytes_):
            yield f"{name}_{kind}", bytes([first + 2 * kind]) + packed
            yield f"{name}_{kind}_trailing", bytes([first + 2 * kind]) + packed + b"x"
            yield f"{name}_{kind}_twice", bytes([first + 2 * kind]) + packed + packed
    yield "gz_bomb", b"\2" + gzip.compress(bytes(b"a" * (4 << 20)), mtime=0)


def checkpoint():
    state = {
        "step": 7,
        "micro": 0,
        "valid": 1,
        "window": [0, 3],
        "tokens": 5,
        "step_loss": 0.5,
        "interval_loss": 1,
        "interval_steps": 1,
        "total_loss": 2,
        "seconds": 0.1,
        "matmul_path": "x",
        "bits": "",
        "optimizer": {"step": 7},
    }
    files = {name: {"bytes": 1, "xxh3": "0"} for name in ("model.safetensors", "optimizer.safetensors", "config.json")}
    manifest = {"version": 1, "step": 7, "files": files}
    cases = {"sound": state, "manifest": state | {"checkpoint": manifest}}
    for key, value in {"step": -1, "window": [1], "tokens": 2**64 - 1, "micro": 1e300, "bits": 1}.items():
        cases[key] = state | {key: value}
    for key, value in {"version": 2, "step": 2**64 - 1, "files": []}.items():
        cases["manifest_" + key] = state | {"checkpoint": manifest | {key: value}}
    for name in ("../x", "", ".", "a/b", "policy.txt"):
        more = files | {name: {"bytes": HUGE, "xxh3": "0"}}
        cases[f"file_{len(name)}_{name[:1] == '.'}"] = state | {"checkpoint": manifest | {"files": more}}
    for name, value in cases.items():
        yield name, b"\1" + json.dumps(value).encode()
    for name, text in json_texts():
        yield "json_" + name, b"\0" + text


MAKERS = {maker.__name__: maker for maker in (
    safetensors, safetensors_header, model_index, token_file, json_config, train_config, policy,
    sentencepiece, cifar, idx, image_archive, jpeg, graph_npz, graph_set_file, graph_set_folder,
    json_field, documents, checkpoint, tokenizer_file, encode, labelled_texts,
)} | {"npy": npys}

if __name__ == "__main__":
    for target, maker in MAKERS.items():
        folder = pathlib.Path(sys.argv[1]) / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, bytes_ in maker():
            (folder / name).write_bytes(bytes_)
