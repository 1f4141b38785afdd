# SPDX-License-Identifier: Apache-2.0
"""The basis of all folders of the package: the library in C++, names and private parts of torch and transformers."""
