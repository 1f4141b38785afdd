# SPDX-License-Identifier: Apache-2.0
"""Packed sequences and padding at the beginning: served, with losses and gradients beside the model's own."""
import copy
import pickle

from _device import DEVICE
from _planning import measured
from _projecting import LLAMA
from _reasons import reasons
from _setting import dropouts, set_everywhere
from conftest import applied, error, gradients, in_double, inputs, make as make_with_cache
import pytest
import torch

import compact

PACKED = torch.tensor([[*range(25), *range(15)], [*range(3), *range(1), *range(1), *range(35)], [*range(40)]])
LEFT = torch.ones(3, 40, dtype=torch.long)
LEFT[0, :5] = 0
LEFT[2, :39] = 0
NAMES = ("llama", "llama, biases, tied", "qwen2", "qwen3", "smollm3", "granite", "olmo2", "phi3", "gpt2")


def make(name):
    """Without a cache, with which transformers takes packed positions for those of one sequence."""
    model = make_with_cache(name)
    model.config.use_cache = False
    return model


def documents(rows):
    """A mask of each token's document, and 0 of padding, which attends to nothing."""
    numbers = torch.tensor(rows)
    return ((numbers[:, :, None] == numbers[:, None, :]) & (numbers[:, :, None] > 0) & torch.ones(40, 40).tril().bool())[:, None]


def given_with(name, what):
    given = inputs(name)
    if what == "packed":
        return given | {"position_ids": PACKED}
    if what == "left":
        return given | {"attention_mask": LEFT, "position_ids": (LEFT.cumsum(-1) - 1).clamp(min=0)}
    if what == "left, labels of padding":
        return given | {"attention_mask": LEFT}
    rows = [[1] * 10 + [0] * 4 + [2] * 20 + [0] * 6, [0] * 3 + [1] * 37, [1] * 39 + [0]]
    mask = documents(rows)
    given["labels"] = torch.where(torch.tensor(rows) > 0, given["labels"], -100)
    return given | {"attention_mask": mask}


WHAT = ("packed", "left", "left, labels of padding", "packed and padding")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", WHAT)
def test_losses_and_gradients(name, what):
    model, given = make(name), given_with(name, what)
    wanted = in_double(model, given)
    near = max(1e-5 if DEVICE == "cpu" else 2e-5, 3 * error(gradients(copy.deepcopy(model), given)[1], wanted[1]))
    for policy in ("off", "exact", "recompute"):
        with applied(model, policy):
            got = gradients(model, given)
            assert abs(got[0] - wanted[0]) < 1e-5, policy
            assert error(got[1], wanted[1]) < near, policy
            assert "packed or padded at the beginning: 2 layers in the last step, attention by " in str(compact.report(model))
    with applied(model, "gact-l1"):
        got = gradients(model, given)
        usual = error(gradients(model, inputs(name))[1], in_double(compact.remove(copy.deepcopy(model)), inputs(name))[1])
        # A norm behind attention, as olmo2 has it, divides the rounding of a token that attends to nothing by sqrt(eps).
        far = 3 if name == "olmo2" and what != "packed" else 0
        assert abs(got[0] - wanted[0]) < 1e-5 and error(got[1], wanted[1]) < max(3 * usual, far)


@pytest.mark.parametrize("what", WHAT)
def test_of_eager_attention(what):
    """Masks of numbers: rows of padding attend to everything, and are not served."""
    model, given = make("llama"), given_with("llama", what)
    if what == "packed and padding":
        given["attention_mask"] = torch.zeros(given["attention_mask"].shape).masked_fill_(~given["attention_mask"], torch.finfo(torch.float32).min)
    model.set_attn_implementation("eager")
    wanted = gradients(copy.deepcopy(model), given)
    compact.apply(model, "exact")
    got = gradients(model, given)
    assert abs(got[0] - wanted[0]) < 1e-5 and error(got[1], wanted[1]) < 1e-5
    assert [layer.calls for layer in compact.report(model).layers] == [int(what == "packed")] * 2


