# SPDX-License-Identifier: Apache-2.0
"""The memory that a training step of a model takes, before it runs: counted in a process of its own, where the
step runs on tensors that take no memory."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from ..base.byte_count import byte_count
from ..base.library import ops
from ..base.policy import policy_text
from ..base.type_names import name_of
from .client import ask
from .sent import send

POLICIES = ("plain", "gradient_checkpointing", "off", "exact", "recompute", "gact-l1")
ALLOW = ("lossless", "quantize", "project", "offload", "disk")
_LOSSES = "put it into a module, or use a function of torch, as functools.partial(torch.nn.functional.cross_entropy, target=labels)"
_NO_BLOCKS = "blocks are rebuilt of layers that compact knows (compact.families()); here a budget has products run again"
_speeds: dict[str, list[list[float]]] = {}  # of this machine, as plans for budgets measured them


_ROOM = " with room for values that a plan does not know, as of masks"


class Plan(dict):
    """Rows of what a step takes under each policy, in bytes; str() of it is a table.

    rows: of each policy `peak` (bytes of tensors at the highest moment of a step), `reserved` (on a
    GPU what torch's caching allocator holds, else the peak), at the peak `gradients`, `saved` (for
    the backward pass) and `workspace`, always `weights` (those in codes with their scales)
    and `optimizer`, without its state `outside` of the device, and `at`, the moment. parameters: of the model, as many as codes stand for.
    failed: of policies that the model cannot have, why. model: its class. device: "cpu" or "cuda", and
    of a GPU `gpu`, its name (str() says where it was taken since none is here), and `memory`, what a step may take of it in bytes, 0 where that is not
    known. mask: whether an attention mask was counted; None: the model takes none. With a budget also `budget`, and `policy`,
    the lines of the chosen one or its name, whose row is the last, with `seconds` of a step and of these
    `added_seconds`, predicted, and the `error` of gradients.
    """

    assumed = False  # its GPU, since none was named and none is here
    whole = False  # no layer is served by itself
    in_scope = False  # something is held around layers
    chunked_loss: bool | None = None  # as it was given, for apply()

    @property
    def policy(self) -> str | None:
        """The lines of the policy that was chosen for the budget; None: there was no budget."""
        return self.get("policy")

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        cuda = self["device"] != "cpu"
        device = (self["gpu"] + " (none was found here: gpu= names another)" * self.assumed) if cuda else "the CPU"
        lines = [f"{self['model']}, {self['parameters']:,} parameters, a step on {device}, MiB"]
        outside = any(row["outside"] for row in self["rows"])
        names = ("peak", *["reserved"] * cuda, "weights", "optimizer", *["outside"] * outside, "gradients", "saved", "workspace")
        width = max(len("policy"), *(len(row["policy"]) for row in self["rows"]), 0)
        lines.append(f"{'policy':{width}}" + "".join(f"{name:>11}" for name in names) + "  highest in")
        for row in self["rows"]:
            numbers = "".join(f"{row[name] / (1 << 20):11,.1f}" for name in names)
            lines.append(f"{row['policy']:{width}}{numbers}  {row['at']}")
        lines.append("weights and optimizer are there all the time; gradients, saved tensors and workspace as they are at the highest moment")
        if outside:
            lines.append("outside: the optimizer's state in the host's memory, or on a disk")
        if self["mask"] is False:
            lines.append("no attention mask is counted, which padded samples have: padded=True counts one, or `attention_mask` in a dictionary")
        if self.get("memory"):
            fits = [row["policy"] for row in self["rows"] if row["reserved"] <= self["memory"]]
            lines.append(f"policies that fit in its {self['memory'] / (1 << 30):.1f} GiB: {', '.join(fits) or 'none'}")
        for reason in dict.fromkeys(self["failed"].values()):
            policies = [policy for policy, why in self["failed"].items() if why == reason]
            lines.append(f"{', '.join(policies)}: not for this model: " + (_NO_BLOCKS if self.whole and policies == ["recompute"] else reason))
        if self.whole or self.in_scope:
            held = "held as a whole" if self.whole else "layers that are not served are held in a scope"
            lines.append(f"{held}: codecs take fewer bytes on a CPU for floats of two values, as dropout's masks, than are counted here; under a budget a step may take one tensor more or less")
        if self.get("policy"):
            row = self["rows"][-1]
            time = f"rebuilding is predicted to add {row['added_seconds']:.3g} s to a step" if row["added_seconds"] is not None else "times are not predicted of a network as a whole"
            lines.append(f"auto fits {self['budget']:,} bytes; {time}:")
            lines += ["  " + line for line in self["policy"].splitlines()]
        return "\n".join(lines)


def plan(
    model: nn.Module | str | os.PathLike | Any,
    batch: int | tuple[int, int] | dict[str, torch.Tensor],
    length: int | None = None,
    *,
    policies: str | os.PathLike | Iterable[str | os.PathLike] = POLICIES,
    budget: int | str | None = None,
    allow: str = "lossless",
    optimizer: Any = (torch.optim.AdamW, {"fused": True}),
    clip: bool = True,
    padded: bool = False,
    device: str | int | torch.device | None = None,
    gpu: str | None = None,
    dtype: torch.dtype | None = None,
    autocast: torch.dtype | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    chunked_loss: bool | None = None,
) -> Plan:
    """The memory that a training step of `model` takes under each of `policies`, to the byte, before it runs.

    model: a module, or of transformers the folder of a model or a configuration (whose
    `architectures` say the class; else it is that for causal or masked language modelling, or for
    classification of images, that its type of model has). `batch`: samples, with `length` tokens each, (samples, tokens), or
    a dictionary of what the model is called with, labels and a mask among it. `padded`: samples of
    that length have an attention mask that says padding at their end. policies: presets, files or
    texts, "plain" for the model as it is, "gradient_checkpointing" for that. `budget`: bytes, a
    text ("10GiB", "800MB"), or a part of plain's ("50%"); the policy whose step is predicted to be
    the fastest of those that take no more is chosen ("auto"). allow: where nothing without loss fits,
    "quantize": moments of compact.optim in bf16 and f8, unless the settings say how they are held, then what is
    kept in codes; "project": gradients and moments of compact.optim in random projections; "quantize,project":
    both, in this order; "offload" (for a GPU) or "disk" (on a CPU) with either or alone: before anything is lost, moments of
    compact.optim in the host's memory or in files. optimizer: a class, or (class, settings), made as they say; None:
    there is none; not given: torch.optim.AdamW as Trainer makes it, with `fused`. `clip`: whether gradients are clipped by their norm. device: "cpu", "cuda" or the
    number of a GPU, the model's own unless given; no GPU needs to be here. gpu: the one that a plan for "cuda" is for, as
    "4090" or "h100" (`compact list gpus` shows all); else the one that is here, or an H100. dtype: of the weights, where a folder or a configuration is given.
    autocast: the type that the forward pass is cast to, as Trainer's bf16=True does to
    torch.bfloat16; None: there is none. loss: a function of a module that gives the loss of what the model returns, as
    functools.partial(torch.nn.functional.cross_entropy, target=labels); None: what it returns has a `loss`, is a
    tuple with one, or is one. chunked_loss: as of apply().

    A network of which no layer is known is held as a whole: the policy for a budget is then "off", "exact", this with
    a line that says which part of what is saved may be held, or, where allowed, a GACT preset; times are not predicted
    (`seconds` and `added_seconds` are None), nor is the `error` of a GACT preset.

    The step runs in a process of its own, on the meta device, with one micro-batch. That process is
    forked from one that the first plan starts, which takes some seconds for imports, and which ends
    with this one or after five minutes without a plan. Throws ValueError where a model cannot be
    planned, torch.OutOfMemoryError, which names the least that any policy takes, where the budget
    cannot be met, and RuntimeError where that process was killed.
    """
    allow = allow.replace(" ", "") if isinstance(allow, str) else allow
    if not isinstance(allow, str) or not set(allow.split(",")) <= set(ALLOW):
        raise ValueError(f"compact.plan: allow must be one of {', '.join(ALLOW)}, or several with commas between, is {allow}")
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise ValueError("compact.plan: call it outside of autocast, and say autocast=torch.bfloat16")
    if autocast not in (None, torch.bfloat16, torch.float16):
        raise ValueError(f"compact.plan: autocast must be torch.bfloat16, torch.float16 or None, is {autocast!r}")
    settings = optimizer[1] if isinstance(optimizer, tuple) and len(optimizer) == 2 else {}
    if clip and isinstance(settings, Mapping) and settings.get("release"):
        raise ValueError("compact.plan: release=True lets gradients go before they could be clipped: give clip=False, and do not clip in the loop")
    if device is None:
        device = _device_of(model) if gpu is None else "cuda"
    kind, index = _device(device)
    if ("disk" if kind == "cuda" else "offload") in allow.split(","):
        raise ValueError(f'compact.plan: allow="offload" is for a GPU and "disk" for a CPU, and the plan is for {kind}')
    if padded and isinstance(batch, Mapping):
        raise ValueError('compact.plan: padded=True is for (samples, tokens): give `batch` its "attention_mask"')
    if not isinstance(policies, (str, os.PathLike, Iterable)):
        raise TypeError(f"compact.plan: policies must be a policy or several, is a {type(policies).__name__}")
    if loss is not None and not callable(loss):
        raise TypeError(f"compact.plan: loss must be a function of what the model returns, is a {type(loss).__name__}")
    if getattr(loss, "__module__", None) == "__main__":
        raise ValueError(f"compact.plan: loss is a function of the script that runs, which another process cannot import: {_LOSSES}")
    names = [policies] if isinstance(policies, (str, os.PathLike)) else list(policies)
    must = () if policies is POLICIES else tuple(names)
    wanted = byte_count(budget, "compact.plan")
    if not names and budget is None:
        raise ValueError("compact.plan: give policies, or a budget for which to choose one")
    if isinstance(wanted, float) and "plain" not in names:
        names.insert(0, "plain")
    for name in names:
        if name not in ("plain", "gradient_checkpointing"):
            policy_text(name)  # an error before anything runs
    names = [os.fspath(name) for name in names]
    card = _gpu(kind, index, gpu)
    reply = ask(
        {
            "speeds": dict(_speeds),
            **_sent_model(model, dtype),
            "batch": _sent_batch(batch, length),
            "padded": padded,
            "loss": None if loss is None else send(loss, "loss", _LOSSES),
            "policies": names,
            "must": must,
            "budget": wanted,
            "allow": allow,
            "optimizer": _optimizer(optimizer),
            "clip": clip,
            "chunked_loss": chunked_loss,
            "device": kind,
            "gpu": card,
            "autocast": autocast,
            "threads": torch.get_num_threads(),  # each has buffers of its own
            "deterministic": torch.are_deterministic_algorithms_enabled(),  # on a GPU their kernels take other memory
            "cudnn": {name: getattr(torch.backends.cudnn, name) for name in ("benchmark", "deterministic", "enabled")},
            "tf32": torch.backends.cuda.matmul.fp32_precision == "tf32",  # `allow_tf32` cannot be read where this was set
        },
        _modules(model),
        _subject(model),
    )
    _speeds.update(reply.get("speeds", {}))
    if budget is not None and reply["auto"] is None:
        raise torch.OutOfMemoryError(
            f"compact.plan: a budget of {reply['budget']:,} bytes ({budget!r}) cannot be met: the least that a "
            f"step of this model takes with allow={allow!r} is {reply['least']:,} bytes{_ROOM * reply.get('whole', False)}. It takes less with "
            + ("chunked_loss=True, " if reply["chunks"] else "")
            + ('allow="quantize", ' if "quantize" not in allow else 'allow="quantize,project", ' if reply["projects"] and "project" not in allow else "")
            + "fewer samples or tokens"
            + ("" if reply["ours"] else ", and moments in fewer bits (optimizer=(compact.optim.AdamW, {'moments': 'f8'}))")
        )
    result = Plan({"device": kind} | {key: reply[key] for key in ("model", "parameters", "rows", "failed", "mask", "gpu", "memory") if key in reply})
    result.whole, result.in_scope, result.chunked_loss = reply["whole"], reply["in_scope"], chunked_loss
    result.assumed = kind == "cuda" and not card[0]
    if budget is not None:
        result["budget"], result["policy"] = reply["budget"], reply["auto"].pop("text")
        result["rows"].append(reply["auto"])
    return result


def _device_of(model: Any) -> str | torch.device:
    if isinstance(model, nn.Module):
        device = next((p.device for p in model.parameters()), None)
        return "cpu" if device is None or device.type == "meta" else device
    return "cuda" if torch.cuda.is_available() else "cpu"


def _device(given: Any) -> tuple[str, int | None]:
    """Type and number of a device; a number alone is that of a GPU, as in torch."""
    text = f"cuda:{given}" if isinstance(given, int) and not isinstance(given, bool) else str(given)
    try:
        device = torch.device(text)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda") or str(device) != text:  # torch cuts a number to 8 bits
        raise ValueError(f'compact.plan: device must be "cpu", "cuda" or the number of a GPU, is {given!r}')
    return device.type, device.index


def _gpu(kind: str, index: int | None, name: str | None) -> tuple[str, int, int, int]:
    """Name, capability, processors and bytes of shared memory for a block; "": what the library takes where it finds none."""
    if name is not None:
        if kind != "cuda":
            raise ValueError(f'compact.plan: gpu={name!r} needs device="cuda", is given with {kind}')
        try:
            return ops.gpu_figures(str(name))
        except ValueError:
            raise ValueError(f"compact.plan: no GPU {name!r} is known; there are {', '.join(ops.gpu_names())}") from None
    if kind != "cuda" or not torch.cuda.is_available():
        return "", 0, 0, 0
    if (index or 0) >= torch.cuda.device_count():
        raise ValueError(f"compact.plan: device is number {index}, and there are {torch.cuda.device_count()} GPUs here: gpu= names another one")
    found = torch.cuda.get_device_properties(torch.cuda.current_device() if index is None else index)
    shared = getattr(found, "shared_memory_per_block_optin", 48 << 10)
    return found.name, 10 * found.major + found.minor, found.multi_processor_count, shared


def _optimizer(optimizer: Any) -> tuple[type, dict] | None:
    cls, settings = optimizer if isinstance(optimizer, tuple) and len(optimizer) == 2 else (optimizer, {})
    if cls is None:
        return None
    if not isinstance(cls, type) or not issubclass(cls, torch.optim.Optimizer):
        what = f"an object of {type(optimizer).__name__}" if isinstance(optimizer, torch.optim.Optimizer) else repr(optimizer)
        raise ValueError(f"compact.plan: optimizer must be a class of optimizers, (class, settings) or None, is {what}")
    if not isinstance(settings, Mapping):
        raise TypeError(f"compact.plan: settings of an optimizer must be a dictionary, are a {type(settings).__name__}")
    return cls, dict(settings)


def _subject(model: Any) -> str:
    return os.fspath(model) if isinstance(model, (str, os.PathLike)) else type(model).__name__


def _modules(model: Any) -> list[str]:
    """Modules that classes of a model come from."""
    if isinstance(model, nn.Module):
        return sorted({type(module).__module__ for module in model.modules()})
    return [] if isinstance(model, (str, os.PathLike)) else [type(model).__module__.replace(".configuration_", ".modeling_")]


def _sent_model(model: Any, dtype: torch.dtype | None) -> dict:
    if isinstance(model, nn.Module):
        if dtype is not None:
            raise ValueError("compact.plan: dtype is for folders and configurations; model.to(dtype) changes a model")
        return {"model": send(model), "config": None, "dtype": None}
    name = name_of(dtype) if dtype is not None else None
    if isinstance(model, (str, os.PathLike)):
        if not os.path.exists(model):
            raise ValueError(f"compact.plan: there is no folder {os.fspath(model)}; models of a hub are not fetched: give the model, or its configuration")
        return {"model": None, "config": os.fspath(model), "dtype": name}
    if not hasattr(model, "architectures"):
        raise TypeError(f"compact.plan: model must be a module, a folder or a configuration, is a {type(model).__name__}")
    return {"model": None, "config": model, "dtype": name}


def _sent_batch(batch: Any, length: int | None) -> bytes | tuple[int, int | None]:
    if isinstance(batch, Mapping):  # a BatchEncoding, too
        for key, value in batch.items():
            if value is not None and not isinstance(value, (torch.Tensor, bool, int, float, str)):
                raise TypeError(f"compact.plan: batch[{key!r}] must be a tensor or a plain value, is a {type(value).__name__}")
        return send(dict(batch))
    if not isinstance(batch, (int, tuple, list)):
        raise TypeError(
            "compact.plan: batch must be samples, (samples, tokens) or a dictionary of what the model is called with, "
            f'as {{"input_ids": ..., "labels": ...}}, is a {type(batch).__name__}'
        )
    if not isinstance(batch, int) and len(batch) not in (1, 2):
        raise ValueError(f"compact.plan: batch must be samples, (samples, tokens) or a dictionary of what the model is called with, is {batch!r}")
    samples, tokens = (batch, length) if isinstance(batch, int) else (*batch, length)[:2]
    for number in (samples, tokens):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number <= 0):
            raise ValueError(f"compact.plan: batch must be positive whole numbers, is {batch!r}")
    return samples, tokens
