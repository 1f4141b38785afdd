# SPDX-License-Identifier: Apache-2.0
"""compact.prepare: forms of data, masks under templates as models have them, cutting, and what is refused."""
import json
import os
import struct

import pytest

pytest.importorskip("datasets")
import datasets  # noqa: E402
import tokenizers  # noqa: E402
import transformers  # noqa: E402

from compact.prepare.command import main  # noqa: E402

datasets.disable_progress_bars()
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "qwen2.5": (
        "{% if tools %}{{ '<|im_start|>system\nTools: ' + tools | tojson + '<|im_end|>\n' }}"
        "{% elif messages[0].role != 'system' %}{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}" + CHATML
    ),
    "llama3": (
        "{% for m in messages %}{% if loop.first %}{{ '<|begin_of_text|>' }}{% endif %}{{ '<|start_header_id|>' + m.role + "
        "'<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
    ),
    "gemma": (
        "{{ '<bos>' }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + "
        "m.content | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
    ),
    "phi3": (
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
    ),
    "marked": (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
}
ENDS = {"llama3": "<|eot_id|>", "gemma": "<end_of_turn>", "phi3": "<|end|>"}  # of a turn; of others <|im_end|>
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
           "<|eot_id|>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|end|>"]  # fmt: skip
TEMPLATES["tools"] = (  # calls with arguments as objects, answers of tools joined in one turn, as Qwen2.5's and Hermes'
    "{% if tools %}{{ '<|im_start|>system\n' + (messages[0].content if messages[0].role == 'system' else 'You are helpful.') }}"
    "{{ '\n<tools>' }}{% for t in tools %}{{ '\n' + t | tojson }}{% endfor %}{{ '\n</tools><|im_end|>\n' }}"
    "{% elif messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) or (m.role == 'system' and not loop.first) %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% elif m.role == 'assistant' %}{{ '<|im_start|>assistant' }}"
    "{% if m.content %}{{ '\n' + m.content }}{% endif %}{% for c in m.tool_calls %}{% if c.function is defined %}{% set c = c.function %}{% endif %}"
    "{{ '\n<tool_call>\n{\"name\": \"' + c.name + '\", \"arguments\": ' + c.arguments | tojson + '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% elif m.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TALKS = [
    [("user", "What is 2 + 3?"), ("assistant", "It is 5.")],
    [("user", "Name a bird."), ("assistant", "A wren."), ("user", "Another?"), ("assistant", "An owl,\n\nor a jay.")],
    [("user", " spaces "), ("assistant", " are kept ")],
    [("user", "日本 🙂"), ("assistant", "é")],
    [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e"), ("assistant", "f")],
]


def messages_of(talk):
    return [{"role": role, "content": content} for role, content in talk]


def tokenizer(folder, template=None, eos="<|endoftext|>"):
    words = tokenizers.Tokenizer(tokenizers.models.BPE())
    words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=420, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    words.train_from_iterator([content for talk in TALKS for _, content in talk] * 3, trainer)
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token=eos, chat_template=template)
    made.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def write(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


def samples_of(folder):
    """Ids and targets of every sample, as token_file.h has them."""
    data = (folder / "samples.tokens").read_bytes()
    version, width, count = struct.unpack_from("<IIQ", data, 8)
    (spec,) = struct.unpack_from("<I", data, 56)
    begin = (64 + spec + 63) // 64 * 64
    assert data[:8] == b"CompActT" and len(data) == begin + count * width
    ids = struct.unpack_from(f"<{count}{'I' if width == 4 else 'H'}", data, begin)
    if version == 1:
        return list(ids)
    out = []
    for token in ids:
        if token >> 30 & 1:
            out.append(([], []))
        out[-1][0].append(token & (1 << 30) - 1)
        out[-1][1].append(bool(token >> 31))
    return out


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def prepared(tmp_path, data, *more):
    out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
    assert main(["--data", str(data), "--tokenizer", str(tmp_path / "tok"), "--output", str(out), *more]) == 0
    return out


def refused(capsys, tmp_path, data, *more):
    capsys.readouterr()
    out = tmp_path / "refused"
    assert main(["--data", str(data), "--tokenizer", str(tmp_path / "tok"), "--output", str(out), *more]) == 1
    assert not (out / "prepared.json").exists()
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


@pytest.mark.parametrize("name", TEMPLATES)
def test_ids_are_those_of_the_template_and_targets_the_assistants_turns(name, tmp_path):
    read = tokenizer(tmp_path / "tok", TEMPLATES[name])
    out = prepared(tmp_path, write(tmp_path / "a.jsonl", [{"messages": messages_of(t)} for t in TALKS]))
    end = ENDS.get(name, "<|im_end|>")
    samples = samples_of(out)
    assert len(samples) == len(TALKS)
    for talk, (ids, learnt) in zip(TALKS, samples):
        assert ids == read.apply_chat_template(messages_of(talk), return_dict=True)["input_ids"]
        said = [c.strip() if name in ("llama3", "gemma") else c for role, c in talk if role == "assistant"]
        runs, before = [], False
        for token, target in zip(ids, learnt):
            if target and not before:
                runs.append([])
            if target:
                runs[-1].append(token)
            before = target
        want = [content + end for content in said]
        if name == "phi3":  # the template ends the last turn once more
            want[-1] += "\n<|endoftext|>"
        assert [read.decode(run) for run in runs] == want
    card = json.loads((out / "prepared.json").read_text())
    assert card["form"] == "messages" and card["train_on"] == "assistant"
    assert card["counts"]["samples"] == 5 and card["counts"]["tokens"] == sum(len(ids) for ids, _ in samples)
    assert card["counts"]["targets"] == sum(sum(learnt[1:]) for _, learnt in samples)
    for file in card["tokenizer"]["files"]:
        assert (out / file).read_bytes() == (tmp_path / "tok" / file).read_bytes()


def test_every_form_gives_the_same_samples(tmp_path):
    tokenizer(tmp_path / "tok", CHATML)
    pairs = [t for t in TALKS if len(t) == 2]
    want = samples_of(prepared(tmp_path, write(tmp_path / "m.jsonl", [{"messages": messages_of(t)} for t in pairs])))
    names = {"user": "human", "assistant": "gpt"}
    forms = {
        "sharegpt": [{"conversations": [{"from": names[r], "value": c} for r, c in t]} for t in pairs],
        "alpaca": [{"instruction": t[0][1], "input": "", "output": t[1][1]} for t in pairs],
        "prompt-completion": [{"prompt": messages_of(t[:1]), "completion": messages_of(t[1:])} for t in pairs],
    }
    for form, rows in forms.items():
        out = prepared(tmp_path, write(tmp_path / f"{form}.jsonl", rows))
        assert samples_of(out) == want, form
        assert json.loads((out / "prepared.json").read_text())["form"] == form


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


def test_what_is_learnt(tmp_path):
    read = tokenizer(tmp_path / "tok", CHATML)
    data = write(tmp_path / "a.jsonl", [{"messages": messages_of(t)} for t in TALKS])
    whole = samples_of(prepared(tmp_path, data, "--train_on", "all"))
    assert all(all(learnt) for _, learnt in whole)
    for marked in ("chatml", "marked"):
        template = tmp_path / f"{marked}.jinja"
        template.write_text(TEMPLATES[marked])
        out = prepared(tmp_path, data, "--train_on", "completion", "--chat_template", str(template))
        for talk, (ids, learnt) in zip(TALKS, samples_of(out)):
            assert read.decode([i for i, m in zip(ids, learnt) if m]) == talk[-1][1] + "<|im_end|>"
        assert (out / "chat_template.jinja").read_text() == TEMPLATES[marked]
    # The completion is what has a loss, not what an assistant said in the prompt.
    talk = messages_of(TALKS[1])
    out = prepared(tmp_path, write(tmp_path / "b.jsonl", [{"prompt": talk[:3], "completion": talk[3:]}]))
    ((ids, learnt),) = samples_of(out)
    assert read.decode([i for i, m in zip(ids, learnt) if m]) == TALKS[1][3][1] + "<|im_end|>"


def test_tools_reach_the_template(tmp_path):
    read = tokenizer(tmp_path / "tok", TEMPLATES["qwen2.5"])
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    talk = messages_of(TALKS[0])
    rows = [{"messages": talk, "tools": json.dumps(tools)}, {"messages": talk, "tools": ""}]
    first, second = samples_of(prepared(tmp_path, write(tmp_path / "a.jsonl", rows)))
    assert first[0] == read.apply_chat_template(talk, tools=tools, return_dict=True)["input_ids"]
    assert second[0] == read.apply_chat_template(talk, return_dict=True)["input_ids"]


ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}}


