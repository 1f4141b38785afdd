# SPDX-License-Identifier: Apache-2.0
"""Masks as models make them, and others, beside what they say."""
import pytest
import torch

from compact.layers.masks import Mask, OTHER, read_mask

NO_PADDING, REFUSED = Mask(), Mask(reason=OTHER)


def causal(length, lengths, window=None):
    i, j = torch.arange(length)[:, None], torch.arange(length)[None, :]
    mask = (j <= i) & (i - j < (window or length))
    return (mask[None] & (j < torch.tensor(lengths)[:, None, None]))[:, None]


def added(mask):
    return torch.zeros(mask.shape).masked_fill_(~mask, torch.finfo(torch.float32).min)


def of_documents(rows):
    """Each token's document, and 0 of padding, which attends to nothing."""
    documents = torch.tensor(rows)
    mask = causal(documents.size(1), [documents.size(1)] * documents.size(0))[:, 0]
    return (mask & (documents[:, :, None] == documents[:, None, :]) & (documents[:, :, None] > 0))[:, None]


def ranges(mask, window=None, **more):
    read = read_mask(mask, mask.size(-1), True, window, **more)
    assert read.lengths is None and (read.ranges is None) == (read.reason is not None)
    return read.reason if read.ranges is None else [tuple(row) for row in read.ranges.tolist()]


@pytest.mark.parametrize("form", [lambda m: m, added])
def test_padding_at_the_end(form):
    for lengths in ([6, 4], [1, 5]):
        assert read_mask(form(causal(6, lengths)), 6, True, None).lengths.tolist() == lengths
    assert read_mask(form(causal(6, [6, 6])), 6, True, None) == NO_PADDING
    both = (torch.arange(6) < torch.tensor([[6], [2]]))[:, None, None, :]
    assert read_mask(form(both), 6, False, None).lengths.tolist() == [6, 2]
    assert read_mask(form(both.expand(2, 1, 6, 6)), 6, False, None).lengths.tolist() == [6, 2]


@pytest.mark.parametrize("form", [lambda m: m, added])
def test_windows(form):
    assert read_mask(form(causal(6, [6, 6], window=3)), 6, True, 3) == NO_PADDING
    assert read_mask(form(causal(6, [6, 6], window=3)), 6, True, None) == REFUSED
    assert read_mask(form(causal(6, [6, 6])), 6, True, 3) == REFUSED
    assert read_mask(form(causal(6, [6, 4], window=3)), 6, True, 3).lengths.tolist() == [6, 4]
    assert read_mask(form(causal(6, [6, 4])), 6, True, 8).lengths.tolist() == [6, 4]


def test_rows_that_attend_to_nothing():
    """Booleans leave nothing of them, numbers that are added the mean of all."""
    mask = causal(6, [6, 1], window=3)
    assert read_mask(mask, 6, True, 3).lengths.tolist() == [6, 1]
    assert read_mask(added(mask), 6, True, 3) == REFUSED


def test_padding_at_the_beginning():
    mask = of_documents([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0]])
    assert ranges(mask) == [(0, 2, 6), (1, 0, 6), (2, 5, 6)]
    read = read_mask(mask, 6, True, None)
    assert read.ranges.dtype == torch.int64 and read.ranges.device.type == "cpu" and read.ranges.is_contiguous()
    assert read_mask(mask, 6, True, None) is read
    assert read_mask(added(mask), 6, True, None) == REFUSED  # the mean of all
    assert ranges(mask[3:]) == OTHER


@pytest.mark.parametrize("form", [lambda m: m, added])
def test_packed_sequences(form):
    mask = form(of_documents([[1, 1, 2, 2, 2, 3], [1, 2, 3, 4, 5, 6], [1, 1, 1, 1, 1, 1]]))
    assert ranges(mask) == [(0, 0, 2), (0, 2, 5), (0, 5, 6), *((1, i, i + 1) for i in range(6)), (2, 0, 6)]
    one = mask[:1]
    assert ranges(one, batch=2) == [(0, 0, 2), (0, 2, 5), (0, 5, 6), (1, 0, 2), (1, 2, 5), (1, 5, 6)]
    assert ranges(one, batch=1) == [(0, 0, 2), (0, 2, 5), (0, 5, 6)]
    assert read_mask(mask, 6, True, None, batch=2) == REFUSED
    assert ranges(one, window=3) == ranges(one, window=7) == ranges(one)
    assert ranges(one, window=2) == OTHER


def test_packed_sequences_and_padding():
    assert ranges(of_documents([[1, 1, 2, 2, 0, 0], [0, 1, 0, 0, 2, 2]])) == [(0, 0, 2), (0, 2, 4), (1, 1, 2), (1, 4, 6)]
    # Padding at the end attends to the sequence in one row, and one is padded at its beginning.
    both = torch.cat([causal(6, [4]), of_documents([[0, 0, 1, 1, 1, 1]])])
    assert ranges(both) == OTHER


def test_others():
    bias = torch.randn(2, 1, 6, 6)
    full = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    heads = causal(6, [6, 6]).expand(2, 4, 6, 6)
    for mask in (bias, full, heads, causal(5, [5, 5]), torch.ones(2, 6), causal(6, [6, 6]).int(), full & False):
        assert read_mask(mask, 6, True, None) == REFUSED


@pytest.mark.parametrize("rows", [[[1, 1, 1, 1, 1, 1]], [[1, 1, 1, 2, 2, 2]], [[0, 0, 1, 1, 1, 1]]])
def test_one_pair_of_tokens_is_another_mask(rows):
    """Or one that is read as what it says: without the last query's own key, or of a sequence of two that is parted."""
    for query in range(6):
        for key in range(6):
            mask = of_documents(rows)
            mask[0, 0, query, key] = ~mask[0, 0, query, key]
            read = read_mask(mask, 6, True, None)
            if read.reason is not None:
                assert read == REFUSED
                continue
            said = causal(6, read.lengths.tolist() if read.lengths is not None else [6])
            if read.ranges is not None:
                documents = torch.zeros(1, 6, dtype=torch.long)
                for number, (_, begin, end) in enumerate(read.ranges.tolist(), 1):
                    documents[0, begin:end] = number
                said = of_documents(documents.tolist())
            assert torch.equal(said, mask), (query, key)


def test_encoders_have_padding_at_the_end_alone():
    left = (torch.arange(6) >= torch.tensor([[0], [2]]))[:, None, None, :]
    assert read_mask(left, 6, False, None) == REFUSED
    assert read_mask(of_documents([[1, 1, 1, 2, 2, 2]]), 6, False, None) == REFUSED


def test_a_mask_changed_in_place_is_read_again():
    mask = causal(6, [6, 6])
    assert read_mask(mask, 6, True, None) == NO_PADDING
    mask[:, :, :, 5:] = False
    assert read_mask(mask, 6, True, None).lengths.tolist() == [5, 5]
