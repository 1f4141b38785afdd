#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes stories260K, a LLaMA of llama2.c trained on TinyStories, as a Hugging Face folder: config.json,
model.safetensors, tokenizer.model (SentencePiece). Needs numpy and safetensors.

    scripts/stories_folder.py SOURCE OUT      SOURCE has stories260K.safetensors and tok512.bin
"""
import json
import pathlib
import struct
import sys

import numpy
from safetensors.numpy import load_file, save_file

HEADS, KV_HEADS, LAYERS = 8, 4, 5
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": 512,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    "rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32",
}  # fmt: skip
NAMES = {
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}


def halves(weight, heads):
    """Rows of a head from rotary pairs side by side to rotary pairs half a head apart."""
    pairs = weight.reshape(heads, -1, 2, weight.shape[1])
    return numpy.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)


def weights_of(path):
    """By Hugging Face's names."""
    theirs = load_file(path)
    weights = {"model.embed_tokens.weight": theirs["tok_embeddings.weight"],
               "model.norm.weight": theirs["norm.weight"]}
    for layer in range(LAYERS):
        for ours, name in NAMES.items():
            weight = theirs[f"layers.{layer}.{name}.weight"]
            heads = {"self_attn.q_proj": HEADS, "self_attn.k_proj": KV_HEADS}.get(ours)
            weights[f"model.layers.{layer}.{ours}.weight"] = halves(weight, heads) if heads else weight
    return weights


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number, value):
    """A field of a protocol buffer: an integer, a float or what has a length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def tokenizer_model(path):
    """A SentencePiece model (sentencepiece_model.proto) of llama2.c's table: the longest token's
    length, then score f32, length int32 and bytes of every token."""
    data, offset, model = path.read_bytes(), 4, b""
    normal, unknown, control, byte = 1, 2, 3, 6
    for number in range(CONFIG["vocab_size"]):
        score, length = struct.unpack_from("<fi", data, offset)
        piece = data[offset + 8 : offset + 8 + length]
        offset += 8 + length
        kind = unknown if number == 0 else control if number < 3 else byte if number < 3 + 256 else normal
        piece = piece.strip() if kind == control else piece.replace(b" ", "\u2581".encode())
        model += field(1, field(1, piece) + field(2, score) + field(3, kind))
    pairs, fall_back, unk, bos, eos = 3, 35, 40, 41, 42
    model += field(2, field(pairs, 2) + field(4, CONFIG["vocab_size"]) + field(fall_back, 1) +
                   field(unk, 0) + field(bos, 1) + field(eos, 2))
    dummy_prefix, remove_spaces, escape_spaces = 3, 4, 5
    return model + field(3, field(1, b"identity") + field(dummy_prefix, 1) + field(remove_spaces, 0) +
                         field(escape_spaces, 1))


def write_folder(source, out):
    out.mkdir(parents=True, exist_ok=True)
    save_file(weights_of(source / "stories260K.safetensors"), out / "model.safetensors",
              metadata={"format": "pt"})
    (out / "tokenizer.model").write_bytes(tokenizer_model(source / "tok512.bin"))
    (out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    write_folder(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
