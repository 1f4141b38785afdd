# SPDX-License-Identifier: Apache-2.0
"""Weights that another package holds in codes, as of QLoRA: blocks take their values for the time of each product."""
import copy

from _device import cpu_only, DEVICE
from _threads import in_threads
from conftest import DECODER, error, gradients, inputs
import pytest
import torch
from torch import nn
import transformers

import compact

bitsandbytes, peft = pytest.importorskip("bitsandbytes"), pytest.importorskip("peft")
BF16 = torch.bfloat16


def nf4(old, quant_type="nf4", compute_dtype=None, nested=True):
    bias = old.bias is not None
    given = old.weight.data if isinstance(old, nn.Linear) else old.weight.data.t().contiguous()
    new = bitsandbytes.nn.Linear4bit(given.shape[1], given.shape[0], bias=bias, compute_dtype=compute_dtype, quant_type=quant_type)
    new.weight = bitsandbytes.nn.Params4bit(given, requires_grad=False, quant_type=quant_type, compress_statistics=nested, module=new)
    if bias:
        new.bias = nn.Parameter(old.bias.data.clone(), requires_grad=False)
    return new.to(DEVICE)


def int8(old):
    new = bitsandbytes.nn.Linear8bitLt(old.in_features, old.out_features, bias=False, has_fp16_weights=False)
    new.weight = bitsandbytes.nn.Int8Params(old.weight.data, requires_grad=False, has_fp16_weights=False)
    return new.to(DEVICE)


def dense(old):
    """A Linear of the values that NF4 gives."""
    made = nf4(old)
    old.weight.data = bitsandbytes.functional.dequantize_4bit(made.weight, made.weight.quant_state).to(old.weight.dtype)
    return old


def model_of(quantize=nf4, dtype=BF16, dropout=0.0, adapters=1, prepare=False, cls="llama", **settings):
    """A decoder whose blocks have products in codes, with LoRA around some of them."""
    torch.manual_seed(0)
    if cls == "gpt2":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=DECODER["vocab_size"], n_positions=64, resid_pdrop=0, attn_pdrop=0, embd_pdrop=0))
        blocks, targets = [part for layer in model.transformer.h for part in (layer.attn, layer.mlp)], ["c_attn"]
    else:
        sizes = DECODER | {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4}
        config, made = (transformers.Qwen2Config, transformers.Qwen2ForCausalLM) if cls == "qwen2" else (transformers.LlamaConfig, transformers.LlamaForCausalLM)
        model = made(config(**sizes))
        blocks, targets = [part for layer in model.model.layers for part in (layer.self_attn, layer.mlp)], ["q_proj", "v_proj", "down_proj"]
    model = model.to(dtype)
    for parent in blocks:
        for name, old in list(parent.named_children()):
            if hasattr(old, "weight"):
                setattr(parent, name, quantize(old, **settings))
    model.is_loaded_in_4bit = quantize is nf4
    model.is_loaded_in_8bit = quantize is int8
    model = model.to(DEVICE)
    if prepare:
        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    config = peft.LoraConfig(target_modules=targets, r=8, lora_dropout=dropout)
    model = peft.get_peft_model(model, config)
    for i in range(1, adapters):
        model.add_adapter(f"other{i}", config)
        model.base_model.set_adapter(["default", *(f"other{j}" for j in range(1, i + 1))])
    for name, p in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(p, std=0.02)
    return model.train()


def served(model):
    report = compact.report(model)
    assert all(layer.served and not layer.own_forward for layer in report.layers), str(report)
    return report


def peak(model, given):
    for _ in range(2):
        with compact.Meter() as meter:
            model(**given).loss.backward()
            model.zero_grad()
    return meter.peak


