# SPDX-License-Identifier: Apache-2.0
"""Small models of every family, and passes through them."""
import contextlib
import copy
import gc
import sys

import _device  # noqa: F401 - before anything makes a tensor
import pytest
import torch
import transformers

import compact


@pytest.fixture(autouse=True)
def trl_as_it_was():
    """The functions that a callback put into TRL are taken out again after a test, where TRL is in use at all."""
    utils = sys.modules.get("trl.trainer.utils")
    names = ("_ChunkedLogProbFunction", "_use_triton") if utils else ()
    before = [getattr(utils, name) for name in names]
    yield
    for name, value in zip(names, before):
        setattr(utils, name, value)


DECODER = {
    "vocab_size": 200,
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
ENCODER = {
    "vocab_size": 200,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
GPT2 = {"vocab_size": 200, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "bos_token_id": 0}
GPT2 |= {"eos_token_id": 0, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
VIT = {k: v for k, v in ENCODER.items() if k != "vocab_size"} | {"image_size": 32, "patch_size": 8}


def of(name, config, settings):
    return lambda: getattr(transformers, name)(getattr(transformers, config)(**settings))


MODELS = {
    "llama": of("LlamaForCausalLM", "LlamaConfig", DECODER),
    "llama, biases, tied": of(
        "LlamaForCausalLM",
        "LlamaConfig",
        DECODER | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "mistral": of("MistralForCausalLM", "MistralConfig", DECODER | {"sliding_window": 16}),
    "qwen2": of("Qwen2ForCausalLM", "Qwen2Config", DECODER),
    "qwen3": of("Qwen3ForCausalLM", "Qwen3Config", DECODER | {"head_dim": 24}),
    "smollm3": of("SmolLM3ForCausalLM", "SmolLM3Config", DECODER | {"no_rope_layers": [1, 0], "pad_token_id": 0}),
    "granite": of(
        "GraniteForCausalLM",
        "GraniteConfig",
        DECODER | {"residual_multiplier": 0.22, "attention_multiplier": 0.3, "embedding_multiplier": 3.0, "logits_scaling": 2.0},
    ),
    "olmo2": of("Olmo2ForCausalLM", "Olmo2Config", DECODER | {"pad_token_id": 0}),
    "phi3": of(
        "Phi3ForCausalLM",
        "Phi3Config",
        DECODER | {"pad_token_id": 0, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    "gemma2": of(
        "Gemma2ForCausalLM",
        "Gemma2Config",
        DECODER | {"attn_implementation": "eager", "head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 16, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3": of(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        DECODER | {"head_dim": 16, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gpt2": of("GPT2LMHeadModel", "GPT2Config", GPT2),
    "bert": of("BertForSequenceClassification", "BertConfig", ENCODER),
    "roberta": of("RobertaForSequenceClassification", "RobertaConfig", ENCODER),
    "vit": of("ViTForImageClassification", "ViTConfig", VIT),
}


def make(name, seed=0):
    """A model in training, whose vectors are none of the values that they begin with."""
    torch.manual_seed(seed)
    model = MODELS[name]().train()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p) * 0.1)
    return model


def inputs(name, padded=False, batch=3, length=40):
    """The inputs of a model of this name; padded: at the end of two samples."""
    generator = torch.Generator().manual_seed(5)
    if name == "vit":
        pixels = torch.randn(batch, 3, 32, 32, generator=generator)
        return {"pixel_values": pixels, "labels": torch.arange(batch) % 2}
    ids = torch.randint(3, 200, (batch, length), generator=generator)
    given = {"input_ids": ids}
    mask = torch.ones_like(ids)
    if padded:
        mask[1, 30:] = 0
        mask[2, 7:] = 0
        given["attention_mask"] = mask
    if name in ("bert", "roberta"):
        return given | {"labels": torch.arange(batch) % 2}
    return given | {"labels": torch.where(mask == 1, ids, -100)}


def gradients(model, given):
    """The loss and all gradients of one pass, in float64."""
    model.zero_grad()
    loss = model(**given).loss
    loss.backward()
    return loss.detach().double(), {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}


def same(got, wanted):
    """Whether gradients have the same names and bits."""
    return got.keys() == wanted.keys() and all(torch.equal(got[name], gradient) for name, gradient in wanted.items())


def in_double(model, given):
    """The same of a copy of the model in float64."""
    given = {k: v.double() if v.is_floating_point() else v for k, v in given.items()}
    return gradients(copy.deepcopy(model).double(), given)


def error(got, wanted):
    """The largest relative error of a tensor's gradient, of those that are not nearly 0."""
    assert got.keys() == wanted.keys()
    largest = max(float(w.norm()) for w in wanted.values())
    return max(
        float((got[n] - w).norm() / w.norm()) for n, w in wanted.items() if float(w.norm()) > 1e-6 * largest
    )


@pytest.fixture(autouse=True)
def two_threads():
    torch.set_num_threads(2)
    yield
    gc.collect()


@pytest.fixture
def one_thread(two_threads):
    """Two wait for one another where cores are shared, and PyTorch adds gradients of indices in any order then."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def accelerate_begins_afresh():
    """Resets accelerate's state of the process, such as its precision, after each test."""
    yield
    if "accelerate.state" in sys.modules:
        sys.modules["accelerate.state"].AcceleratorState._reset_state(reset_partial_state=True)


@contextlib.contextmanager
def applied(model, policy, **settings):
    """While it is entered a policy is; every layer must have been served in every pass by its end."""
    compact.apply(model, policy, **settings)
    yield model
    for layer in compact.report(model).layers:
        assert layer.served_as and layer.calls > 0 and not layer.own_forward, layer
    compact.remove(model)
