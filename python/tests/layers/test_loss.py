# SPDX-License-Identifier: Apache-2.0
"""The loss in chunks beside transformers' own: values, gradients, settings, and what is given back."""
import copy
import math

from _device import cpu_only, DEVICE
import pytest
import torch
from conftest import applied, error, gradients, inputs, make, same
from torch.nn import functional
import transformers
from transformers.loss.loss_utils import ForCausalLMLoss

import compact
from compact.layers.plain_loss import makes_plain_loss

NAMES = ["llama", "llama, biases, tied", "gpt2", "qwen2", "qwen3", "mistral"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [None, 50, torch.tensor(50)])
def test_counts_of_items(name, count):
    model, given = make(name), inputs(name, padded=name != "mistral")
    given["num_items_in_batch"] = count
    loss, wanted = gradients(copy.deepcopy(model), given)
    with applied(model, "slot loss.logits = chunk:tokens=7"):
        got_loss, got = gradients(model, given)
        assert "in chunks, 1 passes" in compact.report(model).loss
    assert abs(got_loss - loss) < 1e-5 and error(got, wanted) < 3e-5  # both are rounded


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_shifted_labels(dtype):
    model, given = make("llama"), inputs("llama")
    given["shift_labels"] = torch.randint(0, 200, (3, 40), dtype=dtype)
    loss, wanted = gradients(copy.deepcopy(model), given)
    with applied(model, "exact"):
        got_loss, got = gradients(model, given)
    assert abs(got_loss - loss) < 1e-5 and error(got, wanted) < 1e-5


@pytest.mark.parametrize("count", [None, 0, torch.tensor(0), 5])
@pytest.mark.parametrize("autocast", [False, True])
def test_no_target_is_plain(count, autocast):
    """Gradients of zero, as torch has them, also where the loss is NaN: a step does no harm, nor does a window of micro-batches one of
    which is empty."""
    model, given = make("llama"), inputs("llama")
    given["num_items_in_batch"] = count
    empty = given | {"labels": torch.full((3, 40), -100)}
    losses, sums = {}, {}
    for policy in (None, "off", "exact", "slot loss.logits = chunk:tokens=7"):
        here = copy.deepcopy(model)
        if policy:
            compact.apply(here, policy)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
            loss = here(**empty).loss
        losses[policy] = loss.item()
        (loss * 0.5).backward()
        assert all(not p.grad.any() for p in here.parameters())
        (here(**given | {"num_items_in_batch": 50}).loss * 0.5).backward()
        sums[policy] = {n: p.grad.double() for n, p in here.named_parameters()}
        assert error(sums[policy], sums[None]) < 1e-5
    wanted = losses.pop(None)
    assert math.isnan(wanted) == (count != 5)
    assert all(loss == wanted or math.isnan(wanted) and math.isnan(loss) for loss in losses.values())


