# SPDX-License-Identifier: Apache-2.0
"""Arrays and graphs."""
import io
import struct
import zipfile

from seeds.common import HUGE


def npy_file(descr="<f4", shape="(2, 3)", data=bytes(24), order="False", version=1, length=None):
    text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}"
    text += " " * (-(10 + len(text) + 1) % 64) + "\n"
    size = len(text) if length is None else length
    head = struct.pack("<H", size) if version == 1 else struct.pack("<I", size)
    return b"\x93NUMPY" + bytes([version, 0]) + head + text.encode() + data


def npy():
    yield "sound", npy_file()
    yield "version2", npy_file(version=2)
    yield "overflow", npy_file(shape="(4294967296, 4294967296)", data=b"")
    yield "overflow_zero", npy_file(shape="(9223372036854775807, 9223372036854775807, 0)", data=b"")
    yield "negative", npy_file(shape="(-1,)")
    yield "dimensions", npy_file(shape="(1,1,1,1,1,1)")
    yield "fortran", npy_file(order="True")
    yield "objects", npy_file(descr="|O")
    yield "big", npy_file(descr=">f4")
    yield "length", npy_file(length=65535)
    yield "trailing", npy_file(data=bytes(25))


def array(descr, values):
    kind = {"<i4": "i", "<i8": "q", "<f4": "f"}[descr]
    return npy_file(descr, f"({len(values)},)", struct.pack(f"<{len(values)}{kind}", *values))


def graph_npz():
    sound = {
        "adj_data": array("<f4", [1, 1, 1]),
        "adj_indices": array("<i4", [1, 2, 0]),
        "adj_indptr": array("<i4", [0, 2, 3, 3]),
        "adj_shape": array("<i8", [3, 3]),
        "attr_data": array("<f4", [1, 0.5]),
        "attr_indices": array("<i4", [0, 1]),
        "attr_indptr": array("<i4", [0, 1, 2, 2]),
        "attr_shape": array("<i8", [3, 2]),
        "labels": array("<i8", [0, 1, 0]),
    }

    def one(change, method=zipfile.ZIP_STORED):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", method) as archive:
            for name, bytes_ in (sound | change).items():
                archive.writestr(name + ".npy", bytes_)
        return out.getvalue()

    yield "sound", one({})
    yield "deflated", one({}, zipfile.ZIP_DEFLATED)
    for name, change in {
        "nodes": {"adj_shape": array("<i8", [HUGE, HUGE])},
        "features": {"attr_shape": array("<i8", [3, HUGE])},
        "columns": {"attr_shape": array("<i8", [3, 2**27])},
        "index": {"adj_indices": array("<i4", [1, 2, 2**31 - 1])},
        "negative": {"adj_indices": array("<i4", [1, 2, -1])},
        "descends": {"adj_indptr": array("<i4", [0, 3, 2, 3])},
        "starts": {"adj_indptr": array("<i4", [0, 2, 3, 2**31 - 1])},
        "labels": {"labels": array("<i8", [0, HUGE, 0])},
        "label_negative": {"labels": array("<i8", [0, -(2**63), 0])},
        "nan": {"attr_data": array("<f4", [float("nan"), 1])},
    }.items():
        yield name, one(change)


def graph_set_file():
    yield "sound", b"2\n2 0\n0 1 1\n3 1 0\n1 5\n0 0\n"
    yield "attributes", b"1\n2 0\n0 1 1 0.5 1\n3 1 0 0.25 2\n"
    yield "graphs", b"9223372036854775807\n2 0\n"
    yield "nodes", b"1\n9223372036854775807 0\n"
    yield "nodes_many", b"1\n134217728 0\n"
    yield "degree", b"1\n1 0\n0 9223372036854775807 0\n"
    yield "neighbour", b"1\n2 0\n0 1 7\n0 0\n"
    yield "tags", b"1\n2 0\n-9223372036854775808 0\n9223372036854775807 0\n"
    yield "label", b"1\n1 -9223372036854775808\n0 0\n"
    yield "nan", b"1\n1 0\n0 0 nan\n"


def graph_set_folder():
    sound = [b"1, 2\n2, 1\n", b"1\n1\n2\n", b"1\n-1\n", b"3\n4\n3\n", b"0.5, 1\n1, 2\n3, 4\n"]
    yield "sound", b"\0".join(sound)
    yield "bare", b"\0".join(sound[:3])
    for name, (place, text) in {
        "node": (0, b"1, 99\n"),
        "node_huge": (0, b"1, 9223372036854775807\n"),
        "between": (0, b"1, 3\n"),
        "graph": (1, b"1\n1\n1048577\n"),
        "graph_zero": (1, b"0\n1\n2\n"),
        "labels": (2, b"1\n"),
        "attributes": (4, b"1\n1, 2\n3\n"),
    }.items():
        yield name, b"\0".join(sound[:place] + [text] + sound[place + 1 :])
