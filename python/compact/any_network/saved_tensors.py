# SPDX-License-Identifier: Apache-2.0
"""saved_tensors(): tensors that any PyTorch program saves for its backward pass, held by codecs as a policy says."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
from collections.abc import Callable, Iterator

import torch
import torch.utils.checkpoint
from torch import nn, Tensor
from torch.nn.parameter import is_lazy

from ..base.byte_count import byte_count
from ..base.library import classes, ops
from ..base.log import warn
from ..base.policy import policy_text, presets
from ..base.torch_private import pop_saved_tensors_hooks, push_saved_tensors_hooks, top_saved_tensors_hooks, version_of

# Parts of parameters' names that come from wrappers of modules.
_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")

_WORTH_REBUILDING = 1 << 20  # bytes saved, below which nothing is said where none of them can be rebuilt


@dataclasses.dataclass(frozen=True)
class SavedTensor:
    """One tensor that autograd saved."""

    name: str  # layers.0.mlp.down_proj.mm.input: nearest parameter's module, operation, place
    role: str  # by which policies may name it, too; "" where it has none
    treatment: str  # keep, codecs, or parameter
    shape: tuple[int, ...]  # () of parameters
    dtype: torch.dtype
    bytes: int  # of the tensor; 0 of parameters
    stored: int  # of what is held for it: 0 where what is held for another is read
    shared: bool  # its memory was saved before
    parameter: bool  # it is held by its model, or by who calls it, and casts of it are made again
    exact_for: str  # it is kept though the policy says codecs, since this operation reads it exactly; or ""


@dataclasses.dataclass(frozen=True)
class SavedTensorsReport:
    """The tensors that one forward pass saved; str() of it is a table."""

    tensors: list[SavedTensor]
    bytes: int  # of distinct tensors, without parameters
    stored: int  # of what is held for them
    span: int  # at most so many bytes are rebuilt at a time for a budget
    under_other_hooks: int  # operations inside of other hooks (save_on_cpu, checkpoints), which got what they saved

    @property
    def exact_for(self) -> dict[str, int]:
        """Bytes that are kept though the policy says codecs, by the operations that read them exactly."""
        held: dict[str, int] = {}
        for t in self.tensors:
            if t.exact_for:
                held[t.exact_for] = held.get(t.exact_for, 0) + t.stored
        return held

    def __iter__(self) -> Iterator[SavedTensor]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __str__(self) -> str:
        lines = [f"{len(self.tensors)} saved tensors of {self.bytes:,} bytes, held in {self.stored:,}"]
        if self.span:
            lines[0] += f", and at most {self.span:,} more are rebuilt at a time"
        rows = [t for t in self.tensors if not t.parameter]
        width = max((len(t.name) for t in rows), default=0)
        if rows:
            lines.append(f"{'tensor':{width}}  {'bytes':>14}  {'held':>14}  how")
        for t in rows:
            held = "held above" if t.shared and not t.stored else f"{t.stored:,}"
            lines.append(f"{t.name:{width}}  {t.bytes:>14,}  {held:>14}  {t.treatment}")
        if kept := self.exact_for:
            most = sorted(kept.items(), key=lambda item: -item[1])
            lines.append(
                f"{sum(kept.values()):,} bytes are kept though the policy says codecs, for operations that read them exactly: "
                + ", ".join(f"{op} {count:,}" for op, count in most)
            )
        if self.under_other_hooks:
            lines.append(
                f"{self.under_other_hooks} operations ran inside of other hooks of saved tensors (save_on_cpu, checkpoints), which "
                "got what they saved: it is not counted here"
            )
        if any(".CompiledFunction." in t.name for t in self.tensors):
            lines.append("What regions of torch.compile save is held as it is, or in codes that lose nothing.")
        if any(".CheckpointFunction." in t.name for t in self.tensors):
            lines.append("What runs in reentrant checkpoints saves nothing until the backward pass runs it again.")
        return "\n".join(lines)


def _named_tensors(model: nn.Module) -> tuple[list[str], list[Tensor], list[str], list[Tensor]]:
    """Parameters and buffers with the names that the model has without wrappers."""
    prefix = "module." if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)) else ""

    def bare(name: str) -> str:
        name = name.removeprefix(prefix)
        for wrapper in _WRAPPERS:
            name = name.replace(wrapper, "")
        return name

    # Parameters of lazy modules have no memory before their first pass, and are not named in it.
    parameters, buffers = ([(bare(name), t) for name, t in named if not is_lazy(t)] for named in (model.named_parameters(), model.named_buffers()))
    return [n for n, _ in parameters], [t for _, t in parameters], [n for n, _ in buffers], [t for _, t in buffers]


def _unpack(held) -> Tensor:
    if type(held) is not tuple:
        return held.unpack()
    tensor, version = held
    if version_of(tensor) != version:
        raise RuntimeError(
            "compact.saved_tensors: one of the tensors needed for gradients was changed in place: "
            f"{tuple(tensor.shape)} is at version {version_of(tensor)}, expected {version}"
        )
    return tensor


_checkpoints = vars(torch.utils.checkpoint)
_apply = torch.autograd.Function.apply.__func__.__code__


def _is_checkpoint(frame) -> bool:
    """Whether the frame is of torch's checkpoint, which saves its inputs again; compared by code, since names may be the same elsewhere.

    None: autograd's thread of a GPU, whose operations no function of Python called.
    """
    if frame is None:
        return False
    if frame.f_code is _apply:
        function = frame.f_locals.get("cls")
        return function is not None and _checkpoints.get(function.__name__) is function
    return frame.f_globals is _checkpoints


def _pack_of(scope, least: int) -> Callable[[Tensor], object]:
    plain, pack_large, pack_again, pack_small = (Tensor, nn.Parameter), scope.pack, scope.pack_again, scope.pack_small

    def pack(t: Tensor):
        if t.numel() >= least and type(t) in plain:
            return pack_again(t) if _is_checkpoint(sys._getframe().f_back) else pack_large(t)
        # Results of attention have three dimensions or more, of ragged batches two.
        if t.dim() >= 2 and type(t) in plain and (held := pack_small(t)) is not None:
            return held
        # Small tensors and other classes. Detached: a node that held its own output would never be
        # freed. A detached tensor shares the version, which _unpack compares.
        return t.detach(), version_of(t)

    pack.of_compact = True
    pack.around = None  # of a model whose layers are served: others may be entered inside of it, and are called in its place
    return pack


class saved_tensors:
    """Holds what autograd saves inside of it as `policy` says; any network, any operation.

        saved = compact.saved_tensors("exact", model=net, budget="40%")
        for x in batches:
            with saved:
                loss = net(x)
            loss.backward()  # or inside
        print(saved.report())

    policy: the name of a preset, the path of a file, or the text of a policy, whose lines
    `slot PATTERN = CODECS` are matched with names as a report shows them. "off" keeps everything
    and only measures. Only codecs and `keep` can be said of slots here.
    model: gives names to what its parameters are used for, and keeps frozen parameters and buffers
    from being encoded; leaves that require gradients are never encoded.
    least_elements: smaller tensors are kept as they are, and reported nowhere.
    budget: bytes, as 800000000 or "10GiB", for policies that rebuild ("exact"): of what is held, with the
    most that the backward pass has rebuilt at one moment; or a part of what is saved, as "40%". Within it
    products, convolutions and attention without dropout run again, too, those first that take least time
    for their bytes; every bit stays. A pass that cannot be kept within so many bytes raises ValueError
    where it runs. Parts never raise: the first pass estimates, the second knows of how many bytes it is a
    part, and a warning says what was reached where that is more.
    lossless: whether booleans and other tensors of two values are held in bits and indices in few
    bytes, which changes no result; None: where the policy has lines of slots.

    Tensors are rounded in float32, bfloat16 and float16, and where the backward pass of an operation
    of torch reads them linearly or smoothly (docs: own-networks). Others are kept, and the report
    says for which operations: what a backward pass compares or divides by, what functions of
    torch.autograd.Function and compiled graphs save, subclasses as DTensor, tensors with a NaN or an
    infinity (on a GPU 256 neighbours of one read back as NaN). A copy that autocast makes of a
    parameter is not held: the parameter is cast again in the backward pass. What is kept and was
    changed in place raises RuntimeError in the backward pass.

    Each entry is a new forward pass. Random bits of codecs follow from the state of torch's generator
    for the CPU at the entry, so that torch.manual_seed() repeats them. Inside nothing else is drawn
    than without codecs; after a pass that rounded, the generator moves on by one number. Entered on
    several threads, each needs an object of its own. Only the innermost hooks of saved tensors are
    called, so that entering it inside of others, or of itself, raises RuntimeError; non-reentrant
    and reentrant checkpoints inside of it put their inputs through it.
    """

    def __init__(self, policy: str | os.PathLike[str], model: nn.Module | None = None, *, budget: int | str | None = None, least_elements: int = 1024, lossless: bool | None = None):
        if model is not None and not isinstance(model, nn.Module):
            raise ValueError(f"compact.saved_tensors: model must be a torch.nn.Module, is {type(model).__name__}")
        if not isinstance(least_elements, int) or isinstance(least_elements, bool) or not 0 <= least_elements < 2**63:
            raise ValueError(f"compact.saved_tensors: least_elements must be a number of elements, is {least_elements!r}")
        if lossless not in (None, True, False):
            raise ValueError(f"compact.saved_tensors: lossless must be True, False or None, is {lossless!r}")
        text = policy_text(policy)
        wanted = byte_count(budget, "compact.saved_tensors")
        if isinstance(wanted, float) and wanted >= 1:
            raise ValueError(f"compact.saved_tensors: budget must be bytes, or a part below 100% of what is saved, is {budget!r}")
        if wanted is not None:
            text += f"\nslot role:heavy = recompute:budget={min(wanted, 2**62 - 1) if isinstance(wanted, int) else f'{100 * wanted:g}%'}\n"
        try:
            self._scope = classes.SavedTensors(text, least_elements, lossless)
        except ValueError as error:
            if wanted is None or "role:cheap" not in str(error):
                raise
            raise ValueError(f'compact.saved_tensors: budget= is for policies that rebuild, as "exact": {error}') from None
        self.given: list[Tensor] = []  # the arguments of the model, which its caller holds
        self._budget: tuple[int, float] = ops.slot_budget(text)
        self._rebuilds = ops.slot_treatment(text, "cheap") == "recompute"
        self._given = policy if isinstance(policy, str) else os.path.abspath(policy)
        self.model = model
        self._pack = _pack_of(self._scope, least_elements)
        self._thread: int | None = None
        self._checked = False
        self.warns = True  # about lines that match nothing; once, where a part is not reached
        self._before = 0  # bytes of the pass before

    def __enter__(self) -> saved_tensors:
        top = top_saved_tensors_hooks(True)
        if top is not None and not getattr(top[0], "around", None):
            whose = (
                "compact.saved_tensors is in force here already"
                if hasattr(top[0], "of_compact")
                else f"other hooks of saved tensors are in force here ({getattr(top[0], '__qualname__', top[0])})"
            )
            raise RuntimeError(f"compact.saved_tensors: {whose}, and only the innermost would be called: leave them first")
        names, parameters, *buffers = _named_tensors(self.model) if self.model is not None else ([], [], [], [])
        # Casts of buffers are held, since a model may write to them; ids and masks are rarely written to,
        # but memory of NumPy, DLPack or other processes is, unseen.
        for names_of, known, written in ((names, parameters, False), (*buffers, True)):
            more = [t for t in self.given if (t.is_floating_point() or not t.untyped_storage().resizable()) == written]
            names_of += [""] * len(more)
            known += more
        self._scope.enter(names, parameters, *buffers)
        try:
            push_saved_tensors_hooks(self._pack, _unpack)
        except BaseException:
            self._scope.leave()
            raise
        self._thread = threading.get_ident()
        return self

    def __exit__(self, kind, error, trace) -> None:
        if self._thread != threading.get_ident():
            raise RuntimeError("compact.saved_tensors: it must end on the thread that it began on")
        self._thread = None
        above, ours = [], False
        while not ours and (top := top_saved_tensors_hooks(True)) is not None:
            pop_saved_tensors_hooks()
            ours = top[0] is self._pack
            if not ours:
                above.append(top)
        for pair in reversed(above):  # whoever pushed them pops them
            push_saved_tensors_hooks(*pair)
        self._scope.leave()
        if kind is not None:
            return
        if above or not ours:
            raise RuntimeError(
                "compact.saved_tensors: hooks were replaced inside of it and not put back: what was saved since is not held as the policy says"
            )
        budget, part = self._budget
        # Passes before the second of a size do not know yet of how many bytes it is a part.
        settled, self._before = self.bytes == self._before, self.bytes
        if part and settled and self.warns and self.stored + self.span > part * self.bytes:
            self.warns = False
            warn(f"saved_tensors: {100 * part:g}% of {self.bytes:,} bytes cannot be reached: {self.stored:,} are held, and {self.span:,} more are rebuilt at a time")
        if budget and self.live_bytes + self.span > budget:
            raise ValueError(
                f"compact.saved_tensors: a budget of {budget:,} bytes cannot be kept: {self.live_bytes:,} are held, and {self.span:,} more "
                'are rebuilt at a time; a part, as "30%", is kept as far as can be'
            )
        self._check_patterns()

    def _check_patterns(self) -> None:
        """Warns, after the first pass that saved anything, of lines of the policy that match nothing, and of one that does nothing."""
        if self._checked or not self.warns:
            return
        rows = self._scope.report()
        if not rows:
            return
        self._checked = True
        idle = None
        try:
            # `cheap` and `heavy` are roles of rebuilt tensors of any operation.
            ops.check_patterns(self._given, [row[0] for row in rows] + ["", ""], [row[1] for row in rows] + ["cheap", "heavy"], [False] * (len(rows) + 2), [])
        except ValueError as error:
            whose = "convolutional networks" if self._given in ("pool", "pool-quant") else "layers of compact.apply"
            idle = f"preset {self._given} is for {whose}" if self._given in presets() else str(error)
        gains = not self._rebuilds or self.bytes >= _WORTH_REBUILDING
        if idle is None and gains and ops.policy_text(self._given) and all(row[2] in ("keep", "parameter") for row in rows):
            compiled = any(".CompiledFunction." in row[0] for row in rows)
            idle = "the policy leaves all that this network saves as it is" + ", which is what compiled regions save" * compiled
        if idle is not None:
            hint = (
                "Nothing of it can be rebuilt: what checkpoints and compiled regions hold is left alone"
                if self._rebuilds
                else '"exact" rebuilds what cheap operations made, "gact-l1" and texts with codecs (slot * = quantize:bits=8) hold codes'
            )
            warn(f"saved_tensors: {idle}. {hint}")

    def let_others_in(self, around: object) -> None:
        """Lets scopes be entered inside of this one, which are called in its place. `around`: what it is of."""
        self._pack.around = around

    def report(self) -> SavedTensorsReport:
        """The tensors saved by the last pass, or so far by the one that runs."""
        rows = [
            SavedTensor(name, role, treatment, tuple(shape), getattr(torch, dtype), *rest)
            for name, role, treatment, shape, dtype, *rest in self._scope.report()
        ]
        return SavedTensorsReport(rows, self.bytes, self.stored, self.span, self._scope.under_other_hooks())

    @property
    def bytes(self) -> int:
        """Bytes of the last pass's distinct tensors, as they are; parameters and small tensors excluded."""
        return self._scope.bytes()[0]

    @property
    def stored(self) -> int:
        """Bytes that were held for them."""
        return self._scope.bytes()[1]

    @property
    def span(self) -> int:
        """Bytes that are rebuilt at a time for a budget, at most."""
        return self._scope.bytes()[3]

    @property
    def live_bytes(self) -> int:
        """Held by graphs of any pass that still live: 0 once they are gone."""
        return self._scope.bytes()[2]
