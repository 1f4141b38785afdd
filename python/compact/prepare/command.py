# SPDX-License-Identifier: Apache-2.0
"""python -m compact.prepare: data sets, as tokens of a tokenizer that `transformers` loads, in a folder that
`compact train --train_file FOLDER` trains on; what is interrupted goes on where it was when it is called again. Images become
an archive, --output NAME.tar."""
import argparse
import fcntl
import fnmatch
import glob
import hashlib
import importlib
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from itertools import islice

from .forms import form_of, sample_of, train_on_of
from .images import write_images
from .refusal import Refusal, require
from .sources import DataSet, mixed
from .token_file import PAIRS, SAMPLES, TEXT, TokenFile, tokenizer_hash
from .tokens import Reader, stops_of
from .work import COUNTS, Rows, worked

TOKENIZER_FILES = ("tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "*.model",
                   "*.tiktoken", "chat_template*", "spiece*", "sentencepiece*")  # fmt: skip
CARD, TOKENS = "prepared.json", "samples.tokens"  # compact/data/tokenizers/prepared_folder.h
JOURNAL = "journal.json"  # how far an interrupted call was
KINDS = {"preference": (PAIRS, "pairs", " --task preference"), "text": (TEXT, "text", "")}  # by form: versions, names, tasks
OTHER_KIND = (SAMPLES, "samples", " --task prompt-completion")
FOR_BOTH = ("data", "name", "split", "output", "overwrite", "images")  # options of text and of images
SAVED_EVERY = 5.0  # seconds


