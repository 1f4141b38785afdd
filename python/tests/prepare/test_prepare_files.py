# SPDX-License-Identifier: Apache-2.0
"""compact.prepare: kinds of files, larger than memory as well, data sets of the hub, and their mixing."""
import bz2
import gzip
import json
import lzma
import os
import pathlib
import subprocess
import sys

from _preparing import CHATML, messages_of, own_cache, prepared, refused, samples_of, TALKS, tokenizer, write  # noqa: F401 - a fixture for all tests
import datasets
import pyarrow.parquet
import tokenizers
import transformers

from compact.prepare.command import main


def test_kinds_of_files_give_the_same_bytes(tmp_path):
    tokenizer(tmp_path / "tok", CHATML)
    rows = [{"messages": messages_of(t)} for t in TALKS]
    table = datasets.Dataset.from_list(rows)
    table.to_parquet(tmp_path / "a.parquet")
    table.save_to_disk(tmp_path / "disk")
    (tmp_path / "a.json").write_text(json.dumps(rows))
    want = (prepared(tmp_path, write(tmp_path / "a.jsonl", rows)) / "samples.tokens").read_bytes()
    for name in ("a.parquet", "disk", "a.json"):
        assert (prepared(tmp_path, tmp_path / name) / "samples.tokens").read_bytes() == want, name
    two = prepared(tmp_path, tmp_path / "a.parquet", "--num_proc", "2")
    assert (two / "samples.tokens").read_bytes() == want
    pairs = [{"prompt": "a, b", "completion": "c"}, {"prompt": "NA", "completion": "null"}]
    datasets.Dataset.from_list(pairs).to_csv(tmp_path / "a.csv", index=False)
    out = prepared(tmp_path, tmp_path / "a.csv")
    assert samples_of(out) == samples_of(prepared(tmp_path, write(tmp_path / "p.jsonl", pairs)))


def test_numbers_in_columns_are_texts_and_files_may_be_packed(tmp_path):
    tokenizer(tmp_path / "tok")
    pairs = [{"prompt": f"{a} + {a} = ", "completion": str(2 * a)} for a in range(700)]
    want = samples_of(prepared(tmp_path, write(tmp_path / "a.jsonl", pairs)))
    lines = (tmp_path / "a.jsonl").read_bytes()
    table = datasets.Dataset.from_list(pairs)
    table.to_csv(tmp_path / "a.csv", index=False)
    (tmp_path / "a.tsv").write_text("".join(f"{p['prompt']}\t{p['completion']}\n" for p in [{"prompt": "prompt", "completion": "completion"}, *pairs]))
    (tmp_path / "a.json").write_text(f" [{', '.join(map(json.dumps, pairs))} ]\n")
    (tmp_path / "lines.json").write_bytes(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines[:100]) + gzip.compress(lines[100:]))
    (tmp_path / "b.jsonl.xz").write_bytes(lzma.compress(lines))
    (tmp_path / "b.jsonl.bz2").write_bytes(bz2.compress(lines))
    (tmp_path / "b.jsonl.zst").write_bytes(pyarrow.compress(lines, "zstd", asbytes=True))
    with pyarrow.OSFile(str(tmp_path / "file.arrow"), "wb") as file, pyarrow.ipc.new_file(file, table.data.table.schema) as out:
        out.write_table(table.data.table)
    table.save_to_disk(tmp_path / "disk")
    (tmp_path / "folder").mkdir()
    table.to_parquet(tmp_path / "folder/train-00000-of-00001.parquet")
    for name in ("folder", "a.csv", "a.tsv", "a.json", "lines.json", "b.jsonl.gz", "b.jsonl.xz", "b.jsonl.bz2", "b.jsonl.zst", "file.arrow", "disk", "disk/*.arrow"):
        assert samples_of(prepared(tmp_path, tmp_path / name)) == want, name


