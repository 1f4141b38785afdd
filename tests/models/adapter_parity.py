# SPDX-License-Identifier: Apache-2.0
"""Logits, loss and gradients of LoRA's adapters agree with peft's in float64, for every kind of decoder that has
adapters, whatever is rebuilt."""

import copy
import sys
import tempfile

import torch
from _exchange import TOLERANCE, relative_error, run_test
from hf_parity import LENGTH, model_of
from safetensors.torch import load_file, save_file

try:
    from peft import LoraConfig, get_peft_model
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

# A class of transformers, what differs from SHAPE there, settings of LoRA, a preset of ours.
ALL = dict(target_modules="all-linear")
CASES = {
    "Llama": ("Llama", dict(), ALL, "off"),
    "Llama, exact": ("Llama", dict(), ALL, "exact"),
    "Llama, odd, tied": ("Llama", dict(hidden_size=36, num_attention_heads=6, num_key_value_heads=3, head_dim=6,
                                       intermediate_size=41, tie_word_embeddings=True), ALL, "recompute"),
    "Llama, two": ("Llama", dict(attention_bias=True), dict(target_modules=["q_proj", "v_proj"]), "exact"),
    "Llama, one": ("Llama", dict(), dict(target_modules=["up_proj"], use_rslora=True), "recompute"),
    "Qwen2": ("Qwen2", dict(), ALL, "exact"),
    "Qwen3": ("Qwen3", dict(head_dim=12), ALL, "recompute"),
    "Phi-3": ("Phi3", dict(num_key_value_heads=4), ALL, "exact"),
    "Granite": ("Granite", dict(residual_multiplier=0.22, embedding_multiplier=12.0, attention_multiplier=0.4,
                                logits_scaling=3.0), ALL, "exact"),
    "OLMo 2": ("Olmo2", dict(), ALL, "exact"),
    "SmolLM3": ("SmolLM3", dict(num_hidden_layers=4), ALL, "exact"),
    "Gemma 3": ("Gemma3Text", dict(head_dim=12, sliding_window=9), ALL, "exact"),
    "Gemma 2": ("Gemma2", dict(head_dim=12, query_pre_attn_scalar=12, sliding_window=40), ALL, "recompute"),
}  # fmt: skip


def check(name: str, kind: str, changes: dict, settings: dict, preset: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = model_of(name, kind, changes)
        base.save_pretrained(folder)
        model = get_peft_model(base, LoraConfig(r=4, lora_alpha=6, task_type="CAUSAL_LM", **settings)).eval()
        for key, parameter in model.named_parameters():
            if "lora_B" in key:
                parameter.data.normal_(0, 0.2)
        model.save_pretrained(folder)
        ids = torch.randint(base.config.vocab_size, (3, LENGTH))
        targets = ids.roll(-1, 1)
        targets[:, -1] = -100
        scale = 1 / (targets != -100).sum().item()
        inputs = dict(ids=ids, targets=targets, scale=torch.tensor(scale, dtype=torch.float64))
        save_file(inputs, f"{folder}/input.safetensors")
        run_test("models", "Exchange.*", folder, COMPACT_EXCHANGE_PRESET=preset, COMPACT_EXCHANGE_MODEL="")
        got = load_file(f"{folder}/output.safetensors")
    double = copy.deepcopy(model).double()
    logits = double(ids).logits
    loss = scale * torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    loss.backward()
    want = {key.replace(".default", ""): p.grad for key, p in double.named_parameters() if p.requires_grad}
    want |= {"logits": logits, "loss": loss}
    assert got.keys() == want.keys(), (got.keys() ^ want.keys(), name)
    errors = {key: relative_error(got[key], want[key]) for key in want}
    worst = max(errors, key=errors.get)
    print(f"{name:26} {preset:10} worst of {len(errors)} tensors: {errors[worst]:.1e} ({worst})")
    for key, error in errors.items():
        assert want[key].norm() > 0 and error <= TOLERANCE, (name, key, error)


def main() -> None:
    for name, case in CASES.items():
        check(name, *case)


if __name__ == "__main__":
    main()
