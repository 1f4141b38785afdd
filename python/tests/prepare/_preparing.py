# SPDX-License-Identifier: Apache-2.0
"""Tokenizers with templates as models have them, talks, and calls of compact.prepare."""
import json
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
