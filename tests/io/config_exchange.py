# SPDX-License-Identifier: Apache-2.0
"""A LlamaConfig saved by transformers, read and written in C++, loads as the same model; shards
saved by transformers are read as one."""

import pathlib
import tempfile

import torch
from _exchange import run
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

SMALL = dict(
    vocab_size=97, hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4
)
CONFIGS = {
    "plain": LlamaConfig(**SMALL),
    "grouped": LlamaConfig(
        **SMALL, num_key_value_heads=2, rms_norm_eps=1e-5, eos_token_id=[2, 3], bos_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    ),
    "tied": LlamaConfig(**SMALL, tie_word_embeddings=True, max_position_embeddings=64,
                        initializer_range=0.5, head_dim=16, dtype="bfloat16"),
}


def meaning(config: LlamaConfig) -> dict:
    keys = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads head_dim "
        "num_key_value_heads hidden_act max_position_embeddings initializer_range rms_norm_eps "
        "tie_word_embeddings rope_parameters attention_bias attention_dropout mlp_bias "
        "bos_token_id eos_token_id model_type architectures"
    )
    return {key: getattr(config, key) for key in keys.split()}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for label, config in CONFIGS.items():
            config.architectures = ["LlamaForCausalLM"]
            config.save_pretrained(folder / label)
        run("Config", folder)
        for label, config in CONFIGS.items():
            back = AutoConfig.from_pretrained(folder / f"{label}_back")
            assert meaning(back) == meaning(config), (meaning(back), meaning(config))
            assert back.dtype == (config.dtype or torch.float32), back.dtype
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = LlamaForCausalLM(CONFIGS["grouped"])
        model.save_pretrained(folder, max_shard_size="20KB")
        assert len(list(folder.glob("*.safetensors"))) > 1
        run("Shards", folder)
        model.config.save_pretrained(folder / "joined")
        joined = LlamaForCausalLM.from_pretrained(folder / "joined")
        for (key, a), b in zip(model.state_dict().items(), joined.state_dict().values(), strict=True):
            assert torch.equal(a, b), key


if __name__ == "__main__":
    main()
