# SPDX-License-Identifier: Apache-2.0
"""plan(): what it says of a step is what the step takes, to the byte; and what it refuses."""
import copy
import threading

from _optimizing import InLists
from _planning import measured, peaks
from conftest import DECODER, ENCODER, MODELS, VIT, error, gradients, inputs, make, of
import pytest
import torch
import transformers
from torch import nn

import compact
from compact.planning.known_values import KnownValues, with_value
from compact.planning.plan import POLICIES as POLICIES_OF_TABLES

POLICIES = ("plain", "off", "exact", "recompute", "gact-l1")
# Bytes that plans leave out: a part of the buffers of oneDNN's convolution in the embedding of images,
# whose size is the machine's.
BESIDE = {"vit": 16384}


@pytest.mark.parametrize("name", ["llama", "llama, biases, tied", "mistral", "qwen3", "phi3", "gpt2", "bert", "vit"])
def test_bytes_are_those_of_a_step(name):
    given = inputs(name, batch=2, length=64)
    plan = compact.plan(make(name), given, policies=POLICIES)
    assert not plan["failed"] and [row["policy"] for row in plan["rows"]] == list(POLICIES)
    for row in plan["rows"]:
        beside = BESIDE.get(name, 0)
        assert 0 <= measured(name, row["policy"], given) - row["peak"] <= beside, row
        assert row["reserved"] == row["peak"]
        assert row["weights"] == sum(p.nbytes for p in make(name).parameters())
        assert row["weights"] + row["optimizer"] + row["gradients"] + row["saved"] + row["workspace"] <= row["peak"]
    if name != "vit":  # whose peak is not in its layers
        assert plan["rows"][3]["peak"] < plan["rows"][2]["peak"] < plan["rows"][1]["peak"]


@pytest.mark.parametrize("policy", ["plain", "exact", "recompute"])
def test_gradients_of_tied_weights_are_summed_in_place(policy, monkeypatch):
    monkeypatch.setitem(MODELS, "tied", of("LlamaForCausalLM", "LlamaConfig", DECODER | {"tie_word_embeddings": True, "vocab_size": 3000, "num_hidden_layers": 6}))
    given = inputs("tied", batch=1, length=32)
    plan = compact.plan(make("tied"), given, policies=[policy], clip=False)
    assert "backward" in plan["rows"][0]["at"], "where both gradients of the embeddings are there"
    assert measured("tied", policy, given, clip=False) == plan["rows"][0]["peak"]


@pytest.mark.parametrize("padded", [False, True])
def test_masks_are_read(padded):
    given = inputs("llama", padded=padded, batch=3, length=64)
    given["attention_mask"] = given.get("attention_mask", torch.ones_like(given["input_ids"]))
    plan = compact.plan(make("llama"), given, policies=("exact",))
    assert plan["rows"][0]["peak"] == measured("llama", "exact", given)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_padding_of_samples_that_are_not_here(name):
    given = inputs(name, padded=True, batch=3, length=64)
    plan = compact.plan(make(name), (3, 64), policies=POLICIES, padded=True)
    assert not plan["failed"] and plan["mask"] is True and "no attention mask is counted" not in str(plan)
    for row in plan["rows"]:
        assert measured(name, row["policy"], given) == row["peak"], row
    without = compact.plan(make(name), (3, 64), policies=POLICIES)
    assert without["mask"] is False and "no attention mask is counted, which padded samples have: padded=True counts one" in str(without)
    assert without["rows"][0]["peak"] < plan["rows"][0]["peak"]


def test_padding_is_said_once_and_of_tokens():
    with pytest.raises(ValueError, match='padded=True is for .samples, tokens.: give `batch` its "attention_mask"'):
        compact.plan(make("llama"), inputs("llama"), padded=True)
    with pytest.raises(ValueError, match="padded=True is for models of tokens, ViTForImageClassification takes pixel_values"):
        compact.plan(make("vit"), 2, padded=True)
    assert compact.plan(make("vit"), 2, policies=["exact"])["mask"] is None


def test_shapes_alone():
    ids = torch.zeros(4, 64, dtype=torch.long)
    plan = compact.plan(make("llama"), 4, 64, policies=("exact", "gradient_checkpointing"))
    given = {"input_ids": ids, "labels": ids}
    assert plan["rows"][0]["peak"] == measured("llama", "exact", given)
    assert plan["rows"][1]["peak"] == measured("llama", "gradient_checkpointing", given)
    assert plan["rows"] == compact.plan(make("llama"), (4, 64), policies=("exact", "gradient_checkpointing"))["rows"]


