# SPDX-License-Identifier: Apache-2.0
"""Whether a forward pass of transformers makes logits by its head, the loss of them, and nothing else."""
from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable

# A block that is passed over, since what it needs is asked in every pass.
_CAPPED, _ROUTED = "self.config.final_logit_softcapping", "output_router_logits"


def makes_plain_loss(cls: type) -> bool:
    """Whether its forward, read as text, has `logits = self.lm_head(...)`, `loss = self.loss_function(...)` of them and
    `labels`, and gives both back; nothing else reads or writes `logits` or `labels`, or writes `loss`, but a cap of
    logits and, where output_router_logits is given, the loss of a router. Only of transformers' own code."""
    return _is_plain(inspect.unwrap(cls.forward))


@functools.cache
def _is_plain(forward: Callable) -> bool:
    if not (forward.__module__ or "").startswith("transformers.models."):
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(forward)))
    except (OSError, SyntaxError):  # without a source
        return False
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    made = []  # how the names are used
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in ("logits", "labels", "loss"):
            use = _use(node, parents)
            if use is None:
                return False
            made.append(use)
    return {"logits made", "logits of loss", "logits given", "labels of loss", "loss made"} <= set(made) and made.count("logits made") == 1


def _use(node: ast.Name, parents: dict[ast.AST, ast.AST]) -> str | None:
    """The use of a name; None: one that a loss in chunks would not have."""
    above, parent = parents[node], parents[node]
    while not isinstance(above, ast.FunctionDef):
        if isinstance(above, ast.If) and (_CAPPED in ast.unparse(above.test) or ast.unparse(above.test) == _ROUTED):
            return "passed over"
        above = parents[above]
    call = parents[parent] if isinstance(parent, ast.keyword) else parent
    if isinstance(node.ctx, ast.Store):
        value = ast.unparse(parent.value.func) if isinstance(parent, ast.Assign) and isinstance(parent.value, ast.Call) else None
        if value == {"logits": "self.lm_head", "loss": "self.loss_function"}.get(node.id):
            return f"{node.id} made"
        return "none yet" if node.id == "loss" and isinstance(parent, ast.Assign) and ast.unparse(parent.value) == "None" else None
    if isinstance(call, ast.Call) and ast.unparse(call.func) == "self.loss_function":
        others = {keyword.arg for keyword in call.keywords} - {"logits", "labels", "vocab_size", None}
        return None if others else f"{node.id} of loss"
    if isinstance(parent, ast.keyword) and parent.arg == node.id and isinstance(parents[call], ast.Return):
        return f"{node.id} given"
    return "asked" if node.id == "labels" and ast.unparse(parent) == "labels is not None" else None
