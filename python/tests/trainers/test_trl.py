# SPDX-License-Identifier: Apache-2.0
"""TRL's trainers of preferences, rewards and texts, where TRL is installed: losses, entropies and accuracies step by step as
without compact, and log probabilities by compact."""
import copy
import sys

from _device import DEVICE
import pytest
import torch
from conftest import make

import compact
import compact.hf

trl = pytest.importorskip("trl")
pytest.importorskip("trl.trainer.utils")  # loaded before any test, so that conftest knows what was TRL's own
STEPS = 5
WORDS = [f"w{i}" for i in range(190)]


def tokenizer():
    from tokenizers import models, pre_tokenizers, Tokenizer
    from transformers import PreTrainedTokenizerFast

    whole = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*WORDS, "[PAD]", "[EOS]"])}, unk_token="w0"))
    whole.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=whole, pad_token="[PAD]", eos_token="[EOS]", padding_side="left")


def texts(count=40):
    generator = torch.Generator(device="cpu").manual_seed(3)

    def text(least, most):
        length = int(torch.randint(least, most, (1,), generator=generator, device="cpu"))
        return " ".join(WORDS[i] for i in torch.randint(3, 190, (length,), generator=generator, device="cpu"))

    return [(text(3, 9), " " + text(4, 12), " " + text(4, 12)) for _ in range(count)]


def rows(kind):
    from datasets import Dataset

    made = {
        "SFT": lambda p, c, r: {"prompt": p, "completion": c},
        "DPO": lambda p, c, r: {"prompt": p, "chosen": c, "rejected": r},
        "KTO": lambda p, c, r: {"prompt": p, "completion": c, "label": len(c) > len(r)},
    }.get(kind, lambda p, c, r: {"prompt": p})
    return Dataset.from_list([made(*row) for row in texts()])


def reward(completions, **_):
    return [len(set(text.split())) / 7 - text.count("w1") for text in completions]


def train(kind, model, folder, reference=None, served=True, peft_config=None, **settings):
    settings = {"per_device_train_batch_size": 4, "learning_rate": 1e-3} | settings
    if kind in ("GRPO", "RLOO"):
        settings = {"num_generations": 4, "max_completion_length": 9} | settings
    args = getattr(trl, f"{kind}Config")(
        output_dir=str(folder), max_steps=STEPS, logging_steps=1, report_to=[], save_strategy="no", use_cpu=DEVICE == "cpu",
        disable_tqdm=True, seed=1, **{"bf16": False} | settings,
    )  # fmt: skip
    given = {"reward_funcs": reward} if kind in ("GRPO", "RLOO") else {}
    if reference is not None:
        given["ref_model"] = reference
    torch.manual_seed(7)
    trainer = getattr(trl, f"{kind}Trainer")(
        model=model, args=args, train_dataset=rows(kind), processing_class=tokenizer(), peft_config=peft_config,
        callbacks=[compact.hf.Callback()] if served else [], **given,
    )  # fmt: skip
    trainer.train()
    kept = ("loss", "entropy", "mean_token_accuracy", "grad_norm", "kl", "logits/chosen", "logits/rejected", "rewards/chosen", "rewards/margins")
    return [{k: v for k, v in row.items() if k in kept} for row in trainer.state.log_history if "loss" in row]


def close(got, wanted, to=1e-5):
    assert len(got) == len(wanted) == STEPS and got[0].keys() == wanted[0].keys()
    for step, (a, b) in enumerate(zip(got, wanted)):
        for name in b:
            assert a[name] == pytest.approx(b[name], rel=5 * to, abs=to), (step, name)


def passes(model):
    text = compact.report(model).loss
    return int(text.partition("log probabilities for TRL in ")[2].partition(" ")[0] or 0)


@pytest.mark.parametrize("kind, policy", [("SFT", "exact"), ("DPO", "recompute"), ("KTO", "exact")])
def test_steps(kind, policy, tmp_path):
    reference = make("llama", 5) if kind != "SFT" else None
    wanted = train(kind, make("llama"), tmp_path, copy.deepcopy(reference), served=False)
    model = compact.apply(make("llama"), policy)
    close(train(kind, model, tmp_path, reference), wanted)
    assert passes(model) >= STEPS and all(layer.calls >= STEPS for layer in compact.report(model).layers)


def test_the_reference_has_it_too(tmp_path):
    reference = make("llama", 5)
    wanted = train("DPO", make("llama"), tmp_path, copy.deepcopy(reference), served=False)
    compact.apply(reference)
    close(train("DPO", make("llama"), tmp_path, reference), wanted)
    assert passes(reference) >= STEPS


@pytest.mark.parametrize("kind, name", [("SFT", "llama, biases, tied"), ("SFT", "gemma2"), ("DPO", "granite")])
def test_models(kind, name, tmp_path):
    """Tied heads, logits that are scaled, and logits that are capped."""
    reference = make(name, 5) if kind == "DPO" else None
    wanted = train(kind, make(name), tmp_path, copy.deepcopy(reference), served=False)
    model = compact.apply(make(name))
    close(train(kind, model, tmp_path, reference), wanted, 3e-5)
    assert passes(model) >= STEPS


