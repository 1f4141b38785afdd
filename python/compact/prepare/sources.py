# SPDX-License-Identifier: Apache-2.0
"""Rows of data sets, one after another: files are streamed as they are, whatever else there is goes through `datasets`."""
import bz2
import codecs
import csv
import glob
import gzip
import io
import json
import lzma
import os
import random
import re
import zlib
from bisect import bisect
from itertools import accumulate

from .refusal import Refusal, require

LONGEST_ROW = 1 << 26  # characters of a row's JSON
AT_ONCE = 256  # rows of a table
SPACE = re.compile(r"[ \t\r\n]*")
HUB = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)  # names of data sets: owner/name, or a name


def _zstd(stored):
    import pyarrow

    return io.BufferedReader(pyarrow.CompressedInputStream(stored, "zstd"))


PACKED = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _zstd}


def _parsed(text, place):
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"{place}: must be JSON in UTF-8: {error}") from None
    require(isinstance(row, dict), f"{place}: must be a JSON object, is {row!r:.60}")
    return row


def _lines(file):
    for number, line in enumerate(iter(lambda: file.readline(LONGEST_ROW), b""), 1):
        require(len(line) < LONGEST_ROW, f"line {number}: must have less than {LONGEST_ROW:,} bytes")
        if not line.isspace():
            yield f"line {number}", _parsed(line, f"line {number}")


def _array(file):
    """The rows of one array of JSON, of which no more is held than a row and what is read with it."""
    text, decode = io.TextIOWrapper(file, "utf-8-sig"), json.JSONDecoder().raw_decode
    held, at, number, between = "", 0, 0, "["
    while True:
        at = SPACE.match(held, at).end()
        try:  # the sign before a row, then the row, then the sign after it
            require(held[at] in between, f"row {number + 1}: there must be {' or '.join(between)} before it, is {held[at]!r}")
            sign, end = held[at], SPACE.match(held, at + 1).end()
            if sign == "]" or held[end] == "]" and sign == "[":
                break
            row, end = decode(held, end)
            held[end]  # a number goes on in what is read next
        except (ValueError, IndexError):
            more = text.read(max(1 << 20, len(held) - at))
            require(more and len(held) - at < LONGEST_ROW, f"row {number + 1}: must be whole, in JSON of less than {LONGEST_ROW:,} characters")
            held, at = held[at:] + more, 0
            continue
        number, at, between = number + 1, end, ",]"
        require(isinstance(row, dict), f"row {number}: must be a JSON object, is {row!r:.60}")
        yield f"row {number}", row
    rest = held[at + 1 :] if sign == "]" else held[end + 1 :]
    while rest:
        rest = rest.strip(" \t\r\n")
        require(not rest, f"there must be nothing behind the array, whose rows are {number}, is {rest!r:.60}")
        rest = text.read(1 << 20)


def _json(file):
    """An array of rows, or a row a line."""
    begin = file.peek(1 << 12).removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    return _array(file) if begin == b"[" else _lines(file)


def _columns(sign):
    def rows(file):
        csv.field_size_limit(LONGEST_ROW)
        reader = csv.DictReader(io.TextIOWrapper(file, "utf-8-sig", newline=""), delimiter=sign, strict=True)
        for row in reader:
            count = len(reader.fieldnames)
            same = None not in row and None not in row.values()
            require(same, f"line {reader.line_num}: must have {count} fields as the first line")
            yield f"line {reader.line_num}", row

    return rows


def _document(file):
    yield "the text", {"text": file.read().decode("utf-8-sig")}


def _without_none(value):
    """Rows of Arrow have every key that another row has, as None."""
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, list) else value


def _batches(batches):
    number = 0
    for batch in batches:
        for begin in range(0, batch.num_rows, AT_ONCE):
            for row in batch.slice(begin, AT_ONCE).to_pylist():
                number += 1
                yield f"row {number}", _without_none(row)


def _parquet(file):
    from pyarrow.parquet import ParquetFile

    return _batches(ParquetFile(file, buffer_size=1 << 20, pre_buffer=False).iter_batches(AT_ONCE))


def _arrow(file):
    from pyarrow import ipc

    if not file.peek(6).startswith(b"ARROW1"):
        return _batches(ipc.open_stream(file))
    table = ipc.open_file(file)
    return _batches(map(table.get_batch, range(table.num_record_batches)))


FORMATS = {".jsonl": _lines, ".json": _json, ".csv": _columns(","), ".tsv": _columns("\t"),
           ".parquet": _parquet, ".arrow": _arrow, ".txt": _document}  # fmt: skip


def _endings(path):
    stem, packed = os.path.splitext(path)
    if packed not in PACKED:
        stem, packed = path, ""
    return os.path.splitext(stem)[1], packed


