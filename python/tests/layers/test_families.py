# SPDX-License-Identifier: Apache-2.0
"""Every family, with and without padding: losses and gradients beside the model's own in float64."""
from _device import DEVICE
import pytest
import torch
from conftest import MODELS, applied, error, gradients, in_double, inputs, make

import compact

CASES = [(name, padded) for name in MODELS for padded in (False, True) if not (padded and name in ("vit", "mistral", "gemma2", "gemma3"))]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name,padded", CASES)
def test_gradients(name, padded, attention):
    if name == "gemma2" and attention == "sdpa":
        attention = "eager"  # transformers has no other for scores that are capped
    model, given = make(name), inputs(name, padded)
    model.set_attn_implementation(attention)
    loss, wanted = in_double(model, given)
    own, results = error(gradients(model, given)[1], wanted), {}
    for policy in ("off", "exact", "recompute"):
        with applied(model, policy):
            results[policy] = gradients(model, given)
        assert abs(results[policy][0] - loss) < 2e-6 * loss
        # Gradients of queries and keys are small differences: PyTorch's own are off by up to 5e-6 here.
        assert error(results[policy][1], wanted) < max(1e-5 if DEVICE == "cpu" else 2e-5, 3 * own)
    for n, g in results["exact"][1].items():
        assert torch.equal(g, results["recompute"][1][n]), n


@pytest.mark.parametrize("name", MODELS)
def test_exact_is_off_bit_for_bit(name):
    model, given = make(name), inputs(name)
    results = []
    for policy in ("off", "exact"):
        with applied(model, policy, chunked_loss=False):
            results.append(gradients(model, given))
    assert results[0][0] == results[1][0]
    for n, g in results[0][1].items():
        assert torch.equal(g, results[1][1][n]), n


@pytest.mark.parametrize("name", MODELS)
def test_held_bytes_fall(name):
    model, given = make(name), inputs(name)
    held = {}
    for policy in ("off", "exact", "recompute", "gact-l1"):
        with applied(model, policy):
            gradients(model, given)
            held[policy] = compact.report(model).held
    assert held["recompute"] < held["exact"] < held["off"]
    assert held["gact-l1"] < 0.35 * held["exact"]
    # Each of the two layers holds its input alone, and at most a fifth for statistics of norms and attention.
    inputs_alone = 2 * 3 * (17 if name == "vit" else 40) * 64 * 4
    assert inputs_alone <= held["recompute"] < (1.2 if DEVICE == "cpu" else 1.25) * inputs_alone


@pytest.mark.parametrize("name", ["llama", "olmo2", "bert", "gpt2"])
def test_quantized_gradients_are_near(name):
    model, given = make(name), inputs(name)
    _, wanted = gradients(model, given)
    results = []
    with applied(model, "slot * = quantize:bits=8" + ("" if name == "bert" else "\nslot role:logits = chunk")):
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            results.append(gradients(model, given)[1])
    assert 1e-5 < error(results[0], wanted) < 0.1
    assert all(torch.equal(results[0][n], results[1][n]) for n in wanted)
    assert any(not torch.equal(results[0][n], results[2][n]) for n in wanted)


def distance(got, wanted):
    return sum(float((g - wanted[n]).square().sum()) for n, g in got.items()) ** 0.5


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "olmo2", "gpt2", "bert", "vit"])
def test_bfloat16(name):
    """As near to float64 as the model's own forward pass in bfloat16."""
    model, given = make(name).bfloat16(), inputs(name)
    _, wanted = in_double(model, given)
    given = {k: v.bfloat16() if v.is_floating_point() else v for k, v in given.items()}
    _, plain = gradients(model, given)
    with applied(model, "exact"):
        _, got = gradients(model, given)
    assert all(p.grad.dtype == torch.bfloat16 for p in model.parameters() if p.grad is not None)
    assert distance(got, wanted) < 1.25 * distance(plain, wanted)


@pytest.mark.parametrize("name", ["llama", "qwen3", "olmo2", "gpt2", "bert", "roberta", "vit"])
def test_autocast(name):
    model, given = make(name), inputs(name)
    _, wanted = in_double(model, given)

    def under_autocast():
        model.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(**given).loss
        loss.backward()
        return {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}

    plain = under_autocast()
    with applied(model, "exact"):
        got = under_autocast()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters() if p.grad is not None)
    assert distance(got, wanted) < 1.25 * distance(plain, wanted)
    with applied(model, "recompute"):
        again = under_autocast()
    assert all(torch.equal(got[n], again[n]) for n in got)


@pytest.mark.parametrize("name", ["gpt2", "bert", "vit"])
def test_dropout_is_of_the_seed(name):
    model, given = make(name), inputs(name)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
    losses = []
    with applied(model, "exact"):
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            losses.append(gradients(model, given)[0])
        model.eval()
        still = [gradients(model, given)[0] for _ in range(2)]
    assert losses[0] == losses[1] != losses[2]
    assert still[0] == still[1]
