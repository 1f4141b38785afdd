# SPDX-License-Identifier: Apache-2.0
"""compact.prepare: pairs of a chosen and a rejected answer, against what TRL's DPOTrainer makes of the same rows."""
import json
import types

from _preparing import CHATML, ENDS, messages_of, own_cache, prepared, refused, samples_of, TALKS, TEMPLATES, tokenizer, write  # noqa: F401 - a fixture for all tests
import datasets
import pytest

from compact.prepare import command, work
from compact.prepare.command import main
from compact.prepare.tokens import cut

TEXTS = [
    {"prompt": "What is 2 + 3?", "chosen": " It is 5.", "rejected": " It is 6, or a jay."},
    {"prompt": "日本 ", "chosen": "🙂", "rejected": "é"},
    {"prompt": "a b: An", "chosen": "other?", "rejected": " owl"},  # a token crosses the border of one alone
    {"prompt": "An", "chosen": " owl", "rejected": "other?"},
    {"prompt": "json: ", "chosen": '[{"a": 1}]', "rejected": "[a"},
    {"prompt": "[" * 20, "chosen": "]" * 20, "rejected": ""},
]
CHATS = [
    {"prompt": messages_of([("user", "Name a bird.")]), "chosen": messages_of([("assistant", "A wren.")]), "rejected": messages_of([("assistant", "It is 5.")])},
    {"prompt": messages_of(TALKS[1][:3]), "chosen": messages_of(TALKS[1][3:]), "rejected": messages_of([("assistant", "")])},
]  # fmt: skip


def of_trl(read, rows):
    """Ids and marks of both samples of every row."""
    trainer = pytest.importorskip("trl.trainer.dpo_trainer").DPOTrainer
    settings = types.SimpleNamespace(dataset_num_proc=None, max_length=None, truncation_mode="keep_start")
    made = trainer._prepare_dataset(types.SimpleNamespace(_tokenizer=read), datasets.Dataset.from_list(rows), read, settings, "train")
    return [(row["prompt_ids"] + row[name], [False] * len(row["prompt_ids"]) + [True] * len(row[name]))
            for row in made for name in ("chosen_ids", "rejected_ids")]  # fmt: skip


def whole(rows):
    return [{name: row["prompt"] + row[name] for name in ("chosen", "rejected")} for row in rows]


def version_of(folder):
    return int.from_bytes((folder / "samples.tokens").read_bytes()[8:12], "little")


def card_of(folder):
    return json.loads((folder / "prepared.json").read_text())


def test_texts_are_those_of_trl(tmp_path, capsys):
    read = tokenizer(tmp_path / "tok")
    want = of_trl(read, TEXTS)
    assert want[5][0][want[5][1].index(True) :] == [*read("An owl")["input_ids"], read.eos_token_id]  # beside "Another"
    out = prepared(tmp_path, write(tmp_path / "a.jsonl", TEXTS))
    assert samples_of(out) == want and version_of(out) == 3
    assert capsys.readouterr().out.splitlines()[-1] == f"compact train --train_file {out} --task preference ..."
    card = card_of(out)
    assert (card["form"], card["train_on"]) == ("preference", "completion")
    assert card["counts"] == {"rows": 6, "samples": 12, "pairs": 6, "cut": 0, "dropped": 0, "equal": 0,
                              "tokens": sum(len(ids) for ids, _ in want), "targets": sum(sum(learnt[1:]) for _, learnt in want)}  # fmt: skip
    # Other columns make no other form of it; texts without a prompt begin with it.
    more = [row | {"messages": messages_of(TALKS[0]), "completion": "x", "text": "y", "score_chosen": 1.0} for row in TEXTS]
    assert samples_of(prepared(tmp_path, write(tmp_path / "b.jsonl", more), "--train_on", "completion")) == want
    implied = whole(TEXTS[:-1]) + [{"chosen": f"Human: a Assistant: {c}", "rejected": f"Human: a Assistant: {r}"} for c, r in (("b c", "b"), ("q", "z"))]
    assert samples_of(prepared(tmp_path, write(tmp_path / "c.jsonl", implied))) == of_trl(read, implied)
    deep = write(tmp_path / "d.jsonl", [{"prompt": "[" * 200_000, "chosen": "a", "rejected": "b"}])
    assert card_of(prepared(tmp_path, deep))["counts"]["pairs"] == 1


