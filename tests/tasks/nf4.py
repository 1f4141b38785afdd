# SPDX-License-Identifier: Apache-2.0
"""NF4: codes, scales and maps are bit for bit those of bitsandbytes on a CPU, and adapters beside them have the
gradients of peft beside the matrices that these codes give, of folders in codes, too."""

import json
import os
import pathlib
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import bitsandbytes.functional as bnb
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from _built_test import run_test  # noqa: E402

TYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((1, 1), (1, 64), (3, 5), (5, 64), (7, 96), (33, 31), (64, 64), (129, 257), (300, 1000), (512, 1376))


def output_of(test: str, folder: str, **more: str) -> dict:
    run_test("tasks", f"Nf4Exchange.{test}", folder, **more)
    return load_file(f"{folder}/output.safetensors")


def matrices() -> dict:
    torch.manual_seed(1)
    made = {}
    for rows, columns in SHAPES:
        for kind in TYPES:
            made[f"{rows}x{columns}.{kind}"] = (torch.randn(rows, columns) * 0.02).to(kind)
    made["zeros"] = torch.zeros(65, 129)
    made["constant"] = torch.full((256, 300), 0.3)
    made["constant rows"] = torch.arange(-40.0, 60.0).unsqueeze(1).expand(100, 192).contiguous()
    made["zero rows"] = torch.randn(200, 320)
    made["zero rows"][::3] = 0
    made["of one sign"] = torch.rand(300, 300)
    made["far apart"] = torch.randn(64, 512) * torch.logspace(-30, 30, 64).unsqueeze(1)
    made["one of many"] = torch.zeros(128, 256)
    made["one of many"][3, 5] = -7
    # So many scales that two threads of torch divide their sum.
    for kind in TYPES:
        made[f"large.{kind}"] = torch.randn(2048, 2048).to(kind)
    made["large, odd"] = torch.rand(2049, 1031)
    return made


def scales_of(state) -> torch.Tensor:
    """One a block."""
    return bnb.dequantize_blockwise(state.absmax, state.state2) + state.offset if state.nested else state.absmax


def decoded(codes: torch.Tensor, state) -> torch.Tensor:
    """By the definition: a kernel of bitsandbytes 0.50 for the CPU is wrong for some widths."""
    flat = codes.flatten().to(torch.int64)
    count = state.shape.numel()
    levels = state.code[torch.stack([flat >> 4, flat & 15], 1).flatten()[:count]]
    return (levels * scales_of(state).repeat_interleave(64)[:count]).view(state.shape).to(state.dtype)


def check_codes() -> None:
    torch.set_num_threads(1)
    given = matrices()
    with tempfile.TemporaryDirectory() as folder:
        save_file(given, f"{folder}/input.safetensors")
        got = output_of("Codes", folder)
    for name, matrix in given.items():
        for kind in ("plain", "nested"):
            codes, state = bnb.quantize_4bit(matrix, blocksize=64, compress_statistics=kind == "nested", quant_type="nf4")
            want = {"codes": codes.flatten(), "decoded": decoded(codes, state)}
            if state.nested:
                want["scales"] = torch.cat([state.state2.absmax, state.offset.view(1)])
                want["scale_codes"] = state.absmax
                assert torch.equal(got["maps"], torch.cat([state.code, state.state2.code]))
            else:
                want["scales"] = state.absmax
            for part, value in want.items():
                own = got[f"{name}.{kind}.{part}"]
                assert torch.equal(own, value), (name, kind, part, (own != value).sum().item(), own.numel())
    print(f"{2 * len(given)} matrices in codes: equal")


def packed(tensors: dict, nested: bool) -> dict:
    """As transformers writes a model in four bits."""
    made = {}
    for name, tensor in tensors.items():
        if tensor.dim() != 2 or ".layers." not in name:
            made[name] = tensor
            continue
        codes, state = bnb.quantize_4bit(tensor, blocksize=64, compress_statistics=nested, quant_type="nf4")
        made[name] = codes
        made |= {f"{name}.{part}": value.contiguous() for part, value in state.as_dict(packed=True).items()}
    return made


def check_gradients() -> None:
    torch.manual_seed(2)
    config = transformers.LlamaConfig(
        hidden_size=72, intermediate_size=101, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3,
        vocab_size=97, max_position_embeddings=64, initializer_range=0.1, bos_token_id=None, eos_token_id=None)  # fmt: skip
    for nested in (False, True):
        for stored in (False, True):
            preset = "recompute" if stored else "exact"
            with tempfile.TemporaryDirectory() as folder:
                base = transformers.AutoModelForCausalLM.from_config(config)
                base.save_pretrained(folder)
                file = f"{folder}/model.safetensors"
                tensors = load_file(file)
                if stored:
                    save_file(packed(tensors, nested), file, {"format": "pt"})
                    path = pathlib.Path(folder, "config.json")
                    said = transformers.BitsAndBytesConfig(
                        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=nested)  # fmt: skip
                    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": said.to_dict()}))
                with torch.no_grad():
                    for name, parameter in base.named_parameters():
                        if parameter.dim() == 2 and ".layers." in name:
                            parameter.copy_(decoded(*bnb.quantize_4bit(
                                parameter.data, blocksize=64, compress_statistics=nested, quant_type="nf4")))  # fmt: skip
                model = get_peft_model(base, LoraConfig(r=4, lora_alpha=6, task_type="CAUSAL_LM", target_modules="all-linear"))
                for key, parameter in model.named_parameters():
                    if "lora_B" in key:
                        parameter.data.normal_(0, 0.2)
                model.save_pretrained(f"{folder}/adapters")
                ids = torch.randint(config.vocab_size, (3, 20))
                targets = ids.roll(-1, 1)
                scale = 1 / targets.numel()
                save_file(dict(ids=ids, targets=targets, scale=torch.tensor(scale, dtype=torch.float64)),
                          f"{folder}/input.safetensors")  # fmt: skip
                more = {"COMPACT_NESTED": "1"} if nested else {}
                got = output_of("Gradients", folder, COMPACT_EXCHANGE_PRESET=preset, **more)
            double = model.double().eval()
            loss = torch.nn.functional.cross_entropy(double(ids).logits.flatten(0, 1), targets.flatten())
            loss.backward()
            want = {k.replace(".default", ""): p.grad for k, p in double.named_parameters() if p.requires_grad}
            want |= {"loss": loss.detach()}
            assert got.keys() == want.keys(), got.keys() ^ want.keys()
            errors = {k: ((got[k].double() - want[k]).norm() / want[k].norm()).item() for k in want}
            worst = max(errors, key=errors.get)
            print(f"nested {nested}, stored {stored}: worst of {len(errors)} tensors {errors[worst]:.1e} ({worst})")
            assert errors[worst] <= 1e-5, (worst, errors[worst])


if __name__ == "__main__":
    check_codes()
    check_gradients()