CASES = {
    "nf4": dict(dtype=torch.float32),
    "one level of scales": dict(dtype=torch.float32, nested=False),
    "fp4": dict(dtype=torch.float32, quant_type="fp4"),
    "two adapters": dict(dtype=torch.float32, adapters=2),
    "biases": dict(dtype=torch.float32, cls="qwen2"),
    "[in, out]": dict(dtype=torch.float32, cls="gpt2"),
    "computes in f32": dict(compute_dtype=torch.float32),
    "computes in bf16": dict(compute_dtype=BF16),
    "computes in bf16, f32 between": dict(dtype=torch.float32, compute_dtype=BF16),
    "biases, computes in bf16": dict(dtype=torch.float32, compute_dtype=BF16, cls="qwen2"),
    "prepared": dict(prepare=True, compute_dtype=BF16),
    "8 bits": dict(dtype=torch.float32, quantize=int8),
    "8 bits, bf16": dict(quantize=int8),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("policy", ["exact", "recompute"])
def test_gradients_are_those_of_peft_and_bitsandbytes(case, policy):
    settings = CASES[case]
    if settings.get("quantize") is int8 and DEVICE != "cpu":
        pytest.skip("LLM.int8 rounds activations there")
    model, given = model_of(**settings), inputs("llama")
    wanted = gradients(model, given)
    assert wanted[1] and all("lora" in name for name in wanted[1])
    compact.apply(model, policy, chunked_loss=False)
    got = gradients(model, given)
    exact = settings.get("dtype") == torch.float32 and "compute_dtype" not in settings
    assert error(got[1], wanted[1]) < (1e-5 if exact else 2e-2)
    report = served(model)
    name = "bitsandbytes, 8 bits" if settings.get("quantize") is int8 else "bitsandbytes, 4 bits"
    assert report.layers[0].codes == {name: 4 if settings.get("cls") == "gpt2" else 7} and f"weights given by {name}" in str(report)


@pytest.mark.parametrize("compute_dtype", [BF16, None])
def test_autocast(compute_dtype):
    model, given = model_of(dtype=torch.float32, compute_dtype=compute_dtype), inputs("llama")
    results = []
    for applied in (False, True):
        if applied:
            compact.apply(model, "recompute", chunked_loss=False)
        with torch.autocast(DEVICE, dtype=BF16):
            loss = model(**given).loss
        loss.backward()
        results.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        model.zero_grad()
    served(model)
    assert error(results[1], results[0]) < 3e-2


def test_bits_are_those_of_dense_weights():
    given, results, slots = inputs("llama"), [], []
    for quantize in (nf4, dense):
        model = compact.apply(model_of(quantize, dtype=torch.float32, dropout=0.1), "recompute")
        torch.manual_seed(1)
        results.append(gradients(model, given))
        slots.append(served(model).layers[0].slots)
    assert slots[0] == slots[1]
    assert torch.equal(results[0][0], results[1][0])
    assert all(torch.equal(results[0][1][name], p) for name, p in results[1][1].items() if "lora" in name)


@pytest.mark.skipif(DEVICE != "cpu", reason="exact bytes of tensors are counted on a CPU")
@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_plans_are_exact_and_one_weight_is_there_at_a_time(dtype):
    model, given = model_of(dtype=dtype), inputs("llama", batch=4, length=64)
    plain = peak(model, given)
    plan = compact.plan(model, given, policies=("plain", "exact", "recompute"), budget="60%", optimizer=None, clip=False)
    for row in plan["rows"][1:]:
        compact.apply(model, plan if row["policy"] == "auto" else row["policy"])
        planned = row["peak"] - row["weights"] - sum(t.nbytes for t in given.values())
        assert abs(peak(model, given) - planned) <= 256, row
        served(model)
        compact.remove(model)
    assert peak(compact.apply(model, plan), given) < 0.6 * plain + plan["rows"][0]["weights"]
    # A pass over two tokens: the values of all matrices of a block would take 4.5 times the largest.
    layer, x = model.base_model.model.model.layers[1], torch.randn(1, 2, 128, dtype=dtype, requires_grad=True)
    rotary = model.base_model.model.model.rotary_emb(x, torch.arange(2)[None])
    for _ in range(2):
        with compact.Meter() as meter:
            layer(x, position_embeddings=rotary).sum().backward()
            model.zero_grad()
    largest = 128 * 256 * dtype.itemsize
    assert largest < meter.peak < 2.5 * largest


def test_models_whose_inputs_get_gradients_are_planned():
    model, given = model_of(dtype=torch.float32), inputs("llama")
    model.enable_input_require_grads()  # a hook, as prepare_model_for_kbit_training adds one for checkpointing
    plan = compact.plan(model, given, policies=("exact", "recompute"))
    compact.apply(model, "recompute")
    model(**given).loss.backward()
    served(model)
    assert plan["rows"][1]["peak"] < plan["rows"][0]["peak"]


def test_changes_of_weights_and_modules():
    model, given = model_of(dtype=torch.float32), inputs("llama")
    compact.apply(model, "exact", chunked_loss=False)
    first = gradients(model, given)
    copied = copy.deepcopy(model)
    assert error(gradients(copied, given)[1], first[1]) == 0
    served(copied)
    # Another weight after apply, and another between the passes, which the graph does not read.
    attention = model.base_model.model.model.layers[1].self_attn
    inner = attention.k_proj
    before, other = inner.weight, nf4(nn.Linear(128, inner.out_features, bias=False)).weight
    inner.weight = other
    assert error(gradients(model, given)[1], first[1]) > 1e-3
    loss = model(**given).loss
    inner.weight = before
    loss.backward()
    assert error({n: p.grad for n, p in model.named_parameters() if p.grad is not None}, first[1]) > 1e-3
    model.zero_grad()
    assert error(gradients(model, given)[1], first[1]) == 0
    # In place between the passes.
    loss = model(**given).loss
    with torch.no_grad():
        before.add_(0)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()
    model.zero_grad()
    # Another module.
    attention.k_proj = nn.Linear(128, inner.out_features, bias=False).to(DEVICE)
    gradients(model, given)
    served(model)
    inner.weight.requires_grad_(False)
    attention.k_proj = inner
    assert error(gradients(model, given)[1], first[1]) == 0
    inner.weight = nn.Parameter(bitsandbytes.functional.dequantize_4bit(before, before.quant_state), requires_grad=False)
    with pytest.raises(AssertionError):  # of bitsandbytes' own forward
        model(**given)
    assert "1 by its own forward: it has weights of type Parameter" in str(compact.report(model))


def test_states_threads_and_generation(tmp_path):
    model, given = model_of(dtype=torch.float32), inputs("llama")
    keys = {key: getattr(t, "shape", None) for key, t in model.state_dict().items()}
    compact.apply(model, "recompute", chunked_loss=False)
    first = gradients(model, given)
    assert {key: getattr(t, "shape", None) for key, t in model.state_dict().items()} == keys
    model.save_pretrained(tmp_path)

    def work(model):
        for _ in range(5):
            got = torch.autograd.grad(model(**given).loss, [p for p in model.parameters() if p.requires_grad])
            wanted = [first[1][name] for name, p in model.named_parameters() if p.requires_grad]
            assert all(torch.allclose(a.double(), b, rtol=1e-4, atol=1e-7) for a, b in zip(got, wanted))

    in_threads(work, [model, model])
    # Passes without gradients pack weights for inference on some CPUs; training goes on.
    model.zero_grad()
    graph = model(**given).loss
    model.eval()
    with torch.no_grad():
        model(**given)
        model.generate(given["input_ids"][:1, :4], max_new_tokens=3, do_sample=False, pad_token_id=0)
    graph.backward()
    assert error({n: p.grad for n, p in model.named_parameters() if p.grad is not None}, first[1]) < 1e-6
    model.zero_grad()
    assert error(gradients(model.train(), given)[1], first[1]) < 5e-2  # bitsandbytes rounds scales when it packs
    served(model)
    loss = model(**given).loss
    lora = [p for p in model.parameters() if p.requires_grad]
    del model
    loss.backward()
    assert all(p.grad is not None for p in lora)


def test_what_is_not_served():
    model, given = model_of(compute_dtype=torch.float16), inputs("llama")
    compact.apply(model, "exact", chunked_loss=False)
    model(**given).loss.backward()
    assert "its weights compute in torch.float16" in str(compact.report(model))
    model = model_of(quantize=int8, dtype=torch.float32).eval()
    compact.apply(model, "exact", chunked_loss=False)
    model(**given)
    assert "LLM.int8 rounds what its weights are multiplied with" in str(compact.report(model))
    with pytest.raises(ValueError, match="an adapter|type of its own"):
        compact.apply(model_of(), "compact")


@pytest.mark.parametrize("kind", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig"])
def test_torchao(kind):
    quantization = pytest.importorskip("torchao.quantization")
    model, given = model_of(dense, dtype=torch.float32), inputs("llama")
    quantization.quantize_(model.base_model.model.model, getattr(quantization, kind)(), lambda m, name: isinstance(m, nn.Linear) and "lora" not in name)
    wanted = gradients(model, given)
    compact.apply(model, "recompute", chunked_loss=False)
    assert error(gradients(model, given)[1], wanted[1]) < 1e-5
    assert list(served(model).layers[0].codes.values()) == [7]


def tensors_of(state):
    """The tensors of bitsandbytes' quant_state, and of the state of its scales."""
    tensors = [state.absmax, state.code]
    return tensors + [state.offset, *tensors_of(state.state2)] if state.nested else tensors


@cpu_only
@pytest.mark.parametrize("quantize,settings", [(nf4, {}), (nf4, {"nested": False}), (int8, {})])
def test_plans_count_codes(quantize, settings):
    """Parameters are those that codes stand for, and weights what codes, scales and tables weigh."""
    model, given = model_of(quantize=quantize, **settings), inputs("llama")
    held = [p for p in model.parameters() if type(p) is nn.Parameter]
    for codes in (p for p in model.parameters() if type(p) is not nn.Parameter):
        held += [codes.data, codes.SCB] if quantize is int8 else [codes.data, *tensors_of(codes.quant_state)]
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
    number = sum(p.numel() for p in model_of(quantize=lambda old: old).parameters())
    for _ in range(2):  # before the first pass, which moves codes of LLM.int8, and after it
        plan = compact.plan(model, given, policies=["plain"], optimizer=None, clip=False)
        row = plan["rows"][0]
        assert plan["parameters"] == number and row["weights"] == sum(held.values())
        gradients(model, given)
        model.zero_grad()