@pytest.mark.parametrize("name", TEMPLATES)
def test_chats_are_those_of_trl_to_the_end_of_the_turn(name, tmp_path):
    """TRL alone learns the text that a template puts behind the turn's end, as turns of others within the answer are."""
    read = tokenizer(tmp_path / "tok", TEMPLATES[name])
    end = read.convert_tokens_to_ids(ENDS.get(name, "<|im_end|>"))
    want = []
    for ids, learnt in of_trl(read, CHATS):
        last = len(ids) if name == "phi3" else len(ids) - ids[::-1].index(end)
        want.append((ids, learnt[:last] + [False] * (len(ids) - last)))
    forms = {
        "lists": CHATS,
        "implied": whole(CHATS),
        "both": [row | {"prompt": CHATS[i]["prompt"]} for i, row in enumerate(whole(CHATS))],
        "text": [row | {"prompt": CHATS[i]["prompt"][0]["content"]} for i, row in enumerate(whole(CHATS))],
        "json": [{k: json.dumps(v) for k, v in row.items()} for row in CHATS],
        "from": [{k: [{"from": m["role"], "value": m["content"]} for m in v] for k, v in row.items()} for row in whole(CHATS)],
    }
    for form, rows in forms.items():
        out = prepared(tmp_path, write(tmp_path / f"{form}.jsonl", rows))
        assert samples_of(out) == want and version_of(out) == 3, form
    datasets.Dataset.from_list(forms["json"]).to_csv(tmp_path / "a.csv", index=False)
    datasets.Dataset.from_list(forms["text"]).to_parquet(tmp_path / "a.parquet")
    for file in ("a.csv", "a.parquet"):
        assert samples_of(prepared(tmp_path, tmp_path / file)) == want, file


def test_answers_of_several_turns_and_tools(tmp_path):
    """Turns of the assistant are learnt, those of others are not; answers part at a user's turn as well."""
    read = tokenizer(tmp_path / "tok", TEMPLATES["tools"])
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}]}
    ask, five = messages_of(TALKS[0][:1]), messages_of(TALKS[0][1:])
    rows = [{"prompt": ask, "chosen": [call, {"role": "tool", "content": "5"}, *five], "rejected": five, "tools": json.dumps(tools)},
            {"chosen": messages_of(TALKS[4]), "rejected": messages_of(TALKS[4][:2] + [("user", "c d"), ("assistant", "no")])}]  # fmt: skip
    samples = samples_of(prepared(tmp_path, write(tmp_path / "a.jsonl", rows)))
    assert [ids for ids, _ in samples[:2]] == [ids for ids, _ in of_trl(read, rows[:1])]
    for (ids, _), talk in zip(samples[2:], (rows[1]["chosen"], rows[1]["rejected"])):
        assert ids == read.apply_chat_template(talk, return_dict=True)["input_ids"]
    (tmp_path / "turns.json").write_text(json.dumps({"messages": ask, "chosen": "x", "rejected": "y"}))  # asks, is no pair
    assert main(["--turns", str(tmp_path / "turns.json"), "--tokenizer", str(tmp_path / "tok"), "--output", str(tmp_path / "ids")]) == 0
    assert json.loads((tmp_path / "ids").read_text()) == read.apply_chat_template(ask, add_generation_prompt=True, return_dict=True)["input_ids"]
    runs = [read.decode([i for i, m in zip(*sample) if m]) for sample in samples]
    assert runs[0].endswith("</tool_call><|im_end|>It is 5.<|im_end|>") and "tool_response" not in runs[0]
    assert runs[1:] == ["It is 5.<|im_end|>", "d<|im_end|>f<|im_end|>", "no<|im_end|>"]


