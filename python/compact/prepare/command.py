# SPDX-License-Identifier: Apache-2.0
"""python -m compact.prepare: a data set that `datasets` reads, as tokens of a tokenizer that `transformers` loads, in a
folder that `compact train --train_file FOLDER` trains on."""
import argparse
import fnmatch
import glob
import hashlib
import json
import os
import sys
import tempfile

from .forms import form_of
from .refusal import Refusal, require
from .token_file import TokenFile, tokenizer_hash
from .tokens import Reader, cut, stops_of

LOADERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".arrow": "arrow", ".txt": "text"}  # fmt: skip
TOKENIZER_FILES = ("tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "*.model",
                   "*.tiktoken", "chat_template*", "spiece*", "sentencepiece*")  # fmt: skip
CARD, TOKENS = "prepared.json", "samples.tokens"  # compact/data/tokenizers/prepared_folder.h


def arguments(given):
    parser = argparse.ArgumentParser("python -m compact.prepare", description=__doc__)
    add = parser.add_argument
    add("--data", nargs="+", required=True, metavar="FILE", help="files (.jsonl, .json, .csv, .tsv, .parquet, .arrow, .txt, compressed ones too), a folder of save_to_disk, or a name of the hub")  # fmt: skip
    add("--name", help="configuration of a data set of the hub")
    add("--split", help="of a data set that has several (default: train)")
    add("--tokenizer", required=True, metavar="DIR", help="folder of a tokenizer that transformers loads, or a name of the hub")  # fmt: skip
    add("--output", required=True, metavar="DIR", help="folder to write")
    add("--chat_template", metavar="FILE", help="a Jinja template instead of the tokenizer's own")
    add("--train_on", choices=("assistant", "completion", "all"), help="tokens with a loss: every turn of the assistant (of chats the default), the completion or last such turn (of prompts), all (of text)")  # fmt: skip
    add("--max_length", type=int, help="tokens of a sample; the program's --block_size and one more; default: no limit")
    add("--truncation", choices=("end", "start", "drop"), default="end", help="what longer samples lose: their end, the start of the prompt, or themselves")  # fmt: skip
    add("--num_proc", type=int, help="processes")
    add("--overwrite", action="store_true", help="replace what an earlier call wrote into the folder")
    options = parser.parse_args(given)
    if options.max_length is not None and options.max_length < 2:
        parser.error(f"--max_length must be at least 2, is {options.max_length}")
    options.given = [f"--{name}" for name in ("name", "split") if getattr(options, name) is not None]
    options.split = options.split or "train"
    return options


def loader_of(path):
    stem = path
    for ending in (".gz", ".xz", ".zst", ".bz2"):
        stem = stem.removesuffix(ending)
    kind = os.path.splitext(stem)[1]
    require(kind in LOADERS, f"{path}: must end with one of {', '.join(LOADERS)}, or be a folder of save_to_disk")
    return LOADERS[kind], ({"sep": "\t"} if kind == ".tsv" else {})


def load(options):
    import datasets

    paths = options.data
    if len(paths) == 1 and os.path.isdir(paths[0]):
        if not any(os.path.isfile(os.path.join(paths[0], f)) for f in ("state.json", "dataset_dict.json")):
            return datasets.load_dataset(paths[0], options.name, split=options.split)
        found = datasets.load_from_disk(paths[0])
        if isinstance(found, datasets.DatasetDict):
            require(options.split in found, f"--split must be one of {', '.join(found)}, is {options.split}")
            found = found[options.split]
        return found
    if len(paths) == 1 and not os.path.exists(paths[0]) and "." not in os.path.basename(paths[0]):
        return datasets.load_dataset(paths[0], options.name, split=options.split)
    for path in paths:
        require(os.path.isfile(path), f"{path}: there is no such file")
    require(not options.given, f"{' and '.join(options.given)}: a file is one split, and is read whole")
    kinds = {loader_of(path)[0] for path in paths}
    require(len(kinds) == 1, f"--data must be files of one kind, are {', '.join(sorted(kinds))}")
    kind, more = loader_of(paths[0])
    if kind == "text":
        more = {"sample_by": "document"}
    if kind == "csv":
        more["keep_default_na"] = False
    return datasets.load_dataset(kind, data_files=[glob.escape(path) for path in paths], split="train", **more)


def tokenizer_files(options, tokenizer):
    """The tokenizer's files as they are; of one of the hub those that transformers writes."""
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
    if options.chat_template:
        files["chat_template.jinja"] = tokenizer.chat_template.encode()
    return files


class Rows:
    """The function that map() calls: a row's tokens, which of them are learnt, and whether it was cut."""

    def __init__(self, reader, form, options, where):
        self.reader, self.options, self.where = reader, options, where
        self.form = form

    def tokens_of(self, row):
        name, function = form_of(self.form)
        sample, on = function(row), self.options["train_on"]
        if name == "text":
            ids = self.reader.text(sample.completion)
            return ids, [True] * len(ids)
        if sample.prompt is not None:
            ids, learnt = self.reader.pair(sample.prompt, sample.completion)
        else:
            ids, learnt = self.reader.chat(sample.messages, sample.begin, sample.tools, on == "completion")
        return ids, [True] * len(ids) if on == "all" else learnt

    def __call__(self, row, number):
        try:
            ids, learnt = self.tokens_of(row)
        except Refusal as refusal:
            raise Refusal(f"{self.where}: row {number + 1}: {refusal}") from None
        if self.options["text"]:
            return {"ids": ids, "learnt": [], "what": ""}
        ids, learnt, what = cut(ids, learnt, self.options["max_length"], self.options["truncation"], self.reader.begin)
        return {"ids": ids, "learnt": learnt, "what": what}


