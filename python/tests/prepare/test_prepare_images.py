# SPDX-License-Identifier: Apache-2.0
"""compact.prepare: images of data sets as an archive of class folders."""
import io
import tarfile

import datasets
import numpy
import pytest
from _preparing import own_cache  # noqa: F401 - a fixture for all tests
from PIL import Image

from compact.prepare.command import main

NAMES = ["zebra", "ant", "no/thing"]  # not in the order of their letters


def pixels(i, size=(8, 6)):
    return numpy.random.default_rng(i).integers(0, 256, (*size, 3), dtype=numpy.uint8)


def encoded(i, kind, **how):
    out = io.BytesIO()
    Image.fromarray(pixels(i)).save(out, kind, **how)
    return out.getvalue()


FILES = [encoded(0, "PNG"), encoded(1, "JPEG"), encoded(2, "WEBP", lossless=True), encoded(3, "BMP"), encoded(4, "JPEG")]


def columns(labels, files=FILES):
    return {"image": [{"bytes": f, "path": None} for f in files], "label": labels}


def typed(labels, files=FILES):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    return datasets.Dataset.from_dict(columns(labels, files), features)


def made(folder, data, *flags):
    assert main(["--data", *map(str, data), "--output", str(folder / "out.tar"), "--overwrite", *flags]) == 0
    assert not list(folder.glob("*.part"))
    with tarfile.open(folder / "out.tar") as tar:
        return {m.name: tar.extractfile(m).read() for m in tar.getmembers()}


def check(found, names):
    """JPEG and PNG byte for byte, the others the same pixels as PNG."""
    assert list(found) == names
    for i, (name, data) in enumerate(found.items()):
        if name.endswith("png"):
            assert data.startswith(b"\x89PNG") and (numpy.asarray(Image.open(io.BytesIO(data))) == pixels(i)).all(), name
        assert data == FILES[i] or i in (2, 3)


def test_parquet_and_folders_of_datasets(tmp_path, capsys):
    typed([0, 1, 2, 1, 0]).to_parquet(tmp_path / "a.parquet")
    typed([0, 1, 2, 1, 0]).save_to_disk(tmp_path / "saved")
    names = ["zebra/0000001.png", "ant/0000002.jpg", "no_thing/0000003.png", "ant/0000004.png", "zebra/0000005.jpg"]
    for data in ("a.parquet", "saved", "a.*"):
        check(made(tmp_path, [tmp_path / data]), names)
    said = capsys.readouterr().out
    assert "out.tar: 5 images of 3 classes (ant, no_thing, zebra), 2 of them made PNG" in said
    assert "warning: class 'no/thing' is in the folder no_thing" in said
    # Columns without types: numbers are names.
    datasets.Dataset.from_dict(columns([7, 7, 10, 0, 7])).to_parquet(tmp_path / "b.parquet")
    check(made(tmp_path, [tmp_path / "b.parquet"]), [f"{c}/{n:07}.{e}" for n, (c, e) in enumerate(zip((7, 7, 10, 0, 7), "png jpg png png jpg".split()), 1)])
    # Several sets share their classes, and no two files a name.
    twice = list(made(tmp_path, [tmp_path / "a.parquet"] * 2))
    assert twice[:5] == names and twice[5:7] == ["zebra/0000006.png", "ant/0000007.jpg"] and len(set(twice)) == 10


def in_folders(at, files):
    for name, data in files.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_bytes(data)
    return at


def test_class_folders(tmp_path, capsys):
    """A folder's files are all taken, whatever their names and what lies beside them."""
    files = {name: encoded(i, "WEBP", lossless=True) for i, name in enumerate(("b/train_1.webp", "b/2", "test/3.webp"))}
    beside = {"metadata.csv": b"file_name,label\nb/2,x\n", "b/.DS_Store": b"x", "b/Thumbs.db": b"x", "README.md": b"x", "cover.png": FILES[0], ".git/a": b"x"}
    (tmp_path / "images/empty").mkdir(parents=True)
    want = ["b/0000001.png", "b/0000002.png", "test/0000003.png"]
    for at, flags in (("images", ()), ("splits/train", ()), ("splits", ("--split", "train"))):
        if not flags:
            in_folders(tmp_path / at, files | beside)
        found = made(tmp_path, [tmp_path / at], *flags)
        assert list(found) == want
        for data, i in zip(found.values(), (1, 0, 2)):
            assert (numpy.asarray(Image.open(io.BytesIO(data))) == pixels(i)).all()
    assert "of 2 classes (b, test)" in (said := capsys.readouterr().out) and "1 images or rows have no class" in said
    out = ["--output", str(tmp_path / "refused.tar")]
    for at, flags, message in (
        ("splits", (), "splits/train/b: is deeper than CLASS/FILE: --split names one of train"),
        ("splits", ("--split", "test"), "--split must be one of train, is test"),
        ("images/b", (), "must have a folder for each class"),
        ("images", ("--label_column", "a"), "--label_column: a folder of class folders has none"),
    ):
        assert main(["--data", str(tmp_path / at), *out, *flags]) == 1
        assert message in capsys.readouterr().err, message


def test_files_elsewhere(tmp_path):
    """Rows may have paths, as data sets of folders on the hub."""
    in_folders(tmp_path, {"a.webp": encoded(2, "WEBP", lossless=True)})
    rows = {"image": [{"bytes": None, "path": f"file://{tmp_path}/a.webp"}, {"bytes": None, "path": str(tmp_path / "a.webp")}], "label": ["x\\y\n", "__MACOSX"]}
    datasets.Dataset.from_dict(rows).to_parquet(tmp_path / "a.parquet")
    found = made(tmp_path, [tmp_path / "a.parquet"])
    assert list(found) == ["x_y_/0000001.png", "___MACOSX/0000002.png"]
    assert all((numpy.asarray(Image.open(io.BytesIO(data))) == pixels(2)).all() for data in found.values())