def arguments(given):
    parser = argparse.ArgumentParser("python -m compact.prepare", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--data", "--input", nargs="+", metavar="FILE", help="data sets, each a file or pattern (.jsonl, .json, .csv, .tsv, .parquet, .arrow, .txt, compressed ones too), a folder of save_to_disk or of files, or a name of the hub")  # fmt: skip
    add("--weights", nargs="+", type=float, metavar="X", help="each row is drawn from a data set by these weights; default: one set after another")  # fmt: skip
    add("--stopping_strategy", choices=("first_exhausted", "all_exhausted"), default="first_exhausted", help="draw until one set is used up, or until each was, where those that are begin again")  # fmt: skip
    add("--seed", type=int, default=42, help="of the drawing (default: 42)")
    add("--name", help="configuration of a data set of the hub")
    add("--split", help="of a data set that has several (default: train)")
    add("--tokenizer", metavar="DIR", help="folder of a tokenizer that transformers loads, or a name of the hub; needed but for images")  # fmt: skip
    add("--output", required=True, metavar="DIR", help="folder to write; a NAME.tar is an archive of images")
    add("--image_column", help="of images (default: the only one that has some)")
    add("--label_column", help="of the classes of images, names or numbers (default: the only one)")
    add("--chat_template", metavar="FILE", help="a Jinja template instead of the tokenizer's own")
    add("--train_on", choices=("assistant", "completion", "all"), help="tokens with a loss: every turn of the assistant (of chats the default), the completion or last such turn (of prompts; both answers of a pair), all (of text)")  # fmt: skip
    add("--max_length", type=int, help="tokens of a sample; the program's --block_size and one more; default: no limit")
    add("--truncation", choices=("end", "start", "drop"), default="end", help="what longer samples lose: their end, the start of the prompt, or themselves")  # fmt: skip
    add("--num_proc", type=int, default=1, help="processes (default: 1); the result is the same")
    add("--overwrite", action="store_true", help="replace what an earlier call wrote into the folder")
    add("--turns", metavar="FILE", help="instead of data: writes the ids of a prompt, what a user says or messages as JSON, to the file --output")  # fmt: skip
    options = parser.parse_args(given)
    if bool(options.data) == bool(options.turns):
        parser.error("--data is needed, or --turns")
    options.images = options.output.endswith(".tar") and not options.turns
    if not options.images and options.tokenizer is None:
        parser.error("--tokenizer is needed, or for images --output NAME.tar")
    for name, value in vars(options).items():
        of_images = name in ("image_column", "label_column")
        if name not in FOR_BOTH and of_images != options.images and value != parser.get_default(name):
            parser.error(f"--{name} is for " + ("images, whose --output is a NAME.tar" if of_images else "text, whose --output is a folder"))
    if options.max_length is not None and options.max_length < 2:
        parser.error(f"--max_length must be at least 2, is {options.max_length}")
    if options.num_proc < 1:
        parser.error(f"--num_proc must be at least 1, is {options.num_proc}")
    if options.weights:
        if len(options.weights) != len(options.data):
            parser.error(f"--weights must be one for each of --data, {len(options.data)}, are {len(options.weights)}")
        if not all(math.isfinite(w) and w > 0 for w in options.weights):
            parser.error(f"--weights must be above 0, are {' '.join(map(str, options.weights))}")
    options.output = os.path.normpath(options.output)
    if os.path.basename(options.output) in (".", ".."):
        options.output = os.path.abspath(options.output)
    return options


def opened_tokenizer(options):
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(options.tokenizer)
    if options.chat_template:
        with open(options.chat_template, encoding="utf-8") as file:
            tokenizer.chat_template = file.read()
    return tokenizer


def tokenizer_files(options, tokenizer):
    """The tokenizer's files as they are; of one of the hub those that transformers writes. Templates of a folder of
    their own are put into tokenizer_config.json, where transformers reads them too: the program takes names alone."""
    files = {}
    with tempfile.TemporaryDirectory() as saved:
        folder = options.tokenizer
        if not os.path.isdir(folder):
            folder = saved
            tokenizer.save_pretrained(folder)
        for name in sorted(os.listdir(folder)):
            if any(fnmatch.fnmatch(name, p) for p in TOKENIZER_FILES) and os.path.isfile(os.path.join(folder, name)):
                with open(os.path.join(folder, name), "rb") as file:
                    files[name] = file.read()
        several = glob.glob(os.path.join(glob.escape(folder), "additional_chat_templates", "*.jinja"))
    if several and not options.chat_template:
        config = json.loads(files.get("tokenizer_config.json", b"{}"))
        found = tokenizer.chat_template
        config["chat_template"] = [{"name": n, "template": t} for n, t in sorted(found.items())] if isinstance(found, dict) else found
        files["tokenizer_config.json"] = json.dumps(config, indent=2, ensure_ascii=False).encode()
        files.pop("chat_template.jinja", None)
    if options.chat_template:
        files["chat_template.jinja"] = tokenizer.chat_template.encode()
    return files


def code_hash():
    """One hash for all that makes tokens."""
    import tokenizers
    import transformers

    digest = hashlib.sha256(f"{transformers.__version__} {tokenizers.__version__}".encode())
    for path in sorted(glob.glob(os.path.join(glob.escape(os.path.dirname(os.path.abspath(__file__))), "*.py"))):
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def check_output(options):
    """Nothing but what an earlier call wrote is replaced."""
    require(os.path.isdir(options.output) or not os.path.lexists(options.output), f"{options.output}: must be a folder, is a file")
    there = set(os.listdir(options.output)) if os.path.isdir(options.output) else set()
    require(not there or (CARD in there and options.overwrite), f"{options.output}: is not empty" + ("; --overwrite replaces it" if CARD in there else ""))  # fmt: skip
    if there:
        card = os.path.join(options.output, CARD)
        try:
            with open(card, encoding="utf-8") as file:
                there -= {CARD, TOKENS, JOURNAL, *json.load(file)["tokenizer"]["files"]}
        except (ValueError, KeyError, TypeError):
            raise Refusal(f"{card}: is no card of an earlier call") from None
        require(not there, f"{options.output}: has files of others, which --overwrite would remove: {', '.join(sorted(there))}")


def read_first(options):
    """The data sets, and of each its form and what has a loss in it, by its first row."""
    sets, forms = [DataSet(name, options.name, options.split) for name in options.data], []
    for one in sets:
        with closing(one.rows()) as rows:
            place, row = next(rows, (None, None))
        require(row is not None, f"{one.name}: there is no row")
        try:
            form = form_of(row)
            on = train_on_of(form, row, options.train_on)
            require(form != "text" or not options.max_length, "--max_length: text is trained on in blocks of --block_size, whole")
        except Refusal as refusal:
            raise Refusal(f"{place}: {refusal}") from None
        forms.append((form, on))
        kinds = sorted({KINDS.get(form, OTHER_KIND) for form, _ in forms}, key=lambda kind: kind[0] % PAIRS)  # pairs, text, samples
        require(len(kinds) == 1, f"{one.name}: {' and '.join(name for _, name, _ in kinds)} are for two tasks, one folder cannot hold both")
    return sets, forms


class Job:
    """The folder that becomes the output, and how much of it is done."""

    def __init__(self, folder, key, sets):
        os.makedirs(folder, exist_ok=True)
        there = os.listdir(folder)
        require(not there or JOURNAL in there, f"{folder}: is not empty, and is where the output is made: name another --output")
        self.folder, self._key, self.lock = folder, key, os.open(folder, os.O_RDONLY)
        self.done = {"rows": 0, "ids": 0, "counts": [dict.fromkeys(COUNTS, 0) for _ in range(sets)]}
        self._saved = time.monotonic()
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise Refusal(f"{folder}: is being written by another process") from None
        try:
            with open(self.path(JOURNAL), encoding="utf-8") as file:
                found = json.load(file)
        except (OSError, ValueError):
            found = {"key": None}
        if key is not None and found.pop("key") == key and os.path.exists(self.path(f"{TOKENS}.part")):
            self.done = found
            return
        self._write()
        for name in set(there) - {JOURNAL}:
            os.remove(self.path(name))

    def path(self, name):
        return os.path.join(self.folder, name)

    def add(self, out, ids, counts):
        out.append(ids)
        self.done = {
            "rows": self.done["rows"] + sum(c["rows"] for c in counts),
            "ids": out.count,
            "counts": [{name: a[name] + b[name] for name in COUNTS} for a, b in zip(self.done["counts"], counts)],
        }
        if time.monotonic() - self._saved >= SAVED_EVERY:
            self.save(out)

    def save(self, out):
        out.flush()
        self._write()

    def _write(self):
        with open(self.path(f".{JOURNAL}"), "w", encoding="utf-8") as file:
            json.dump({"key": self._key, **self.done}, file)
        os.replace(self.path(f".{JOURNAL}"), self.path(JOURNAL))
        self._saved = time.monotonic()

    def finish(self, output):
        """The folder takes the place of the output."""
        at, name = os.path.split(output)
        aside = tempfile.mkdtemp(prefix=f"{name}.before-", dir=at or ".")
        before = os.path.join(aside, name)
        try:
            if os.path.lexists(output):
                os.rename(output, before)
            os.rename(self.folder, output)
            os.remove(os.path.join(output, JOURNAL))
        finally:
            if os.path.lexists(before) and not os.path.lexists(output):
                os.rename(before, output)
            shutil.rmtree(aside, ignore_errors=True)

    def close(self):
        os.close(self.lock)


def prepare(options):
    import transformers

    check_output(options)
    sets, forms = read_first(options)
    tokenizer = opened_tokenizer(options)
    reader = Reader(tokenizer, stops_of(options.tokenizer))
    files = tokenizer_files(options, tokenizer)
    require(files, f"{options.tokenizer}: has no file of a tokenizer")
    settings = {"max_length": options.max_length, "truncation": options.truncation}
    mixing = options.weights and {"weights": options.weights, "seed": options.seed, "stopping_strategy": options.stopping_strategy}
    states = [one.state() for one in sets]
    key = None if None in states else hashlib.sha256(
        json.dumps(
            [states, forms, options.train_on, settings, mixing, options.name, options.split, reader.ends, tokenizer_hash(files), code_hash()]
        ).encode()
    ).hexdigest()  # fmt: skip
    with closing(Job(f"{options.output}.part", key, len(sets))) as job:
        write_tokens(options, job, sets, Rows(reader, [form for form, _ in forms], options.train_on, **settings), tokenizer_hash(files))
        for file_name, data in files.items():
            with open(job.path(file_name), "wb") as file:
                file.write(data)
        done = job.done["counts"]
        each = [{"data": one.name, "form": form, "train_on": on, **count} for one, (form, on), count in zip(sets, forms, done)]  # fmt: skip
        card = {"data": options.data, "split": options.split, **({"mixing": mixing} if mixing else {}),
                "form": ", ".join(sorted({form for form, _ in forms})), "train_on": ", ".join(sorted({on for _, on in forms})), **settings,
                "counts": summed(done), "sets": each,
                "tokenizer": {"name": options.tokenizer, "vocabulary": reader.vocabulary, "ends": reader.ends, "begin": reader.begin, "files": sorted(files)},
                "versions": {"transformers": transformers.__version__}}  # fmt: skip
        with open(job.path(CARD), "w", encoding="utf-8") as file:
            json.dump(card, file, indent=2, ensure_ascii=False)
        job.finish(options.output)
    return card


def summed(counts):
    return {name: sum(c[name] for c in counts) for name in COUNTS}


def write_tokens(options, job, sets, work, files_hash):
    from tqdm import tqdm

    reader, version = work.reader, KINDS.get(work.forms[0], OTHER_KIND)[0]
    out = TokenFile(job.path(TOKENS), reader.vocabulary, reader.ends[0], files_hash, f"prepared:file={CARD}", version, job.done["ids"])  # fmt: skip
    if job.done["rows"]:
        print(f"{options.output}: goes on after {job.done['rows']:,} rows", flush=True)
    rows = islice(mixed(sets, options.weights, options.seed, options.stopping_strategy == "all_exhausted"), job.done["rows"], None)
    bar = tqdm(total=len(sets), disable=None, bar_format="{percentage:3.0f}%|{bar}|{postfix} [{elapsed}<{remaining}]")
    try:
        with bar, closing(worked(rows, work, options.num_proc, job.lock)) as made:
            for ids, counts in made:
                job.add(out, ids, counts)
                bar.set_postfix_str(f"{job.done['rows']:,} rows, {out.count:,} tokens", refresh=False)
                bar.update(min(sum(one.part for one in sets), len(sets)) - bar.n)
        counts = summed(job.done["counts"])
        require(counts["samples"], f"{', '.join(options.data)}: no sample is left of {counts['rows']:,}")
    except Refusal:  # the data will be others
        shutil.rmtree(job.folder)
        raise
    except BaseException:
        job.save(out)
        raise
    out.finish()


def write_prompt(options):
    """The ids of --turns, with what asks for an answer, as JSON; `compact generate --chat` reads them."""
    with open(options.turns, encoding="utf-8") as file:
        said = file.read()
    try:
        turns = json.loads(said)
    except ValueError:
        turns = None
    if isinstance(turns, list) and turns and all(isinstance(m, dict) for m in turns):
        turns = {"messages": turns}
    if not isinstance(turns, dict) or not {"messages", "conversations"} & set(turns):
        turns = {"messages": [{"role": "user", "content": said}]}
    sample = sample_of(form_of({"messages", "conversations"} & set(turns)), turns)
    ids = Reader(opened_tokenizer(options), stops_of(options.tokenizer)).asked(sample.messages, sample.tools)
    with open(options.output, "w", encoding="utf-8") as file:
        json.dump(ids, file)


def _interrupt(*_):
    raise KeyboardInterrupt


def main(given=None):
    options = arguments(given)
    before = signal.signal(signal.SIGTERM, _interrupt)  # ends as Ctrl-C does
    try:
        return run(options)
    finally:
        signal.signal(signal.SIGTERM, before)


def run(options):
    try:
        for package in ("datasets", "PIL") if options.images else ("pyarrow", "transformers"):
            importlib.import_module(package)
    except ImportError as error:
        print(f"compact.prepare: needs {error.name}: `pip install datasets {'pillow' if options.images else 'transformers'}`", file=sys.stderr)
        return 1
    if options.num_proc > 1:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        if options.turns:
            write_prompt(options)
            return 0
        if options.images:
            write_images(options)
            return 0
        card = prepare(options)
    except (Refusal, OSError, ValueError, ImportError) as error:
        print(f"compact.prepare: {error}", file=sys.stderr)
        return 1
    except BrokenProcessPool:
        print("compact.prepare: a process of --num_proc was ended from outside (no memory left?); the same call goes on where this one was", file=sys.stderr)  # fmt: skip
        return 1
    except KeyboardInterrupt:
        print("compact.prepare: interrupted" + ("" if options.images else "; the same call goes on where this one was"), file=sys.stderr)
        return 130
    counts = card["counts"]
    kind = KINDS.get(card["form"], OTHER_KIND)
    for name, each in ((options.output, counts | {"form": card["form"]}), *((f"  {s['data']}", s) for s in card["sets"] if len(card["sets"]) > 1)):
        made = f"{each['pairs']:,} pairs" if kind[0] == PAIRS else f"{each['samples']:,} samples"
        print(f"{name}: {made} of {each['rows']:,} rows ({each['form']}), {each['tokens']:,} tokens, {each['targets']:,} with a loss")
    for what, said in (("cut", f"lost tokens to have at most {options.max_length}"), ("dropped", "have no token to learn, or were too long: dropped"),
                       ("equal", "have the same tokens chosen and rejected, which teach nothing: left out")):  # fmt: skip
        if counts[what]:
            print(f"warning: {counts[what]:,} rows {said}")
    print(f"compact train --train_file {options.output}{kind[2]} ...")
    return 0
