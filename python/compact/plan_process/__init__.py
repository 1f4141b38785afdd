# SPDX-License-Identifier: Apache-2.0
"""The process that plans: a step of a model on the meta device, counted byte by byte."""
