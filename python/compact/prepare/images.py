# SPDX-License-Identifier: Apache-2.0
"""Images of data sets, as the archive of class folders that `compact train --task image-classification` reads: JPEG and
PNG files as they are, others as PNG."""
import io
import os
import re
import tarfile
from contextlib import closing

from .refusal import Refusal, require
from .sources import DataSet

KEPT = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png"}  # as Pillow names them; the program decodes these
EIGHT_BITS = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")  # Pillow's modes
MOST_IMAGES, MOST_BYTES, LONGEST_SIDE = 1 << 20, 1 << 24, 4096  # that the program reads
ODD = 3, 0.05  # images that may be left out, or this part of all
COUNTS = ("rows", "images", "unlabelled", "converted", "odd")
TABLES = (".parquet", ".arrow")
NO_IMAGES = re.compile(r"\.|__MACOSX$|Thumbs\.db$|desktop\.ini$|.*\.(csv|tsv|jsonl?|txt|md|yaml|yml|html?)$", re.IGNORECASE)


class Odd(Exception):
    """An image that is left out."""


# ------------------------------------------------------------------------------------------------------------ reading


def _subfolders(folder):
    return sorted(e.name for e in os.scandir(folder) if e.is_dir() and not NO_IMAGES.match(e.name))


def _of_folders(folder, split):
    """Path and class of the files of FOLDER/CLASS/FILE or FOLDER/SPLIT/CLASS/FILE."""
    if split is not None:
        require(split in _subfolders(folder), f"{folder}: --split must be one of {', '.join(_subfolders(folder)) or 'no folders'}, is {split}")
        folder = os.path.join(folder, split)
    classes = _subfolders(folder)
    require(classes, f"{folder}: must have a folder for each class")
    for name in ["", *classes]:
        for entry in sorted(os.scandir(os.path.join(folder, name)), key=lambda e: e.name):
            if NO_IMAGES.match(entry.name) or not name and entry.is_dir():
                continue
            require(not entry.is_dir(), f"{entry.path}: is deeper than CLASS/FILE" + ("" if split else f": --split names one of {', '.join(classes)}, or --data a folder of classes"))  # fmt: skip
            yield entry.path, {"path": entry.path, "bytes": None}, name or None


def _column(row, given, option, kind, found):
    """The column that is named, or the only one of those found."""
    if given is not None:
        require(given in row, f"--{option} must be one of {', '.join(row)}, is {given}")
        return given
    which = f"those of {', '.join(found)} can be" if found else f"none of {', '.join(row)} is"
    require(len(found) == 1, f"{which} {kind}: --{option} names one")
    return found[0]


def _columns(row, features, options):
    """The columns of images and of classes: those of these types, or else by the types of values."""
    from datasets import ClassLabel, Image

    def found(kind, fits):
        typed = [name for name in row if isinstance(features.get(name), kind)]
        return typed or [name for name in row if fits(row[name], features.get(name))]

    def is_image(value, feature):
        has_bytes = isinstance(value, dict) and "bytes" in value or isinstance(feature, dict) and "bytes" in feature
        return has_bytes or isinstance(value, bytes) or getattr(feature, "dtype", "") in ("binary", "large_binary")

    def is_class(value, feature):
        return isinstance(value, (int, str)) or re.match("u?int|(large_)?string", getattr(feature, "dtype", ""))

    return (
        _column(row, options.image_column, "image_column", "images", found(Image, is_image)),
        _column(row, options.label_column, "label_column", "classes", found(ClassLabel, is_class)),
    )


def _class(value, feature):
    """The name of a row's class; None: it has none, as the number -1 says, too."""
    if isinstance(value, float):  # numbers beside missing ones
        value = None if value != value else int(value) if value.is_integer() else value
    require(value is None or isinstance(value, (int, str)), f"a class must be a whole number or a text, is {value!r:.60}")
    if value is None or isinstance(value, int) and value < 0:
        return None
    return feature.int2str(value) if hasattr(feature, "names") else str(value)


def _of_tables(one, options):
    """Place, image and class of the rows of what `datasets` reads."""
    from datasets import Image

    dataset = one.of_library()
    features = dataset.features or {}
    for name, feature in features.items():
        if isinstance(feature, Image):  # files, not pixels
            dataset = dataset.cast_column(name, Image(decode=False))
    image = label = None
    for number, row in enumerate(dataset, 1):
        if image is None:
            image, label = _columns(row, features, options)
        try:
            name = _class(row[label], features.get(label))
        except Refusal as refusal:
            raise Refusal(f"row {number}: {refusal}") from None
        yield f"row {number}", row[image], name


def _rows(one, options):
    """Place, image and class, an error with the data set's name."""
    from datasets.exceptions import DatasetsError

    tables = not os.path.isdir(one.name) or one.is_saved() or any(n.endswith(TABLES) for _, _, names in os.walk(one.name) for n in names)
    try:
        if tables:
            yield from ((f"{one.name}: {place}", *row) for place, *row in _of_tables(one, options))
        else:
            given = [f"--{name}" for name in ("name", "image_column", "label_column") if getattr(options, name) is not None]
            require(not given, f"{' and '.join(given)}: a folder of class folders has none")
            yield from _of_folders(one.name, options.split)
    except (DatasetsError, OSError, ValueError) as error:
        raise Refusal(f"{one.name}: {error}") from None
    except Refusal as refusal:
        raise Refusal(str(refusal) if str(refusal).startswith(one.name) else f"{one.name}: {refusal}") from None


