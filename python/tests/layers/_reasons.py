# SPDX-License-Identifier: Apache-2.0
"""Why layers kept their own forward."""


import compact


def reasons(model):
    return {reason for layer in compact.report(model).layers for reason in layer.own_forward}
