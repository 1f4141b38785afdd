# SPDX-License-Identifier: Apache-2.0
"""Masks as models make them, and others, beside what they say."""
import pytest
import torch

from compact.layers.masks import OTHER, read_mask


def causal(length, lengths, window=None):
    i, j = torch.arange(length)[:, None], torch.arange(length)[None, :]
    mask = (j <= i) & (i - j < (window or length))
    return (mask[None] & (j < torch.tensor(lengths)[:, None, None]))[:, None]


def added(mask):
    return torch.zeros(mask.shape).masked_fill_(~mask, torch.finfo(torch.float32).min)


@pytest.mark.parametrize("form", [lambda m: m, added])
def test_padding_at_the_end(form):
    for lengths in ([6, 4], [1, 5]):
        assert read_mask(form(causal(6, lengths)), 6, True, None)[0].tolist() == lengths
    assert read_mask(form(causal(6, [6, 6])), 6, True, None) == (None, None)
    both = (torch.arange(6) < torch.tensor([[6], [2]]))[:, None, None, :]
    assert read_mask(form(both), 6, False, None)[0].tolist() == [6, 2]
    assert read_mask(form(both.expand(2, 1, 6, 6)), 6, False, None)[0].tolist() == [6, 2]


@pytest.mark.parametrize("form", [lambda m: m, added])
def test_windows(form):
    assert read_mask(form(causal(6, [6, 6], window=3)), 6, True, 3) == (None, None)
    assert read_mask(form(causal(6, [6, 6], window=3)), 6, True, None) == (None, OTHER)
    assert read_mask(form(causal(6, [6, 6])), 6, True, 3) == (None, OTHER)
    assert read_mask(form(causal(6, [6, 4], window=3)), 6, True, 3)[0].tolist() == [6, 4]
    assert read_mask(form(causal(6, [6, 4])), 6, True, 8)[0].tolist() == [6, 4]


def test_rows_that_attend_to_nothing():
    """Booleans leave nothing of them, numbers that are added the mean of all."""
    mask = causal(6, [6, 1], window=3)
    assert read_mask(mask, 6, True, 3)[0].tolist() == [6, 1]
    assert read_mask(added(mask), 6, True, 3) == (None, OTHER)


def test_others():
    left = causal(6, [6, 6]).clone()
    left[0, :, :, :2] = False
    packed = causal(6, [6, 6]).clone()
    packed[0, 0, 3:, :3] = False
    bias = torch.randn(2, 1, 6, 6)
    full = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    empty = causal(6, [6, 0])
    heads = causal(6, [6, 6]).expand(2, 4, 6, 6)
    for mask in (left, packed, bias, full, empty, heads, causal(5, [5, 5]), torch.ones(2, 6), causal(6, [6, 6]).int()):
        assert read_mask(mask, 6, True, None) == (None, OTHER)
    one_token_less = causal(6, [6, 6]).clone()
    one_token_less[1, 0, 4, 2] = False
    assert read_mask(one_token_less, 6, True, None) == (None, OTHER)


def test_a_mask_changed_in_place_is_read_again():
    mask = causal(6, [6, 6])
    assert read_mask(mask, 6, True, None) == (None, None)
    mask[:, :, :, 5:] = False
    assert read_mask(mask, 6, True, None)[0].tolist() == [5, 5]
