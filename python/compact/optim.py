# SPDX-License-Identifier: Apache-2.0
"""Optimizers for any training loop of PyTorch, with moments in 32, 16 or 8 bits.

    optimizer = compact.optim.AdamW(model.parameters(), lr=1e-3, moments="f8")
    optimizer = compact.optim.Muon(model, lr=4e-3)

They are torch.optim.Optimizers, for any device that the library has kernels for: groups of
parameters, schedules, closures, hooks and state_dict() are PyTorch's, and so are DDP,
torch.distributed.checkpoint and, of AdamW, fully_shard. Parameters are float32 or bfloat16,
of any strides, which change no bit of updates and state.

moments: "f32"; "bf16"; or "f8", 8-bit floats, of which 256 neighbours of a row share a power of two.
A row is what one index of the first dimension selects, so that a shard has whole rows; a row of n
elements takes n + 4 ceil(n / 256) bytes. Vectors of fewer than 65,536 elements, as norms and biases
have, keep float32 moments under "f8".

moments "f32+offload", and likewise for the others: moments and masters lie in the host's memory, in which
a GPU reads and writes them during an update; a CPU has no other memory. "f32+disk", on a CPU: in unnamed files of
`offload_folder`, which the system reads and writes page by page when memory is short; the folder must be on a
disk, and have room for them when an update makes them. The bits are those of "f32". Where a state is loaded its types
come from it, and its place is this optimizer's. A process that is forked does not have state in files.

bfloat16 parameters are rounded stochastically, as are moments in 16 and 8 bits: what is lost to
rounding is right on average, and no float32 copy is needed. `master_weights=True` keeps one. The random
bits come from `seed`, the parameter's place among all groups, the number of its update and, under
fully_shard, its shard. So runs repeat, and ranks of DDP, which update the same parameters, compute the
same bits: all of them must be given one seed, which they are where it is left at 0, whatever torch's own
generator was seeded with on each.

`release=True` uses and lets go of every gradient as soon as it is whole, inside the backward pass, so that
they are never all there (LOMO, Lv et al. 2023): a step takes less by almost all gradients, and the weights
are bit for bit those of release=False. Every backward pass that reaches a parameter updates it, also one
that was meant for something else (an attribution, another loss), and step() ends the step. Errors are: a
second gradient before step(), zero_grad() in its place (an update cannot be taken back; step() ends what an
exception broke off, too, and so does load_state_dict()), settings that change between backward() and
step(), grad_scale, a process group (DDP sums later), weights split over ranks, and step() of another optimizer,
also of torch's, for the same parameters; of two with release=True the one made last has them.
What cannot be seen: gradients are not clipped, and nothing says so but compact.hf.Callback (Trainer:
max_grad_norm=0; clip_grad_norm_ returns 0); GradScaler's step() fails when the updates were made;
model.zero_grad() in place of the optimizer's throws nothing away; hooks of others after the backward pass
see no gradients; a weight that is read without a gradient (`weight.detach()`) inside torch.utils.checkpoint,
and with one elsewhere, is read again when it has changed, and so is one of a module that runs twice under
reentrant checkpoints.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from .optimizers.optimizer import Optimizer

__all__ = ["AdamW", "Muon"]


class AdamW(Optimizer):
    """AdamW (Loshchilov and Hutter 2019), in the order of torch.optim.AdamW.

    Args:
        params: a module, parameters, (name, parameter) pairs, or groups of either, each with settings of
            its own. Carriers of projected gradients (compact.apply) are parameters like others.
        lr, betas, eps, weight_decay: as torch.optim.AdamW's; eps must be positive.
        moments: how both moments are held, "f32", "bf16" or "f8", and where (above); None: as the policy of the model says where
            `params` is one (compact.apply), else "f32".
        master_weights: keeps and updates a float32 copy of bfloat16 parameters.
        seed: of stochastic rounding; ranks of one run must be given the same.
        release: updates each parameter inside the backward pass, when its gradient is whole (above).
        offload_folder: for moments with "+disk".

    State of a parameter: `step`, `exp_avg`, `exp_avg_sq`, with f8 `exp_avg_scales` and
    `exp_avg_sq_scales`, with masters `master`. Under fully_shard all but `step` are DTensors, of this
    rank's shard alone. Throws ValueError on settings out of range, and on parameters of other types.
    """

    usual_moments = "f32"

    def __init__(
        self,
        params: nn.Module | Iterable[Any],
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        moments: str | None = None,
        master_weights: bool = False,
        seed: int = 0,
        release: bool = False,
        offload_folder: str | os.PathLike[str] | None = None,
    ):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        defaults |= {"moments": self._moments(moments, params), "master_weights": master_weights, "seed": seed}
        if isinstance(params, nn.Module):
            params = params.parameters()
        super().__init__(params, defaults, release, offload_folder)


def _is_of_adapter(name: str) -> bool:
    """Whether a parameter is one that an adapter adds: of LoRA whoever wrote it, of peft's other methods."""
    known = getattr(sys.modules.get("peft.tuners.tuners_utils"), "BaseTunerLayer", None)
    kinds = [known] if known else []
    for kind in kinds:
        kinds += kind.__subclasses__()
    names = {part for kind in kinds for part in kind.adapter_layer_names}
    return any(part in names or part.startswith("lora_") for part in name.split("."))


