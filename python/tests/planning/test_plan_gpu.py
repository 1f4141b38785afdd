# SPDX-License-Identifier: Apache-2.0
"""plan() for GPUs that are not here, in a build that need not have kernels for them."""
from conftest import DECODER, inputs, make
import pytest
import torch
import transformers

import compact
from compact.base.library import ops
from compact.planning.plan import POLICIES


def planned(model=None, batch=(4, 64), **settings):
    return compact.plan(model or make("llama"), batch, **{"device": "cuda", "optimizer": None} | settings)


CUBLAS = (4096 * 2 + 16 * 8) << 10  # bytes of a workspace before Hopper, where it is 32 MiB


def test_every_policy_is_planned():
    plan, here = planned(gpu="4090"), planned(device="cpu")
    assert [row["policy"] for row in plan["rows"]] == list(POLICIES) and not plan["failed"]
    assert plan["device"] == "cuda" and plan["gpu"] == "RTX 4090" and 20 << 30 < plan["memory"] <= 24 << 30
    assert "gpu" not in here and "memory" not in here
    for row, of_cpu in zip(plan["rows"], here["rows"]):
        assert row["weights"] == of_cpu["weights"] and row["reserved"] >= row["peak"] > row["weights"]
        # Two threads have a workspace of cuBLAS each; the allocator rounds each tensor up to 512
        # bytes, and kernels take other scratch.
        assert 0.8 < (row["peak"] - 2 * CUBLAS) / of_cpu["peak"] < 1.3
    text = str(plan)
    assert "a step on RTX 4090, MiB" in text and f" GiB: {', '.join(POLICIES)}\n" in text + "\n"


def large(**sizes):
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER | sizes))


def test_what_does_not_fit():
    plan = planned(large(hidden_size=8192, intermediate_size=32768, num_hidden_layers=12), policies=("plain", "recompute"), gpu="3080")
    assert all(row["reserved"] > plan["memory"] for row in plan["rows"])
    assert " GiB: none" in str(plan)


def test_gpus_by_their_names():
    small = {"policies": ("exact",)}
    wanted = planned(gpu="h100", **small)
    assert planned(gpu="H100", **small) == planned(gpu="NVIDIA H100 80GB HBM3", **small) == wanted
    assert planned(gpu="h100", device=None, **small) == wanted, "a GPU needs no device beside it"
    if not torch.cuda.is_available():
        for device in ("cuda", 0, 1, "cuda:1", torch.device("cuda:1")):
            taken = planned(**small, device=device)
            assert taken == wanted, "which is taken where there is none"
            assert f"a step on {taken['gpu']} (none was found here: gpu= names another), MiB" in str(taken)
        assert "found" not in str(wanted)
    with pytest.raises(ValueError, match="no GPU '4091' is known; there are .*, 4090,"):
        planned(gpu="4091")
    with pytest.raises(ValueError, match='gpu=\'4090\' needs device="cuda", is given with cpu'):
        planned(gpu="4090", device="cpu")
    assert {"h100", "4090"} <= set(ops.gpu_names())


def test_a_number_of_no_gpu_that_is_here(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match="device is number 2, and there are 2 GPUs here: gpu= names another one"):
        planned(device=2)


def chosen(**settings):
    """Where a budget asks for much of what rebuilding gives."""
    plan = planned(large(hidden_size=512, num_hidden_layers=4), (16, 128), policies=("plain",), budget="60%", **settings)
    return plan["rows"][-1]


def test_budgets_by_the_speed_of_a_gpu():
    model = compact.apply(make("llama"), budget="104MiB", batch=(4, 64), gpu="h100", optimizer=None)
    assert compact.report(model).name == "auto"
    fast, slow = chosen(gpu="h200"), chosen(gpu="l4")
    assert 0 < fast["added_seconds"] < slow["added_seconds"] and fast["seconds"] < slow["seconds"]


def test_a_larger_budget_is_never_slower():
    model = large(hidden_size=512, num_hidden_layers=4, vocab_size=16384)
    rows = [planned(model, (16, 128), policies=(), budget=budget << 20, gpu="l4")["rows"][-1] for budget in (330, 350, 380, 420, 600)]
    for smaller, larger in zip(rows, rows[1:]):
        assert smaller["seconds"] >= larger["seconds"] > 0 and smaller["reserved"] <= larger["reserved"]
    assert rows[0]["seconds"] > rows[-1]["seconds"]
    tight = planned(model, (16, 128), policies=(), budget=280 << 20, gpu="l4")
    assert "chunk:tokens=256" in tight.policy and tight["rows"][-1]["added_seconds"] < 5e-3, "no smaller than need be"


@pytest.mark.parametrize("name", ["gemma2", "gpt2"])
def test_a_budget_that_a_preset_fits_is_met(name):
    model, settings = make(name), {"batch": inputs(name, batch=8, length=96), "optimizer": torch.optim.AdamW}
    for row in planned(model, policies=("exact", "recompute"), **settings)["rows"]:
        chosen = planned(model, policies=(), budget=row["reserved"], **settings)
        assert chosen["rows"][-1]["reserved"] <= row["reserved"] and chosen["rows"][-1]["lossless"]
        compact.apply(make(name), chosen)


def test_optimizers_update_lists_of_tensors_there():
    def peak(device, **settings):
        optimizer = (torch.optim.RMSprop, settings)
        return planned(large(hidden_size=512), (1, 8), device=device, policies=("exact",), optimizer=optimizer, clip=False)["rows"][0]["peak"]

    assert peak("cuda") == peak("cuda", foreach=True) > peak("cuda", foreach=False)
    assert peak("cpu") == peak("cpu", foreach=False)


@pytest.fixture
def tf32():
    """Products in float32 by the newer switch, after which the older one cannot be read."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = before


def test_the_newer_switch_of_tf32(tf32):
    with pytest.raises(RuntimeError):
        torch.backends.cuda.matmul.allow_tf32  # noqa: B018
    fast = chosen(gpu="a30")["seconds"]  # 82 TFLOP/s by it, 10 without
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert fast < chosen(gpu="a30")["seconds"]


def test_adapters():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(make("llama"), peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    plan = planned(model, gpu="4090", optimizer=torch.optim.AdamW)
    assert not plan["failed"] and plan["model"] == "PeftModelForCausalLM"
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    for row in plan["rows"]:  # two moments, and a counter of steps for each
        assert 8 * trained <= row["optimizer"] <= 8 * trained + 512 * len(list(model.parameters()))
    peaks = {row["policy"]: row["peak"] for row in plan["rows"]}
    assert peaks["recompute"] < peaks["exact"] < peaks["plain"]
