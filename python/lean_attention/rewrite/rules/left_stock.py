"""Attention that the operator has no form for: named, with the way to a model that has one."""

import onnx_ir as ir

from lean_attention.rewrite.value_types import ValueTypes

__all__ = ["LeftStock"]

REASONS = {
    "SparseAttention": (
        "it attends to blocks of the cache by a pattern (phi-3-small), and the operator to all of "
        "it; a model whose attention is dense can be rewritten"
    ),
    "PagedAttention": ("its cache lies in pages; export without use_paged_attention"),
    "Attention": (
        "it has no cache that can be appended to; export for another execution provider or "
        "precision, so that onnxruntime-genai's builder writes GroupQueryAttention"
    ),
    "DecoderMaskedMultiHeadAttention": (
        "it keeps its cache for beams in a buffer of its own; export with onnxruntime-genai's "
        "builder"
    ),
}
"""By operator of ``com.microsoft``."""


class LeftStock:
    """The rule for what is never replaced."""

    name = "left-stock"

    def match(self, node: ir.Node) -> bool:
        """Whether the node is attention of ONNX Runtime that has no form in ours."""
        return node.domain == "com.microsoft" and node.op_type in REASONS

    def check(self, node: ir.Node, types: ValueTypes) -> str | None:
        """Why the node must stay stock."""
        return REASONS[node.op_type]

    def rewrite(self, node: ir.Node, types: ValueTypes, schedule: str) -> None:
        """Is never called, since no node passes the check."""
        raise NotImplementedError(node.op_type)