@pytest.mark.parametrize(
    "optimizer,made",
    [
        (None, None),
        ((torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9, "foreach": False}), lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9)),
        ((torch.optim.AdamW, {"lr": 1e-3}), lambda p: torch.optim.AdamW(p, lr=1e-3)),
        (torch.optim.AdamW, torch.optim.AdamW),
        ((compact.optim.AdamW, {"lr": 1e-3, "moments": "f8"}), lambda p: compact.optim.AdamW(p, lr=1e-3, moments="f8")),
    ],
)
def test_optimizers(optimizer, made):
    given = inputs("llama", batch=2, length=64)
    plan = compact.plan(make("llama"), given, policies=("exact",), optimizer=optimizer, clip=False)
    count = {compact.optim.AdamW: 8, torch.optim.AdamW: 4}.get(optimizer[0] if isinstance(optimizer, tuple) else optimizer, 0)
    on_host = count * len(list(make("llama").parameters()))  # counts of steps
    assert plan["rows"][0]["peak"] + on_host == measured("llama", "exact", given, made, clip=False)


def test_state_in_lists_lives_under_every_policy():
    """An optimizer whose state is not all tensors by name: two copies of the weights."""
    peaks_of = {}
    for optimizer in (None, InLists):
        rows = compact.plan(make("llama"), (2, 32), policies=("off", "exact", "recompute"), optimizer=optimizer, device="cpu")["rows"]
        peaks_of[optimizer] = [row["peak"] for row in rows]
    weights = rows[0]["weights"]
    assert all(held >= bare + 2 * weights for bare, held in zip(peaks_of[None], peaks_of[InLists], strict=True))


@pytest.mark.parametrize("cls", [torch.optim.Adafactor, torch.optim.Adamax, torch.optim.ASGD])
def test_optimizers_that_read_numbers_or_sizes(cls):
    given = inputs("llama", batch=1, length=4)
    row = compact.plan(make("llama"), given, policies=("exact",), optimizer=cls, clip=False)["rows"][0]
    apart = measured("llama", "exact", given, lambda p: cls(p), clip=False) - row["peak"]
    if cls is not torch.optim.ASGD:  # counts of steps are on the host, as is a number that its update multiplies by
        assert row["at"] == "optimizer" and apart == 4 * len(list(make("llama").parameters())) + 8
    else:
        assert apart == 0


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_autocast(name):
    given = inputs(name, batch=2, length=64)
    plan = compact.plan(make(name), given, policies=POLICIES, autocast=torch.bfloat16)
    for row in plan["rows"]:
        apart = measured(name, row["policy"], given, autocast=torch.bfloat16) - row["peak"]
        near = name == "bert" or row["policy"] == "plain"  # what is beside the blocks is cast here and there
        # A plan counts attention's buffers of all threads; fewer may be there at once.
        over = 16384 if name == "bert" else 0
        assert -over <= apart + (2e-4 * row["peak"] if near else 0), row
        assert apart <= (2e-4 * row["peak"] if near else 0), row


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_numbers_that_are_multiplied_with(autocast):
    """The backward pass keeps a tensor of 8 bytes for one of them."""
    given = inputs("granite", batch=2, length=64)
    plan = compact.plan(make("granite"), given, policies=("plain", "off", "exact"), optimizer=None, clip=False, autocast=autocast)
    for row in plan["rows"]:
        assert row["peak"] == measured("granite", row["policy"], given, optimizer=None, clip=False, autocast=autocast), row


def test_checkpoints_under_autocast():
    """They cast the weights again in the backward pass, for as long as each of them runs."""
    given = inputs("llama", batch=1, length=4)
    row = compact.plan(make("llama"), given, policies=("gradient_checkpointing",), autocast=torch.bfloat16, clip=False)["rows"][0]
    real = measured("llama", "gradient_checkpointing", given, clip=False, autocast=torch.bfloat16)
    assert abs(real - row["peak"]) <= row["peak"] // 1000, row


def test_checkpoints_keep_states_of_the_generator(monkeypatch):
    """A tensor of 5,056 bytes a layer, where the peak is after the last one."""
    monkeypatch.setitem(MODELS, "deep", of("LlamaForCausalLM", "LlamaConfig", DECODER | {"vocab_size": 8000, "num_hidden_layers": 6}))
    given = inputs("deep", batch=2, length=64)
    row = compact.plan(make("deep"), given, policies=("gradient_checkpointing",), optimizer=None, clip=False)["rows"][0]
    assert row["peak"] == measured("deep", "gradient_checkpointing", given, optimizer=None, clip=False), row


