# SPDX-License-Identifier: Apache-2.0
"""Inputs, masks and tables of other kinds: results are the model's own."""
import copy

from _setting import agree, dropouts, set_everywhere
from conftest import gradients, inputs, make
import pytest
import torch

import compact


def test_an_argument_is_causal():
    own, model, given = make("llama"), make("llama"), inputs("llama") | {"is_causal": False, "use_cache": False}
    compact.apply(model)
    assert agree(gradients(model, given), gradients(own, given))


def test_a_layer_twice_with_a_cache():
    own, model, given = make("llama"), make("llama"), inputs("llama") | {"use_cache": True}
    for one in (own, model):
        one.model.layers[1] = one.model.layers[0]
    compact.apply(model)
    wanted, got = gradients(own, given), gradients(model, given)
    assert agree(got, wanted)


def test_embeddings_of_another_type():
    own, model, given = make("llama"), make("llama"), inputs("llama")
    for one in (own, model):
        one.model.embed_tokens.bfloat16()
    compact.apply(model)
    assert agree(gradients(model, given), gradients(own, given))


def test_windows_longer_than_padded_sequences():
    own = make("mistral")
    set_everywhere("sliding_window", 64)(own)
    own.config.sliding_window = 64
    model, given = copy.deepcopy(own), inputs("mistral", padded=True)
    compact.apply(model)
    assert agree(gradients(model, given), gradients(own, given))
    assert all(row.calls == 1 for row in compact.report(model).layers)


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3"])
def test_padding_behind_windows(name):
    own, given = make(name), inputs(name)
    given["attention_mask"] = (torch.arange(40) < torch.tensor([[40], [33], [38]])).long()
    model = compact.apply(copy.deepcopy(own))
    assert own.config.sliding_window < 33
    got, wanted = gradients(model, given), gradients(own, given)
    assert agree(got, wanted, 1e-5)
    report = compact.report(model)
    assert all(row.calls == 1 for row in report.layers) and "padding: " in str(report)


def test_booleans_that_eager_attention_adds():
    own, given = make("llama"), inputs("llama")
    own.set_attn_implementation("eager")  # it adds 1 where the mask is true
    given["attention_mask"] = torch.tril(torch.ones(40, 40, dtype=torch.bool))[None, None].clone()
    model = compact.apply(copy.deepcopy(own))
    assert agree(gradients(model, given), gradients(own, given), 1e-6)
    assert "one of booleans" in str(compact.report(model))


def test_what_is_made_in_inference_mode():
    own, given = make("llama"), inputs("llama")
    model = compact.apply(copy.deepcopy(own))
    with torch.inference_mode():
        given["attention_mask"] = torch.tril(torch.ones(40, 40, dtype=torch.bool))[None, None].clone()
        tables = own.model.rotary_emb(torch.randn(1, 8, 64), torch.arange(8)[None])
    assert agree(gradients(model, given), gradients(own, given))
    x = torch.randn(1, 8, 64, requires_grad=True)
    got = model.model.layers[0](x, position_embeddings=tables)
    assert torch.allclose(got, own.model.layers[0](x.detach(), position_embeddings=[t.clone() for t in tables]), atol=1e-5)
    assert [row.calls for row in compact.report(model).layers] == [2, 1]


def test_one_mask_for_the_batch():
    own, given = make("llama"), inputs("llama")
    mask = torch.tril(torch.ones(40, 40, dtype=torch.bool))[None, None].clone()
    mask[..., 35:] = False
    given["attention_mask"] = mask
    given["labels"] = given["labels"].clone()
    given["labels"][:, 35:] = -100
    model = compact.apply(copy.deepcopy(own))
    assert agree(gradients(model, given), gradients(own, given))


def test_tables_changed_in_place():
    model = make("llama")
    layer = model.model.layers[0]
    x = torch.randn(1, 8, 64, requires_grad=True)
    cos, sin = (t.clone() for t in model.model.rotary_emb(x, torch.arange(8)[None]))
    others = model.model.rotary_emb(x, torch.arange(3, 11)[None])
    compact.apply(model)
    layer(x, position_embeddings=(cos, sin))
    cos.copy_(others[0])
    sin.copy_(others[1])
    got = layer(x, position_embeddings=(cos, sin))
    compact.remove(model)
    assert torch.allclose(got, layer(x, position_embeddings=(cos, sin)), atol=1e-5)


def test_reentrant_checkpointing_has_one_dropout():
    model = make("gpt2")
    dropouts(0.5)(model)
    compact.apply(model)
    block = model.transformer.h[0]
    x = torch.randn(2, 10, 64, requires_grad=True)

    def run(checkpoint):
        torch.manual_seed(3)
        x.grad = None
        y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=True) if checkpoint else block(x)
        y.square().sum().backward()
        return x.grad.clone()

    got = run(True)
    compact.remove(model)
    assert torch.allclose(got, run(False), atol=1e-4)
