# SPDX-License-Identifier: Apache-2.0
"""The result of report(): how each layer of a model is served, and what was held."""
from __future__ import annotations

import collections
import dataclasses

from ..any_network.saved_tensors import SavedTensorsReport
from .masks import OTHER


@dataclasses.dataclass
class LayerReport:
    """Whether one layer is served, and what it held in the last pass."""

    name: str  # in the model: model.layers.3
    served_as: str | None  # in policies: layers.3; None: its own forward runs
    reason: str | None  # why not
    calls: int = 0  # passes with gradients that were served
    own_forward: dict[str, int] = dataclasses.field(default_factory=dict)  # reason: passes that were not
    served: bool | None = None  # in the last pass with gradients; None: there was none
    # The slots of that pass: name in policies, treatment, bytes held, bytes if all were kept.
    slots: list[tuple[str, str, int, int]] = dataclasses.field(default_factory=list)
    # Where samples of that pass were padded: the kernel of its attention, bytes of what is added to its scores
    # while it runs, and bytes of the model's mask, which layers share. None: none was.
    padding: tuple[str, int, int] | None = None
    # Where sequences of that pass were packed or padded at their beginning, and attention ran range by range of tokens:
    # its kernel, how many ranges, and bytes of the model's mask. None: it did not.
    ranges: tuple[str, int, int] | None = None
    codes: dict[str, int] = dataclasses.field(default_factory=dict)  # how many weights another package holds in codes, by what gives them
    # The tiles of that pass, each kind once: the most tokens of one, and how many there were.
    tiles: list[tuple[int, int]] = dataclasses.field(default_factory=list)

    @property
    def held(self) -> int:
        """Bytes that the last pass left for its backward pass."""
        return sum(slot[2] for slot in self.slots)

    @property
    def if_kept(self) -> int:
        """Bytes of the same tensors, all kept as they are."""
        return sum(slot[3] for slot in self.slots)


@dataclasses.dataclass(repr=False)
class Report:
    """How compact serves a model; str() of it is a table."""

    policy: str | None  # its text; None: there is none
    layers: list[LayerReport]
    loss: str
    name: str | None = None  # the policy's: a preset's, "auto", a file's path, or "given as text"
    rest: list[str] = dataclasses.field(default_factory=list)  # modules with parameters around the layers: name (class)
    # Tensors that the last pass with gradients saved: around the layers that are served, or in the network as a whole.
    saved: SavedTensorsReport | None = None
    network: str | None = None  # how the whole of it is served; None: layers are

    @property
    def held(self) -> int:
        return sum(layer.held for layer in self.layers) + (self.saved.stored if self.saved else 0)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        if self.policy is None:
            return "compact: not applied"
        if self.network is not None:
            return "\n".join([f"policy {self.name}: {self.network}", *self._by_module(), *self._own_forwards(), f"  loss: {self.loss}"])
        count, able = len(self.layers), sum(layer.served_as is not None for layer in self.layers)
        if all(layer.served is None for layer in self.layers):
            lines = [f"policy {self.name}: {able} of {count} layers can be served" + ("; there was no step yet" if able else "")]
        else:
            served = sum(bool(layer.served) for layer in self.layers)
            kept = sum(layer.if_kept for layer in self.layers) + (self.saved.bytes if self.saved else 0)
            lines = [f"policy {self.name}: {served} of {count} layers served in the last step, {self.held:,} of {kept:,} bytes held"]
        width = max((len(layer.name) for layer in self.layers), default=0)
        for layer in self.layers:
            if layer.served_as is None:
                text = f"own forward: {layer.reason or 'apply() was not called for it'}"
            else:
                text = f"{layer.calls:6} pass{'' if layer.calls == 1 else 'es'} served, {layer.held:14,} of {layer.if_kept:,} bytes held"
                text += "".join(f", in {count:,} tile{'s' * (count != 1)} of up to {tokens:,} tokens" for tokens, count in layer.tiles)
                text += "".join(f", {count} weights given by {name}" for name, count in layer.codes.items())
                for reason, count in layer.own_forward.items():
                    text += f"; {count} by its own forward: {reason}"
            lines.append(f"  {layer.name:{width}}  {text}")
        lines += ["  " + line for line in self._masks()]
        if self.rest:
            lines.append(f"  by their own code: {', '.join(self.rest)}")
        if self.saved:
            again = sum(t.treatment == "recompute" for t in self.saved)
            lines.append(f"  of these by their own code, with layers that were not served: {self.saved.stored:,} of {self.saved.bytes:,} bytes held, {again} of {len(self.saved)} saved tensors rebuilt")
        lines.append(f"  loss: {self.loss}")
        return "\n".join(lines)

    def _by_module(self) -> list[str]:
        """A line for each module: bytes held for operations on its parameters, and on their results."""
        modules: dict[str, list[int]] = {}
        for t in self.saved or ():
            if not t.parameter:
                name = t.name.rsplit(".", 2)[0].split("~")[0]
                row = modules.setdefault(name, [0, 0, 0, 0])
                for i, more in enumerate((t.stored, 0 if t.shared else t.bytes, t.treatment == "recompute", 1)):
                    row[i] += more
        width = max(map(len, modules), default=0)
        return [
            f"  {name:{width}}  {held:14,} of {kept:,} bytes held, {again} of {count} saved tensors rebuilt"
            for name, (held, kept, again, count) in modules.items()
        ]

    def _own_forwards(self) -> list[str]:
        return [f"  {layer.name}: own forward: {layer.reason}" for layer in self.layers if layer.reason]

    def _masks(self) -> list[str]:
        """Lines on what attention masks cost."""
        padded = collections.Counter(layer.padding for layer in self.layers if layer.padding)
        lines = [
            f"padding: {count} layers in the last step, attention by {kernel}, in each {bias:,} bytes for it; the model's mask has {mask:,} bytes"
            for (kernel, bias, mask), count in padded.items()
        ]
        ranged = collections.Counter(layer.ranges for layer in self.layers if layer.ranges)
        lines += [
            f"packed or padded at the beginning: {count} layers in the last step, attention by {kernel} to each of {ranges:,} ranges of tokens; the model's mask has {mask:,} bytes"
            for (kernel, ranges, mask), count in ranged.items()
        ]
        others = sum(OTHER in layer.own_forward for layer in self.layers)
        return lines + [f"masks: {others} layers ran their own forward, since {OTHER}"] * bool(others)
