# SPDX-License-Identifier: Apache-2.0
"""Numbers and code of a layer that are changed before or after apply(): results are its own."""
import contextlib

from _setting import dropouts, set_everywhere
from conftest import error, gradients, inputs, make
import pytest
from torch import nn
import transformers

import compact


def in_layer(path, name, value):
    def change(model):
        setattr(model.get_submodule(path), name, value)

    return change


class OtherMlp(transformers.models.llama.modeling_llama.LlamaMLP):
    def forward(self, x):
        return 0.5 * super().forward(x)


class OtherLinear(nn.Linear):
    def forward(self, x):
        return 0.5 * super().forward(x)


def other_class(path, cls):
    def change(model):
        model.get_submodule(path).__class__ = cls

    return change


def config_is(name, value):
    def change(model):
        setattr(model.config, name, value)

    return change


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name,change", [(n, c) for n in CHANGES for c in CHANGES[n]])
def test_numbers_and_code(name, change, when):
    own, model, given = make(name), make(name), inputs(name)
    unchanged = gradients(own, given)[1]
    CHANGES[name][change](own)
    if when == "before":
        CHANGES[name][change](model)
        with contextlib.suppress(ValueError):  # no layer can be served
            compact.apply(model, "exact")
    else:
        compact.apply(model, "exact")
        gradients(model, given)
        CHANGES[name][change](model)
    wanted, got = gradients(own, given), gradients(model, given)
    assert abs(wanted[0] - got[0]) < 1e-5 and error(got[1], wanted[1]) < 1e-4
    assert change in ALIKE or error(wanted[1], unchanged) > 1e-3, "the change changes nothing"


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_dropout_switched_off_later(name):
    own, model, given = make(name), make(name), inputs(name)
    dropouts(0.4)(model)
    compact.apply(model, "exact")
    dropouts(0.0)(model)
    assert error(gradients(model, given)[1], gradients(own, given)[1]) < 1e-4
    dropouts(0.4)(model)
    layers = [m for m in model.modules() if "_compact" in m.__dict__ and m is not model]
    for module in (inner for layer in layers for inner in layer.modules() if inner is not layer):
        module.eval()
    for outside in (m for m in model.modules() if isinstance(m, nn.Dropout)):
        outside.eval()
    assert error(gradients(model, given)[1], gradients(own, given)[1]) < 1e-4
