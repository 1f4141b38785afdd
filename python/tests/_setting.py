# SPDX-License-Identifier: Apache-2.0
"""Changes of many modules of a model at once."""
from torch import nn


def set_everywhere(name, value):
    def change(model):
        for module in model.modules():
            if name in module.__dict__:
                setattr(module, name, value)

    return change


def dropouts(p):
    def change(model):
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = p

    return change