@pytest.mark.parametrize("settings", [{}, {"entropy_coef": 0.1, "temperature": 0.7}, {"num_iterations": 2, "loss_type": "dapo", "top_entropy_quantile": 0.5}])
def test_grpo(settings, tmp_path):
    wanted = train("GRPO", make("llama"), tmp_path, served=False, **settings)
    model = compact.apply(make("llama"))
    close(train("GRPO", model, tmp_path, **settings), wanted)
    assert passes(model) >= STEPS


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.3, "num_iterations": 2}])
def test_rloo(settings, tmp_path):
    settings = {"beta": 0.0} | settings
    wanted = train("RLOO", make("llama"), tmp_path, served=False, **settings)
    model = compact.apply(make("llama"))
    close(train("RLOO", model, tmp_path, **settings), wanted)
    assert passes(model) >= STEPS


@pytest.mark.parametrize("kind", ["SFT", "DPO", "KTO", "GRPO", "RLOO"])
def test_lora(kind, tmp_path):
    """The reference is the model with its adapters off; the head is frozen."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"])
    settings = {"beta": 0.1} if kind in ("GRPO", "RLOO") else {}
    wanted = train(kind, make("llama"), tmp_path, served=False, peft_config=config, **settings)
    model = compact.apply(make("llama"))
    close(train(kind, model, tmp_path, peft_config=config, **settings), wanted)
    assert passes(model) >= (STEPS if kind == "SFT" else 2 * STEPS)


@pytest.mark.parametrize("kind", ["SFT", "DPO"])
def test_without_padding(kind, tmp_path):
    reference = make("llama", 5) if kind == "DPO" else None
    settings = {"padding_free": True} | ({"max_length": None} if kind == "SFT" else {})
    wanted = train(kind, make("llama"), tmp_path, copy.deepcopy(reference), served=False, **settings)
    model = compact.apply(make("llama"))
    close(train(kind, model, tmp_path, reference, **settings), wanted)
    assert passes(model) >= STEPS


@pytest.mark.parametrize("kind", ["SFT", "DPO"])
def test_autocast(kind, tmp_path):
    """In bfloat16 both round."""
    reference = make("llama", 5) if kind == "DPO" else None
    wanted = train(kind, make("llama"), tmp_path, copy.deepcopy(reference), served=False, bf16=True)
    model = compact.apply(make("llama"))
    got = train(kind, model, tmp_path, reference, bf16=True)
    assert passes(model) >= STEPS
    assert got[0]["loss"] == pytest.approx(wanted[0]["loss"], abs=5e-3) and got[0]["entropy"] == pytest.approx(wanted[0]["entropy"], abs=5e-3)


def test_what_is_left_to_trl(tmp_path):
    """Models whose logits the policy keeps, and those that compact.apply() was not given."""
    wanted = train("SFT", make("llama"), tmp_path, served=False)
    for settings in ({"chunked_loss": False}, {"policy": "off"}):
        model = compact.apply(make("llama"), **settings)
        close(train("SFT", model, tmp_path), wanted)
        assert passes(model) == 0 and "log probabilities" not in compact.report(model).loss
    close(train("SFT", compact.remove(compact.apply(make("llama"))), tmp_path), wanted)


def test_heads_that_are_left_to_trl():
    """One that DeepSpeed gathers for the forward pass alone; not one whose weight was replaced."""
    from trl.trainer.utils import add_fused_lm_head

    model = compact.apply(make("llama"))
    add_fused_lm_head(model)
    compact.hf.Callback()
    ids = torch.randint(3, 200, (2, 9))
    wanted = model(input_ids=ids, labels=ids, fused_lm_head=True).loss.item()
    assert passes(model) == 1
    model.lm_head.weight.ds_id = 0
    assert model(input_ids=ids, labels=ids, fused_lm_head=True).loss.item() == pytest.approx(wanted, abs=1e-6)
    assert passes(model) == 1
    del model.lm_head.weight.ds_id
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())  # another one is the head's from now on
    model(input_ids=ids, labels=ids, fused_lm_head=True)
    assert passes(model) == 2


def test_a_trl_of_other_arguments(monkeypatch):
    import trl.trainer.utils as utils

    class Other(torch.autograd.Function):
        @staticmethod
        def forward(ctx, hidden, weight, targets):
            return hidden

    monkeypatch.setattr(utils, "_ChunkedLogProbFunction", Other)
    compact.hf.Callback()
    assert utils._ChunkedLogProbFunction is Other
    monkeypatch.delitem(sys.modules, "trl.trainer.utils")
    compact.hf.Callback()


@pytest.mark.parametrize("outputs", [("log_probs",), ("log_probs", "entropy", "mean_logits", "is_top1", "log_sum_sq_probs")])
def test_outputs_of_a_fused_head(outputs):
    """All that TRL asks for, with and without labels, and no tensor of the size of all logits."""
    from trl.trainer.utils import add_fused_lm_head

    model = make("llama")
    ids = torch.randint(3, 200, (3, 40))
    labels = ids.masked_fill(torch.rand(3, 40) < 0.5, -100)
    compact.apply(model)
    add_fused_lm_head(model, temperature=0.8, outputs=outputs)
    wanted = model(input_ids=ids, labels=labels, fused_lm_head=True)
    compact.hf.Callback()
    assert passes(model) == 0
    got = model(input_ids=ids, labels=labels, fused_lm_head=True)
    assert passes(model) == 1 and got.keys() == wanted.keys()
    for name, x in wanted.items():
        assert got[name].dtype == x.dtype and torch.allclose(got[name].double(), x.double(), atol=1e-5), name
    none = model(input_ids=ids, labels=torch.full_like(ids, -100), fused_lm_head=True)
    assert none.loss == 0 and not none.log_probs.any()
    none.loss.backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())