def code_hash():
    """One hash for all that makes tokens: `datasets` keeps what it made of the same rows by what is given to it alone."""
    import tokenizers
    import transformers

    digest = hashlib.sha256(f"{transformers.__version__} {tokenizers.__version__}".encode())
    for path in sorted(glob.glob(os.path.join(glob.escape(os.path.dirname(os.path.abspath(__file__))), "*.py"))):
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def check_output(options):
    """Names of the files of an earlier call, which are replaced."""
    there = os.path.isdir(options.output) and set(os.listdir(options.output)) - {f"{TOKENS}.part", f".{CARD}"}
    ours = there and CARD in there
    require(not there or (ours and options.overwrite), f"{options.output}: is not empty" + ("; --overwrite replaces it" if ours else ""))  # fmt: skip
    if not there:
        return []
    try:
        with open(os.path.join(options.output, CARD), encoding="utf-8") as file:
            names = json.load(file)["tokenizer"]["files"]
    except (ValueError, KeyError, TypeError):
        raise Refusal(f"{os.path.join(options.output, CARD)}: is no card of an earlier call") from None
    return [CARD, TOKENS, *map(os.path.basename, names)]  # the card first: without it there is no folder


def prepare(options):
    import datasets
    import transformers

    where = options.data[0] + (" and more" if len(options.data) > 1 else "")
    rows = load(options)
    name, _ = form_of(rows.column_names)
    chat = name in ("messages", "sharegpt", "alpaca") or (
        name == "prompt-completion" and len(rows) > 0 and not isinstance(rows[0]["prompt"], str)
    )
    default = "all" if name == "text" else "assistant" if chat else "completion"
    train_on = options.train_on or default
    require(name != "text" or train_on == "all", f"--train_on {train_on}: a text has no {train_on}, only all of it")
    require(chat or train_on != "assistant", "--train_on assistant: a prompt and its completion have no roles: completion or all")  # fmt: skip
    require(name != "text" or not options.max_length, "--max_length: text is trained on in blocks of --block_size, whole")
    earlier = check_output(options)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.tokenizer)
    if options.chat_template:
        with open(options.chat_template, encoding="utf-8") as file:
            tokenizer.chat_template = file.read()
    reader = Reader(tokenizer, stops_of(options.tokenizer))
    files = tokenizer_files(options, tokenizer)
    require(files, f"{options.tokenizer}: has no file of a tokenizer")
    settings = {"train_on": train_on, "max_length": options.max_length, "truncation": options.truncation, "text": name == "text", "code": code_hash()}  # fmt: skip
    kinds = {"ids": [datasets.Value("int64")], "learnt": [datasets.Value("bool")], "what": datasets.Value("string")}
    made = rows.map(Rows(reader, rows.column_names, settings, where), with_indices=True, num_proc=options.num_proc,
                    remove_columns=rows.column_names, features=datasets.Features(kinds), desc="tokens")  # fmt: skip
    os.makedirs(options.output, exist_ok=True)
    out = TokenFile(os.path.join(options.output, TOKENS), reader.vocabulary, reader.ends[0], tokenizer_hash(files), f"prepared:file={CARD}", name != "text")  # fmt: skip
    counts = {"rows": len(rows), "samples": 0, "cut": 0, "dropped": 0, "tokens": 0, "targets": 0}
    for row in made.with_format("numpy"):
        counts["samples"] += row["what"] != "dropped"
        if row["what"]:
            counts[str(row["what"])] += 1
        counts["targets"] += len(row["ids"]) if name == "text" else int(row["learnt"][1:].sum())
        out.append(row["ids"], row["learnt"])
    counts["tokens"] = out.count
    require(counts["samples"], f"{where}: no sample is left of {counts['rows']}")
    for old in earlier:
        if os.path.exists(os.path.join(options.output, old)):
            os.remove(os.path.join(options.output, old))
    out.finish()
    for file_name, data in files.items():
        with open(os.path.join(options.output, file_name), "wb") as file:
            file.write(data)
    card = {"data": options.data, "split": options.split, "form": name, **{k: settings[k] for k in ("train_on", "max_length", "truncation")}, "counts": counts,
            "tokenizer": {"name": options.tokenizer, "vocabulary": reader.vocabulary, "ends": reader.ends, "begin": reader.begin, "files": sorted(files)},
            "versions": {"transformers": transformers.__version__}}  # fmt: skip
    part = os.path.join(options.output, f".{CARD}")
    with open(part, "w", encoding="utf-8") as file:
        json.dump(card, file, indent=2, ensure_ascii=False)
    os.replace(part, os.path.join(options.output, CARD))
    return card


def main(given=None):
    options = arguments(given)
    try:
        import datasets  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        print(f"compact.prepare: needs {error.name}: `pip install datasets transformers`", file=sys.stderr)
        return 1
    try:
        card = prepare(options)
    except (Refusal, OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        print(f"compact.prepare: {error}", file=sys.stderr)
        return 1
    counts = card["counts"]
    print(f"{options.output}: {counts['samples']:,} samples of {counts['rows']:,} rows ({card['form']}), {counts['tokens']:,} tokens, {counts['targets']:,} with a loss")  # fmt: skip
    for what, said in (("cut", f"lost tokens to have at most {options.max_length}"), ("dropped", "have no token to learn, or were too long: dropped")):  # fmt: skip
        if counts[what]:
            print(f"warning: {counts[what]:,} rows {said}")
    print(f"compact train --train_file {options.output}" + ("" if card["form"] == "text" else " --task prompt-completion") + " ...")  # fmt: skip
    return 0
