# SPDX-License-Identifier: Apache-2.0
"""Weights, their index, checkpoints."""
import json
import struct

from seeds.common import DEEP, HUGE, json_texts


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


def adapter():
    lora = {"peft_type": "LORA", "lora_alpha": 4, "use_rslora": False, "base_model_name_or_path": "x"}
    for key, value in {"sound": None, "peft_type": "IA3", "bias": "all", "use_dora": True, "rank_pattern": {"q": 3},
                       "lora_alpha": 1e999, "use_rslora": 1, "base_model_name_or_path": [1],
                       "modules_to_save": ["head"]}.items():  # fmt: skip
        yield key, b"\0" + json.dumps(lora if key == "sound" else lora | {key: value}).encode()
    a, b = (f"base_model.model.q.lora_{x}.weight" for x in "AB")
    def file(a_shape, b_shape, names=(a, b)):
        ends = [0]
        for rows, columns in (a_shape, b_shape):
            ends.append(ends[-1] + 4 * rows * columns)
        shapes = zip(names, (a_shape, b_shape), ends, ends[1:])
        header = {name: tensor("F32", shape, (begin, end)) for name, shape, begin, end in shapes}
        return b"\1" + tensors(header, bytes(ends[-1]))
    yield "tensors", file((2, 3), (4, 2))
    yield "ranks", file((2, 3), (4, 1))
    yield "no_rank", file((0, 3), (4, 0))
    yield "other_shape", file((2, 3), (5, 2))
    yield "alone", file((2, 3), (4, 2), (a, a + "x"))
    yield "short_name", file((2, 3), (4, 2), (".lora_A.weight", "base_model.model..lora_B.weight"))


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
