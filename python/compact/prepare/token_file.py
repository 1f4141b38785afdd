# SPDX-License-Identifier: Apache-2.0
"""Writes the program's token files; compact/data/text/token_file.h has the layout."""
import os
import struct

import numpy
import xxhash

from .refusal import require

SAMPLE_BEGIN, TARGET = 1 << 30, 1 << 31
TEXT, SAMPLES, PAIRS = 1, 2, 3  # versions: pairs are samples, a chosen one and then the rejected one of its prompt


def tokenizer_hash(files):
    """XXH3 of the hashes of every file's name and bytes, in the order of names."""
    both = ((name.encode(), files[name]) for name in sorted(files))
    return xxhash.xxh3_64_intdigest(b"".join(struct.pack("<Q", xxhash.xxh3_64_intdigest(b)) for p in both for b in p))


def marked(ids, learnt):
    """A sample as the file has it."""
    ids = numpy.asarray(ids, dtype=numpy.uint32)
    if len(ids):
        ids = ids | numpy.where(numpy.asarray(learnt, dtype=bool), numpy.uint32(TARGET), numpy.uint32(0))
        ids[0] |= SAMPLE_BEGIN
    return ids


class TokenFile:
    """Appears whole at finish(). Goes on after the first `count` ids of what an earlier one left."""

    def __init__(self, path, vocabulary, end, files_hash, name, version, count=0):
        self._path, self._layout, self._samples, self._spec = path, version, version > 1, name.encode()
        self._numbers = [vocabulary, end, files_hash]
        self._type = "<u4" if self._samples or vocabulary > 1 << 16 else "<u2"
        self._sum, self.count = xxhash.xxh3_64(), count
        self._file = open(f"{path}.part", "r+b" if count else "w+b")
        self._file.write(bytes(self._size()))
        size = count * int(self._type[2])
        while size and (data := self._file.read(min(size, 1 << 20))):
            self._sum.update(data)
            size -= len(data)
        require(size == 0, f"{path}.part: has lost {size} bytes: remove its folder")
        self._file.seek(self._file.tell())
        self._file.truncate()

    def _size(self):
        return (64 + len(self._spec) + 63) // 64 * 64

    def append(self, ids):
        """uint32, of samples with their marks."""
        plain = ids & numpy.uint32(SAMPLE_BEGIN - 1) if self._samples else ids
        assert ids.size == 0 or plain.max() < self._numbers[0], "an id is not below the vocabulary"
        data = ids.astype(self._type).tobytes()
        self._sum.update(data)
        self._file.write(data)
        self.count += len(ids)

    def flush(self):
        self._file.flush()

    def finish(self):
        vocabulary, end, files_hash = self._numbers
        fixed = (self._layout, int(self._type[2]), self.count, vocabulary, end, files_hash, self._sum.intdigest(), len(self._spec))
        header = b"CompActT" + struct.pack("<IIQQQQQII", *fixed, 0) + self._spec
        header = bytearray(header.ljust(self._size(), b"\0"))
        struct.pack_into("<I", header, 60, xxhash.xxh3_64_intdigest(bytes(header)) & 0xFFFFFFFF)
        self._file.seek(0)
        self._file.write(header)
        self._file.close()
        os.replace(f"{self._path}.part", self._path)