@pytest.mark.parametrize("name", ["mistral", "gemma3", "gemma2"])
def test_windows(name):
    """Sequences that are no longer than a window are served; gemma2 caps logits."""
    model, given = make(name), inputs(name)
    short = torch.cat([torch.arange(16), torch.arange(9), torch.arange(15)]).expand(3, 40)
    for positions, calls in ((short, 1), (PACKED, 0)):
        wanted = gradients(copy.deepcopy(model), given | {"position_ids": positions})
        compact.apply(model, "exact")
        got = gradients(model, given | {"position_ids": positions})
        assert abs(got[0] - wanted[0]) < 1e-5 and error(got[1], wanted[1]) < 1e-5
        full = int(name == "gemma3")  # whose last layer has no window
        assert [layer.calls for layer in compact.report(model).layers] == ([0, 0] if name == "gemma2" else [calls, calls or full])
        compact.remove(model)


@pytest.mark.parametrize("what", ["packed", "left"])
def test_dropout_of_attention_runs_the_own_forward(what):
    model, given = make("llama"), given_with("llama", what)
    set_everywhere("attention_dropout", 0.1)(model)
    compact.apply(model, "exact")
    gradients(model, given)
    assert reasons(model) == {"sequences are packed or padded at the beginning, and its attention has dropout"}
    wanted = gradients(copy.deepcopy(compact.remove(model)).eval(), given)
    compact.apply(model.eval(), "exact")
    got = gradients(model, given)
    assert abs(got[0] - wanted[0]) < 1e-5 and error(got[1], wanted[1]) < 1e-5 and not reasons(model)


def test_dropout_elsewhere_is_served():
    model, given = make("gpt2"), given_with("gpt2", "packed")
    dropouts(0.1)(model)
    for module in model.modules():
        if hasattr(module, "attn_dropout"):
            module.attn_dropout.p = 0.0
    with applied(model, "recompute"):
        gradients(model, given)


@pytest.mark.parametrize("what", WHAT)
def test_bfloat16_and_autocast(what):
    model, given = make("llama"), given_with("llama", what)
    wanted = gradients(copy.deepcopy(model), given)
    with applied(model, "recompute"), torch.autocast(DEVICE, torch.bfloat16):
        got = gradients(model, given)
        assert abs(got[0] - wanted[0]) < 0.02 and error(got[1], wanted[1]) < 0.1
    with applied(model.bfloat16(), "exact"):
        got = gradients(model, given)
        assert abs(got[0] - wanted[0]) < 0.05 and error(got[1], wanted[1]) < 0.2


@pytest.mark.parametrize("what", ["packed", "left"])
def test_projected_gradients_train(what):
    """They have no own forward to fall back to."""
    model, given = make("llama"), given_with("llama", what)
    compact.apply(model, LLAMA)
    before = float(gradients(model, given)[0])
    optimizer = compact.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(5):
        model(**given).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert float(model(**given).loss.detach()) < before and not reasons(model)


@pytest.mark.parametrize("what", ["packed", "left"])
def test_adapters(what):
    peft = pytest.importorskip("peft")
    given = given_with("llama", what)
    model = peft.get_peft_model(make("llama"), peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False))
    wanted = gradients(copy.deepcopy(model), given)
    with applied(model, "recompute"):
        got = gradients(model, given)
    assert abs(got[0] - wanted[0]) < 1e-5 and error(got[1], wanted[1]) < 1e-5


def test_a_document_has_the_bits_that_it_has_elsewhere():
    """The loss of each token has the same bits whatever lies before the document."""
    model = compact.apply(make("llama"), "exact", chunked_loss=False)
    ids = inputs("llama")["input_ids"]
    other = torch.cat([ids[1:2, :25], ids[:1, 25:]], 1)
    given = {"position_ids": PACKED[:1]}
    one, two = (model(input_ids=i, **given).logits[0, 25:] for i in (ids[:1], other))
    assert torch.equal(one, two) and not reasons(model)


