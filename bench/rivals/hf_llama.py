#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains Hugging Face's LlamaForCausalLM on random tokens for a few steps and prints one line of
JSON: bytes at the step's peak (weights, gradients and optimizer state included), bytes held between
forward and backward, and the median step time. On a CPU bytes are counted by libcounting_allocator
(see counting_allocator.cpp), on CUDA by torch's caching allocator.

    python hf_llama.py --mode eager --dtype bf16 --allocator build/bench/rivals/libcounting_allocator.so
"""
import argparse
import ctypes
import json
import statistics
import sys
import time


def shape(hidden, width, layers, heads, **other):
    """The config.json of a LLaMA."""
    return {
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "vocab_size": 32000,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        **other,
    }


MODELS = {
    "llama-tiny": shape(128, 352, 4, 4),
    "llama-mini": shape(256, 704, 4, 4),
    "llama-60m": shape(512, 1376, 8, 8),
    "llama-130m": shape(768, 2048, 12, 12),
    "llama-350m": shape(1024, 2736, 24, 16),
    "llama-1b": shape(2048, 5461, 24, 32),
    "llama-3b": shape(2560, 6848, 32, 32),
    "llama-7b": shape(4096, 11008, 32, 32),
    "smollm2-135m": shape(
        576, 1536, 30, 9, num_key_value_heads=3, vocab_size=49152, max_position_embeddings=8192,
        rms_norm_eps=1e-5, tie_word_embeddings=True),
    # The sizes of Qwen2.5 and LLaMA 3.1, without biases and scaled positions.
    "llama-qwen-0.5b": shape(896, 4864, 24, 14, num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True),
    "llama-qwen-1.5b": shape(1536, 8960, 28, 12, num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True),
    "llama-qwen-3b": shape(2048, 11008, 36, 16, num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True),
    "llama-qwen-7b": shape(3584, 18944, 28, 28, num_key_value_heads=4, vocab_size=152064),
    "llama-3.1-8b": shape(4096, 14336, 32, 32, num_key_value_heads=8, vocab_size=128256, max_position_embeddings=8192),
}  # fmt: skip
UNAVAILABLE = 3  # exit code where this machine lacks something that the run needs


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--model", choices=MODELS, default="llama-60m")
    p.add_argument("--mode", choices=["eager", "compile", "checkpoint"], default="eager")
    p.add_argument("--liger", action="store_true", help="with the kernels of Liger-Kernel (needs a GPU)")
    p.add_argument("--memory_budget", type=float, help="activation_memory_budget of torch.compile")
    p.add_argument("--dtype", choices=["f32", "bf16"], default="bf16")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--batch", type=int, default=16, help="sequences a step")
    p.add_argument("--block", type=int, default=256, help="tokens a sequence")
    p.add_argument("--vocabulary", type=int, help="default: the model's")
    p.add_argument("--steps", type=int, default=5, help="measured steps")
    p.add_argument("--warmup", type=int, default=2, help="steps before them")
    p.add_argument("--threads", type=int, default=2, help="CPU threads")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument(
        "--matmul",
        choices=["default", "onednn"],
        default="default",
        help="f32 products on the CPU: torch's default, or through oneDNN, which computes in true\n"
        "f32 on a CPU without AMX (on one with AMX it may use bf16)",
    )
    p.add_argument("--allocator", help="libcounting_allocator.so; without it bytes are null on a CPU")
    return p.parse_args()


class CpuMemory:
    """Bytes allocated by torch on the CPU; all None without the counting library."""

    def __init__(self, library):
        self.lib = ctypes.CDLL(library) if library else None
        if self.lib:
            self.lib.live.restype = self.lib.peak.restype = ctypes.c_int64
            self.lib.install()

    def live(self):
        return self.lib.live() if self.lib else None

    def peak(self):
        return self.lib.peak() if self.lib else None

    def reserved(self):
        return None

    def reset(self):
        if self.lib:
            self.lib.reset()

    def wait(self):
        pass


class CudaMemory:
    def __init__(self, torch):
        self.cuda = torch.cuda

    def live(self):
        return self.cuda.memory_allocated()

    def peak(self):
        return self.cuda.max_memory_allocated()

    def reserved(self):
        return self.cuda.max_memory_reserved()

    def reset(self):
        self.cuda.reset_peak_memory_stats()

    def wait(self):
        self.cuda.synchronize()


def choose_products(torch, matmul):
    """How f32 products are made on a CPU: `default` or `onednn`, as --matmul says."""
    if matmul == "onednn":
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"


def main():
    a = arguments()
    try:
        import torch
        import transformers
        if a.liger:
            from liger_kernel.transformers import apply_liger_kernel_to_llama
    except ImportError as e:
        print(f"not run: {e}", file=sys.stderr)
        return UNAVAILABLE
    if a.liger and a.device == "cpu":
        print("not run: Liger-Kernel has no kernels for a CPU", file=sys.stderr)
        return UNAVAILABLE
    if a.device == "cuda" and not torch.cuda.is_available():
        print("not run: no CUDA device", file=sys.stderr)
        return UNAVAILABLE
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    choose_products(torch, a.matmul)
    memory = CudaMemory(torch) if a.device == "cuda" else CpuMemory(a.allocator)
    if a.liger:
        apply_liger_kernel_to_llama()  # with the head and the loss in one
    if a.memory_budget is not None:
        import torch._functorch.config

        torch._functorch.config.activation_memory_budget = a.memory_budget
    known = MODELS[a.model]
    vocabulary = a.vocabulary or known["vocab_size"]
    config = transformers.LlamaConfig(
        **{
            **known,
            "vocab_size": vocabulary,
            "max_position_embeddings": max(known["max_position_embeddings"], a.block),
        },
        use_cache=False,
        attn_implementation="sdpa",
    )
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[a.dtype]
    model = transformers.LlamaForCausalLM(config).to(device=a.device, dtype=dtype)
    model.train()
    if a.mode == "checkpoint":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    step_model = torch.compile(model, dynamic=False) if a.mode == "compile" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    batches = torch.randint(
        vocabulary,
        (a.warmup + a.steps, a.batch, a.block),
        generator=torch.Generator().manual_seed(a.seed),
    ).to(a.device)
    parameters = sum(p.numel() for p in model.parameters())

    held, seconds, losses = [], [], []
    for number, tokens in enumerate(batches):
        if number == a.warmup:  # the optimizer's state exists, and what is compiled is compiled
            memory.reset()
        memory.wait()
        begin = time.perf_counter()
        before = memory.live()
        loss = step_model(input_ids=tokens, labels=tokens).loss
        between = memory.live()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        memory.wait()
        if number >= a.warmup:
            seconds.append(time.perf_counter() - begin)
            held.append(None if before is None else between - before)
        losses.append(round(float(loss.detach()), 4))
        del loss
    peak, reserved = memory.peak(), memory.reserved()
    step = statistics.median(seconds)
    print(
        json.dumps(
            {
                "program": "transformers",
                "model": a.model,
                "mode": a.mode,
                "dtype": a.dtype,
                "device": a.device,
                "device_name": torch.cuda.get_device_name() if a.device == "cuda" else "cpu",
                "batch": a.batch,
                "block": a.block,
                "threads": a.threads,
                "matmul": a.matmul,
                "parameters": parameters,
                "peak_bytes": peak,
                "reserved_bytes": reserved,
                "held_bytes": held[-1],
                "step_seconds": round(step, 5),
                "step_seconds_all": [round(s, 5) for s in seconds],
                "tokens_per_second": round(a.batch * a.block / step, 1),
                "losses": losses,
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
