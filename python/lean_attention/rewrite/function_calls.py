"""What ONNX Runtime needs around a model function that holds a custom operator.

It infers the types of a call's outputs from the function's body, but not through a custom operator
and not from what the function itself declares. So each call must declare its outputs, and a call
from within another function, whose declarations are ignored, is out of reach.
"""

from collections.abc import Collection

import onnx_ir as ir

from lean_attention.rewrite.graph_walk import Scope, node_name, scopes
from lean_attention.rewrite.value_types import ValueTypes

__all__ = ["FunctionCalls"]


class FunctionCalls:
    """The calls of a model's functions."""

    def __init__(self, model: ir.Model) -> None:
        """Notes every call and where it stands."""
        self._calls: dict[ir.OperatorIdentifier, list[tuple[Scope, ir.Node]]] = {}
        for scope in scopes(model):
            for node in scope.graph:
                if node.op_identifier() in model.functions:
                    self._calls.setdefault(node.op_identifier(), []).append((scope, node))

    def obstacle(
        self, function: ir.Function, accepted: Collection[ir.Node], types: ValueTypes
    ) -> str | None:
        """Why no node of a function can be replaced, as a clause; None where some can.

        Args:
            function: The function whose nodes are to be replaced.
            accepted: Those nodes; their outputs will be declared.
            types: The element types of the model.
        """
        for scope, call in self._calls.get(function.identifier(), ()):
            if scope.function is not None:
                return "its function is called by another one; inline the model's functions first"
            for output, result in zip(function.outputs, call.outputs, strict=False):
                known = output.producer() in accepted or types.common([output, result]) is not None
                if result.name and not known:
                    return (
                        f"the call {node_name(call)} of its function does not declare the type of "
                        f"{result.name}; run onnx.shape_inference first, or inline the functions"
                    )
        return None

    def declare_outputs(self, function: ir.Function, types: ValueTypes) -> None:
        """Writes the element types of a function's outputs to each call that lacks them."""
        for _, call in self._calls.get(function.identifier(), ()):
            for output, result in zip(function.outputs, call.outputs, strict=False):
                dtype = types.common([output, result])
                if result.name and result.type is None and dtype is not None:
                    result.type = ir.TensorType(dtype)
