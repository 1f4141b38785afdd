# SPDX-License-Identifier: Apache-2.0
"""Images and their archives."""
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib

from seeds.common import ROOT, compressed


def cifar():
    for kind, bytes_ in compressed(b"\3" + bytes(3072) + b"\11" + bytes(3072)):
        yield f"sound_{kind}", bytes([kind]) + bytes_
        yield f"cut_{kind}", bytes([kind]) + bytes_[:-5]
        yield f"trailing_{kind}", bytes([kind]) + bytes_ + b"x"
    yield "label", b"\0\12" + bytes(3072)


def idx():
    def one(count=2, height=3, width=4, labels=2, pixels=24, values=b"\1\2"):
        text = struct.pack(">II", 0x801, labels) + values
        return bytes([len(text)]) + text + struct.pack(">IIII", 0x803, count, height, width) + bytes(pixels)

    yield "sound", one()
    yield "huge", one(count=2**32 - 1, height=2**32 - 1, width=2**32 - 1)
    yield "large", one(count=2**20, height=4096, width=2)
    yield "zero", one(count=0, pixels=0)
    yield "labels", one(labels=3, values=b"\1\2\3")
    yield "label", one(values=b"\1\377")
    yield "trailing", one(pixels=25)


def jpeg_file():
    return (ROOT / "fuzz/corpus/jpeg/sound").read_bytes()


def tar(names, data, kind=tarfile.REGTYPE):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size, info.type = (len(data) if kind == tarfile.REGTYPE else 0), kind
            info.linkname = "/etc/passwd"
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def image_archive():
    image = jpeg_file()
    sound = tar(["train/cat/1.jpg", "train/dog/2.jpeg"], image)
    yield "sound", sound
    yield "gz", gzip.compress(sound, mtime=0)
    yield "xz", lzma.compress(sound)
    yield "gz_zeros", gzip.compress(sound, mtime=0) + bytes(100)
    yield "gz_trailing", gzip.compress(sound, mtime=0) + b"x"
    yield "xz_trailing", lzma.compress(sound) + b"xxxx"
    yield "cut", sound[:1200]
    yield "trailing", sound + b"x"
    yield "members", gzip.compress(tar(["a/"] * 9, b"", tarfile.DIRTYPE), mtime=0)
    yield "bomb", gzip.compress(tar(["a/b.jpg"], bytes(3 << 20)), mtime=0)
    for name in ("../x.jpg", "/a/b.jpg", "a/../../b.jpg", "a\nb/c.jpg", "x" * 90 + "/" + "y" * 600):
        yield f"name_{len(name)}_{name[0] == '/'}", tar([name], image)
    yield "twice", tar(["a/b.jpg", "a/b.jpg"], image)
    yield "link", tar(["a/b.jpg"], b"", tarfile.SYMTYPE)
    yield "hard_link", tar(["a/b.jpg"], b"", tarfile.LNKTYPE)
    yield "device", tar(["a/b.jpg"], b"", tarfile.CHRTYPE)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cat/1.jpg", image)
    yield "zip", out.getvalue()
    yield "zip_trailing", out.getvalue() + b"x"
    yield "zip_comment", out.getvalue()[:-2] + b"\4\0PK\5\6"
    yield "zip_no_end", b"PK\3\4" + bytes(70_000)
    yield "zip_size", out.getvalue().replace(struct.pack("<I", len(image)), b"\xff\xff\xff\x7f")


def jpeg():
    image = jpeg_file()
    at = image.find(b"\xff\xc0") + 5
    yield "cut", image[:-20]
    yield "huge", image[:at] + b"\xff\xff\xff\xff" + image[at + 4 :]
    yield "large", image[:at] + b"\x10\x00\x10\x00" + image[at + 4 :]
    yield "zero", image[:at] + bytes(4) + image[at + 4 :]
    yield "trailing", image + bytes(100)


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png_file(height=2, width=3, depth=8, kind=2, interlaced=0, row=10, more=b""):
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlaced)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + more
        + chunk(b"IDAT", zlib.compress(bytes(row * 2)))
        + chunk(b"IEND", b"")
    )


def png():
    exif = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    yield "sound", png_file()
    yield "grey", png_file(kind=0, row=4)
    yield "bits", png_file(kind=0, depth=1, row=2)
    yield "deep", png_file(kind=6, depth=16, row=25)
    yield "palette", png_file(kind=3, row=4, more=chunk(b"PLTE", bytes(9)) + chunk(b"tRNS", b"\1"))
    yield "interlaced", png_file(interlaced=1, row=20)
    yield "turned", png_file(more=chunk(b"eXIf", exif))
    yield "huge", png_file(height=2**31 - 1, width=2**31 - 1)
    yield "large", png_file(height=40_000, width=40_000)
    yield "cut", png_file()[:-30]
    yield "trailing", png_file() + b"x"
