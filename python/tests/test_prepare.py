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
        ([{"messages": [{"role": "system", "content": "s"}, *good]}], "row 2: the chat template refuses it: System role not"),
        ([{"messages": []}], "row 2: `messages` must be a list of messages, is []"),
        ([{"messages": [{"role": "user"}]}], "row 2: message 1 of `messages` must have a `content`, has role"),
        ([{"messages": good[:1]}], "row 2: there is no message of an assistant to learn"),
    ):
        line = refused(capsys, tmp_path, write(tmp_path / "a.jsonl", [{"messages": good}, *rows]))
        assert f"a.jsonl: {said}" in line
    line = refused(capsys, tmp_path, write(tmp_path / "a.jsonl", [{"conversations": [{"from": "alien", "value": "x"}]}]))
    assert "row 1: message 1 of `conversations`: `from` must be one of human, user, gpt" in line and "'alien'" in line
    line = refused(capsys, tmp_path, write(tmp_path / "a.jsonl", [{"messages": good}]), "--split", "test")
    assert "--split: a file is one split" in line
    line = refused(capsys, tmp_path, write(tmp_path / "a.jsonl", [{"instruction": "a", "output": "b", "system": 3}]))
    assert "`system` must be a text, is 3" in line
    line = refused(capsys, tmp_path, write(tmp_path / "a.jsonl", [{"question": "x"}]))
    assert "columns must be one of: messages; conversations; prompt and completion" in line and "there are question" in line
    line = refused(capsys, tmp_path, write(tmp_path / "a.jsonl", [{"text": "x"}]), "--train_on", "assistant")
    assert "--train_on assistant: a text has no assistant" in line
    line = refused(capsys, tmp_path, write(tmp_path / "a.jsonl", [{"prompt": "a", "completion": 3}]))
    assert "row 1: `completion` must be a text, is 3" in line
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
    assert "row 1: message 2 is rendered otherwise once others follow" in line and "{% generation %}" in line
    out = prepared(tmp_path, data, "--train_on", "completion")  # the last turn is as it was
    assert sum(samples_of(out)[0][1]) > 5
    tokenizer(tmp_path / "tok", CHATML.replace("'<|im_start|>assistant\n'", "'<|im_start|>bot\n'"))
    assert "message 2 is not rendered after what asks for it" in refused(capsys, tmp_path, data)


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
