# SPDX-License-Identifier: Apache-2.0
"""TRL's SFTTrainer and Lightning, where they are installed: losses step by step as without compact."""
import pytest
import torch
from conftest import make

import compact
import compact.hf

STEPS = 6
POLICIES = ("off", "exact", "recompute")


def rows(count=24, length=32):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(3, 200, (count, length), generator=generator)


def tokenizer():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(200)} | {"[PAD]": 200, "[EOS]": 201}
    fast = Tokenizer(models.WordLevel(words, unk_token="[PAD]"))
    return PreTrainedTokenizerFast(tokenizer_object=fast, pad_token="[PAD]", eos_token="[EOS]")


def sft(model, folder, peft_config=None, **settings):
    import trl
    from datasets import Dataset

    args = trl.SFTConfig(
        output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=4, logging_steps=1, learning_rate=1e-3,
        report_to=[], save_strategy="no", use_cpu=True, bf16=False, disable_tqdm=True, seed=1, **settings,
    )  # fmt: skip
    data = Dataset.from_dict({"input_ids": rows().tolist()})
    trainer = trl.SFTTrainer(
        model=model, args=args, train_dataset=data, processing_class=tokenizer(), callbacks=[compact.hf.Callback()],
        peft_config=peft_config,
    )  # fmt: skip
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


@pytest.mark.parametrize("policy", POLICIES)
def test_sft_trainer(policy, tmp_path):
    pytest.importorskip("trl")
    wanted = sft(make("llama"), tmp_path)
    model = compact.apply(make("llama"), policy)
    assert sft(model, tmp_path) == pytest.approx(wanted, abs=2e-4)
    assert all(layer.calls == STEPS for layer in compact.report(model).layers)


def test_sft_trainer_with_lora(tmp_path):
    pytest.importorskip("trl")
    peft = pytest.importorskip("peft")
    found = []
    for policy in (None, "exact"):
        model = compact.apply(make("llama"), policy) if policy else make("llama")
        torch.manual_seed(3)
        config = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
        found.append(sft(model, tmp_path, config))
    assert found[0] == pytest.approx(found[1], abs=2e-4)
    assert all(layer.calls == STEPS for layer in compact.report(model).layers)


def test_sft_trainer_with_projected_gradients(tmp_path):
    trl = pytest.importorskip("trl")
    model = compact.apply(make("llama"), "compact")
    from datasets import Dataset

    args = trl.SFTConfig(output_dir=str(tmp_path), max_steps=STEPS, logging_steps=1, report_to=[], save_strategy="no",
                         use_cpu=True, bf16=False, disable_tqdm=True)  # fmt: skip
    trainer = trl.SFTTrainer(
        model=model, args=args, train_dataset=Dataset.from_dict({"input_ids": rows().tolist()}),
        processing_class=tokenizer(), optimizers=(compact.optim.Muon(model, lr=1e-2), None),
    )  # fmt: skip
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert losses[-1] < losses[0] and all(layer.calls == STEPS for layer in compact.report(model).layers)


# The last with another projection after every second step.
@pytest.mark.parametrize("policy", [*POLICIES, "grad layers.*.mlp.down = project:rank=172,period=2"])
def test_lightning(policy, tmp_path):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self, model):
            super().__init__()
            self.model, self.losses = model, []

        def training_step(self, batch, index):
            loss = self.model(input_ids=batch, labels=batch).loss
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return compact.optim.AdamW(self.parameters(), lr=1e-3)

    def losses(model):
        module = Module(model.train())
        trainer = lightning.Trainer(
            max_steps=STEPS, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(module, torch.utils.data.DataLoader(rows(), batch_size=4))
        return module.losses

    wanted = losses(make("llama"))
    model = compact.apply(make("llama"), policy)
    assert losses(model) == pytest.approx(wanted, abs=2e-3 if "grad" in policy else 2e-4)
    assert all(layer.calls == STEPS for layer in compact.report(model).layers)
