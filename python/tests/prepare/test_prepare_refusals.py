# SPDX-License-Identifier: Apache-2.0
"""compact.prepare: rows, contents, templates and arguments that it refuses, beside odd ones that it takes."""
import json

from _preparing import CHATML, messages_of, own_cache, prepared, refused, samples_of, TALKS, TEMPLATES, tokenizer, write  # noqa: F401 - a fixture for all tests

from compact.prepare.command import main


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
    assert "columns must be one of: chosen and rejected; messages; conversations; prompt and completion" in line and "there are question" in line
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
