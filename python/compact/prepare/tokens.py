# SPDX-License-Identifier: Apache-2.0
"""A sample's tokens, and which of them the model shall learn."""
import json
import os
import re

from .refusal import Refusal, require

RULE = "an assistant's turn must begin and end as it does alone; mark turns in the template by {% generation %}"
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


def common(a, b):
    """How many of the first of both are equal."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def stops_of(folder):
    """Where a generation stops by the files of a model: ids."""
    for name in ("generation_config.json", "config.json"):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                said = json.load(file).get("eos_token_id")
            if said is not None:
                return said if isinstance(said, list) else [said]
    return []


class Reader:
    """A tokenizer with what the program knows of one: ids that begin and end a text."""

    def __init__(self, tokenizer, stops=()):
        self.tokenizer = tokenizer
        self.special = set(tokenizer.all_special_ids)
        self.special |= {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self.special.discard(tokenizer.unk_token_id)
        end, stops = tokenizer.eos_token_id, [s for s in stops if s < len(tokenizer)]
        if end is None or (stops and end not in stops):
            end = next((s for s in stops if s in self.special), stops[0] if stops else None)
        require(end is not None, "the tokenizer must have an eos_token")
        self.ends = [end, *(s for s in stops if s != end)]
        plain, whole = self.encode("a"), tokenizer("a")["input_ids"]
        self.begin = []
        for token in whole:
            if token in plain[:1] or token not in self.special:
                break
            self.begin.append(token)
        self.vocabulary = max(len(tokenizer), max(tokenizer.get_vocab().values()) + 1)

    def encode(self, text):
        try:
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        except TypeError:
            text.encode()  # says it where half of a pair of surrogates is why
            raise

    def text(self, text):
        """A document, with the end after it."""
        ids = self.encode(text)
        return ids if ids and ids[-1] == self.ends[0] else [*ids, self.ends[0]]

    def pair(self, prompt, completion):
        """As the program reads prompt and completion: as one text, of which the tokens that the prompt alone has too
        are its prompt."""

        def encoded(text):
            ids = self.encode(text)
            return ids if ids[: len(self.begin)] == self.begin else self.begin + ids

        asked, ids = encoded(prompt), encoded(prompt + completion)
        begin = common(asked, ids)
        if len(ids) == begin or ids[-1] not in self.ends:
            ids.append(self.ends[0])
        return ids, [False] * begin + [True] * (len(ids) - begin)

    def chat(self, messages, begin, tools, only_last):
        """The ids of apply_chat_template, and which are of an assistant's turns from message `begin` on."""
        require(self.tokenizer.chat_template, "the tokenizer has no chat template: --chat_template FILE gives one")
        turns = [i for i in range(begin, len(messages)) if messages[i]["role"] == "assistant"]
        require(turns, "there is no message of an assistant to learn")
        turns = turns[-1:] if only_last else turns
        if self._marked(tools):
            done = self._rendered(messages, tools, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
            ids, learnt = list(done["input_ids"]), [bool(m) for m in done["assistant_masks"]]
            first = 0
            if turns[0] > 0 and (begin or only_last):
                first = self._begin(self._rendered(messages, tools), messages, tools, turns[0], ids)
            return ids, [m and i >= first for i, m in enumerate(learnt)]
        ids = self.encode(self._rendered(messages, tools))
        learnt = [False] * len(ids)
        for turn in turns:
            first, last = self._prefix(messages, tools, turn, ids)
            learnt[first:last] = [True] * (last - first)
        return ids, learnt

    def asked(self, messages, tools):
        """The ids of a chat with what asks for an answer."""
        require(self.tokenizer.chat_template, "the tokenizer has no chat template")
        require(messages[-1]["role"] != "assistant", "the last message must not be the assistant's: its answer is asked for")
        return self.encode(self._rendered(messages, tools, tokenize=False, add_generation_prompt=True))

    def _rendered(self, messages, tools, **how):
        how = how or {"tokenize": False}
        try:
            return self.tokenizer.apply_chat_template(messages, tools=tools, **how)
        except Exception as error:  # a template raises what it likes
            raise Refusal(f"the chat template refuses it: {error}") from None

    def _marked(self, tools):
        """Whether the template for these tools marks an assistant's turns."""
        try:
            template = self.tokenizer.get_chat_template(tools=tools)
        except ValueError as error:  # several templates, none of which is the default
            raise Refusal(f"the chat template refuses it: {error}") from None
        return self.tokenizer.is_fast and bool(GENERATION.search(template))

    def _blank(self, ids):
        """Whether there is no text but white space, which a vocabulary may lack."""
        return not self.tokenizer.decode([i for i in ids if i != self.tokenizer.unk_token_id]).strip()

    def _begin(self, whole, messages, tools, turn, ids):
        """The first of a turn's tokens: behind the messages before it and the tokens that ask for it."""
        asked = self._rendered(messages[: max(turn, 1)], tools, tokenize=False, add_generation_prompt=True)
        if turn == 0:  # nothing can be rendered before it: it begins behind the first sign that asks for an answer
            sign = asked[common(asked, self._rendered(messages[:1], tools)) :]
            asked = whole[: whole.find(sign) + len(sign)] if sign else asked
        require(whole.startswith(asked), f"message {turn + 1} is not rendered after what asks for it: {RULE}")
        return common(self.encode(asked), ids)

    def _prefix(self, messages, tools, turn, ids):
        """The range of a turn's tokens, its end token included: what rendering it adds."""
        first = self._begin(self._rendered(messages, tools), messages, tools, turn, ids)
        alone = self.encode(self._rendered(messages[: turn + 1], tools))
        last = common(alone, ids)
        same = last > first and self._blank(i for i in alone[last:] if i not in self.special)
        require(same, f"message {turn + 1} is rendered otherwise once others follow: {RULE}")
        end = next((i for i in range(last, first, -1) if ids[i - 1] in self.special), None)
        if end and self._blank(ids[end:last]):
            last = end
        return first, last


def _first(learnt, least=1):
    """The first token to learn; what has a loss has one before it."""
    return next((i for i, m in enumerate(learnt) if m and i >= least), len(learnt))


def begin_together(samples):
    """Where a token of one of a pair joins the prompt's end and the answer, both answers begin with it, as TRL has it:
    else they would be asked for by different prompts."""
    first, begins = common(*(ids for ids, _ in samples)), [_first(learnt, 0) for _, learnt in samples]
    for (_, learnt), begin in zip(samples, begins):
        if first == min(begins) and begin < len(learnt):
            learnt[first:begin] = [True] * (begin - first)


def cut(samples, longest, how, begin):
    """A row's samples, ids and which are learnt, with at most `longest` tokens, as the program cuts them, where the two
    of a pair keep one prompt; what happened: "", "cut" or "dropped"."""
    over = max(len(ids) for ids, _ in samples) - longest if longest else 0
    if over > 0 and how == "start":
        kept = len(begin) if samples[0][0][: len(begin)] == begin else 0
        lost = min(over, max(min(_first(learnt) for _, learnt in samples) - kept, 0))
        samples = [[part[:kept] + part[kept + lost :] for part in sample] for sample in samples]
    if over > 0:
        samples = [[part[:longest] for part in sample] for sample in samples]
    if any(_first(learnt) >= len(learnt) for _, learnt in samples) or (over > 0 and how == "drop"):
        return [], "dropped"
    return samples, "cut" if over > 0 else ""
