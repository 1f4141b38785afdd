# SPDX-License-Identifier: Apache-2.0
"""Shards saved by transformers are read as one."""

import pathlib
import sys
import tempfile

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from _built_test import run_test  # noqa: E402

transformers.utils.logging.disable_progress_bar()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = LlamaForCausalLM(LlamaConfig(
            vocab_size=97, hidden_size=32, intermediate_size=44, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2))
        model.save_pretrained(folder, max_shard_size="20KB")
        assert len(list(folder.glob("*.safetensors"))) > 1
        run_test("io", "Exchange.Shards", folder)
        model.config.save_pretrained(folder / "joined")
        joined = LlamaForCausalLM.from_pretrained(folder / "joined")
        for (key, a), b in zip(model.state_dict().items(), joined.state_dict().values(), strict=True):
            assert torch.equal(a, b), key


if __name__ == "__main__":
    main()
