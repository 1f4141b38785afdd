# SPDX-License-Identifier: Apache-2.0
"""plan(), and the process that it asks: a step on the meta device, counted byte by byte."""
