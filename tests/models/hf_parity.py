# SPDX-License-Identifier: Apache-2.0
"""Logits, loss and every gradient agree with Hugging Face's decoders in float64; what we write is
the same model there."""

import torch
import transformers
from _exchange import agree

SHAPE = dict(hidden_size=48, intermediate_size=100, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, vocab_size=128, max_position_embeddings=64,
             initializer_range=0.15, pad_token_id=None, bos_token_id=None, eos_token_id=None)  # fmt: skip
LENGTH = 33


def rope(kind: str, **more) -> dict:
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=500.0, **more))


SHORT, LONG = [1.0, 1.5, 2.0, 1.0, 1.2, 3.0], [2.0, 3.0, 5.0, 8.0, 13.0, 21.0]
# A class of transformers, what differs from SHAPE, a preset of ours.
CASES = {
    "heads": ("Llama", dict(num_key_value_heads=4), "off"),
    "grouped": ("Llama", dict(), "off"),
    "one key": ("Llama", dict(num_key_value_heads=1, num_hidden_layers=1), "off"),
    "tied": ("Llama", dict(num_key_value_heads=4, tie_word_embeddings=True), "off"),
    "grouped and tied": ("Llama", dict(tie_word_embeddings=True, **rope("default")), "recompute"),
    "tied, no head": ("Llama", dict(tie_word_embeddings=True), "exact"),
    "wide heads": ("Llama", dict(head_dim=24, rms_norm_eps=1e-5), "exact"),
    "odd": ("Llama", dict(hidden_size=36, num_attention_heads=6, num_key_value_heads=3,
                          intermediate_size=41, vocab_size=97, head_dim=6), "off"),
    "biases": ("Llama", dict(attention_bias=True, mlp_bias=True), "exact"),
    "padding": ("Llama", dict(pad_token_id=7), "off"),
    "padding, tied": ("Llama", dict(pad_token_id=7, tie_word_embeddings=True), "exact"),
    "llama3, all regions": ("Llama", rope("llama3", factor=8.0, low_freq_factor=1.0,
                            high_freq_factor=4.0, original_max_position_embeddings=128), "off"),
    "llama3, tied": ("Llama", dict(tie_word_embeddings=True, **rope(
        "llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16)), "exact"),
    "linear": ("Llama", rope("linear", factor=3.0), "off"),
    "dynamic, near": ("Llama", rope("dynamic", factor=2.0), "off"),
    "dynamic, far": ("Llama", dict(max_position_embeddings=20, **rope("dynamic", factor=2.0)), "off"),
    "yarn": ("Llama", rope("yarn", factor=4.0, original_max_position_embeddings=16), "exact"),
    "yarn, all settings": ("Qwen2", rope(
        "yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=4.0, beta_slow=0.5,
        mscale=0.7, mscale_all_dim=1.2, truncate=False), "off"),
    "yarn, factor of attention": ("Mistral", dict(sliding_window=None, **rope(
        "yarn", factor=2.0, original_max_position_embeddings=32, attention_factor=1.3)), "off"),
    "longrope, near": ("Llama", rope("longrope", factor=4.0, short_factor=SHORT, long_factor=LONG,
                                     original_max_position_embeddings=33), "off"),
    "longrope, far": ("Llama", rope("longrope", short_factor=SHORT, long_factor=LONG,
                                    original_max_position_embeddings=16), "exact"),
    "Mistral": ("Mistral", dict(sliding_window=None), "off"),
    "Mistral, a window as long": ("Mistral", dict(sliding_window=LENGTH, head_dim=24), "exact"),
    "Mistral, a short window": ("Mistral", dict(sliding_window=7), "exact"),
    "Qwen2": ("Qwen2", dict(), "off"),
    "Qwen2, tied": ("Qwen2", dict(tie_word_embeddings=True, rms_norm_eps=1e-5), "recompute"),
    "Qwen2, a window": ("Qwen2", dict(use_sliding_window=True, sliding_window=40,
                                      max_window_layers=1), "exact"),
    "Qwen2, short windows": ("Qwen2", dict(use_sliding_window=True, sliding_window=5,
                                           max_window_layers=1), "recompute"),
    "Qwen3": ("Qwen3", dict(head_dim=12), "off"),
    "Qwen3, wide": ("Qwen3", dict(head_dim=32, tie_word_embeddings=True), "exact"),
    "Qwen3, biases": ("Qwen3", dict(head_dim=16, attention_bias=True, num_key_value_heads=1),
                      "recompute"),
    "Phi-3": ("Phi3", dict(num_key_value_heads=4), "off"),
    "Phi-3, near": ("Phi3", dict(original_max_position_embeddings=40, **rope(
        "longrope", short_factor=SHORT, long_factor=LONG)), "exact"),
    "Phi-4-mini, far": ("Phi3", dict(
        hidden_size=64, partial_rotary_factor=0.75, original_max_position_embeddings=16,
        tie_word_embeddings=True, **rope("longrope", short_factor=SHORT, long_factor=LONG)), "exact"),
    "SmolLM3": ("SmolLM3", dict(num_hidden_layers=4), "off"),
    "SmolLM3, a list": ("SmolLM3", dict(no_rope_layers=[0, 1, 0], tie_word_embeddings=False,
                                        mlp_bias=True), "exact"),
    "Granite": ("Granite", dict(embedding_multiplier=12.0, residual_multiplier=0.22,
                                attention_multiplier=0.4, logits_scaling=3.0), "off"),
    "Granite, tied": ("Granite", dict(embedding_multiplier=6.0, residual_multiplier=0.5,
                                      attention_multiplier=0.1, logits_scaling=8.0,
                                      attention_bias=True, tie_word_embeddings=True), "recompute"),
    "OLMo 2": ("Olmo2", dict(num_key_value_heads=4), "off"),
    "OLMo 2, grouped": ("Olmo2", dict(attention_bias=True, rms_norm_eps=1e-3), "exact"),
    "OLMo 2, wide heads": ("Olmo2", dict(head_dim=24, tie_word_embeddings=True, **rope("linear", factor=3.0)), "recompute"),
    "GPT-2": ("GPT2", dict(), "off"),
    "GPT-2, all settings": ("GPT2", dict(
        n_inner=100, tie_word_embeddings=False, scale_attn_by_inverse_layer_idx=True,
        scale_attn_weights=False, activation_function="gelu", layer_norm_epsilon=1e-3), "recompute"),
    "Gemma 3": ("Gemma3Text", dict(num_hidden_layers=6, head_dim=12, query_pre_attn_scalar=20,
                                   sliding_window=40), "off"),
    "Gemma 3, windows, padding": ("Gemma3Text", dict(
        head_dim=12, sliding_window=9, pad_token_id=7, attention_bias=True,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=5000.0),
                             sliding_attention=dict(rope_type="default", rope_theta=300.0))), "exact"),
    "Gemma 3, capped": ("Gemma3Text", dict(head_dim=16, tie_word_embeddings=False, sliding_window=5,
                                           final_logit_softcapping=2.0), "recompute"),
    "Gemma 2": ("Gemma2", dict(head_dim=12, query_pre_attn_scalar=12, attn_logit_softcapping=1.5,
                               final_logit_softcapping=3.0, sliding_window=40), "off"),
    "Gemma 2, windows": ("Gemma2", dict(head_dim=12, query_pre_attn_scalar=9, sliding_window=7,
                                        attn_logit_softcapping=0.7, final_logit_softcapping=1.0,
                                        num_key_value_heads=1, pad_token_id=3), "exact"),
    "Gemma 2, no caps": ("Gemma2", dict(head_dim=24, attn_logit_softcapping=None, rms_norm_eps=1e-3,
                                        final_logit_softcapping=None, sliding_window=12), "recompute"),
}  # fmt: skip


def model_of(name: str, kind: str, changes: dict):
    torch.manual_seed(sum(name.encode()))
    config = getattr(transformers, f"{kind}Config")(**{**SHAPE, **changes})
    # Only this one caps scores.
    config._attn_implementation = "eager" if kind == "Gemma2" else "sdpa"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    added = "Gemma" in kind  # to 1: what its norms multiply by
    for key, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.data.normal_(0 if key.endswith("bias") or added else 1, 0.3)
    return model


def check(name: str, kind: str, changes: dict, preset: str) -> None:
    model = model_of(name, kind, changes)
    ids = torch.randint(model.config.vocab_size, (3, LENGTH))
    if model.config.pad_token_id is not None:
        ids[0, 3:9] = model.config.pad_token_id
    targets = ids.roll(-1, 1)
    targets[:, -1] = -100
    targets[1, 4:9] = -100
    scale = 1 / (targets != -100).sum().item()
    if "no head" in name:  # saved as its base model, and read with the embedding as its head
        model.save_pretrained = model.base_model.save_pretrained
    agree(name, model, transformers.AutoModelForCausalLM, dict(ids=ids, targets=targets), scale, preset,
          "Exchange", lambda model, inputs: model(inputs["ids"]).logits)  # fmt: skip


def main() -> None:
    for name, case in CASES.items():
        check(name, *case)


if __name__ == "__main__":
    main()