def test_many_masks_in_one_model():
    """Each pass has its own, as have the passes of a step; copies and pickles, too."""
    model = make("llama")
    plain = copy.deepcopy(model)
    compact.apply(model, "recompute")
    every = [given_with("llama", what) for what in WHAT] + [inputs("llama"), inputs("llama", padded=True)]
    for model in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        losses = [(model(**given).loss, plain(**given).loss) for given in every]
        for own in (0, 1):
            for m in (model, plain):
                m.zero_grad()
            sum(pair[0] for pair in losses).backward(retain_graph=own == 0)
            sum(pair[1] for pair in losses).backward(retain_graph=own == 0)
            got, wanted = ({n: p.grad.double() for n, p in m.named_parameters()} for m in (model, plain))
            assert error(got, wanted) < 1e-5
        assert not reasons(model)


def test_one_mask_for_the_batch():
    model, given = make("llama"), inputs("llama")
    mask = documents([[1] * 10 + [2] * 30])
    plain = copy.deepcopy(model)
    with applied(model, "exact"):
        got, wanted = gradients(model, given | {"attention_mask": mask}), gradients(plain, given | {"attention_mask": mask})
        assert abs(got[0] - wanted[0]) < 1e-5 and error(got[1], wanted[1]) < 1e-5
        assert compact.report(model).layers[0].ranges[1:] == (6, 40 * 40)


def test_evaluation_has_the_same_loss():
    model, given = make("llama").eval(), given_with("llama", "left")
    wanted = model(**given).loss.detach()
    with applied(model, "exact"):
        assert torch.allclose(model(**given).loss, wanted, atol=1e-5)
        with torch.no_grad():
            assert torch.equal(model(**given).loss, wanted)


@pytest.mark.parametrize("collator", ["flattening", "flattening, flash arguments", "trl"])
def test_collators(collator):
    """Collators that put samples behind one another in one row."""
    samples = [{"input_ids": inputs("llama")["input_ids"][i, :n].tolist()} for i, n in enumerate((7, 40, 13))]
    if collator == "trl":
        trainer = pytest.importorskip("trl.trainer.sft_trainer")
        given = trainer.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(samples)
    else:
        flattening = pytest.importorskip("transformers").DataCollatorWithFlattening
        given = flattening(return_tensors="pt", return_flash_attn_kwargs="flash" in collator, return_seq_idx="flash" in collator)(samples)
    assert given["position_ids"].shape == (1, 60) and ("cu_seq_lens_q" in given) == (collator != "flattening")
    model = make("llama")
    wanted = gradients(copy.deepcopy(model), given)
    with applied(model, "exact"):
        got = gradients(model, given)
        assert compact.report(model).layers[0].ranges[1] == 3
    assert abs(got[0] - wanted[0]) < 1e-5 and error(got[1], wanted[1]) < 1e-5


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3"])
@pytest.mark.parametrize("what", WHAT)
def test_plans_are_to_the_byte(name, what):
    given = given_with(name, what)
    plan = compact.plan(make(name), given, policies=("off", "exact", "recompute", "gact-l1"))
    assert not plan["failed"]
    for row in plan["rows"]:
        assert measured(name, row["policy"], given, make=make) == row["peak"], row


@pytest.mark.parametrize("what", ["packed", "left"])
def test_budgets(what):
    given = given_with("llama", what)
    plan = compact.plan(make("llama"), given, policies=("plain",), budget="75%")
    assert plan["rows"][1]["seconds"] > 0  # blocks are searched, as of layers that are served
    assert measured("llama", plan, given, make=make) <= 0.75 * plan["rows"][0]["peak"]


def test_wrong_ranges_are_refused():
    layer = compact.apply(make("llama")).model.layers[0]
    state, x, table = layer.__dict__["_compact"], torch.randn(3, 40, 64), torch.zeros(40, 8)

    def run(ranges, lengths=None):
        state.block.forward(x, state.weights(), table, table, lengths, torch.tensor(ranges), True)

    run([[0, 0, 40], [2, 3, 4]])
    for ranges in ([[0, 0, 41]], [[0, 3, 3]], [[3, 0, 40]], [[0, 0, 5], [0, 4, 6]], [[1, 0, 5], [0, 0, 5]], [0, 0, 5], [[0.0, 1.0, 2.0]]):
        with pytest.raises(ValueError, match="ranges? "):
            run(ranges)
    with pytest.raises(ValueError, match="without lengths"):
        run([[0, 0, 40]], torch.tensor([40, 40, 40]))
