# SPDX-License-Identifier: Apache-2.0
"""Changes of a model, and whether it then has its own results."""
import contextlib
import functools

from conftest import error, gradients
from torch import nn

import compact


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


@contextlib.contextmanager
def patched(owner, name, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class Halves:
    def __init__(self, own):
        self.own = own

    def __call__(self, *args, **kwargs):
        y = self.own(*args, **kwargs)
        return tuple(0.5 * t for t in y) if isinstance(y, tuple) else 0.5 * y


def halved(own):
    @functools.wraps(own)
    def other(*args, **kwargs):
        return Halves(own)(*args, **kwargs)

    return other


def agree(got, wanted, within=1e-4):
    """Whether two passes, as gradients() gives them, have the same loss and the same gradients."""
    return got[1].keys() == wanted[1].keys() and abs(got[0] - wanted[0]) < 1e-5 and error(got[1], wanted[1]) < within


def changed_passes(change, own, model, given, when):
    """The passes of two models that are changed, the second before or after it is applied to: its own, and compact's."""
    if when == "after":
        compact.apply(model)
    change(own)
    change(model)
    if when == "before":
        compact.apply(model)
    return gradients(own, given), gradients(model, given)
