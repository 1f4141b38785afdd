# SPDX-License-Identifier: Apache-2.0
"""Layers in tiles of some tokens: what report() says of them, and the policies that are refused."""
from conftest import gradients, inputs, make
import pytest

import compact

TILES = "slot role:{norm,gate_up,gate,product} = tile:tokens=%d"


def test_report_says_which_layers_ran_in_tiles():
    model, given = make("llama"), inputs("llama")
    compact.apply(model, TILES % 10)
    assert "tile" not in str(compact.report(model))
    gradients(model, given)
    tokens = given["input_ids"].numel()
    found = compact.report(model)
    assert [layer.tiles for layer in found.layers] == [[(10, -(-tokens // 10))]] * 2
    assert str(found).count(f"bytes held, in {-(-tokens // 10)} tiles of up to 10 tokens") == 2
    compact.remove(model)
    compact.apply(model, "tiled")
    gradients(model, given)
    assert str(compact.report(model)).count(", in 1 tile of up to 4,096 tokens") == 2
    compact.remove(model)
    compact.apply(model, "recompute")
    gradients(model, given)
    assert not any(layer.tiles for layer in compact.report(model).layers) and "tile" not in str(compact.report(model))


@pytest.mark.parametrize("line, slot", [("role:qkv", "layers.0.attn.qkv"), ("layers.*.mlp.input", "layers.0.mlp.input"), ("role:gate", "layers.0.mlp.silu")])
def test_what_cannot_be_in_tiles_is_refused(line, slot):
    with pytest.raises(ValueError, match=f"slot `.*` = tile: `{slot}` cannot be made for some tokens at a time"):
        compact.apply(make("llama"), f"slot {line} = tile")


def test_a_line_for_many_slots_has_those_in_tiles_that_can_be():
    model = compact.apply(make("llama"), "slot role:{norm,qkv} = tile:tokens=8")
    gradients(model, inputs("llama"))
    treated = {name.split(".", 2)[2]: how for name, how, *_ in compact.report(model).layers[0].slots}
    assert treated["attn.norm"] == "tile:tokens=8" and treated["attn.qkv"] == "recompute"