def test_system_and_questions_of_other_names(tmp_path, capsys):
    """A column beside a pair is read, or refused: never left out without a word."""
    read = tokenizer(tmp_path / "tok", TEMPLATES["tools"])
    ask, five, six = messages_of(TALKS[0][:1]), messages_of(TALKS[0][1:]), messages_of([("assistant", "It is 6.")])
    told = {"role": "system", "content": "Be brief."}
    rows = [{"system": "Be brief.", "prompt": ask, "chosen": five, "rejected": six}, {"system": "Be brief.", "chosen": ask + five, "rejected": ask + six},
            {"system": "", "prompt": ask, "chosen": five, "rejected": six}]  # fmt: skip
    samples = samples_of(prepared(tmp_path, write(tmp_path / "a.jsonl", rows)))
    for i, (ids, learnt) in enumerate(samples):
        want = [told] * (i < 4) + ask + (six if i % 2 else five)
        assert ids == read.apply_chat_template(want, return_dict=True)["input_ids"]
        assert read.decode([t for t, m in zip(ids, learnt) if m]) == ("It is 6.<|im_end|>" if i % 2 else five[0]["content"] + "<|im_end|>")
    flags = ["--tokenizer", str(tmp_path / "tok"), "--output", str(tmp_path / "refused")]
    for row, message in (
        ({"instruction": "Name a fruit", "chosen": "Apple", "rejected": "An apple"}, "a column `instruction` is not read"),
        ({"system": "Be brief.", "prompt": "a", "chosen": "b", "rejected": "c"}, "a `system` beside texts is not read"),
        ({"system": "Be brief.", "prompt": "a", "completion": "b"}, "a `system` beside texts is not read"),
        ({"system": "Be brief.", "prompt": [told, *ask], "chosen": five, "rejected": six}, "beside a message of the role system"),
    ):
        assert main([*flags, "--data", str(write(tmp_path / "b.jsonl", [row]))]) != 0
        assert message in capsys.readouterr().err


def test_the_two_are_left_out_together(tmp_path, capsys):
    tokenizer(tmp_path / "tok")
    rows = [{"prompt": "zz", "chosen": "wwwwwww", "rejected": "x"}, {"prompt": "z", "chosen": "w", "rejected": "x"},
            {"prompt": "z", "chosen": "same", "rejected": "same"}, {"prompt": "z" * 8, "chosen": "w", "rejected": "x"},
            {"prompt": "z", "chosen": "wwwwwwx", "rejected": "wwwwwwy"}]  # fmt: skip
    data = write(tmp_path / "a.jsonl", rows)
    full = samples_of(prepared(tmp_path, data))
    assert [len(ids) for ids, _ in full] == [10, 4, 3, 3, 10, 10, 9, 9]
    assert "warning: 1 rows have the same tokens chosen and rejected" in capsys.readouterr().out

    def ends(pair, lost):  # of the prompt: the same in both
        return [(ids[lost:][:6], learnt[lost:][:6]) for ids, learnt in pair]

    for how, want, counts in (
        ("end", ends(full[:2], 0) + full[2:4], (1, 1, 2)),  # the last is the same up to there
        ("drop", full[2:4], (0, 3, 1)),
        ("start", ends(full[:2], 2) + full[2:4] + ends(full[4:6], 4), (2, 0, 2)),
    ):
        out = prepared(tmp_path, data, "--max_length", "6", "--truncation", how)
        assert samples_of(out) == want, how
        found = card_of(out)["counts"]
        assert (found["cut"], found["dropped"], found["equal"]) == counts and found["pairs"] == len(want) // 2
        assert f"{len(want) // 2} pairs of 5 rows (preference)" in capsys.readouterr().out
    # Answers that begin at other tokens, as where a user's turns part: both keep some of theirs, or none is left.
    chosen, rejected = (list(range(7)), [i in (2, 3) for i in range(7)]), (list(range(10)), [i > 4 for i in range(10)])
    made, what = cut([chosen, rejected], 7, "start", [])
    assert what == "cut" and [ids for ids, _ in made] == [[2, 3, 4, 5, 6], [2, 3, 4, 5, 6, 7, 8]]
    assert cut([chosen, rejected], 5, "end", []) == cut([chosen, rejected], 7, "drop", []) == ([], "dropped")
    line = refused(capsys, tmp_path, write(tmp_path / "b.jsonl", rows[2:3]))
    assert "no sample is left of 1" in line


