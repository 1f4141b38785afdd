# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer: losses step by step as without compact, checkpoints, and what it switches on."""
import pytest
import torch
from _training import text, train
from conftest import make
from transformers import Trainer, TrainingArguments

import compact
import compact.hf

pytest.importorskip("accelerate")


def sentences(count=24, length=32):
    rows = text(count, length)
    for i, row in enumerate(rows):
        mask = torch.ones(length, dtype=torch.long)
        mask[length - i % 7 :] = 0 if i % 7 else 1
        row.update(attention_mask=mask, labels=torch.tensor(i % 2))
    return rows


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 2}, {"bf16": True}])
def test_losses_step_by_step(name, settings, tmp_path):
    data = sentences() if name == "bert" else text()
    _, plain = train(make(name), tmp_path / "plain", data, **settings)
    for policy in ("off", "exact"):
        model = compact.apply(make(name), policy)
        trainer, got = train(model, tmp_path / policy, data, [compact.hf.Callback()], **settings)
        assert len(got) == 6
        # In bfloat16 products of fused weights round otherwise.
        assert got == pytest.approx(plain, abs=0.02 if "bf16" in settings else 2e-4)
        held = [row["compact_held_bytes"] for row in trainer.state.log_history if "loss" in row]
        assert all(h == compact.report(model).held > 0 for h in held)
        assert all(row.calls and not row.own_forward for row in compact.report(model).layers)


def padded(count=22, length=32):
    rows = text(count, length)
    for i, row in enumerate(rows):
        end = 2 + i * 13 % 30
        row["attention_mask"] = (torch.arange(length) < end).long()
        row["labels"][end:] = -100
    return rows


class InOrder(Trainer):
    def _get_train_sampler(self, *args):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def test_a_shorter_last_window_is_the_mean_over_its_tokens(tmp_path):
    # 11 micro-batches an epoch: windows of 4, 4 and 3.
    data, sgd, plain, losses = padded(), {"lr": 0.05}, make("llama").train(), []
    optimizer = torch.optim.SGD(plain.parameters(), **sgd)
    for first in 2 * [0, 8, 16]:
        window, total = data[first : first + 8], 0.0
        count = sum(int((row["labels"][1:] != -100).sum()) for row in window)
        for i in range(0, len(window), 2):
            batch = {key: torch.stack([row[key] for row in window[i : i + 2]]) for key in window[0]}
            labels = batch.pop("labels")[:, 1:]
            loss = torch.nn.functional.cross_entropy(plain(**batch).logits[:, :-1].transpose(1, 2), labels, reduction="sum") / count
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    model = compact.apply(make("llama"), "exact")
    args = TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=4, num_train_epochs=2, logging_steps=1, report_to=[],
        use_cpu=True, disable_tqdm=True, save_strategy="no", lr_scheduler_type="constant", max_grad_norm=0,
    )  # fmt: skip
    trainer = InOrder(
        model=model, args=args, train_dataset=data, callbacks=[compact.hf.Callback()], optimizer_cls_and_kwargs=(torch.optim.SGD, sgd)
    )
    trainer.train()
    assert [row["loss"] for row in trainer.state.log_history if "loss" in row] == pytest.approx(losses, abs=1e-5)
    for (name, p), q in zip(model.named_parameters(), plain.parameters()):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=0, msg=name)


def test_gradient_checkpointing_is_taken_back(tmp_path):
    _, plain = train(make("llama"), tmp_path / "plain", text(), gradient_checkpointing=True)
    model = compact.apply(make("llama"), "recompute")
    _, got = train(model, tmp_path / "ours", text(), [compact.hf.Callback()], gradient_checkpointing=True)
    assert got == pytest.approx(plain, abs=2e-4)
    rows = compact.report(model).layers
    assert [row.calls for row in rows] == [6, 6] and not any(row.own_forward for row in rows)


def test_gradient_checkpointing_is_given_back_to_layers_that_are_not_served(tmp_path):
    _, plain = train(make("llama"), tmp_path / "plain", text(), gradient_checkpointing=True)
    model = compact.apply(make("llama"), "exact")
    model.model.layers[1].mlp.register_forward_hook(lambda module, given, output: None)
    _, got = train(model, tmp_path / "ours", text(), [compact.hf.Callback()], gradient_checkpointing=True)
    assert got == pytest.approx(plain, abs=2e-4)
    assert [layer.gradient_checkpointing for layer in model.model.layers] == [False, True]


def test_resume(tmp_path):
    settings = {"save_steps": 3}

    def run(folder, resume=None):
        model = compact.apply(make("llama"), "exact")
        args = TrainingArguments(
            output_dir=str(folder), per_device_train_batch_size=4, max_steps=6, logging_steps=1, report_to=[], seed=1,
            use_cpu=True, disable_tqdm=True, save_strategy="steps", **settings,
        )  # fmt: skip
        trainer = Trainer(model=model, args=args, train_dataset=text(), callbacks=[compact.hf.Callback()])
        trainer.train(resume_from_checkpoint=resume)
        return {n: p.detach().clone() for n, p in model.named_parameters()}

    whole = run(tmp_path / "run")
    resumed = run(tmp_path / "run", str(tmp_path / "run" / "checkpoint-3"))
    assert all(torch.equal(whole[n], resumed[n]) for n in whole)


def test_evaluation_has_logits(tmp_path):
    model = compact.apply(make("llama"), "exact")
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True)
    plain = Trainer(model=make("llama"), args=args, eval_dataset=text()).evaluate()
    ours = Trainer(model=model, args=args, eval_dataset=text()).evaluate()
    assert ours["eval_loss"] == pytest.approx(plain["eval_loss"], abs=1e-5)
    assert Trainer(model=model, args=args).predict(text()).predictions.shape == (24, 32, 200)


def test_accelerate():
    from accelerate import Accelerator

    losses = []
    for policy in (None, "exact"):
        model = make("llama")
        if policy:
            compact.apply(model, policy)
        accelerator = Accelerator(cpu=True)
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
        losses.append([])
        for row in text(4):
            ids = row["input_ids"][None]
            loss = model(input_ids=ids, labels=ids).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