class DataSet:
    """One of --data: a file or pattern, a folder of save_to_disk or of files, or a name of the hub."""

    def __init__(self, name, configuration, split):
        self.name, self._configuration, self._split = name, configuration, split
        self.files = []
        self.part = 0.0  # of the files that was read
        if os.path.isdir(name):
            return
        self.files = [name] if os.path.exists(name) else sorted(glob.glob(name, recursive=True))
        if not self.files and any(sign in name for sign in "*?["):
            raise Refusal(f"{name}: the pattern matches no file")
        if not self.files:  # of the hub, perhaps
            hub = HUB.fullmatch(name) and os.path.splitext(name)[1] not in (*FORMATS, *PACKED)
            require(hub, f"{name}: there is no such file")
        given = [f"--{option}" for option, value in (("name", configuration), ("split", split)) if value is not None]
        if self.files:
            require(not given, f"{' and '.join(given)}: a file is one split, and is read whole")
        for path in self.files:
            require(os.path.isfile(path), f"{path}: must be a file")
            known = f"{path}: must end with one of {', '.join(FORMATS)}, or be a folder of save_to_disk"
            require(_endings(path)[0] in FORMATS, known)

    def state(self):
        """Name, size and time of every file; None where that is not all that the rows depend on."""
        files = self.files
        if os.path.isdir(self.name):
            files = sorted(os.path.join(at, name) for at, _, names in os.walk(self.name) for name in names)
        stats = [(path, os.stat(path)) for path in files]
        return [(os.path.abspath(path), s.st_size, s.st_mtime_ns) for path, s in stats] or None

    def rows(self):
        """The place of each row and the row."""
        if not self.files:
            from datasets.exceptions import DatasetsError

            try:
                for number, row in enumerate(self.of_library(), 1):
                    yield f"{self.name}: row {number}", _without_none(row)
            except DatasetsError as error:
                raise Refusal(f"{self.name}: {error}") from None
            return
        whole, before = sum(map(os.path.getsize, self.files)), 0
        for path in self.files:
            kind, packed = _endings(path)
            try:
                with open(path, "rb") as stored:
                    with PACKED[packed](stored) if packed else stored as file:
                        for place, row in FORMATS[kind](file):
                            yield f"{path}: {place}", row
                            self.part = (before + (0 if stored.closed else stored.tell())) / max(whole, 1)
            except Refusal as refusal:
                raise Refusal(f"{path}: {refusal}") from None
            except OSError as error:
                if error.errno:  # of the system: it may be read next time
                    raise OSError(error.errno, error.strerror, path) from None
                raise Refusal(f"{path}: cannot be read: {error}") from None
            except (ValueError, EOFError, lzma.LZMAError, zlib.error, csv.Error) as error:
                raise Refusal(f"{path}: cannot be read: {error}") from None
            before += os.path.getsize(path)
        self.part = 1.0

    def is_saved(self):
        """Whether it is a folder of save_to_disk."""
        return any(os.path.isfile(os.path.join(self.name, f)) for f in ("state.json", "dataset_dict.json"))

    def of_library(self):
        """As `datasets` streams it, with its features; of files Parquet and Arrow alone."""
        import datasets

        if self.files:
            kinds = {_endings(path)[0] for path in self.files}
            require(len(kinds) == 1 and kinds <= {".parquet", ".arrow"}, f"{self.name}: files must be .parquet or .arrow, all of a kind, are {', '.join(sorted(kinds))}")
            return datasets.load_dataset(kinds.pop()[1:], data_files=self.files, split="train", streaming=True)
        split = self._split or "train"
        if not self.is_saved():
            return datasets.load_dataset(self.name, self._configuration, split=split, streaming=True)
        require(self._configuration is None, "--name: a folder of save_to_disk has one configuration")
        found = datasets.load_from_disk(self.name)
        if isinstance(found, datasets.DatasetDict):
            require(split in found, f"--split must be one of {', '.join(found)}, is {split}")
            found = found[split]
        else:
            require(self._split is None, "--split: what was saved is one split, and is read whole")
        return found.to_iterable_dataset()


def mixed(sets, weights, seed, until_all):
    """Number of the set, place and row, in order: one set after another, or each row from a set that is drawn by the
    weights until one is used up, or, with `until_all`, until every one was, where sets that are used up begin again."""
    if weights is None:
        for number, one in enumerate(sets):
            yield from ((number, *row) for row in one.rows())
        return
    draw, bounds, rows, over = random.Random(seed), list(accumulate(weights)), [one.rows() for one in sets], set()
    while True:
        number = min(bisect(bounds, draw.random() * bounds[-1]), len(sets) - 1)
        row = next(rows[number], None)
        if row is None:
            over.add(number)
            if not until_all or len(over) == len(sets):
                return
            rows[number] = sets[number].rows()
            row = next(rows[number])
        yield (number, *row)