def test_refusals_of_pairs(tmp_path, capsys):
    tokenizer(tmp_path / "tok", CHATML)
    chat = whole(CHATS)[0]
    for row, rule in (
        ({"prompt": "a", "completion": "b"}, "`chosen` must be a text, is None"),
        ({"prompt": "a", "chosen": "b", "rejected": 3}, "`rejected` must be a text, is 3"),
        ({"prompt": "a", "chosen": "b", "rejected": "\ud83d"}, "must be Unicode, has half of a pair of surrogates"),
        ({"prompt": 3, "chosen": "b", "rejected": "c"}, "`prompt` must be a text, is 3"),
        ({"prompt": CHATS[0]["prompt"], "chosen": "b", "rejected": "c"}, "`chosen` must be a list of messages, is 'b'"),
        (chat | {"rejected": "c"}, "`rejected` must be a list of messages, is 'c'"),
        (chat | {"prompt": "Another?"}, "`prompt` must be a message of the user that `chosen` and `rejected` begin with, is 'Another?'"),
        (chat | {"prompt": 3}, "`prompt` must be a text, is 3"),
        ({"chosen": "b", "rejected": "c"}, "there is no `prompt`, and `chosen` and `rejected` begin with none in common"),
        ({"chosen": CHATS[0]["chosen"], "rejected": CHATS[0]["rejected"]}, "there is no `prompt`, and"),
        ({"chosen": chat["chosen"], "rejected": chat["chosen"][:1] * 2}, "there is no message of an assistant to learn"),
        (chat | {"rejected": [*chat["rejected"], {"role": "user"}]}, "message 3 of `rejected` must have a `content`"),
    ):
        (tmp_path / "a.jsonl").write_text(f"{json.dumps(TEXTS[0])}\n\n{json.dumps(row)}\n")
        assert f"a.jsonl: line 3: {rule}" in refused(capsys, tmp_path, tmp_path / "a.jsonl"), row
    pairs = write(tmp_path / "pairs.jsonl", TEXTS)
    for on in ("assistant", "all"):
        assert f"line 1: --train_on {on}: of a pair the answers are learnt, completion" in refused(capsys, tmp_path, pairs, "--train_on", on)
    for other, kind in (({"text": "x"}, "pairs and text"), ({"prompt": "a", "completion": "b"}, "pairs and samples"), ({"messages": messages_of(TALKS[0])}, "pairs and samples")):
        data = write(tmp_path / "other.jsonl", [other])
        for sets in ((pairs, data), (data, pairs)):
            out = tmp_path / "mixed"
            assert main(["--data", *map(str, sets), "--weights", "1", "1", "--tokenizer", str(tmp_path / "tok"), "--output", str(out)]) == 1
            assert f"{sets[1].name}: {kind} are for two tasks" in capsys.readouterr().err and not out.exists()


def test_pairs_of_several_sets_and_processes_go_on_in_the_middle(tmp_path, monkeypatch, capsys):
    tokenizer(tmp_path / "tok", CHATML)
    rows = [{"prompt": f"{i} ", "chosen": f"a{i % 7}", "rejected": f"b{i}" if i % 5 else f"a{i % 7}"} for i in range(500)]
    sets = [str(write(tmp_path / "a.jsonl", rows)), str(write(tmp_path / "b.jsonl", CHATS * 100))]
    call = ["--data", *sets, "--weights", "3", "1", "--tokenizer", str(tmp_path / "tok"), "--output"]
    assert main([*call, str(tmp_path / "one")]) == main([*call, str(tmp_path / "two"), "--num_proc", "2"]) == 0
    want, card = (tmp_path / "one/samples.tokens").read_bytes(), card_of(tmp_path / "one")
    assert (tmp_path / "two/samples.tokens").read_bytes() == want
    samples = samples_of(tmp_path / "one")
    assert len(samples) == card["counts"]["samples"] == 2 * card["counts"]["pairs"] and card["counts"]["equal"] > 50
    assert [s["pairs"] + s["equal"] for s in card["sets"]] == [s["rows"] for s in card["sets"]]
    for (chosen, marks), (rejected, _) in zip(samples[::2], samples[1::2]):
        assert marks.index(True) and chosen[: marks.index(True)] == rejected[: marks.index(True)] and chosen != rejected
    capsys.readouterr()
    sample, seen = work.Rows._sample, []

    def interrupted(self, *row):
        seen.append(row)
        if len(seen) == 300:
            raise KeyboardInterrupt
        return sample(self, *row)

    monkeypatch.setattr(command, "SAVED_EVERY", 0)
    with monkeypatch.context() as patch:
        patch.setattr(work.Rows, "_sample", interrupted)
        assert main([*call, str(tmp_path / "three")]) == 130
    assert main([*call, str(tmp_path / "three"), "--num_proc", "2"]) == 0
    assert "goes on after 256 rows" in capsys.readouterr().out
    assert (tmp_path / "three/samples.tokens").read_bytes() == want and card_of(tmp_path / "three")["counts"] == card["counts"]
