# SPDX-License-Identifier: Apache-2.0
"""The error where data cannot be prepared: a sentence."""


class Refusal(Exception):
    """Names the rule and the value; the row is put before it by who knows it."""

    def __reduce__(self):  # comes back from other processes
        return Refusal, self.args


def require(holds, sentence):
    if not holds:
        raise Refusal(sentence)
