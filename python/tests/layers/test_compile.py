# SPDX-License-Identifier: Apache-2.0
"""torch.compile around a model: layers that are served stay nodes of their own, with the same bits."""
import pytest
import torch
from conftest import applied, gradients, inputs, make


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_around_the_model(name):
    model, given = make(name), inputs(name)
    with applied(model, "exact"):
        _, wanted = gradients(model, given)
        compiled = torch.compile(model, backend="aot_eager")
        model.zero_grad()
        compiled(**given).loss.backward()
        got = {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}
    assert all(torch.allclose(got[n], w, rtol=1e-4, atol=1e-6) for n, w in wanted.items())


def test_a_whole_graph_is_refused():
    model, given = make("llama"), inputs("llama")
    with applied(model, "exact"):
        with pytest.raises(Exception, match="[Uu]nsupported|disable|no compiled frames"):
            torch.compile(model, backend="eager", fullgraph=True)(**given)
        gradients(model, given)