def test_layers_that_keep_their_own_forward():
    """They are held in a scope, and a budget chooses a part of what they save."""
    plan = compact.plan(make("llama"), (8, 64), policies=("plain", "exact", "recompute"), autocast=torch.float16, optimizer=None, clip=False)
    held = peaks(plan)
    assert held["recompute"] < held["exact"] < 0.8 * held["plain"], held
    assert "no layer would be served: it computes in torch.float16" in compact.plan(make("llama"), (2, 16), autocast=torch.float16)["failed"]["off"]
    ids = torch.randint(200, (4, 64))
    both = torch.ones(4, 64, dtype=torch.long)  # padding at the beginning of one row and at the end of another
    both[0, :10], both[1, 50:] = 0, 0
    other = {"input_ids": ids, "labels": ids.clone(), "attention_mask": both}
    plan = compact.plan(make("llama"), other, policies=("plain",), budget="75%")
    assert "slot role:heavy = recompute:budget=" in plan.policy or plan.policy == "exact"
    assert plan["rows"][1]["peak"] <= 0.75 * plan["rows"][0]["peak"]
    assert measured("llama", plan, other) <= 0.75 * plan["rows"][0]["peak"]
    with pytest.raises(ValueError, match="projected gradients need layers that compact knows, and the attention mask is neither causal"):
        compact.plan(make("llama"), other, budget="75%", allow="project", optimizer=compact.optim.AdamW)
    with pytest.raises(ValueError, match="cannot be planned: .* must hold its labels"):
        compact.plan(make("llama"), {"input_ids": torch.ones(2, 8, dtype=torch.long)}, budget="70%")


def test_folders_and_configurations(tmp_path):
    model = make("gpt2")
    model.save_pretrained(tmp_path)
    wanted = peaks(compact.plan(model, (2, 64)))
    assert peaks(compact.plan(tmp_path, 2, 64)) == wanted
    assert peaks(compact.plan(transformers.AutoConfig.from_pretrained(tmp_path), 2, 64)) == wanted
    half = compact.plan(tmp_path, 2, 64, policies=("off",), dtype=torch.bfloat16)["rows"][0]
    assert half["weights"] == 2 * sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    "config,cls",
    [
        (transformers.LlamaConfig(**DECODER), "LlamaForCausalLM"),
        (transformers.BertConfig(**ENCODER), "BertForMaskedLM"),
        (transformers.BertConfig(**ENCODER, is_decoder=True), "BertLMHeadModel"),
        (transformers.ViTConfig(**VIT), "ViTForImageClassification"),
    ],
)
def test_configurations_without_a_class(config, cls):
    assert config.architectures is None
    batch = 2 if cls.startswith("ViT") else (2, 64)
    plan = compact.plan(config, batch, policies=("plain",))
    assert plan["model"] == cls
    assert plan["rows"] == compact.plan(getattr(transformers, cls)(config), batch, policies=("plain",))["rows"]


def test_a_table():
    text = str(compact.plan(make("llama"), (2, 64), budget="90%"))
    lines = text.splitlines()
    assert lines[0].endswith("parameters, a step on the CPU, MiB")
    assert [line.split()[0] for line in lines[2:9]] == [*POLICIES_OF_TABLES, "auto"]
    assert "auto fits " in text and "  slot loss.logits = chunk" in text


def test_planning_leaves_the_model_alone():
    model, given = make("llama"), inputs("llama")
    compact.apply(model, "recompute")
    before, held = gradients(model, given), copy.deepcopy(model.state_dict())
    compact.plan(model, given, policies=("exact",))
    assert compact.report(model).policy == compact.policy_text("recompute")
    assert all(torch.equal(held[key], t) for key, t in model.state_dict().items())
    assert error(gradients(model, given)[1], before[1]) == 0
    assert torch.empty(3, device="meta").sum().device.type == "meta"  # nothing is replaced in this process


def test_planning_from_another_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(compact.plan(make("llama"), (2, 32), policies=("exact",))))
    thread.start()
    thread.join()
    assert found[0]["rows"][0]["peak"] > 0


class Rounded(nn.Module):
    """Asks for a value that depends on weights."""

    def __init__(self):
        super().__init__()
        self.model = MODELS["llama"]()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, **given):
        out = self.model(**given)
        if self.scale > 0:
            out.loss = out.loss * 2
        return out