def test_images_are_turned_and_what_cannot_be_read_is_left_out(tmp_path, capsys):
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter to the right
    deep = io.BytesIO()
    Image.fromarray(numpy.full((8, 6), 40_000, numpy.uint16)).save(deep, "TIFF")
    bomb = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(bomb, "TIFF", compression="group4")
    wide = io.BytesIO()
    Image.new("L", (5000, 1)).save(wide, "PNG")
    large = io.BytesIO()
    Image.fromarray(pixels(1, (2400, 2400))).save(large, "BMP")
    files = [encoded(0, "WEBP", lossless=True, exif=turned), *FILES * 20]
    typed([0, 1, 1, 0, -1, None, *[1] * 95], files).to_parquet(tmp_path / "a.parquet")
    found = made(tmp_path, [tmp_path / "a.parquet"])
    assert list(found)[:4] == ["zebra/0000001.png", "ant/0000002.png", "ant/0000003.jpg", "zebra/0000004.png"] and len(found) == 99
    assert (numpy.asarray(Image.open(io.BytesIO(found["zebra/0000001.png"]))) == numpy.rot90(pixels(0), -1)).all()
    assert "2 images or rows have no class" in capsys.readouterr().out
    for odd, message in (
        (deep.getvalue(), "an image must have at most 8 bits a colour, is I;16"),
        (b"no image", "is no image that Pillow reads"),
        (wide.getvalue(), "an image must have sides of at most 4,096, is 5,000 x 1"),
        (bomb.getvalue(), "exceeds limit of"),
        (large.getvalue(), "an image must have at most 16,777,216 bytes as png, has 17,"),
        (encoded(0, "WEBP")[:40], "b.parquet: row 1 (x.webp): "),
        (None, "an image must be the bytes of a file, is None"),
    ):
        image = [{"bytes": odd, "path": "x.webp" if odd else None}, *columns([])["image"]]
        rows = {"image": image, "label": [0.0, *[1.0] * 4, float("nan")]}
        datasets.Dataset.from_dict(rows).to_parquet(tmp_path / "b.parquet")
        found = made(tmp_path, [tmp_path / "b.parquet"], "--label_column", "label")
        assert list(found) == ["1/0000001.png", "1/0000002.jpg", "1/0000003.png", "1/0000004.png"]
        said = capsys.readouterr().out
        assert "1 images left out, the first: " in said and message in said, said


def test_refusals(tmp_path, capsys):
    typed([0, 1, 2, 1, 0]).to_parquet(tmp_path / "a.parquet")
    two = columns([0, 1, 2, 1, 0]) | {"other": [0] * 5, "view": [{"bytes": f, "path": None} for f in FILES]}
    datasets.Dataset.from_dict(two).to_parquet(tmp_path / "two.parquet")
    typed([0] * 5, [b"x"] * 4 + FILES[:1]).to_parquet(tmp_path / "odd.parquet")
    typed([-1] * 5).to_parquet(tmp_path / "none.parquet")
    datasets.Dataset.from_dict(columns(["a/b", "a_b", "a", "a", "a"])).to_parquet(tmp_path / "equal.parquet")
    typed([0] * 5).save_to_disk(tmp_path / "saved")
    (tmp_path / "rows.jsonl").write_text('{"image": "x", "label": 1}\n')
    out = tmp_path / "out.tar"
    for name, flags, message in (
        ("two.parquet", (), "two.parquet: those of image, view can be images: --image_column names one"),
        ("two.parquet", ("--image_column", "view"), "two.parquet: those of label, other can be classes: --label_column names one"),
        ("two.parquet", ("--image_column", "sight"), "--image_column must be one of image, label, other, view, is sight"),
        ("two.parquet", ("--image_column", "label", "--label_column", "other"), "an image must be the bytes of a file, is 0"),
        ("saved", ("--split", "test"), "saved: --split: what was saved is one split, and is read whole"),
        ("odd.parquet", (), "4 of 5 images cannot be taken (the first: "),
        ("none.parquet", (), "no image is left of 5"),
        ("equal.parquet", (), "row 2: two classes would be in a folder `a_b`"),
        ("rows.jsonl", (), "files must be .parquet or .arrow, all of a kind, are .jsonl"),
        ("away.parquet", (), "there is no such file"),
    ):  # fmt: skip
        assert main(["--data", str(tmp_path / name), "--output", str(out), *flags]) == 1
        assert message in capsys.readouterr().err, name
        assert not out.exists() and not list(tmp_path.glob("*.part"))
    out.write_bytes(b"mine")
    assert main(["--data", str(tmp_path / "a.parquet"), "--output", str(out)]) == 1
    assert "is there; --overwrite replaces it" in capsys.readouterr().err
    assert main(["--data", str(tmp_path / "a.parquet"), "--output", str(out), "--overwrite"]) == 1
    assert "is no archive, which alone --overwrite replaces" in capsys.readouterr().err and out.read_bytes() == b"mine"
    for flags, message in (
        (("--output", str(out), "--max_length", "8"), "--max_length is for text, whose --output is a folder"),
        (("--output", "folder", "--tokenizer", "t", "--label_column", "a"), "--label_column is for images, whose --output is a NAME.tar"),
        (("--output", "folder"), "--tokenizer is needed, or for images --output NAME.tar"),
    ):
        with pytest.raises(SystemExit):
            main(["--data", "a", *flags])
        assert message in capsys.readouterr().err
