# SPDX-License-Identifier: Apache-2.0
"""saved_tensors(), for networks whose layers the library does not know."""
