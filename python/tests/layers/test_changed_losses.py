# SPDX-License-Identifier: Apache-2.0
"""Losses that are changed, before or after apply(), and their arguments: results are the model's own."""
import functools
import types

from _setting import agree, changed_passes, halved, patched
from conftest import DECODER, error, gradients, inputs, make
import pytest
import torch
import transformers
from transformers.loss import loss_utils

import compact


class Halved(transformers.LlamaForCausalLM):
    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        out.loss = out.loss * 0.5
        return out


class Penalized(transformers.LlamaForCausalLM):
    @functools.wraps(transformers.LlamaForCausalLM.forward)
    def forward(self, *args, labels=None, **kwargs):
        out = super().forward(*args, labels=labels, **kwargs)
        if labels is not None:
            out.loss = out.loss + 0.01 * out.logits.float().logsumexp(-1).square().mean()
        return out


def halved_forward(model):
    own = model.forward

    def forward(self, *args, **kwargs):
        out = own(*args, **kwargs)
        out.loss = out.loss * 0.5
        return out

    model.forward = types.MethodType(forward, model)


def halved_head(model):
    own = model.lm_head.forward
    model.lm_head.forward = lambda x: own(x) / 2


def hook_on_head(model):
    model.lm_head.register_forward_hook(lambda module, args, y: y / 2)


def test_another_function_for_the_loss():
    own = loss_utils.fixed_cross_entropy
    model, given = make("llama"), inputs("llama")
    compact.apply(model)
    with patched(loss_utils, "fixed_cross_entropy", lambda *args, **kwargs: 2 * own(*args, **kwargs)):
        wanted, got = gradients(make("llama"), given), gradients(model, given)
    assert agree(got, wanted)


@pytest.mark.parametrize("change", [halved_forward, halved_head, hook_on_head, Halved, Penalized])
@pytest.mark.parametrize("when", ["before", "after"])
def test_losses(change, when):
    given = inputs("llama")
    models = []
    for _ in range(2):
        model = make("llama")
        if isinstance(change, type):
            other = change(transformers.LlamaConfig(**DECODER))
            other.load_state_dict(model.state_dict())
            model = other.train()
        models.append(model)
    own, model = models
    wanted, got = changed_passes((lambda _: None) if isinstance(change, type) else change, own, model, given, when)
    assert agree(got, wanted)
    compact.remove(model)
    again = gradients(model, given)
    assert agree(again, wanted)


def test_a_loss_that_wraps_its_own(monkeypatch):
    given, other = inputs("llama"), halved(loss_utils.ForCausalLMLoss)
    monkeypatch.setattr(loss_utils, "ForCausalLMLoss", other)
    monkeypatch.setitem(loss_utils.LOSS_MAPPING, "ForCausalLM", other)
    wanted, got = gradients(make("llama"), given), gradients(compact.apply(make("llama")), given)
    assert agree(got, wanted)


@pytest.mark.parametrize("count", [2.5, 0.5, torch.tensor(40.5)])
def test_counts_that_are_no_whole_numbers(count):
    given = inputs("llama") | {"num_items_in_batch": count}
    model = compact.apply(make("llama"))
    assert float(model(**given).loss) == pytest.approx(float(make("llama")(**given).loss), rel=1e-5)


def test_arguments_by_position():
    model, given = make("llama"), inputs("llama")
    ids, labels = given["input_ids"], given["labels"]
    wanted = model(ids, None, None, None, None, labels, False).loss
    compact.apply(model)
    assert torch.allclose(model(ids, None, None, None, None, labels, False).loss, wanted, atol=1e-5)
    assert "in chunks, 1 passes" in compact.report(model).loss


def test_transforms_of_the_loss():
    model, given = make("llama"), inputs("llama")
    parameters = {n: p.detach() for n, p in model.named_parameters()}

    def loss(p):
        return torch.func.functional_call(model, p, (), given).loss

    wanted = torch.func.grad(loss)(parameters)
    compact.apply(model)
    got = torch.func.grad(loss)(parameters)
    assert error(got, wanted) < 1e-4


def test_reward_models_are_served_in_training():
    config = transformers.LlamaConfig(**DECODER, num_labels=1, pad_token_id=0)
    model = compact.apply(transformers.LlamaForSequenceClassification(config).train())
    model(**inputs("llama") | {"labels": torch.tensor([[0.1], [0.2], [0.3]])}).loss.backward()
    assert all(row.calls == 1 and not row.own_forward for row in compact.report(model).layers)