@pytest.mark.parametrize(
    "text,arguments,settings",
    [
        ("batch must be positive", (0, 64), {}),
        ("the length is missing", (4, None), {}),
        ("budget must be bytes", (2, 64), {"budget": "0.5"}),
        ("budget must be bytes", (2, 64), {"budget": 1.5}),
        ("batch must be positive whole numbers", (True, 64), {}),
        ("optimizer must be a class", (2, 64), {"optimizer": (torch.optim.AdamW,)}),
        ("failed with TypeError", (2, 64), {"optimizer": (compact.optim.AdamW, {"moment": "f8"})}),
        ("more than the model's 128 positions", (4, 129), {}),
        ('budget must be bytes, as 800000000, "10GiB"', (2, 64), {"budget": "much"}),
        ("budget must be bytes", (2, 64), {"budget": -1}),
        ("allow must be one of", (2, 64), {"allow": "anything"}),
        *(('device must be "cpu", "cuda" or the number of a GPU', (2, 64), {"device": device}) for device in ("meta", "gpu", -1, 128, 300, "cuda:256", "cuda:300", True, 1.5)),
        ("optimizer must be a class", (2, 64), {"optimizer": "adamw"}),
        ("or None, is an object of SGD", (2, 64), {"optimizer": torch.optim.SGD([torch.zeros(1)])}),
        ("projected gradients need compact.optim", (2, 64), {"budget": "90%", "allow": "quantize,project"}),
        ("no slot", (2, 64), {"policies": ["slot layers.9.attn.norm = recompute\n"]}),
    ],
)
def test_what_is_refused(text, arguments, settings):
    with pytest.raises(ValueError) as refused:
        compact.plan(make("llama"), *arguments, **settings)
    assert text in str(refused.value)


def test_places_and_prints_that_are_not_the_callers(tmp_path, monkeypatch):
    (tmp_path / "pickletools.py").write_text("raise SystemExit('a module of the working directory')")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("print('=' * 40)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    encoded = transformers.BatchEncoding(inputs("llama") | {"use_cache": False, "position_ids": None})
    assert compact.plan(make("llama"), encoded, policies="exact", optimizer=None)["rows"][0]["peak"] > 0


def test_values_that_are_written_to():
    with KnownValues():
        mask = with_value(torch.ones(2, 4))
        assert bool((mask == 1).all())
        mask[:, 2:] = 0
        assert not bool((mask == 1).all()) and mask.sum().item() == 4
        mask.mul_(torch.empty(4, device="meta"))
        with pytest.raises(ValueError, match="depends on its weights"):
            bool(mask.any())


def written(write, *given):
    """The values of zeros [4, 4] after a write, in a plan and in memory."""
    with KnownValues():
        meta = with_value(torch.zeros(4, 4))
        write(meta, *(with_value(t) for t in given))
        planned = meta.tolist()
    real = torch.zeros(4, 4)
    write(real, *given)
    return planned, real.tolist()


def set_at(t, mask):
    t[mask] = 3.0


def set_transposed(t, _):
    t.T[1] = 2.0
    t.mT[2] += 1.0


def set_data(t, mask):
    t.data[1] = 2.0
    t.data = t.data + mask


def set_read(t, mask):
    t[0, : int(mask.sum())] = (torch.arange(4, device=t.device) + 1.0)[mask]


@pytest.mark.parametrize("write", [set_at, set_transposed, set_data, set_read])
def test_values_that_are_written_to_views(write):
    planned, real = written(write, torch.tensor([True, False, True, False]))
    assert planned == real and real != torch.zeros(4, 4).tolist()


@pytest.mark.parametrize("part", [lambda t: t[0], lambda t: t.T, lambda t: t.data])
def test_unknown_values_that_are_written_to_a_part(part):
    with KnownValues():
        whole = with_value(torch.zeros(4, 4))
        part(whole).copy_(torch.empty(4, device="meta"))
        with pytest.raises(ValueError, match="depends on its weights"):
            whole.tolist()


def test_models_that_cannot_be_planned(tmp_path):
    model = make("llama")
    model.extra = threading.Lock()
    with pytest.raises(ValueError, match="cannot be sent to the process that plans"):
        compact.plan(model, (2, 64))
    with pytest.raises(ValueError, match="asks __bool__ of a tensor that depends on its weights"):
        compact.plan(Rounded(), inputs("llama"), policies=("exact",))
    with pytest.raises(ValueError, match="there is no folder"):
        compact.plan(tmp_path / "nothing", (2, 64))
    for batch, text in ((torch.zeros(2, 64), "is a Tensor"), ({"input_ids": [1]}, "must be a tensor or a plain value, is a list")):
        with pytest.raises(TypeError, match=text):
            compact.plan(make("llama"), batch)
    with pytest.raises(ValueError, match="it has projected gradients: compact.remove"):
        compact.plan(compact.apply(make("llama"), "compact"), (2, 64))
    with pytest.raises(TypeError, match="must be a module, a folder or a configuration"):
        compact.plan(3, (2, 64))
    with pytest.raises(ValueError, match="what labels a LlamaModel takes is not known"):
        compact.plan(transformers.LlamaModel(transformers.LlamaConfig(**DECODER)), (2, 64))
    with pytest.raises(ValueError, match="what is trained of a t5 is not known: name its class"):
        compact.plan(transformers.T5Config(), (2, 64))
    with pytest.raises(ValueError, match="call it outside of autocast"), torch.autocast("cpu", torch.bfloat16):
        compact.plan(make("llama"), (2, 64))
