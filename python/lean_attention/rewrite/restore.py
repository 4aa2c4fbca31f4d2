"""The way back: LeanAttention's nodes become ONNX Runtime's own."""

import onnx_ir as ir

from lean_attention.rewrite.gqa_node import (
    DOMAIN,
    OP_TYPE,
    STOCK_DOMAIN,
    STOCK_OP_TYPE,
)
from lean_attention.rewrite.graph_walk import count_ops, node_name, op_name, scopes
from lean_attention.rewrite.report import Changes, NodeReport

__all__ = ["restore_nodes"]

STOCK_VERSION = 1


def restore_nodes(model: ir.Model) -> Changes:
    """Makes every LeanGroupQueryAttention a ``com.microsoft::GroupQueryAttention``, in place.

    Both have the same inputs, outputs and attributes, but for ``schedule``, which goes. So does
    the import of the operator's domain.

    Args:
        model: The model to change.

    Returns:
        The nodes that became stock; none where there was none of ours.
    """
    before = count_ops(model)
    replaced = []
    for scope in scopes(model):
        for node in scope.graph:
            if (node.domain, node.op_type) != (DOMAIN, OP_TYPE):
                continue
            replaced.append(NodeReport(node_name(node), op_name(node), scope.location))
            node.domain, node.op_type = STOCK_DOMAIN, STOCK_OP_TYPE
            node.attributes.pop("schedule", None)
            for imports in _imports(model):
                if DOMAIN in imports:
                    imports.setdefault(STOCK_DOMAIN, STOCK_VERSION)
    for imports in _imports(model):
        imports.pop(DOMAIN, None)
    return Changes(tuple(replaced), (), before, count_ops(model))


def _imports(model: ir.Model) -> list[dict[str, int]]:
    return [model.opset_imports, *(each.opset_imports for each in model.functions.values())]
