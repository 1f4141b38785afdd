# SPDX-License-Identifier: Apache-2.0
"""apply(): layers of transformers that blocks of the library stand in for, and the loss in chunks."""
