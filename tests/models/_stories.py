# SPDX-License-Identifier: Apache-2.0
"""stories260K, a LLaMA trained on TinyStories: its weights under Hugging Face names, its tokenizer."""

import pathlib
import struct

import torch
import transformers
from safetensors.torch import load_file

BEGIN = 1  # the token before a text
LAYER = {
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


def halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a head from rotary pairs side by side to rotary pairs half a head apart."""
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def load_model(folder: pathlib.Path) -> transformers.LlamaForCausalLM:
    heads, kv_heads, layers = 8, 4, 5
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=172, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, vocab_size=512, max_position_embeddings=512,
        rms_norm_eps=1e-5, tie_word_embeddings=True, attn_implementation="sdpa")  # fmt: skip
    weights = load_file(folder / "stories260K.safetensors")
    state = {
        "model.embed_tokens.weight": weights["tok_embeddings.weight"],
        "lm_head.weight": weights["tok_embeddings.weight"],
        "model.norm.weight": weights["norm.weight"],
    }
    for layer in range(layers):
        for ours, theirs in LAYER.items():
            weight = weights[f"layers.{layer}.{theirs}.weight"]
            if ours.endswith("q_proj"):
                weight = halves(weight, heads)
            if ours.endswith("k_proj"):
                weight = halves(weight, kv_heads)
            state[f"model.layers.{layer}.{ours}.weight"] = weight
    model = transformers.LlamaForCausalLM(config).eval()
    model.load_state_dict(state)
    return model


class Tokenizer:
    """tok512.bin of llama2.c: the longest token's length, then score f32, length int32 and bytes of
    every token. Byte pairs are merged by best score."""

    def __init__(self, path: pathlib.Path) -> None:
        data, offset = path.read_bytes(), 4
        self.tokens, self.scores = [], []
        while offset < len(data):
            score, length = struct.unpack_from("<fi", data, offset)
            offset += 8
            self.tokens.append(data[offset : offset + length])
            self.scores.append(score)
            offset += length
        self.ids = {token: i for i, token in reversed(list(enumerate(self.tokens)))}
        single = 3 + 256  # three marks and the bytes; then tokens that are merged, then characters
        self.merges = [i for i in range(single, len(self.tokens)) if len(self.tokens[i].decode()) > 1]
        assert sorted(self.merges, key=lambda i: -self.scores[i]) == self.merges

    def encode(self, text: str) -> list[int]:
        ids = [self.ids[b" "]]
        for character in text:
            data = character.encode()
            ids += [self.ids[data]] if data in self.ids else [byte + 3 for byte in data]
        # A merged token's later merges have worse scores, so one pass per token, best first, is enough.
        for merged in self.merges:
            i = 0
            while i + 1 < len(ids):
                if self.tokens[ids[i]] + self.tokens[ids[i + 1]] == self.tokens[merged]:
                    ids[i : i + 2] = [merged]
                i += 1
        return [BEGIN] + ids
