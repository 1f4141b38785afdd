# SPDX-License-Identifier: Apache-2.0
"""What every room of the package uses: the library in C++, names and private parts of torch and transformers."""
