# SPDX-License-Identifier: Apache-2.0
"""Forms of rows: pairs of a preference, messages, ShareGPT, Alpaca, prompt and completion, text. A row becomes a Sample,
of a pair two."""
import json
from dataclasses import dataclass, field

from .refusal import Refusal, require
from .tokens import common

SHAREGPT = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant",
            "model": "assistant", "system": "system", "tool": "tool"}  # fmt: skip


@dataclass
class Sample:
    messages: list = field(default_factory=list)  # of a chat; what is learnt begins at `begin`
    begin: int = 0
    tools: list | None = None
    prompt: str | None = None  # without a chat
    completion: str = ""


def _text(row, name):
    value = row.get(name)
    require(isinstance(value, str), f"`{name}` must be a text, is {value!r:.60}")
    return value


def _content(value, where):
    """A text; also one in parts, as of models that see: many templates would print the list."""
    if isinstance(value, list) and value:
        texts = [isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str) for p in value]
        require(all(texts), f"{where}: parts of its `content` must be of type text, are {value!r:.60}")
        return "".join(part["text"] for part in value)
    require(isinstance(value, str), f"{where}: its `content` must be a text, is {value!r:.60}")
    return value


def _from_json(value, name):
    """Columns that can hold texts alone have lists as JSON."""
    try:
        return json.loads(value) if isinstance(value, str) and value.lstrip()[:1] in ("[", "{") else value
    except ValueError as error:
        raise Refusal(f"`{name}` must be JSON: {error}") from None


def _messages(value, name):
    value = _from_json(value, name)
    require(isinstance(value, list) and value, f"`{name}` must be a list of messages, is {value!r:.60}")
    out = []
    for number, message in enumerate(value, 1):
        where = f"message {number} of `{name}`"
        require(isinstance(message, dict), f"{where} must have a role, is {message!r:.60}")
        message = {k: v for k, v in message.items() if v is not None or k == "content"}
        if "from" in message:
            said = message["from"]
            require(said in SHAREGPT, f"{where}: `from` must be one of {', '.join(SHAREGPT)}, is {said!r:.60}")
            require(isinstance(message.get("value"), str), f"{where} must have a text `value`")
            message = {"role": SHAREGPT[said], "content": message["value"]}
        require(isinstance(message.get("role"), str), f"{where} must have a `role`, has {', '.join(message)}")
        has = message.get("content") is not None or message.get("tool_calls")
        require(has, f"{where} must have a `content`, has {', '.join(message)}")
        if message.get("content") is not None:
            message["content"] = _content(message["content"], where)
        require(message.get("weight", 1) == 1, f"{where}: a `weight` must be 1, is {message.get('weight')}: --train_on says what is learnt")
        out.append(message)
    return out


def _tools(row):
    tools = _from_json(row.get("tools"), "tools") or None
    require(tools is None or isinstance(tools, list), f"`tools` must be a list, is {tools!r:.60}")
    return tools


def _system(row, messages, name):
    """The messages behind the row's `system`, where it has one."""
    if not row.get("system"):
        return messages
    require(messages[0]["role"] != "system", f"there is a `system` beside a message of the role system in `{name}`")
    return [{"role": "system", "content": _text(row, "system")}, *messages]


def _no_system(row):
    require(not row.get("system"), "a `system` beside texts is not read: `prompt` can begin with it, or be messages")


def _chat(name):
    return lambda row: Sample(_system(row, _messages(row.get(name), name), name), tools=_tools(row))


def _pair(row):
    require(row.get("label") is not False, "`label` is false, as of answers that were rejected (KTO): every completion would be learnt")
    if not is_chat("prompt-completion", row):
        _no_system(row)
        return Sample(prompt=_text(row, "prompt"), completion=_text(row, "completion"))
    prompt = _system(row, _messages(row["prompt"], "prompt"), "prompt")
    return Sample(prompt + _messages(row.get("completion"), "completion"), len(prompt), _tools(row))


def _are_messages(value):
    """Also as JSON; other texts may begin as JSON does."""
    if not isinstance(value, str):
        return isinstance(value, list)
    try:
        value = json.loads(value) if value.lstrip()[:1] == "[" else None
    except (ValueError, RecursionError):
        return False
    return isinstance(value, list) and all(isinstance(m, dict) and {"role", "from"} & set(m) for m in value)


