# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer with layers that compact serves and moments in 8 bits.

    python examples/python/trainer.py [--policy exact] [--steps 30] [--output_dir runs/trainer]
"""
import argparse

import torch
from loop import BOOK, small_llama
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

import compact
import compact.hf


class Bytes(Dataset):
    """Blocks of 128 bytes of a text."""

    def __init__(self, path):
        data = torch.tensor(list(path.read_bytes()))
        self.rows = data[: len(data) // 128 * 128].view(-1, 128)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--policy", default="exact")
    p.add_argument("--steps", type=int, default=30)
    p.add_argument("--output_dir", default="runs/trainer")
    a = p.parse_args()
    model = compact.apply(small_llama(), policy=a.policy)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=a.output_dir, max_steps=a.steps, per_device_train_batch_size=8, learning_rate=1e-3,
            logging_steps=10, report_to=[], save_strategy="no",
        ),  # fmt: skip
        train_dataset=Bytes(BOOK),
        optimizer_cls_and_kwargs=(compact.optim.AdamW, {"lr": 1e-3, "moments": "f8"}),
        callbacks=[compact.hf.Callback()],
    )
    trainer.train()
    print(compact.report(model))
    trainer.save_model(a.output_dir)  # as of any model: AutoModelForCausalLM.from_pretrained reads it


if __name__ == "__main__":
    main()
