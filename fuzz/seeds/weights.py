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


def nf4():
    said = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    for key, value in {"sound": None, "quant_method": "gptq", "load_in_4bit": 1, "bnb_4bit_quant_type": "fp4",
                       "bnb_4bit_quant_storage": "bfloat16", "bnb_4bit_use_double_quant": True}.items():  # fmt: skip
        quantization = said if key == "sound" else said | {key: value}
        yield "config_" + key, b"\0" + json.dumps({"dtype": "float16", "quantization_config": quantization}).encode()
    yield "config_dtype", b"\0" + json.dumps({"dtype": "float8", "quantization_config": said}).encode()
    levels = struct.pack("<16f", -1, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0,
                         0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1)  # fmt: skip
    def file(nested=False, quant_type="nf4", lacks=(), shapes=None, **changes):
        state = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [3, 5]}
        parts = {"": ("U8", [8, 1], bytes(8)), ".quant_map": ("F32", [16], levels), ".absmax": ("F32", [1], bytes(4))}
        if nested:
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.5}
            parts |= {".absmax": ("U8", [1], bytes(1)), ".nested_absmax": ("F32", [1], bytes(4)),
                      ".nested_quant_map": ("F32", [256], bytes(1024))}  # fmt: skip
        text = json.dumps(state | changes).encode()
        parts[f".quant_state.bitsandbytes__{quant_type}"] = ("U8", [len(text)], text)
        header, data = {}, b""
        for part, (kind, shape, content) in sorted(parts.items(), key=lambda p: p[1][0] != "F32"):
            if part in lacks:
                continue
            header["w.weight" + part] = tensor(kind, (shapes or {}).get(part, shape), (len(data), len(data) + len(content)))
            data += content
        return b"\1" + tensors(header, data)
    yield "sound", file()
    yield "nested", file(nested=True)
    yield "fp4", file(quant_type="fp4")
    for part in (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"):
        yield "lacks" + part, file(nested=True, lacks=(part,))
    yield "row", file(shapes={"": [1, 8]})
    for name, changes in {
        "huge": {"shape": [2**40, 2**40]}, "wraps": {"shape": [2**62, 4]}, "none": {"shape": [0, 5]}, "negative": {"shape": [-3, -5]},
        "line": {"shape": [15]}, "other_shape": {"shape": [4, 5]}, "blocksize": {"blocksize": 0}, "nested_blocksize": {"nested_blocksize": 0},
        "offset": {"nested_offset": "x"}, "dtype": {"dtype": "float8"}, "quant_type": {"quant_type": "fp4"},
    }.items():  # fmt: skip
        yield "state_" + name, file(nested=name.startswith("nested") or name == "offset", **changes)


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