@pytest.mark.parametrize("factor", [0.0, 65536.0, math.inf, math.nan])
@pytest.mark.parametrize("count", [None, 0, 3, torch.tensor(0)])
@pytest.mark.parametrize("ignored", ["none", "some", "all"])
def test_gradients_of_any_scale(factor, count, ignored):
    """A loss scaled by a GradScaler, or divided by a number of targets, has torch's zeros and values that are not finite."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(9, 16, requires_grad=True), torch.randn(50, 16, requires_grad=True)
    targets = torch.randint(0, 50, (9,))
    targets[{"none": [], "some": [0, 4], "all": list(range(9))}[ignored]] = -100
    plain = functional.cross_entropy(hidden @ weight.T, targets, reduction="mean" if count is None else "sum")
    plain = plain if count is None else plain / count
    wanted = torch.autograd.grad(plain * factor, [hidden, weight])
    for tokens in (0, 4):
        loss = compact.linear_cross_entropy(hidden, weight, targets, count, tokens)
        assert torch.allclose(loss, plain, equal_nan=True)
        for got, want in zip(torch.autograd.grad(loss * factor, [hidden, weight]), wanted):
            assert torch.equal(got.isfinite(), want.isfinite())
            assert torch.allclose(got[want.isfinite()], want[want.isfinite()], rtol=1e-4, atol=1e-6 * max(1, factor))


@cpu_only  # a GPU's error comes later, and ends the process's use of it
def test_a_target_out_of_range_is_an_error():
    model, given = make("llama"), inputs("llama")
    compact.apply(model)
    given["labels"] = torch.full((3, 40), 200)
    with pytest.raises(ValueError, match=r"must be -100 or in \[0, 200\), is 200"):
        model(**given)
    gradients(model, inputs("llama"))


def test_logits():
    model, given = make("llama"), inputs("llama")
    wanted = model(**given).logits
    with applied(model, "exact"):
        out = model(**given)
        assert out.logits is None and list(out.keys()) == ["loss"]
        with torch.no_grad():
            assert torch.equal(model(**given).logits, wanted)
        given.pop("labels")
        assert torch.allclose(model(**given).logits, wanted, atol=1e-5)
    for policy, settings in (("off", {}), ("exact", {"chunked_loss": False})):
        with applied(model, policy, **settings):
            assert torch.allclose(model(**inputs("llama")).logits, wanted, atol=1e-5)
            assert "own" in compact.report(model).loss


def test_own_losses_stay_own():
    model, given = make("llama"), inputs("llama")
    compact.apply(model, "exact")
    model.loss_function = lambda logits, labels, vocab_size, **kwargs: logits.float().square().mean()
    wanted = copy.deepcopy(compact.remove(copy.deepcopy(model)))(**given).loss
    assert torch.allclose(model(**given).loss, wanted)
    assert "a loss_function of its own" in compact.report(model).loss
    model.loss_function = ForCausalLMLoss
    assert model(**given, return_dict=False)[1].shape == (3, 40, 200)
    given.pop("labels")
    assert model(**given, logits_to_keep=2).logits.shape == (3, 2, 200)


def test_by_itself():
    torch.manual_seed(0)
    hidden, weight = torch.randn(2, 30, 16, requires_grad=True), torch.randn(50, 16, requires_grad=True)
    targets = torch.randint(0, 50, (2, 30))
    targets[0, 3] = -100
    for tokens in (0, 8):
        loss = compact.linear_cross_entropy(hidden, weight, targets, tokens=tokens)
        wanted = functional.cross_entropy((hidden @ weight.T).flatten(0, 1), targets.flatten())
        assert torch.allclose(loss, wanted, rtol=1e-6)
        got = torch.autograd.grad(loss, [hidden, weight])
        want = torch.autograd.grad(wanted, [hidden, weight])
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(got, want))
    one = (hidden[0, 0].detach().double(), weight.detach().double(), targets[0, 0])
    assert torch.allclose(compact.linear_cross_entropy(*one), functional.cross_entropy(one[1] @ one[0], one[2]).float())
    with pytest.raises(ValueError, match="width"):
        compact.linear_cross_entropy(hidden, weight[:, :8], targets)


def test_logits_never_exist():
    """With a large vocabulary the peak is far below one tensor of logits."""
    hidden, weight = torch.randn(512, 32, requires_grad=True), torch.randn(30000, 32, requires_grad=True)
    targets = torch.randint(0, 30000, (512,))
    with compact.Meter() as meter:
        compact.linear_cross_entropy(hidden, weight, targets, tokens=32).backward()
    # Two chunks of logits, and the gradients of the head (also as a sum) and of the hidden states.
    assert meter.peak < 2.2 * 32 * 30000 * 4 + 2 * weight.nbytes + 4 * hidden.nbytes
    assert meter.peak < 512 * 30000 * 4


@pytest.mark.parametrize("kind", ["GPTNeoX", "StableLm", "Olmoe", "Gemma", "Helium", "Ernie4_5"])
def test_other_language_models(kind):
    sizes = {"vocab_size": 200, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16}
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**sizes)).train()
    given = inputs("llama")
    wanted = gradients(model, given)
    compact.apply(model, chunked_loss=True)
    got = gradients(model, given)
    assert abs(got[0] - wanted[0]) < 1e-5 and error(got[1], wanted[1]) < 1e-5
    assert "in chunks, 1 passes" in compact.report(model).loss


def test_what_a_loss_in_chunks_would_not_do():
    plain = makes_plain_loss
    assert all(map(plain, (transformers.LlamaForCausalLM, transformers.MixtralForCausalLM, transformers.Qwen2VLForConditionalGeneration)))
    # They scale logits, add a loss of logits, or have labels for something else.
    others = (transformers.GraniteForCausalLM, transformers.CohereForCausalLM, transformers.BambaForCausalLM, transformers.T5ForConditionalGeneration)
    assert not any(map(plain, others))
    derived = type("Derived", (transformers.LlamaForCausalLM,), {})
    assert plain(derived)
    derived.forward = lambda self, **given: super(derived, self).forward(**given)
    assert not plain(derived)
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=200, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, num_local_experts=4, output_router_logits=True
    )
    model, given = transformers.MixtralForCausalLM(config).train(), inputs("llama")
    wanted = gradients(model, given)
    compact.apply(model, chunked_loss=True)
    got = gradients(model, given)
    assert torch.equal(got[0], wanted[0]) and same(got[1], wanted[1])
    assert "from all logits: the loss of its router is asked for" in compact.report(model).loss
    assert torch.equal(gradients(model, given | {"output_router_logits": None})[0], wanted[0])  # the configuration decides
    assert "from all logits: the loss of its router is asked for" in compact.report(model).loss
    gradients(model, given | {"output_router_logits": False})
    assert "in chunks, 1 passes" in compact.report(model).loss
