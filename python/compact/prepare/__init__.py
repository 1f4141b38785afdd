# SPDX-License-Identifier: Apache-2.0
"""Data sets for the program, by transformers' own tokenizers and templates; see command.py. Nothing here needs the
library of C++: `python FOLDER/compact/prepare` runs it where that was not built."""