def test_data_sets_are_mixed_by_weights(tmp_path, capsys):
    tokenizer(tmp_path / "tok", CHATML)
    names = {letter: write(tmp_path / f"{letter}.jsonl", [{"messages": messages_of([("user", letter), ("assistant", f"{letter}{i}")])} for i in range(n)])
             for letter, n in (("a", 300), ("b", 40))}  # fmt: skip
    pairs = write(tmp_path / "c.jsonl", [{"prompt": "c", "completion": f"c{i}"} for i in range(20)])

    def mixed(*more, data=("a", "b")):
        out = tmp_path / f"mixed{len(list(tmp_path.iterdir()))}"
        given = [str(names.get(name, name)) for name in data]
        assert main(["--data", *given, "--tokenizer", str(tmp_path / "tok"), "--output", str(out), *more]) == 0
        return out, json.loads((out / "prepared.json").read_text())

    joined, card = mixed()
    whole = samples_of(joined)
    assert whole == samples_of(prepared(tmp_path, names["a"])) + samples_of(prepared(tmp_path, names["b"]))
    assert [each["samples"] for each in card["sets"]] == [300, 40] and "mixing" not in card
    first, card = mixed("--weights", "7", "3")
    a, b = (each["rows"] for each in card["sets"])
    assert b == 40 and abs(a / (a + b) - 0.7) < 0.1 and a < 300
    assert card["mixing"] == {"weights": [7.0, 3.0], "seed": 42, "stopping_strategy": "first_exhausted"}
    for name in ("samples", "tokens", "targets"):
        assert sum(each[name] for each in card["sets"]) == card["counts"][name]
    samples = samples_of(first)
    assert sorted(map(str, samples)) == sorted(map(str, whole[:a] + whole[300:]))  # each row at most once,
    assert [s for s in samples if s in whole[:300]] == whole[:a]  # of a set in its order
    same, _ = mixed("--weights", "0.7", "0.3", "--num_proc", "2")
    assert (same / "samples.tokens").read_bytes() == (first / "samples.tokens").read_bytes()
    other, _ = mixed("--weights", "7", "3", "--seed", "1")
    assert samples_of(other) != samples
    _, card = mixed("--weights", "1", "1", "--stopping_strategy", "all_exhausted")
    assert min(each["rows"] for each in card["sets"]) >= 300 and {each["rows"] for each in card["sets"]} >= {300}
    _, card = mixed("--weights", "1", "1", data=("b", pairs))
    assert card["form"] == "messages, prompt-completion" and card["train_on"] == "assistant, completion"
    text = write(tmp_path / "t.jsonl", [{"text": "x"}])
    call = ["--tokenizer", str(tmp_path / "tok"), "--output", str(tmp_path / "no"), "--data", str(names["a"])]
    for more, rule in (
        ([str(names["b"]), "--weights", "1"], "--weights must be one for each of --data, 2, are 1"),
        ([str(names["b"]), "--weights", "1", "0"], "--weights must be above 0, are 1.0 0.0"),
        ([str(names["b"]), "--weights", "1", "nan"], "--weights must be above 0, are 1.0 nan"),
        ([str(text), "--weights", "1", "1"], "t.jsonl: text and samples are for two tasks"),
        ([str(pairs), "--train_on", "assistant"], "c.jsonl: line 1: --train_on assistant: a prompt and its completion have no roles"),
        ([str(tmp_path / "z*.jsonl")], "the pattern matches no file"),
    ):
        capsys.readouterr()
        try:
            assert main([*call, *more]) == 1
        except SystemExit as error:
            assert error.code == 2
        assert rule in capsys.readouterr().err
        assert not (tmp_path / "no").exists() and not (tmp_path / "no.part").exists()


def test_names_of_the_hub_may_have_dots(tmp_path, monkeypatch, capsys):
    tokenizer(tmp_path / "tok", CHATML)
    rows, asked = [{"messages": messages_of(TALKS[0])}], []

    def load(name, configuration, split, streaming):
        asked.append((name, configuration, split, streaming))
        return datasets.Dataset.from_list(rows)

    monkeypatch.setattr(datasets, "load_dataset", load)
    out = prepared(tmp_path, "teknium/OpenHermes-2.5")
    assert samples_of(out) == samples_of(prepared(tmp_path, write(tmp_path / "a.jsonl", rows)))
    assert set(asked) == {("teknium/OpenHermes-2.5", None, "train", True)}
    for name in ("no/file.json", "no/file.txt.gz", "file.zst", "./name", "/no/name", "a/b/c", "a b"):
        assert f"{name}: there is no such file" in refused(capsys, tmp_path, name)


LONG_MIB, BOUND_MIB = 420, 128


def test_a_file_larger_than_memory_is_streamed(tmp_path):
    """Parquet in one row group, and lines of JSON: no more than BOUND_MIB above what a small file takes"""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "</s>": 1, "word": 2}, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", unk_token="<unk>").save_pretrained(tmp_path / "tok")
    row = {"text": "word " * 64, "source": "x" * 8000}  # most is not tokenized, so that it is quick
    count = LONG_MIB * 2**20 // len("".join(row.values()))
    schema = pyarrow.schema([(name, pyarrow.string()) for name in row])
    for name, rows in (("small", 10), ("large", count)):
        with pyarrow.parquet.ParquetWriter(tmp_path / f"{name}.parquet", schema, compression="none", use_dictionary=False, write_batch_size=64) as out:
            out.write_table(pyarrow.table({k: pyarrow.array([v]).take(pyarrow.array([0] * rows)) for k, v in row.items()}), row_group_size=rows)
        with open(tmp_path / f"{name}.jsonl", "w") as out:
            out.writelines([json.dumps(row) + "\n"] * rows)

    def peak(name, *more):
        code = (
            "import sys; from compact.prepare.command import main; assert main(sys.argv[1:]) == 0; "
            "import resource; own = [line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0]; "
            "print(max(int(own), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))"
        )
        call = ["--data", tmp_path / name, "--tokenizer", tmp_path / "tok", "--output", tmp_path / f"{name}-out", *more]
        env = os.environ | {"HF_DATASETS_CACHE": str(tmp_path / "c")}
        done = subprocess.run([sys.executable, "-c", code, *map(str, call)], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return int(done.stdout.splitlines()[-1]) / 1024

    for name, *more in (("large.parquet", "--num_proc", "2"), ("large.jsonl",)):
        assert pathlib.Path(tmp_path / name).stat().st_size > 3 * BOUND_MIB * 2**20
        assert peak(name, *more) - peak(name.replace("large", "small"), *more) < BOUND_MIB, name
        assert samples_of(tmp_path / f"{name}-out") == ([2] * 64 + [1]) * count
