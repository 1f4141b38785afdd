# SPDX-License-Identifier: Apache-2.0
"""Texts of random tokens, and Hugging Face's Trainer for six steps on them."""
import pytest
import torch
from transformers import Trainer, TrainingArguments


def text(count=24, length=32):
    generator = torch.Generator().manual_seed(3)
    rows = torch.randint(3, 200, (count, length), generator=generator)
    return [{"input_ids": row, "labels": row.clone()} for row in rows]


def train(model, folder, data, callbacks=(), **settings):
    """The trainer after six steps, and their losses."""
    pytest.importorskip("accelerate")
    args = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        max_steps=6,
        logging_steps=1,
        learning_rate=1e-3,
        report_to=[],
        save_strategy="no",
        seed=1,
        use_cpu=True,
        disable_tqdm=True,
        **settings,
    )
    trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=list(callbacks))
    trainer.train()
    return trainer, [row["loss"] for row in trainer.state.log_history if "loss" in row]