def _preference(row):
    """Two answers to one prompt, first the chosen one. What both begin with is the prompt where there is no other, by
    the rule of trl.extract_prompt, and where the prompt is a text beside two conversations, whose message it must be."""
    prompt, names = row.get("prompt"), ("chosen", "rejected")
    chat = any(_are_messages(row.get(name)) for name in ("prompt", *names))
    if not chat:
        _no_system(row)
        asks = [name for name in ("instruction", "question", "input") if prompt is None and row.get(name)]
        require(not asks, f"there is no `prompt`, and a column `{(asks or [''])[0]}` is not read: it must be named `prompt`")
    both = [_messages(row.get(name), name) if chat else _text(row, name) for name in names]
    if prompt is not None and not chat:
        return [Sample(prompt=_text(row, "prompt"), completion=answer) for answer in both]
    if _are_messages(prompt):
        asked = _messages(prompt, "prompt")
        begin, both = len(asked), [one if one[: len(asked)] == asked else asked + one for one in both]
    else:
        begin = common(both[0][:-1], both[1][:-1])
        begin -= begin > 0 and both[0][begin] != both[1][begin] and both[0][begin - 1] == " "
        require(begin, "there is no `prompt`, and `chosen` and `rejected` begin with none in common")
    if not chat:
        return [Sample(prompt=one[:begin], completion=one[begin:]) for one in both]
    if prompt is not None and not _are_messages(prompt):
        asked = [(m.get("content") or "").strip() for m in both[0][:begin] if m["role"] == "user"]
        require(_text(row, "prompt").strip() in asked, f"`prompt` must be a message of the user that `chosen` and `rejected` begin with, is {prompt!r:.60}")
    with_system = [_system(row, one, name) for one, name in zip(both, names)]
    return [Sample(one, begin + len(one) - len(bare), _tools(row)) for one, bare in zip(with_system, both)]


def _alpaca(row):
    """A turn of the user, instruction and input on lines of their own, and one of the assistant."""
    asked, more = _text(row, "instruction"), row.get("input") or ""
    require(isinstance(more, str), f"`input` must be a text, is {more!r:.60}")
    require(not row.get("history"), "`history` of turns before is not read: `messages` can say them")
    system = [{"role": "system", "content": _text(row, "system")}] if row.get("system") else []
    user = {"role": "user", "content": f"{asked}\n{more}" if more else asked}
    return Sample([*system, user, {"role": "assistant", "content": _text(row, "output")}])


# The columns that a form is known by, its name, and a row's sample.
FORMS = (
    (("chosen", "rejected"), "preference", _preference),  # beside `prompt`, `messages` and others
    (("messages",), "messages", _chat("messages")),
    (("conversations",), "sharegpt", _chat("conversations")),
    (("prompt", "completion"), "prompt-completion", _pair),
    (("instruction", "output"), "alpaca", _alpaca),
    (("text",), "text", lambda row: Sample(completion=_text(row, "text"))),
)


def sample_of(form, row):
    return next(function for _, name, function in FORMS if name == form)(row)


def is_chat(form, row):
    return form in ("messages", "sharegpt", "alpaca") or (form == "prompt-completion" and isinstance(row.get("prompt"), list))


def train_on_of(form, row, given):
    """Which part of a row has a loss: as --train_on says, or else as belongs to rows of its kind."""
    require(form != "preference" or given in (None, "completion"), f"--train_on {given}: of a pair the answers are learnt, completion")
    chat = is_chat(form, row)
    on = given or ("all" if form == "text" else "assistant" if chat else "completion")
    require(form != "text" or on == "all", f"--train_on {on}: a text has no {on}, only all of it")
    require(chat or on != "assistant", "--train_on assistant: a prompt and its completion have no roles: completion or all")
    return on


def form_of(columns):
    """The name of the first form whose columns there are."""
    for needed, name, _ in FORMS:
        if set(needed) <= set(columns):
            return name
    known = "; ".join(" and ".join(needed) for needed, *_ in FORMS)
    raise Refusal(f"columns must be one of: {known}; there are {', '.join(columns)}")
