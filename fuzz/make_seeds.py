#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes seeds for the fuzz targets: for each reader something sound, and known attacks on its form
(lengths that wrap, offsets that overlap, shapes that overflow, keys given twice, deep nesting, huge
counts, bytes at the end). Those of the target NAME_fuzz.cpp come from the function NAME of a module
in seeds/, as pairs of a name and bytes. Only Python's standard library.

    make_seeds.py FOLDER      FOLDER/TARGET/NAME
"""
import pathlib
import sys

from seeds import graphs, images, settings, texts, tokenizers, weights

HERE = pathlib.Path(__file__).resolve().parent
MODULES = (graphs, images, settings, texts, tokenizers, weights)


def makers(target):
    """The functions of that name, of which there must be one."""
    return [getattr(m, target) for m in MODULES if hasattr(m, target)]


def main():
    for file in sorted(HERE.glob("*_fuzz.cpp")):
        target = file.stem.removesuffix("_fuzz")
        found = makers(target)
        if len(found) != 1:
            sys.exit(f"{file.name}: seeds/ must have one function {target}, has {len(found)}")
        folder = pathlib.Path(sys.argv[1]) / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, bytes_ in found[0]():
            (folder / name).write_bytes(bytes_)


if __name__ == "__main__":
    main()