def _is_in_block(name: str, p: torch.Tensor) -> bool:
    """Whether a parameter is a matrix of a module in a numbered one: layers.3.attn.q.weight."""
    parts = name.split(".")
    in_block = p.dim() == 2 and any(part.isdigit() for part in parts[:-2]) and "embed" not in name
    return in_block and not _is_of_adapter(name)


class Muon(Optimizer):
    """Muon (Jordan et al. 2024) for the matrices of blocks, AdamW for the rest.

    Momentum is orthogonalised by five Newton-Schulz steps, in the parameter's type; the update is scaled
    by 0.2 sqrt(max(rows, columns)), so that AdamW's learning rates serve (Liu et al. 2025).

    Args:
        params: a module; or its named_parameters(); or groups, each with `kind`, "muon" or "adamw".
            Muon's are matrices of modules inside numbered ones (`layers.3.mlp.down.weight`) that are no
            embedding, not the head and no adapter (LoRA's, peft's): two thin factors are no matrix that it could
            make orthogonal. Where a module or names are given, parameters of one dimension
            do not decay. Stacked matrices (three dimensions), and convolutions, are AdamW's; a matrix that is
            several fused into one is orthogonalised as one.
        lr, momentum, nesterov: Muon's.
        weight_decay: of matrices, decoupled.
        moments: how momentum, and AdamW's moments, are held, "f32", "bf16" or "f8", and where (above); None: as the
            policy of the model says where `params` is one, else "bf16".
        master_weights: keeps and updates a float32 copy of bfloat16 parameters.
        adamw_lr, betas, eps: AdamW's; adamw_lr is lr where it is None.
        seed: of stochastic rounding; ranks of one run must be given the same.
        release: updates each parameter inside the backward pass, when its gradient is whole (above).
        offload_folder: for moments with "+disk".

    State of a matrix: `step`, `momentum_buffer`, with f8 `momentum_buffer_scales`, with masters
    `master`; of the rest, AdamW's. Throws ValueError on settings out of range, on parameters that it
    cannot tell apart, and on matrices that are split over ranks (fully_shard): it needs them whole.
    """

    usual_moments = "bf16"

    def __init__(
        self,
        params: nn.Module | Iterable[Any],
        lr: float | torch.Tensor = 4e-3,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        *,
        moments: str | None = None,
        master_weights: bool = False,
        adamw_lr: float | torch.Tensor | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        seed: int = 0,
        release: bool = False,
        offload_folder: str | os.PathLike[str] | None = None,
    ):
        defaults = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        defaults |= {"betas": betas, "eps": eps, "moments": self._moments(moments, params), "master_weights": master_weights}
        defaults["seed"] = seed
        self._adamw_lr = lr if adamw_lr is None else adamw_lr
        if isinstance(params, nn.Module):
            params = self._groups_of(params)
        super().__init__(params, defaults, release, offload_folder)

    def _check_groups(self) -> None:
        of_adapters = any(_is_of_adapter(n) for group in self.param_groups for n in group.get("param_names", ()))
        if not of_adapters and not any(group["kind"] == "muon" for group in self.param_groups):
            self._fail(
                "none of these parameters is a matrix of a module inside a numbered one, as layers.3.mlp.down.weight is "
                "(FullyShardedDataParallel leaves none): pass groups with kind='muon' and kind='adamw', or use compact.optim.AdamW"
            )

    def _kind(self, group: dict[str, Any]) -> str:
        return group["kind"]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_adamw_lr": self._adamw_lr}

    def _parts(self, param_group: dict[str, Any]) -> list[dict[str, Any]]:
        """A group for each kind, where parameters have names and no `kind`."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        if "kind" in param_group:
            if param_group["kind"] == "adamw":
                param_group.setdefault("lr", self._adamw_lr)
            return [param_group]
        params = param_group["params"]
        params = [params] if isinstance(params, torch.Tensor) else list(params)
        if not all(isinstance(p, tuple) for p in params):
            self._fail(
                "parameters without names do not tell which are matrices of blocks: pass the model, its "
                "named_parameters(), or groups with kind='muon' and kind='adamw'; with Hugging Face, "
                "Trainer(optimizers=(compact.optim.Muon(model, ...), None))"
            )
        return self._split(params, {k: v for k, v in param_group.items() if k != "params"})

    def _groups_of(self, module: nn.Module) -> list[dict[str, Any]]:
        apart = [m.weight for m in module.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
        head = module.get_output_embeddings() if hasattr(module, "get_output_embeddings") else None
        apart.append(getattr(head, "weight", None))
        named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        return self._split(named, {}, {id(p) for p in apart})

    def _split(self, named: list[tuple[str, torch.Tensor]], settings: dict[str, Any], apart: set[int] | None = None) -> list[dict[str, Any]]:
        """Groups of what is Muon's, of other parameters that decay, and of those that do not."""
        parts: tuple[list, list, list] = ([], [], [])
        for name, p in named:
            if _is_in_block(name, p) and id(p) not in (apart or ()):
                parts[0].append((name, p))
            else:
                parts[1 if p.dim() > 1 else 2].append((name, p))
        rest = {"kind": "adamw", "lr": settings.get("lr", self._adamw_lr)}
        return [settings | own | {"params": params} for params, own in zip(parts, ({"kind": "muon"}, rest, rest | {"weight_decay": 0.0})) if params]