def _bytes(value):
    if isinstance(value, dict) and value.get("bytes") is None and value.get("path"):
        import fsspec  # the path may be on the hub, or in an archive

        with fsspec.open(value["path"], "rb") if "://" in value["path"] else open(value["path"], "rb") as file:
            return file.read()
    value = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(value, bytes):
        raise Odd(f"an image must be the bytes of a file, is {value!r:.60}")
    return value


def _file(value):
    """The ending and the bytes of the file that the archive gets, and whether it is another. Throws Odd."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        data = kept = _bytes(value)
        with Image.open(io.BytesIO(data)) as image:
            if max(image.size) > LONGEST_SIDE:
                raise Odd(f"an image must have sides of at most {LONGEST_SIDE:,}, is {image.size[0]:,} x {image.size[1]:,}")
            if image.format not in KEPT:
                if image.mode not in EIGHT_BITS:
                    raise Odd(f"an image must have at most 8 bits a colour, is {image.mode}")
                out = io.BytesIO()  # turned as EXIF says, of animations the first image
                ImageOps.exif_transpose(image).convert("RGB").save(out, "PNG")
                kept = out.getvalue()
            ending = KEPT.get(image.format, "png")
    except Odd:
        raise
    except UnidentifiedImageError:
        raise Odd("is no image that Pillow reads") from None
    except Exception as error:  # Pillow's decoders raise whatever they meet in a damaged file
        raise Odd(str(error)) from None
    if len(kept) > MOST_BYTES:
        raise Odd(f"an image must have at most {MOST_BYTES:,} bytes as {ending}, has {len(kept):,}")
    return ending, kept, kept is not data


# ------------------------------------------------------------------------------------------------------------ writing


class Archive:
    """A tar archive of CLASS/NUMBER.jpg and .png."""

    def __init__(self, file):
        self._tar, self.folders = tarfile.open(fileobj=file, mode="w"), {}

    def _folder(self, name):
        """The class's folder: its name, with _ for what the program does not take in a path."""
        if name not in self.folders:
            folder = re.sub(r"[/\\\x00-\x1f\x7f]", "_", name)
            folder = f"_{folder}" if not folder or NO_IMAGES.match(folder) else folder
            require(folder not in self.folders.values(), f"two classes would be in a folder `{folder}`, one of them {name!r:.60}")
            self.folders[name] = folder
        return self.folders[name]

    def add(self, name, number, ending, data):
        member = tarfile.TarInfo(f"{self._folder(name)}/{number:07}.{ending}")
        member.size = len(data)
        self._tar.addfile(member, io.BytesIO(data))

    def close(self):
        self._tar.close()


def _add_all(rows, archive, counts):
    for place, value, name in rows:
        counts["rows"] += 1
        if name is None:
            counts["unlabelled"] += 1
            continue
        try:
            ending, data, converted = _file(value)
        except Odd as odd:
            path = value.get("path") if isinstance(value, dict) else None
            counts["odd"] += 1
            counts.setdefault("first", f"{place}{f' ({path})' if path and path != place else ''}: {odd}")
            continue
        require(counts["images"] < MOST_IMAGES, f"{place}: an archive holds at most {MOST_IMAGES:,} images")
        counts["converted"] += converted
        counts["images"] += 1
        try:
            archive.add(name, counts["images"], ending, data)
        except Refusal as refusal:
            raise Refusal(f"{place}: {refusal}") from None


def _check(counts, data):
    first = f" (the first: {counts['first']})" if counts["odd"] else ""
    require(counts["images"], f"{', '.join(data)}: no image is left of {counts['rows']:,}{first}")
    of = counts["images"] + counts["odd"]
    require(counts["odd"] <= max(ODD[0], ODD[1] * of), f"{counts['odd']:,} of {of:,} images cannot be taken{first}")


def write_images(options):
    """Writes the archive --output, and says what is in it."""
    output, part = options.output, f"{options.output}.{os.getpid()}.part"
    require(options.overwrite or not os.path.lexists(output), f"{output}: is there; --overwrite replaces it")
    there = os.path.lexists(output)
    require(not there or os.path.isfile(output) and tarfile.is_tarfile(output), f"{output}: is no archive, which alone --overwrite replaces")
    sets = [DataSet(name, options.name, options.split) for name in options.data]
    os.makedirs(os.path.dirname(output) or ".", exist_ok=True)
    counts = dict.fromkeys(COUNTS, 0)
    try:
        with open(part, "xb") as file, closing(Archive(file)) as archive:
            for one in sets:
                _add_all(_rows(one, options), archive, counts)
        _check(counts, options.data)
        os.replace(part, output)
    finally:
        if os.path.lexists(part):
            os.remove(part)
    names = sorted(archive.folders.values())
    some = f" ({', '.join(names[:10])}{', ...' if len(names) > 10 else ''})"
    print(f"{output}: {counts['images']:,} images of {len(names):,} classes{some}, {counts['converted']:,} of them made PNG")
    for name, folder in archive.folders.items():
        if name != folder:
            print(f"warning: class {name!r} is in the folder {folder}")
    if counts["unlabelled"]:
        print(f"warning: {counts['unlabelled']:,} images or rows have no class: left out")
    if counts["odd"]:
        print(f"warning: {counts['odd']:,} images left out, the first: {counts['first']}")
    print(f"compact train --task image-classification --train_file {output} ...")
