# SPDX-License-Identifier: Apache-2.0
"""Weights whose gradients are projected, and the carriers that take those gradients."""
