# SPDX-License-Identifier: Apache-2.0
"""torch.export and torch.jit.trace of models that were applied: they record the model's own operations."""
from conftest import inputs, make
import pytest
import torch
from torch import nn

import compact

IDS = inputs("llama")["input_ids"]


class Called(nn.Module):
    """A language model as a function of tokens."""

    def __init__(self, model, result):
        super().__init__()
        self.model, self.result = model, result

    def forward(self, ids):
        return self.model(ids, labels=ids if self.result == "loss" else None, use_cache=False)[self.result]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64))


CASES = {
    "logits": (lambda: Called(make("llama"), "logits"), IDS, "exact"),
    "a loss": (lambda: Called(make("llama"), "loss"), IDS, "recompute"),
    "projected gradients": (lambda: Called(make("llama"), "logits"), IDS, "compact"),
    "a network": (network, torch.ones(64, 64), "exact"),
}


def operations(exported):
    graphs = [module.graph for module in exported.graph_module.modules() if hasattr(module, "graph")]
    return {str(node.target) for graph in graphs for node in graph.nodes if node.op == "call_function"}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("how", ["export", "export, strict", "trace"])
@pytest.mark.filterwarnings("ignore")
def test_recorded_models_are_plain(case, how):
    made, x, policy = CASES[case]
    own, model = made(), compact.apply(made(), policy)
    if how == "trace":
        recorded = torch.jit.trace(model, (x,), check_trace=False)
        names = {node.kind() for node in recorded.inlined_graph.nodes()}
    else:
        exported = torch.export.export(model, (x,), strict="strict" in how)
        recorded, names = exported.module(), operations(exported)
    assert torch.equal(recorded(x), own(x))
    assert len(names) > 1 and not any("compact" in name for name in names)
    served = compact.report(model)
    assert served.held == 0 and not any(layer.own_forward for layer in served.layers)
    model(x).sum().backward()  # served as before
    assert compact.report(model).held > 0
