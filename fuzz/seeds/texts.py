# SPDX-License-Identifier: Apache-2.0
"""Texts to train on, prepared or not."""
import gzip
import struct

from seeds.common import HUGE, compressed, json_texts


def token_file():
    def one(count=3, width=2, vocabulary=10, end=9, spec=b"bytes", length=None, ids=b"\1\0\2\0\3\0", version=1):
        fixed = b"CompActT" + struct.pack(
            "<IIQQQQQII", version, width, count, vocabulary, end, 5, 0, length if length is not None else len(spec), 0
        )
        text = fixed + spec
        return b"\1" + text + bytes(-len(text) % 64) + ids

    yield "sound", one()
    yield "wide", one(width=4, count=1, ids=b"\1\0\0\0")
    yield "samples", one(version=2, width=4, count=2, ids=b"\1\0\0\x40\2\0\0\x80")
    for name, change in {
        "samples_narrow": {"version": 2},
        "samples_vocabulary": {"version": 2, "width": 4, "count": 1, "vocabulary": 2**31, "ids": b"\1\0\0\x40"},
        "count_wraps": {"count": 2**63 + 3},
        "count_huge": {"count": HUGE},
        "width": {"width": 0},
        "vocabulary": {"vocabulary": 2**64 - 1},
        "end": {"end": 10},
        "spec_long": {"length": 2**32 - 1},
        "spec_past_end": {"length": 60_000},
        "spec_lines": {"spec": b"a\nb"},
        "trailing": {"ids": b"\1\0\2\0\3\0\4"},
        "id_large": {"ids": b"\xff\xff\2\0\3\0"},
    }.items():
        yield name, one(**change)


def json_field():
    yield "sound", b'{"id": 3, "text": "a\\u00e9\\ud83d\\ude00b", "more": [1, {"text": 2}]}'
    yield "half", b'{"text": "\\ud800"}'
    yield "kinds", b'{"text": 1}'
    yield from json_texts()


def documents():
    text, lines = b"It was the best of times,\n", b'{"text": "a"}\n\n{"text": "b\xff"}\n'
    for name, first, bytes_ in (("text", 0, text), ("lines", 1, lines), ("nul", 0, b"a\0b"), ("no_field", 1, b"{}\n")):
        for kind, packed in compressed(bytes_):
            yield f"{name}_{kind}", bytes([first + 2 * kind]) + packed
            yield f"{name}_{kind}_trailing", bytes([first + 2 * kind]) + packed + b"x"
            yield f"{name}_{kind}_twice", bytes([first + 2 * kind]) + packed + packed
            yield f"{name}_{kind}_zeros", bytes([first + 2 * kind]) + packed + bytes(8) + packed
    yield "gz_bomb", b"\2" + gzip.compress(bytes(b"a" * (4 << 20)), mtime=0)


def labelled_texts():
    yield "tsv", b"\0sentence\tlabel\na b\tyes\nc\tno\n"
    yield "jsonl", b'\1{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n'
    yield "values", b"\2sentence\tlabel\na\t1e308\nb\t-2.5\n"
    yield "prompts", b'\3{"prompt": "a", "completion": "b"}\n'
    yield "cola", b"\4gj04\t1\t\tWe sail.\ngj04\t0\t*\tSail we.\n"
    yield "qqp", b"\5id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\ta\tb\t0\n1\t2\n"
    yield "csv", b'\6\xef\xbb\xbf"text",label\r\n"a, ""b""\r\nc",yes\r\n\r\nd,"no"'
    yield "csv_quote", b'\6text,label\na"b,1\n'
    yield "csv_behind", b'\6text,label\n"a" b,1\n'
    yield "csv_open", b'\6text,label\n"a,1\nb,0\n'
    yield "csv_wide", b"\6" + b",".join(b"c%d" % i for i in range(3000)) + b"\n"
    yield "csv_lines", b'\6text,label\n"' + b"\n" * 5000 + b'",1\nb,0\n'
    yield "wide", b"\0" + b"\t".join(b"c%d" % i for i in range(3000)) + b"\n"
    yield "twice", b"\0sentence\tsentence\tlabel\na\tb\t1\n"
