# SPDX-License-Identifier: Apache-2.0
"""Seeds of texts that a person writes: configurations, policies."""
import json

from seeds.common import HUGE, ROOT, json_texts

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


MORE = {
    "llama": {"attention_bias": True, "mlp_bias": True, "pad_token_id": -1, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32}},
    "mistral": {"sliding_window": 32, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "qwen2": {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1,
              "rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 8, "beta_slow": 2,
                               "mscale": 1.0, "mscale_all_dim": 0.5, "attention_factor": 1.1,
                               "original_max_position_embeddings": 16, "truncate": False}},
    "qwen3": {"head_dim": 8, "attention_bias": True,
              "layer_types": ["full_attention", "sliding_attention"]},
    "phi3": {"partial_rotary_factor": 0.5, "original_max_position_embeddings": 16,
             "pad_token_id": 3, "rope_scaling": {"type": "su", "short_factor": [1.0, 2.0],
                                                 "long_factor": [1.5, 3.0]}},
    "smollm3": {"no_rope_layers": [1, 0], "no_rope_layer_interval": 2},
    "granite": {"embedding_multiplier": 12.0, "residual_multiplier": 0.22,
                "attention_multiplier": 0.015625, "logits_scaling": 8.0, "attention_dropout": 0.1},
    "olmo2": {"attention_bias": True, "num_key_value_heads": 2},
    "gemma2": {"head_dim": 8, "sliding_window": 16, "attn_logit_softcapping": 50.0,
               "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 8, "pad_token_id": 0,
               "layer_types": ["sliding_attention", "full_attention"]},
    "gemma3_text": {"head_dim": 8, "sliding_window": 16, "sliding_window_pattern": 2,
                    "rope_local_base_freq": 1e4, "hidden_activation": "gelu_pytorch_tanh",
                    "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": None, "n_positions": 64,
             "attn_pdrop": 0.1, "bos_token_id": 256, "eos_token_id": [256]},
    "bert": {"type_vocab_size": 2, "pad_token_id": 0, "id2label": {"0": "no", "1": "yes"},
             "hidden_dropout_prob": 0.1, "problem_type": "single_label_classification"},
    "vit": {"image_size": [32, 64], "patch_size": 16, "num_channels": 3, "qkv_bias": True,
            "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "num_labels": 3},
    "resnet": {"blocks": [1, 1], "width": 8, "bottleneck": False, "small_images": True,
               "channels": 1, "classes": 2, "image_size": 28, "image_mean": [0.1],
               "image_std": [0.3], "class_names": ["a", "b"]},
    "resnet_transformers": {"model_type": "resnet", "depths": [1, 1], "embedding_size": 8,
                            "hidden_sizes": [32, 64], "layer_type": "bottleneck", "num_labels": 3,
                            "downsample_in_bottleneck": False, "image_std": [0.2, 0.2, 0.2]},
    "compact-node-classifier": {"layer": "gat", "features": 4, "classes": 3, "hidden": 8,
                                "layers": 2, "heads": 2, "dropout": 0.5},
}  # fmt: skip


def json_config():
    yield "llama", json.dumps(LLAMA).encode()
    for kind, more in MORE.items():
        sound = LLAMA | {"model_type": kind} | more
        yield kind + "_more", json.dumps(sound).encode()
        for key in more:
            for value in (-1, HUGE, 1e300, [], "x", True, {"a": 1}):
                yield f"{kind}_{key}_{type(value).__name__}_{str(value)[:4]}", json.dumps(
                    sound | {key: value}
                ).encode()
        for key in more.get("rope_scaling", {}):
            for value in (-1, HUGE, 0, [], "x", None):
                rope = more["rope_scaling"] | {key: value}
                yield f"{kind}_rope_{key}_{type(value).__name__}_{str(value)[:4]}", json.dumps(
                    sound | {"rope_scaling": rope}
                ).encode()
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
    root = ROOT / "presets"
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
        "roles": "slot role:{norm,product} = recompute\nslot role:logits = chunk\n",
        "role_unknown": "slot role:{norm,,*} = keep\ngrad role:norm = full\n",
        "range": "slot layers.{0..13,15}.mlp.* = recompute\ngrad layers.{2..3} = full\n",
        "range_huge": "slot layers.{0..999999999}.* = keep\nslot {0..9999999999999999999} = keep\n",
        "range_falls": "slot layers.{3..1}.* = keep\n",
        "range_cut": "slot layers.{0..}.{..3}.{1..2..3}.{0.. = keep\n",
        "ranges": "slot " + "{0..9}" * 300 + " = keep\n",
        "twice": "slot a = keep\nslot a = recompute\n",
    }.items():
        yield name, b"\1" + text.encode()
    for name, text in {
        "chain": "pool:size=4+quantize:bits=2,levels=normal",
        "path": "sentencepiece:file=/a,b=c:d+e",
        "empty": ":=,+",
    }.items():
        yield "spec_" + name, b"\0" + text.encode()
