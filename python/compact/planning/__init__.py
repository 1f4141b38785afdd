# SPDX-License-Identifier: Apache-2.0
"""plan(), and the client of the process that counts what a step takes."""
