# SPDX-License-Identifier: Apache-2.0
"""What the optimizers of compact.optim have in common."""
