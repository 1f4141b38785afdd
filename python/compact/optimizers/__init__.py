# SPDX-License-Identifier: Apache-2.0
"""The common base of the optimizers of compact.optim."""