def called(*calls, content=None):
    return {"role": "assistant", "content": content, "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": a}} for a in calls]}


TOOL_TALKS = [  # arguments are objects of any keys, types and nulls; contents that are null, empty or missing
    [{"role": "user", "content": "2+3"}, called({"a": 2, "b": 3}), {"role": "tool", "content": "5"}, {"role": "assistant", "content": "5."}],
    [{"role": "system", "content": "s"}, {"role": "user", "content": "?"}, called({"a": None, "c": {"d": ["é", 1, 2.5]}}, content="Well:"),
     {"role": "tool", "content": "no"}, {"role": "assistant", "content": "No."}],
    [{"role": "user", "content": "both"}, called({"a": "x"}, {}), {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"},
     {"role": "assistant", "content": "1, 2"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": ""}],
    [{"role": "user", "content": "", "name": None}, {"role": "assistant", "content": "empty", "tool_calls": None}],
    [{"role": "user", "content": "last"}, called({"b": True}, content="")],
]  # fmt: skip


def test_calls_of_tools_as_the_template_has_them(tmp_path):
    read = tokenizer(tmp_path / "tok", TEMPLATES["tools"])
    rows = [{"messages": talk, "tools": [ADD]} for talk in TOOL_TALKS]
    texts = [{"messages": json.dumps(talk), "tools": json.dumps([ADD])} for talk in TOOL_TALKS]
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=1))
    datasets.Dataset.from_list(texts).to_parquet(tmp_path / "a.parquet")
    datasets.Dataset.from_list(texts).to_csv(tmp_path / "a.csv", index=False)
    bare = [[{k: v for k, v in m.items() if v is not None or k == "content"} for m in talk] for talk in TOOL_TALKS]
    want = [read.apply_chat_template(talk, tools=[ADD], return_dict=True)["input_ids"] for talk in bare]
    assert "null" in read.decode(want[1]) and "<tool_call>" in read.decode(want[4])
    for data in (write(tmp_path / "a.jsonl", rows), tmp_path / "a.json", tmp_path / "a.parquet", tmp_path / "a.csv"):
        samples = samples_of(prepared(tmp_path, data))
        assert [ids for ids, _ in samples] == want, data
        runs = [read.decode([i for i, m in zip(*sample) if m]) for sample in samples]
        assert runs[2].count("<|im_end|>") == 3 and "tool_response" not in "".join(runs)


def test_odd_rows(tmp_path, capsys):
    """as people have them: each is rendered as the template renders it, or refused by name and line"""
    read = tokenizer(tmp_path / "tok", CHATML)
    user, said = {"role": "user", "content": "hé 🙂"}, {"role": "assistant", "content": "ok"}
    for rows, talk in (
        ({"messages": [said]}, [said]),
        ({"messages": [{"role": "user", "content": ""}, said]}, [{"role": "user", "content": ""}, said]),
        ({"messages": [user, {"role": "assistant", "content": ""}]}, [user, {"role": "assistant", "content": ""}]),
        ({"messages": [user, said], "system": ""}, [user, said]),
        ({"messages": [user, said], "system": "Short."}, [{"role": "system", "content": "Short."}, user, said]),
        ({"conversations": [{"from": "human", "value": "hé 🙂"}, {"from": "gpt", "value": "ok"}]}, [user, said]),
        ({"conversations": [user, said]}, [user, said]),
        ({"conversations": [{"from": "human", "value": "hé 🙂", "weight": None}, {"from": "gpt", "value": "ok", "weight": 1}]}, [user, said]),
        ({"instruction": "hé", "input": None, "output": "ok"}, [{"role": "user", "content": "hé"}, said]),
        ({"instruction": "", "input": "hé 🙂", "output": "ok"}, [{"role": "user", "content": "\nhé 🙂"}, said]),
        ({"instruction": "hé", "input": "b", "output": "ok", "system": "s"}, [{"role": "system", "content": "s"}, {"role": "user", "content": "hé\nb"}, said]),
        ({"prompt": [user], "completion": [said]}, [user, said]),
        ({"prompt": [user, said, user], "completion": [said], "tools": None}, [user, said, user, said]),
    ):  # fmt: skip
        path = tmp_path / "a.jsonl"
        path.write_text(json.dumps(rows) + "\n\n")  # with escapes of surrogates
        ((ids, learnt),) = samples_of(prepared(tmp_path, path))
        assert ids == read.apply_chat_template(talk, return_dict=True)["input_ids"], rows
        assert read.decode([i for i, m in zip(ids, learnt) if m]).endswith("<|im_end|>"), rows
    good = json.dumps({"messages": [user, said]})
    for line, rule in (
        ('{"messages": [{"role": "user", "content": "\\ud83d"}, {"role": "assistant", "content": "x"}]}', "must be Unicode, has half of a pair of surrogates"),
        ('{"messages": [{"role": "system", "content": "only"}]}', "there is no message of an assistant to learn"),
        ('{"messages": null}', "`messages` must be a list of messages, is None"),
        ('{"talk": []}', "`messages` must be a list of messages, is None"),
        ('{"messages": [{"role": "assistant", "content": null}]}', "message 1 of `messages` must have a `content`, has role, content"),
        ('{"messages": [{"role": "user", "content": "a"}, "b"]}', "message 2 of `messages` must have a role, is 'b'"),
        ('{"messages": "hello"}', "`messages` must be a list of messages, is 'hello'"),
        ('{"messages": "[hello"}', "`messages` must be JSON: "),
        ('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "tools": {"a": 1}}', "`tools` must be a list, is {'a': 1}"),
        ('{"messages": [{"role": "system", "content": "a"}], "system": "b"}', "there is a `system` beside a message of the role system"),
        ('{"messages": [], ', "must be JSON in UTF-8: "),
        ("[1, 2]", "must be a JSON object, is [1, 2]"),
        ('{"messages": [{"role": "user", "content": 3}, {"role": "assistant", "content": "x"}]}', "message 1 of `messages`: its `content` must be a text, is 3"),
    ):
        (tmp_path / "a.jsonl").write_text(f"{good}\n\n{line}\n")
        assert f"a.jsonl: line 3: {rule}" in refused(capsys, tmp_path, tmp_path / "a.jsonl"), line
        assert not (tmp_path / "refused.part").exists()
    (tmp_path / "a.json").write_text(f"[{good}, {good[:-1]}")
    assert "a.json: row 2: must be whole, in JSON" in refused(capsys, tmp_path, tmp_path / "a.json")
    for begin, rows in ((f"[{good}]", 1), (f"[{good}, {good}\n]\n", 2)):
        for rest in (f"[{good}]", "garbage", " " * (1 << 21) + "}"):
            (tmp_path / "a.json").write_text(f"{begin}{rest}")
            rule = f"a.json: there must be nothing behind the array, whose rows are {rows}, is {rest.strip()!r:.60}"
            assert rule in refused(capsys, tmp_path, tmp_path / "a.json")
    (tmp_path / "a.csv").write_text('prompt,completion\n"a, b",c\nd\n')
    assert "a.csv: line 3: must have 2 fields as the first line" in refused(capsys, tmp_path, tmp_path / "a.csv")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 nothing")
    assert "a.parquet: cannot be read: " in refused(capsys, tmp_path, tmp_path / "a.parquet")
    for name in ("empty.jsonl", "empty.csv"):
        (tmp_path / name).write_text("")
        assert f"{name}: there is no row" in refused(capsys, tmp_path, tmp_path / name)


def test_numbers_in_columns_are_texts_and_files_may_be_packed(tmp_path):
    import bz2
    import gzip
    import lzma

    import pyarrow

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


def test_an_interrupted_call_leaves_nothing_half_and_goes_on(tmp_path, monkeypatch, capsys):
    from compact.prepare import command, work

    tokenizer(tmp_path / "tok", CHATML)
    data = write(tmp_path / "a.jsonl", [{"messages": messages_of(TALKS[i % 5])} for i in range(500)])
    want = (prepared(tmp_path, data) / "samples.tokens").read_bytes()
    out, seen, sample = tmp_path / "out", [], work.Rows._sample
    call = ["--data", str(data), "--tokenizer", str(tmp_path / "tok"), "--output", str(out)]

    def interrupted(self, *row):
        seen.append(row)
        if len(seen) == stop:
            raise KeyboardInterrupt
        return sample(self, *row)

    monkeypatch.setattr(work.Rows, "_sample", interrupted)
    stop = 300
    assert main(call) == 130 and not out.exists()
    assert "goes on where this one was" in capsys.readouterr().err
    # Bytes written since are cut off.
    with open(tmp_path / "out.part/samples.tokens.part", "ab") as file:
        file.write(b"abc")
    monkeypatch.setattr(command, "SAVED_EVERY", 0)
    stop = 300 + 100
    assert main([*call, "--num_proc", "1"]) == 130
    stop = 0
    assert main(call) == 0
    assert len(seen) == 300 + 100 + (500 - 256 - 64) and "goes on after 320 rows" in capsys.readouterr().out
    assert (out / "samples.tokens").read_bytes() == want and not (tmp_path / "out.part").exists()
    assert set(os.listdir(out)) == {"samples.tokens", "prepared.json", *json.loads((out / "prepared.json").read_text())["tokenizer"]["files"]}
    # Other data, or other settings, begin anew; what was there stays until the new is whole.
    before = (out / "prepared.json").read_bytes()
    stop = len(seen) + 200
    assert main([*call, "--overwrite"]) == 130
    assert (out / "prepared.json").read_bytes() == before
    seen.clear()
    stop = 0
    assert main([*call, "--overwrite", "--train_on", "all"]) == 0 and len(seen) == 500
    assert all(all(learnt) for _, learnt in samples_of(out))
    # Nobody's files are removed, and no two write one folder.
    (out / "mine").write_text("x")
    assert main([*call, "--overwrite"]) == 1 and "has files of others, which --overwrite would remove: mine" in capsys.readouterr().err
    (tmp_path / "x.part").mkdir()
    (tmp_path / "x.part/mine").write_text("x")
    assert main([*call[:-1], str(tmp_path / "x")]) == 1 and "x.part: is not empty" in capsys.readouterr().err
    job = command.Job(str(tmp_path / "y.part"), "key", 1)
    assert main([*call[:-1], str(tmp_path / "y")]) == 1 and "y.part: is being written by another process" in capsys.readouterr().err
    job.close()


def test_only_what_this_call_put_aside_is_removed(tmp_path, monkeypatch, capsys):
    tokenizer(tmp_path / "tok", CHATML)
    data = write(tmp_path / "a.jsonl", [{"messages": messages_of(TALKS[0])}])
    out = tmp_path / "out"
    call = ["--data", str(data), "--tokenizer", str(tmp_path / "tok"), "--output", str(out)]
    (tmp_path / "out.before").mkdir()
    (tmp_path / "out.before/mine").write_text("x")
    assert main(call) == main([*call, "--overwrite"]) == 0
    assert (tmp_path / "out.before/mine").read_text() == "x"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl", "out", "out.before", "tok"]
    # Where the new folder cannot take its place, the old is there again, and the journal beside the new one.
    rename = os.rename

    def failing(source, target):
        if source.endswith(".part"):
            raise OSError(5, "failed", source)
        rename(source, target)

    before = (out / "prepared.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing)
        assert main([*call, "--overwrite", "--train_on", "all"]) == 1
    assert (out / "prepared.json").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl", "out", "out.before", "out.part", "tok"]
    assert main([*call, "--overwrite", "--train_on", "all"]) == 0
    assert json.loads((out / "prepared.json").read_text())["train_on"] == "all"
    # An output that is a file is refused before anything is read.
    capsys.readouterr()
    (tmp_path / "file").write_text("x")
    assert main([*call[:1], str(tmp_path / "no.jsonl"), *call[2:-1], str(tmp_path / "file")]) == 1
    assert "file: must be a folder, is a file" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "x" and not (tmp_path / "file.part").exists()


SLOW = """
import sys, time
from compact.prepare import command, work
sample, command.SAVED_EVERY = work.Rows._sample, 0
work.Rows._sample = lambda *row: (time.sleep(0.01), sample(*row))[1]
sys.exit(command.main(sys.argv[1:]))
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts processes by Linux's /proc")
@pytest.mark.parametrize("how", ("SIGKILL", "SIGTERM"))
def test_a_call_that_is_ended_from_outside_goes_on(how, tmp_path):
    """Its processes end with it, and hold no lock."""
    import pathlib
    import signal
    import subprocess
    import sys
    import time

    tokenizer(tmp_path / "tok", CHATML)
    data = write(tmp_path / "a.jsonl", [{"messages": messages_of(TALKS[i % 5])} for i in range(2000)])
    want = (prepared(tmp_path, data) / "samples.tokens").read_bytes()
    call = ["--data", str(data), "--tokenizer", str(tmp_path / "tok"), "--output", str(tmp_path / "out"), "--num_proc", "2"]
    one = subprocess.Popen([sys.executable, "-c", SLOW, *call], stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        journal = tmp_path / "out.part/journal.json"
        until = time.monotonic() + 60
        while not (journal.exists() and json.loads(journal.read_text())["rows"]):
            assert time.monotonic() < until and one.poll() is None
            time.sleep(0.05)
        workers = [int(pid) for task in pathlib.Path(f"/proc/{one.pid}/task").iterdir() for pid in (task / "children").read_text().split()]
        assert len(workers) == 2
        one.send_signal(signal.Signals[how])
        said = one.communicate(timeout=30)[1]  # to the end: no process is left that has it open
        assert one.returncode == (-signal.SIGKILL if how == "SIGKILL" else 130)
        assert how == "SIGKILL" or "interrupted; the same call goes on" in said
        assert not (tmp_path / "out").exists() and journal.exists()
        assert main(call) == 0
        assert (tmp_path / "out/samples.tokens").read_bytes() == want
    finally:
        try:
            os.killpg(one.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def test_a_failure_of_the_system_keeps_what_is_done(tmp_path, monkeypatch, capsys):
    from compact.prepare import command, sources

    tokenizer(tmp_path / "tok", CHATML)
    data = write(tmp_path / "a.jsonl", [{"messages": messages_of(TALKS[i % 5])} for i in range(500)])
    want = (prepared(tmp_path, data) / "samples.tokens").read_bytes()
    lines = sources.FORMATS[".jsonl"]

    def failing(file):
        for number, row in enumerate(lines(file)):
            if number == 300:
                raise OSError(5, "Input/output error")
            yield row

    monkeypatch.setattr(command, "SAVED_EVERY", 0)
    call = ["--data", str(data), "--tokenizer", str(tmp_path / "tok"), "--output", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setitem(sources.FORMATS, ".jsonl", failing)
        assert main(call) == 1
    assert f"Input/output error: '{data}'" in capsys.readouterr().err
    assert main(call) == 0
    assert "goes on after 256 rows" in capsys.readouterr().out
    assert (tmp_path / "out/samples.tokens").read_bytes() == want


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
    import pathlib
    import subprocess
    import sys

    import pyarrow.parquet

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


def test_cutting(tmp_path, capsys):
    tokenizer(tmp_path / "tok")
    rows = [{"prompt": "x" * 30, "completion": "y"}, {"prompt": "z", "completion": "wwwwwww"}, {"prompt": "z", "completion": "w"}]
    data = write(tmp_path / "a.jsonl", rows)
    full = samples_of(prepared(tmp_path, data))
    assert [len(ids) for ids, _ in full][1:] == [9, 3] and len(full[0][0]) > 6
    for how, want in {"end": [full[1][0][:6], full[2][0]], "drop": [full[2][0]],
                      "start": [full[0][0][-6:], full[1][0][1:7], full[2][0]]}.items():  # fmt: skip
        out = prepared(tmp_path, data, "--max_length", "6", "--truncation", how)
        assert [ids for ids, _ in samples_of(out)] == want, how
        counts = json.loads((out / "prepared.json").read_text())["counts"]
        assert counts["samples"] == len(want) and counts["dropped"] == 3 - len(want)
        assert counts["cut"] == {"end": 1, "drop": 0, "start": 2}[how]
    assert "rows lost tokens to have at most 6" in capsys.readouterr().out


def test_refusals_name_row_and_rule(tmp_path, capsys):
    tokenizer(tmp_path / "tok", TEMPLATES["gemma"])
    good = messages_of(TALKS[0])
    for rows, said in (
        ([{"messages": [{"role": "system", "content": "s"}, *good]}], "line 2: the chat template refuses it: System role not"),
        ([{"messages": []}], "line 2: `messages` must be a list of messages, is []"),
        ([{"messages": [{"role": "user"}]}], "line 2: message 1 of `messages` must have a `content`, has role"),
        ([{"messages": good[:1]}], "line 2: there is no message of an assistant to learn"),
    ):
        line = refused(capsys, tmp_path, write(tmp_path / "a.jsonl", [{"messages": good}, *rows]))
        assert f"a.jsonl: {said}" in line
    line = refused(capsys, tmp_path, write(tmp_path / "a.jsonl", [{"conversations": [{"from": "alien", "value": "x"}]}]))
    assert "line 1: message 1 of `conversations`: `from` must be one of human, user, gpt" in line and "'alien'" in line
    line = refused(capsys, tmp_path, write(tmp_path / "a.jsonl", [{"messages": good}]), "--split", "test")
    assert "--split: a file is one split" in line
    line = refused(capsys, tmp_path, write(tmp_path / "a.jsonl", [{"instruction": "a", "output": "b", "system": 3}]))
    assert "`system` must be a text, is 3" in line
    line = refused(capsys, tmp_path, write(tmp_path / "a.jsonl", [{"question": "x"}]))
    assert "columns must be one of: messages; conversations; prompt and completion" in line and "there are question" in line
    line = refused(capsys, tmp_path, write(tmp_path / "a.jsonl", [{"text": "x"}]), "--train_on", "assistant")
    assert "--train_on assistant: a text has no assistant" in line
    line = refused(capsys, tmp_path, write(tmp_path / "a.jsonl", [{"prompt": "a", "completion": 3}]))
    assert "line 1: `completion` must be a text, is 3" in line
    assert "b.docx: must end with one of .jsonl" in refused(capsys, tmp_path, write(tmp_path / "b.docx", []))
    assert "no.jsonl: there is no such file" in refused(capsys, tmp_path, tmp_path / "no.jsonl")
    # Nothing is written over that did not come from here.
    (tmp_path / "refused").mkdir()
    (tmp_path / "refused/mine").write_text("x")
    line = refused(capsys, tmp_path, write(tmp_path / "a.jsonl", [{"messages": good}]), "--overwrite")
    assert line.endswith("refused: is not empty")


def test_contents_in_parts_are_one_text(tmp_path, capsys):
    """llama3's template, as many, would render the list itself."""
    tokenizer(tmp_path / "words", TEMPLATES["llama3"])

    def made(name, content):
        data = write(tmp_path / f"{name}.jsonl", [{"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "b"}]}])
        return main(["--data", str(data), "--tokenizer", str(tmp_path / "words"), "--output", str(tmp_path / name)])

    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": " 2 + 3?"}]
    assert made("one", "What is 2 + 3?") == made("parts", parts) == 0
    assert samples_of(tmp_path / "one") == samples_of(tmp_path / "parts")
    capsys.readouterr()
    for name, content, rule in (
        ("image", [*parts, {"type": "image", "text": None}], "message 1 of `messages`: parts of its `content` must be of type text"),
        ("number", 5, "message 1 of `messages`: its `content` must be a text, is 5"),
        ("nothing", [], "its `content` must be a text, is []"),
    ):
        assert made(name, content) == 1
        assert rule in capsys.readouterr().err


def test_a_template_that_renders_turns_otherwise_later_is_refused(tmp_path, capsys):
    """as Qwen3's, which leaves out the thoughts of all turns but the last"""
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if loop.last or m.role == 'user' %}{{ m.content }}"
        "{% else %}{{ m.content.split('</think>')[-1] }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    tokenizer(tmp_path / "tok", template)
    talk = [("user", "a"), ("assistant", "<think>b</think>c"), ("user", "d"), ("assistant", "<think>e</think>f")]
    data = write(tmp_path / "a.jsonl", [{"messages": messages_of(talk)}])
    line = refused(capsys, tmp_path, data)
    assert "line 1: message 2 is rendered otherwise once others follow" in line and "{% generation %}" in line
    out = prepared(tmp_path, data, "--train_on", "completion")  # the last turn is as it was
    assert sum(samples_of(out)[0][1]) > 5
    tokenizer(tmp_path / "tok", CHATML.replace("'<|im_start|>assistant\n'", "'<|im_start|>bot\n'"))
    assert "message 2 is not rendered after what asks for it" in refused(capsys, tmp_path, data)


def test_marks_help_templates_that_leave_out_earlier_thoughts(tmp_path, capsys):
    """which also ask for an answer otherwise than they render one; only where a turn begins must both agree"""
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}{% else %}{{ '<|im_start|>assistant\n' }}"
        "{% generation %}{{ m.content if loop.last else m.content.split('</think>')[-1] }}{{ '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>' }}{% endif %}"
    )
    read = tokenizer(tmp_path / "tok", template)
    talk = messages_of([("user", "a"), ("assistant", "<think>b</think>c"), ("user", "d"), ("assistant", "<think>e</think>f")])
    data = write(tmp_path / "a.jsonl", [{"messages": talk}])
    ((ids, learnt),) = samples_of(prepared(tmp_path, data))
    assert ids == read.apply_chat_template(talk, return_dict=True)["input_ids"]
    assert read.decode([i for i, m in zip(ids, learnt) if m]) == "c<|im_end|><think>e</think>f<|im_end|>"
    for data, more in ((data, ("--train_on", "completion")), (write(tmp_path / "p.jsonl", [{"prompt": talk[:3], "completion": talk[3:]}]), ())):
        ((ids, learnt),) = samples_of(prepared(tmp_path, data, *more))
        assert read.decode([i for i, m in zip(ids, learnt) if m]) == "e</think>f<|im_end|>"  # "<think>" asks for it


def test_a_tokenizer_with_several_templates(tmp_path):
    """the one that is used says whether turns are marked; a folder of templates is hashed and goes along"""
    read = tokenizer(tmp_path / "tok", {"default": TEMPLATES["marked"], "tool_use": TEMPLATES["tools"]})
    assert (tmp_path / "tok/additional_chat_templates/tool_use.jinja").exists()
    talk = messages_of(TALKS[1])
    data = write(tmp_path / "a.jsonl", [{"messages": talk}, {"messages": talk, "tools": [ADD]}])
    out = prepared(tmp_path, data)
    for (ids, learnt), tools in zip(samples_of(out), (None, [ADD])):
        assert ids == read.apply_chat_template(talk, tools=tools, return_dict=True)["input_ids"]
        said = [c + "<|im_end|>" for role, c in TALKS[1] if role == "assistant"]
        assert read.decode([i for i, m in zip(ids, learnt) if m]) == "".join(said)
    names = json.loads((out / "prepared.json").read_text())["tokenizer"]["files"]
    assert {"prepared.json", "samples.tokens", *names} == set(os.listdir(out))  # names alone, as the program reads them
    again = transformers.AutoTokenizer.from_pretrained(out)
    assert again.chat_template == read.chat_template == {"default": TEMPLATES["marked"], "tool_use": TEMPLATES["tools"]}

    def hashed(folder):
        return (folder / "samples.tokens").read_bytes()[40:48]

    (tmp_path / "tok/additional_chat_templates/tool_use.jinja").write_text(TEMPLATES["tools"] + "{# other #}")
    assert hashed(prepared(tmp_path, data)) != hashed(out)
    (tmp_path / "one.jinja").write_text(CHATML)
    alone = prepared(tmp_path, data, "--chat_template", str(tmp_path / "one.jinja"))
    assert transformers.AutoTokenizer.from_pretrained(alone).chat_template == CHATML


def test_it_runs_without_the_library(tmp_path):
    import pathlib
    import subprocess
    import sys

    import compact.prepare

    tokenizer(tmp_path / "tok", CHATML)
    data = write(tmp_path / "a.jsonl", [{"messages": messages_of(t)} for t in TALKS])
    folder = pathlib.Path(compact.prepare.__file__).parent
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"COMPACT_PYTHON_LIBRARY": "/none", "HF_DATASETS_CACHE": str(tmp_path / "c")}  # fmt: skip
    command = [sys.executable, str(folder), "--data", str(data), "--tokenizer", str(tmp_path / "tok"), "--output", str(tmp_path / "out")]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "5 samples of 5 rows (messages)" in done.stdout
    assert samples_of(tmp_path / "out") == samples_of(prepared(tmp_path, data))
