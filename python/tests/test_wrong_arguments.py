# SPDX-License-Identifier: Apache-2.0
"""Arguments of wrong types, and empty ones: an error names the function, the argument and what was given."""
from conftest import make
import pytest
import torch

import compact

HIDDEN, WEIGHT, TARGETS = torch.zeros(2, 3, 8), torch.zeros(11, 8), torch.zeros(2, 3, dtype=torch.long)


def planned(batch=(2, 16), **settings):
    return compact.plan(make("llama"), batch, **settings)


def loss(**given):
    return compact.linear_cross_entropy(**{"hidden": HIDDEN, "weight": WEIGHT, "targets": TARGETS} | given)


def stepped(grad_scale):
    compact.optim.AdamW(make("llama")).step(grad_scale=grad_scale)


@pytest.mark.parametrize(
    "text,call",
    [
        ("compact.plan: policies must be a policy or several, is a NoneType", lambda: planned(policies=None)),
        ("compact.plan: policies must be a policy or several, is a int", lambda: planned(policies=3)),
        ("compact.plan: give policies, or a budget", lambda: planned(policies=[])),
        ("a policy must be a preset's name, a path or a text, is a NoneType", lambda: planned(policies=[None])),
        ("compact.plan: batch must be samples, (samples, tokens) or a dictionary of what the model is called with, is ()", lambda: planned(batch=())),
        ("compact.plan: settings of an optimizer must be a dictionary, are a NoneType", lambda: planned(optimizer=(torch.optim.AdamW, None))),
        ("compact.plan: settings of an optimizer must be a dictionary, are a int", lambda: planned(optimizer=(torch.optim.SGD, 3))),
        ("compact.plan: no GPU 4091 is known", lambda: planned(gpu=4091)),
        ("compact.apply: seed must be a whole number of 64 bits, is None", lambda: compact.apply(make("llama"), seed=None)),
        ("compact.apply: seed must be a whole number of 64 bits, is 1.5", lambda: compact.apply(make("llama"), seed=1.5)),
        ("compact.apply: seed must be a whole number of 64 bits, is 1844", lambda: compact.apply(make("llama"), seed=2**64)),
        ("compact.report: the first argument must be a torch.nn.Module, is a list", lambda: compact.report([])),
        ("compact.remove: the first argument must be a torch.nn.Module, is a NoneType", lambda: compact.remove(None)),
        ("compact.linear_cross_entropy: hidden must be a tensor, is a NoneType", lambda: loss(hidden=None)),
        ("compact.linear_cross_entropy: weight must be a tensor, is a NoneType", lambda: loss(weight=None)),
        ("compact.linear_cross_entropy: targets must be a tensor, is a list", lambda: loss(targets=[1])),
        ("weight [vocabulary, width], are [2, 3, 8], [0, 8]", lambda: loss(weight=WEIGHT[:0])),
        ("weight [vocabulary, width], are [2, 3, 8], [8]", lambda: loss(weight=WEIGHT[0])),
        ("weight [vocabulary, width], are [2, 3, 0], [11, 0]", lambda: loss(hidden=HIDDEN[..., :0], weight=WEIGHT[:, :0])),
        ("compact.linear_cross_entropy: tokens must be a whole number from 0 on, is None", lambda: loss(tokens=None)),
        ("compact.linear_cross_entropy: tokens must be a whole number from 0 on, is -3", lambda: loss(tokens=-3)),
        ("compact.optim.AdamW: params must be a module, parameters or groups of them, is None", lambda: compact.optim.AdamW(None)),
        ("compact.optim.Muon: params must be a module, parameters or groups of them, is 3", lambda: compact.optim.Muon(3)),
        ("compact.optim.AdamW: grad_scale must be a tensor of one float32, is 0.5", lambda: stepped(0.5)),
    ],
)
def test_wrong_arguments(text, call):
    with pytest.raises((TypeError, ValueError)) as error:
        call()
    assert text in str(error.value)


def test_policies_of_files_and_budgets_beyond_what_a_machine_can_have(tmp_path):
    (tmp_path / "mine.policy").write_text("slot layers.*.mlp.gate_up = recompute\n")
    plan = planned(policies=tmp_path / "mine.policy", budget=2**70)
    assert plan["budget"] == 2**63 - 1 and plan["rows"][0]["policy"] == str(tmp_path / "mine.policy")
