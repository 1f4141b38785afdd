# SPDX-License-Identifier: Apache-2.0
"""Models inside other modules, and what reports and messages say of them."""
import contextlib
import logging

import pytest
import torch
from conftest import DECODER, VIT, error, gradients, inputs, make, same
from torch import nn
import transformers

import compact


class Wrapped(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.lm = model

    def forward(self, **given):
        return self.lm(**given)


class Scores(nn.Module):
    """A head of one's own on a backbone."""

    def __init__(self, model):
        super().__init__()
        self.backbone, self.head = model.model, nn.Linear(64, 1)

    def forward(self, input_ids):
        return self.head(self.backbone(input_ids=input_ids).last_hidden_state).mean()


def test_a_model_in_a_module():
    model, given = Wrapped(make("llama")).train(), inputs("llama")
    wanted = gradients(model, given)[1]
    compact.apply(model)
    assert error(gradients(model, given)[1], wanted) < 1e-5
    report = compact.report(model)
    assert [row.calls for row in report.layers] == [1, 1] and "in chunks, 1 passes" in report.loss
    assert [row.name for row in report.layers] == ["lm.model.layers.0", "lm.model.layers.1"]
    compact.remove(model)
    assert all("_compact" not in m.__dict__ and "forward" not in m.__dict__ for m in model.modules())


def test_a_backbone():
    model = Scores(make("llama")).train()
    compact.apply(model)
    model(inputs("llama")["input_ids"]).backward()
    report = compact.report(model)
    assert [row.calls for row in report.layers] == [1, 1]
    assert report.loss.startswith("the model's own")


def with_a_tower(samples):
    """A language model with a vision tower, and what it is called with."""
    text, vision = transformers.LlamaConfig(**DECODER), transformers.CLIPVisionConfig(**VIT | {"num_attention_heads": 4, "intermediate_size": 128})
    torch.manual_seed(0)
    model = transformers.LlavaForConditionalGeneration(transformers.LlavaConfig(text_config=text, vision_config=vision, image_token_id=199)).train()
    ids = inputs("llama", batch=samples)["input_ids"] % 199
    ids[:, :16] = 199
    return model, {"input_ids": ids, "pixel_values": torch.randn(samples, 3, 32, 32), "labels": ids.clone()}


def test_plans_of_a_model_with_a_vision_tower():
    model, given = with_a_tower(4)
    gradients(model, given)  # what transformers adds in the first pass may be there
    plan = compact.plan(model, given, policies=("plain", "exact", "recompute"), budget="65%", optimizer=None, clip=False)
    rows = {row["policy"]: row for row in plan["rows"]}
    model.zero_grad()
    for policy, row in rows.items():
        if policy != "plain":
            compact.apply(model, plan if policy == "auto" else policy)
        for _ in range(2):
            with compact.Meter() as meter:
                model(**given).loss.backward()
                model.zero_grad()
        compact.remove(model)
        real = meter.peak + row["weights"] + sum(t.nbytes for t in given.values())
        assert abs(real - row["peak"]) < 0.005 * row["peak"], (policy, real, row)
    assert rows["recompute"]["peak"] < rows["auto"]["peak"] <= 0.65 * rows["plain"]["peak"]


def test_reports_of_a_model_with_a_vision_tower():
    """Layers that compact does not know are counted, and what is around all layers is named."""
    model, given = with_a_tower(1)
    compact.apply(model, "exact")
    model(**given).loss.backward()
    report = compact.report(model)
    assert [bool(row.served) for row in report.layers] == [True, True, False, False] and report.held > 0
    assert all("CLIPEncoderLayer" in row.reason and ".vision_tower." in row.name for row in report.layers[2:])
    assert "2 of 4 layers served" in str(report)
    assert report.saved.stored < 0.75 * report.saved.bytes and f"{report.saved.stored:,} of {report.saved.bytes:,} bytes held" in str(report)
    rest = " ".join(report.rest)
    assert all(f" {name} (" in f" {rest} " for name in ("lm_head", "model.multi_modal_projector", "model.language_model.embed_tokens"))
    assert "layers." not in rest and "model.multi_modal_projector (" in str(report)
    assert compact.report(make("llama")).rest == ["model.embed_tokens (Embedding)", "model.norm (LlamaRMSNorm)", "lm_head (Linear)"]


def test_towers_have_the_bits_of_their_own_code():
    model, given = with_a_tower(1)
    results = []
    for policy in ("off", "exact", "recompute", "gact-l1"):
        compact.apply(model, policy, chunked_loss=False)
        for _ in range(2):
            loss, wanted = gradients(model, given)
        results.append((policy, wanted, compact.report(model).saved))
        compact.remove(model)
    off, exact, recompute, codes = results
    assert off[2] is None and recompute[2].stored < exact[2].stored == codes[2].stored
    for other in (exact, recompute):
        assert same(off[1], other[1]), other[0]


def test_reports():
    model, given = make("llama"), inputs("llama")
    compact.apply(model)
    assert "2 of 2 layers can be served; there was no step yet" in str(compact.report(model))
    gradients(model, given)
    held = compact.report(model).held
    assert f"2 of 2 layers served in the last step, {held:,} of" in str(compact.report(model))
    gradients(model, given | {"use_cache": True})
    report = compact.report(model)
    assert report.held == report.saved.stored and f"0 of 2 layers served in the last step, {report.held:,} of {report.saved.bytes:,}" in str(report)
    assert "1 by its own forward: a cache of keys and values is passed; give use_cache=False" in str(report)


def test_what_is_said_is_said_once_of_each_model(caplog):
    caplog.set_level(logging.WARNING, "compact")
    for count in (1, 2):
        model = compact.apply(make("llama"))
        for _ in range(3):
            gradients(model, inputs("llama") | {"use_cache": True})
        said = [record.message for record in caplog.records if "cache of keys" in record.message]
        assert len(said) == count and said[0].startswith("compact: layers keep their own forward")


def test_positions_that_begin_again_are_said(caplog):
    caplog.set_level(logging.WARNING, "compact")
    model, given = compact.apply(make("llama")), inputs("llama")
    packed = torch.cat([torch.arange(25), torch.arange(15)]).expand(3, 40)
    for more in ({"position_ids": torch.arange(40).expand(3, 40)}, {"position_ids": packed, "use_cache": False}):
        gradients(compact.apply(make("llama")), given | more)
    assert not [record for record in caplog.records if "begin again" in record.message]
    for _ in range(2):
        gradients(model, given | {"position_ids": packed})
    assert len([record for record in caplog.records if "position_ids begin again within a row" in record.message]) == 1


def test_a_loss_in_eval_mode_says_so():
    model = compact.apply(make("llama").eval())
    out = model(**inputs("llama"))
    assert out.logits is not None
    assert "1 from all logits: the model is in eval mode" in compact.report(model).loss


@pytest.mark.parametrize(
    "call,kind,text",
    [
        (lambda m: compact.apply("gpt2"), TypeError, "must be a torch.nn.Module, is a str"),
        (lambda m: compact.apply(m, 3), TypeError, "must be a preset's name, a path or a text, is a int"),
        (lambda m: compact.apply(m, "auto"), ValueError, "byte budget"),
        (lambda m: compact.saved_tensors("auto"), ValueError, "byte budget"),
        (lambda m: compact.saved_tensors(None), TypeError, "must be a preset's name, a path or a text, is a NoneType"),
        (lambda m: compact.apply(nn.ModuleList([nn.Linear(2, 2)])), ValueError, "has no forward pass"),
    ],
)
def test_mistakes(call, kind, text):
    with pytest.raises(kind, match=text):
        call(make("llama"))


def test_texts_of_presets():
    assert "slot role:{" in compact.policy_text("exact") and compact.policy_text("off") == ""
    assert compact.hf.Callback  # there without an import of its own


def test_presets_are_those_that_a_model_can_have():
    maps = ("pool", "pool-quant")
    for name in set(compact.presets()) - set(maps):
        compact.apply(make("llama"), name)
    assert {"off", "exact", "recompute", "compact", "gact-l1", *maps} <= set(compact.presets())
    assert "compact-paper" not in compact.presets()
    for name in maps:
        net, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)), torch.randn(4, 3, 32, 32)
        compact.apply(net, name)(x).sum().backward()
        assert any("pool" in t.treatment for t in compact.report(net).saved)
        assert compact.report(net).name == name
        with pytest.warns(UserWarning, match=f"preset {name} is for convolutional networks"):
            compact.apply(nn.Sequential(nn.Linear(64, 64), nn.Tanh()), name)(torch.ones(64, 64)).sum().backward()
    for name in (*maps, "compact-paper"):
        assert compact.policy_text(name)
        with pytest.raises(ValueError, match="no slot of this model is in the preset|for the C\\+\\+ program"):
            compact.apply(make("llama"), name)
    for call in (compact.policy_text, lambda name: compact.apply(make("llama"), name), lambda name: compact.saved_tensors(name).__enter__()):
        with pytest.raises(ValueError, match="no preset `wrong`") as error:
            call("wrong")
        assert all(name in str(error.value) for name in compact.presets()) and "compact-paper" not in str(error.value)


def test_versions_of_transformers(monkeypatch):
    import transformers

    for version in ("5.4.1", "4.57.6"):
        monkeypatch.setattr(transformers, "__version__", version)
        with pytest.raises(ValueError, match=f"transformers 5.12 and later are served, here is {version}"):
            compact.apply(make("llama"))
    monkeypatch.setattr(transformers, "__version__", "5.100.0.dev0")
    compact.apply(make("llama"))


def test_caps_that_sdpa_leaves_out():
    """Versions of transformers have run sdpa where the configuration asks for capped logits."""
    model = make("gemma2")
    model.config._attn_implementation = "sdpa"
    compact.apply(model, "exact")
    with contextlib.suppress(ValueError):  # newer ones refuse
        gradients(model, inputs("gemma2"))
    layer = compact.report(model).layers[0]
    assert not layer.served and "leaves out the cap" in " ".join(layer.own_forward)
