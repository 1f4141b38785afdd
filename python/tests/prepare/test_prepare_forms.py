# SPDX-License-Identifier: Apache-2.0
"""compact.prepare: forms of data, masks under templates as models have them, cutting."""
import json
import os

from _preparing import CHATML, ENDS, messages_of, own_cache, prepared, refused, samples_of, TALKS, TEMPLATES, tokenizer, write  # noqa: F401 - a fixture for all tests
import datasets
import pytest
import transformers


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


def test_what_has_a_loss_is_asked_of_each_row(tmp_path, capsys):
    """of plain prompts beside chats in one file, whichever comes first"""
    read = tokenizer(tmp_path / "tok", CHATML)
    talk = messages_of(TALKS[4])
    plain, chat = {"prompt": "a b", "completion": " c d"}, {"prompt": talk[:1], "completion": talk[1:]}
    want = {"plain": " c d<|endoftext|>", "chat": "b<|im_end|>d<|im_end|>f<|im_end|>"}
    for name, rows, order in (("p", [plain, chat], ("plain", "chat")), ("c", [chat, plain], ("chat", "plain"))):
        samples = samples_of(prepared(tmp_path, write(tmp_path / f"{name}.jsonl", rows)))
        assert [read.decode([i for i, m in zip(ids, learnt) if m]) for ids, learnt in samples] == [want[o] for o in order]
    line = refused(capsys, tmp_path, tmp_path / "c.jsonl", "--train_on", "assistant")
    assert "c.jsonl: line 2: --train_on assistant: a prompt and its completion have no roles" in line


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
