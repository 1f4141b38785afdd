# SPDX-License-Identifier: Apache-2.0
"""Parts of the seeds of several readers."""
import gzip
import lzma
import pathlib
import struct

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEEP = 100_000
HUGE = 2**63 - 1


def json_texts():
    yield "twice", b'{"a":1,"a":2}'
    yield "deep", b"[" * DEEP
    yield "deep_objects", b'{"a":' * DEEP
    yield "number", b"[1e999, -1e999, 18446744073709551616, -9223372036854775809]"
    yield "nul", b'{"a":1}\0x'
    yield "utf8", b'{"a":"\xff\xfe"}'
    yield "escape", b'{"\\ud800": "\\u0000"}'


def compressed(bytes_):
    yield 0, bytes_
    yield 1, gzip.compress(bytes_, mtime=0)
    yield 2, lzma.compress(bytes_)
    # A zstd frame of one raw block.
    head = struct.pack("<IBB", 0xFD2FB528, 0x00, 0x58)
    yield 3, head + struct.pack("<I", len(bytes_) << 3 | 1)[:3] + bytes_
