# SPDX-License-Identifier: Apache-2.0
"""Log probabilities of given tokens from hidden states: the logits of all tokens never exist at once."""
from __future__ import annotations

import dataclasses
import math
import numbers
from typing import Any

import torch

from ..base.library import can_compute_on, kind_of, ops, TYPES
from ..base.type_names import name_of

IGNORED = -100  # a target that asks for nothing
_BYTES = {"cuda": 2**29}  # of logits at a time; elsewhere 2^28
_BLOCK = {"cpu": 2**19}  # logits whose statistics are made at a time, while they are in a cache; elsewhere those of 2^26
_LEAST_COLUMNS = 256


@dataclasses.dataclass(frozen=True)
class Head:
    """Logits of hidden states: softcap tanh((h W^T + b) / softcap) / temperature, products in `dtype`, the rest in float32 or wider."""

    dtype: torch.dtype
    temperature: float = 1.0
    softcap: float | None = None
    tokens: int = 0  # logits of so many tokens exist at once; 0: as many as are fast

    @classmethod
    def of(cls, hidden: torch.Tensor, temperature: float, softcap: float | None, tokens: int) -> Head:
        """For hidden states of a type: under autocast products are made in its type."""
        kind = kind_of(hidden)
        autocast = torch.is_autocast_enabled(kind) and hidden.dtype != torch.float64
        return cls(torch.get_autocast_dtype(kind) if autocast else hidden.dtype, temperature, softcap, tokens)

    @property
    def wide(self) -> torch.dtype:
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def plain(self) -> bool:
        return self.temperature == 1 and self.softcap is None

    def most(self, vocabulary: int, kind: str) -> int:
        """Logits that may exist at once."""
        if self.tokens:
            return self.tokens * vocabulary
        each = self.dtype.itemsize + (0 if self.plain and self.dtype in TYPES else 2 * self.wide.itemsize)
        return _BYTES.get(kind, 2**28) // each

    def logits(self, h: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
        z = h @ w.t() if b is None else torch.addmm(b, h, w.t())
        if self.plain:
            return z
        z = z.to(self.wide)
        if self.softcap is None:
            return z.div_(self.temperature)
        return z.div_(self.softcap).tanh_().mul_(self.softcap / self.temperature)

    def slope(self, z: torch.Tensor) -> torch.Tensor | float:
        """The derivative of logits to what the products gave."""
        if self.softcap is None:
            return 1 / self.temperature
        return (z * (self.temperature / self.softcap)).square_().neg_().add_(1).div_(self.temperature)

    def gradients(self, z: torch.Tensor, lse: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The gradients of the targets' log probabilities with respect to the products, in place of the logits."""
        slope = self.slope(z)
        scale = slope if isinstance(slope, float) else 1.0
        if _has_kernel(z):
            ops.softmax_rows_gradient(z, lse, targets, -scale)
        else:
            p = (z.to(self.wide) - lse.unsqueeze(1)).exp_().neg_()
            z.copy_(p.scatter_add_(1, targets.unsqueeze(1), torch.ones_like(lse).unsqueeze(1)).mul_(scale))
        if isinstance(slope, torch.Tensor):
            z.mul_(slope)
        return z.to(self.dtype)


def _has_kernel(z: torch.Tensor) -> bool:
    return z.dtype in TYPES and can_compute_on(kind_of(z))


def _log_probs(z: torch.Tensor, targets: torch.Tensor, wide: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Logarithms of the sums of exponentials of rows, and log probabilities of targets."""
    if _has_kernel(z):
        lse, losses = ops.softmax_rows(z, targets)
        return lse, losses.neg_()
    z = z.to(wide)
    lse = z.logsumexp(1)
    return lse, z.gather(1, targets.unsqueeze(1)).squeeze(1) - lse


def _write_statistics(found: dict[str, torch.Tensor], rows: slice, z: torch.Tensor, lse: torch.Tensor, targets: torch.Tensor) -> None:
    step = max(1, _BLOCK.get(z.device.type, 2**26) // z.size(1))
    for i in range(0, z.size(0), step) if found else ():
        x, base, at = z[i : i + step].to(lse.dtype), lse[i : i + step, None], slice(rows.start + i, min(rows.start + i + step, rows.stop))
        if "mean_logits" in found:
            found["mean_logits"][at] = x.mean(1)
        if "is_top1" in found:
            found["is_top1"][at] = x.argmax(1) == targets[i : i + step]  # of equal ones the first
        if "entropy" in found or "log_sum_sq_probs" in found:
            log_p = x - base
            p = log_p.exp()
            if "log_sum_sq_probs" in found:
                found["log_sum_sq_probs"][at] = p.square().sum(1).log_()
            if "entropy" in found:
                found["entropy"][at] = p.mul_(log_p).sum(1).neg_()


class TokenLogProbs(torch.autograd.Function):
    """Log probabilities of `targets` [n], all of them classes, from hidden [n, width], weight [vocabulary, width] and bias [vocabulary]
    or None, and statistics of each distribution by their names: its entropy, which has a gradient, and without one log_sum_sq_probs (the
    logarithm of the sum of squared probabilities), mean_logits, and is_top1 (whether the target is the first of the most likely tokens).

    The forward pass makes all logits of some tokens at a time, and in their place each token's gradient to its hidden state,
    which the backward pass scales. Gradients of weight and bias, and those of entropies, are made there from logits of all
    tokens and some of the vocabulary: each row of the weight's gradient is one product, summed nowhere else.
    """

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor,
                head: Head, wanted: tuple[str, ...], record: bool) -> tuple[torch.Tensor, ...]:  # fmt: skip
        ctx.set_materialize_grads(False)
        ctx.head, ctx.wanted, ctx.types = head, wanted, (hidden.dtype, kind_of(hidden))
        want_hidden, want_weight, want_bias = (record and needs for needs in ctx.needs_input_grad[:3])
        with torch.autocast(kind_of(hidden), enabled=False):
            h, w, b = (None if x is None else x.to(head.dtype) for x in (hidden, weight, bias))
            n, options = len(h), {"dtype": head.wide, "device": h.device}
            lse, log_probs = torch.empty(n, **options), torch.empty(n, **options)
            found = {name: torch.empty(n, **options | ({"dtype": torch.bool} if name == "is_top1" else {})) for name in wanted}
            directions = torch.empty(h.shape, dtype=h.dtype, device=h.device) if want_hidden else None
            step = max(1, head.most(len(w), kind_of(h)) // len(w))
            step = step // 64 * 64 or step
            for i in range(0, n, step):
                rows = slice(i, min(i + step, n))
                z = head.logits(h[rows], w, b)
                lse[rows], log_probs[rows] = _log_probs(z, targets[rows], head.wide)
                _write_statistics(found, rows, z, lse[rows], targets[rows])
                if want_hidden:
                    torch.mm(head.gradients(z, lse[rows], targets[rows]), w, out=directions[rows])
                del z  # before the next ones are made
        again = want_weight or want_bias or (want_hidden and "entropy" in found)
        ctx.save_for_backward(directions, *((hidden, weight, bias, targets, lse, found.get("entropy")) if again else ()))
        ctx.mark_non_differentiable(*(x for name, x in found.items() if name != "entropy"))
        return log_probs, *found.values()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor | None, *others: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("compact.token_log_probs: gradients of gradients (create_graph=True) are not supported")
        e = dict(zip(ctx.wanted, others)).get("entropy")
        directions, *saved = ctx.saved_tensors
        want_hidden, want_weight, want_bias = ctx.needs_input_grad[:3]
        dtype, kind = ctx.types
        with torch.autocast(kind, enabled=False):
            of_hidden = directions * g.unsqueeze(1) if want_hidden and g is not None else None
            of_head = None, None
            if e is not None or (g is not None and (want_weight or want_bias)):
                of_entropy, *of_head = _again(ctx.head, *saved, g, e, want_hidden and e is not None, want_weight, want_bias)
                of_hidden = of_entropy if of_hidden is None else of_hidden if of_entropy is None else of_hidden + of_entropy
            return None if of_hidden is None else of_hidden.to(dtype), *of_head, None, None, None, None


def _again(
    head: Head, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor, lse: torch.Tensor,
    entropy: torch.Tensor | None, g: torch.Tensor | None, e: torch.Tensor | None, want_hidden: bool, want_weight: bool, want_bias: bool,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    """Gradients of entropies to hidden states, and of entropies and log probabilities to weight and bias."""
    h, vocabulary = hidden.to(head.dtype), len(weight)
    products = torch.float32 if head.dtype == torch.float16 else head.dtype  # whose sums may be beyond float16
    of_hidden = torch.zeros(h.shape, dtype=head.wide, device=h.device) if want_hidden else None
    of_weight = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device) if want_weight else None
    of_bias = torch.empty_like(bias) if want_bias else None
    right = h.to(products) if e is not None else (h * g.unsqueeze(1)).to(products)
    step = max(_LEAST_COLUMNS, head.most(vocabulary, kind_of(h)) // max(1, *h.shape) // (1 if e is None else 4))
    for v in range(0, vocabulary, step):
        z = left = log_p = p = None  # the last ones go before the next are made
        end = min(v + step, vocabulary)
        # One column more than is needed, at the end or before: for targets elsewhere.
        first, last = (v, end + 1) if end < vocabulary else (max(v - 1, 0), end)
        here, inside = slice(v - first, end - first), (targets >= v) & (targets < end)
        w = weight[first:last].to(head.dtype)
        z = head.logits(h, w, None if bias is None else bias[first:last].to(head.dtype))
        local = torch.where(inside, targets - first, last - 1 - first if end < vocabulary else 0)
        if e is None:
            left = head.gradients(z, lse, local)[:, here].to(products)
        else:
            slope, log_p = head.slope(z), z.to(head.wide) - lse.unsqueeze(1)
            p = log_p.exp()
            left = log_p.add_(entropy.unsqueeze(1)).mul_(p).mul_(e.neg().unsqueeze(1))
            if want_hidden:
                of_hidden.add_((left * slope)[:, here].to(products) @ w[here].to(products))
            if g is not None:
                left.sub_(p.mul_(g.unsqueeze(1))).scatter_add_(1, local.unsqueeze(1), (g * inside).unsqueeze(1))
            left = left.mul_(slope)[:, here].to(products)
        if want_weight and of_weight.dtype == products:
            torch.mm(left.t(), right, out=of_weight[v:end])
        elif want_weight:
            of_weight[v:end] = left.t() @ right
        if want_bias:
            rates = g if e is None else torch.ones_like(e)
            of_bias[v:end] = left.to(head.wide).t() @ rates
    return of_hidden, of_weight, of_bias


def token_statistics(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor, head: Head, wanted: tuple[str, ...]
) -> tuple[torch.Tensor, ...]:
    """Log probabilities [n] and statistics, as TokenLogProbs has them."""
    return TokenLogProbs.apply(hidden, weight, bias, targets, head, wanted, torch.is_grad_enabled())


@torch.compiler.disable
def token_log_probs(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, *, bias: torch.Tensor | None = None,
    temperature: float = 1.0, softcap: float | None = None, tokens: int = 0, entropy: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Log probabilities of `targets` under softmax(logits), and with `entropy` the entropies of these distributions in nats, too.

    hidden [..., width], weight [vocabulary, width], bias [vocabulary] or None, targets int64 [...]; where a target is -100,
    both results are 0. logits = hidden weight^T + bias; with a softcap c tanh(logits / c); divided by `temperature`. Both results
    have a gradient: to hidden, weight and bias, as far as these require one. Products are made in the type of hidden, under autocast in its type;
    results are float32, of float64 float64.

    Logits exist for `tokens` tokens at a time (0: 256 MiB of logits, 512 MiB on a GPU). Until the backward pass are held a gradient
    of the size of hidden, and hidden itself where the weight requires a gradient or entropies are asked for, but no logits, which are made
    a second time where the gradients of the weight or of entropies are asked for.
    """
    for name, x in (("hidden", hidden), ("weight", weight), ("targets", targets)) + ((("bias", bias),) if bias is not None else ()):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"compact.token_log_probs: {name} must be a tensor, is a {type(x).__name__}")
        if x.is_floating_point() == (name == "targets") or x.is_complex() or (name == "targets" and x.dtype == torch.bool):
            raise TypeError(f"compact.token_log_probs: {name} must be of {'whole numbers' if name == 'targets' else 'a floating type'}, is of {name_of(x.dtype)}")
        if x.device != hidden.device:
            raise ValueError(f"compact.token_log_probs: {name} must be on the device of hidden, {hidden.device}, is on {x.device}")
    if weight.dim() != 2 or weight.numel() == 0 or hidden.dim() == 0 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(f"compact.token_log_probs: hidden must be [..., width] and weight [vocabulary, width], are {[*hidden.shape]}, {[*weight.shape]}")
    if targets.shape != hidden.shape[:-1]:
        raise ValueError(f"compact.token_log_probs: targets must be {[*hidden.shape[:-1]]}, one for each hidden state, are {[*targets.shape]}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"compact.token_log_probs: bias must be [{len(weight)}], is {[*bias.shape]}")
    for name, x in (("temperature", temperature), ("softcap", 1.0 if softcap is None else softcap)):
        if not isinstance(x, numbers.Real) or not 0 < x < math.inf:
            raise ValueError(f"compact.token_log_probs: {name} must be a number above 0, is {x!r}")
    if not isinstance(tokens, numbers.Integral) or tokens < 0:
        raise ValueError(f"compact.token_log_probs: tokens must be a whole number from 0 on, is {tokens!r}")
    targets = targets.to(torch.int64)
    kept = targets != IGNORED
    on_cpu = targets.device.type == "cpu"
    if on_cpu:  # elsewhere it would wait for the device
        outside = targets[kept & ((targets < 0) | (targets >= len(weight)))]
        if len(outside):
            raise ValueError(f"compact.token_log_probs: a target must be {IGNORED} or in [0, {len(weight)}), is {int(outside[0])}")
    head = Head.of(hidden, float(temperature), None if softcap is None else float(softcap), int(tokens))
    some = on_cpu and not kept.all()
    if some:
        rows, classes = hidden[kept], targets[kept]
    else:
        rows, classes = hidden.reshape(-1, weight.shape[1]), targets.flatten() if on_cpu else targets.masked_fill(~kept, 0).flatten()
    found = token_statistics(rows, weight, bias, classes, head, ("entropy",) if entropy else ())
    if some:
        found = tuple(x.new_zeros(kept.shape).masked_scatter(kept, x) for x in found)
    else:
        found = tuple(x.view(kept.shape) if on_cpu else x.view(kept.shape).masked_fill(~kept, 0) for x in found)
    return found if entropy else found[0]
