# SPDX-License-Identifier: Apache-2.0
"""A decoder's config saved by transformers, read and written in C++, loads as the same model."""

import json
import pathlib
import tempfile

import torch
import transformers
from _exchange import run_test
from transformers import AutoConfig, LlamaConfig

transformers.utils.logging.disable_progress_bar()
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
    "llama3": LlamaConfig(**SMALL, rope_parameters={
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    "yarn": LlamaConfig(**SMALL, rope_parameters={
        "rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0,
        "mscale": 1.0, "mscale_all_dim": 0.5, "attention_factor": 1.5, "truncate": False,
        "original_max_position_embeddings": 512}),
    "mistral": transformers.MistralConfig(**SMALL, num_key_value_heads=2),
    "mistral_whole": transformers.MistralConfig(**SMALL, num_key_value_heads=1, sliding_window=None),
    "qwen2": transformers.Qwen2Config(**SMALL, num_key_value_heads=2),
    "qwen2_window": transformers.Qwen2Config(**SMALL, num_key_value_heads=2, max_window_layers=1,
                                             use_sliding_window=True, sliding_window=77),
    "qwen3": transformers.Qwen3Config(**SMALL, num_key_value_heads=2, attention_bias=True),
    "phi3": transformers.Phi3Config(
        **SMALL, pad_token_id=3, eos_token_id=4, partial_rotary_factor=0.75, sliding_window=2047,
        original_max_position_embeddings=64, max_position_embeddings=512, rope_parameters={
            "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.1, 1.2],
            "long_factor": [1.5, 2.5, 3.5]}),
    "smollm3": transformers.SmolLM3Config(**SMALL, no_rope_layers=[0, 1], pad_token_id=None, bos_token_id=1, eos_token_id=2),
    "granite": transformers.GraniteConfig(
        **SMALL, embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.015625,
        logits_scaling=8.0, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "olmo2": transformers.Olmo2Config(**SMALL, num_key_value_heads=2, attention_bias=True, eos_token_id=3),
}


# Keys that say nothing of a model that is trained again.
UNTOLD = {"transformers_version", "dtype", "_name_or_path", "max_window_layers", "no_rope_layer_interval"}


def meaning(config) -> dict:
    settings = {key: value for key, value in config.to_dict().items() if key not in UNTOLD}
    settings["rope_parameters"].pop("type", None)  # what transformers 4 calls rope_type
    return settings


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for label, config in CONFIGS.items():
            config.architectures = [type(config).__name__.replace("Config", "ForCausalLM")]
            config.save_pretrained(folder / label)
        # Other programs write the length inside the object alone.
        written = json.loads((folder / "phi3" / "config.json").read_text())
        del written["original_max_position_embeddings"]
        (folder / "phi3_inside").mkdir()
        (folder / "phi3_inside" / "config.json").write_text(json.dumps(written))
        CONFIGS["phi3_inside"] = AutoConfig.from_pretrained(folder / "phi3_inside")
        run_test("models", "ConfigExchange.*", name)
        for label, config in CONFIGS.items():
            back = AutoConfig.from_pretrained(folder / f"{label}_back")
            assert meaning(back) == meaning(config), (meaning(back), meaning(config))
            assert back.dtype == (config.dtype or torch.float32), back.dtype


if __name__ == "__main__":
    main()
