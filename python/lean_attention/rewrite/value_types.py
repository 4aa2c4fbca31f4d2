"""Element types of values, as far as a model file tells them."""

from collections.abc import Iterable, Iterator
from functools import cached_property

import onnx
import onnx_ir as ir

from lean_attention.rewrite.graph_walk import scopes

__all__ = ["ValueTypes"]


class ValueTypes:
    """Finds the element type of a value: declared, of an initialiser, passed by a call, inferred.

    Args:
        model: The model to look into.
        proto: The same model as it was read, for ONNX's shape inference.
    """

    def __init__(self, model: ir.Model, proto: onnx.ModelProto) -> None:
        """Notes which values the calls of a function pass to its inputs."""
        self._model = model
        self._proto = proto
        self._called_with: dict[ir.Value, ir.DataType | None] = {}
        self._arguments: dict[ir.Value, list[ir.Value]] = {}
        for scope in scopes(model):
            for node in scope.graph:
                function = model.functions.get(node.op_identifier())
                if function is None:
                    continue
                for parameter, argument in zip(function.inputs, node.inputs, strict=False):
                    if argument is not None:
                        self._arguments.setdefault(parameter, []).append(argument)

    def common(self, values: Iterable[ir.Value | None]) -> ir.DataType | None:
        """The element type of values that share one: that of the first whose type is known.

        Returns:
            The type, or None where the model tells it for none of them.
        """
        present = [value for value in values if value is not None]
        for find in (_declared, self._from_calls, self._from_inference):
            for value in present:
                if (dtype := find(value)) is not None:
                    return dtype
        return None

    def _from_calls(self, value: ir.Value) -> ir.DataType | None:
        if value not in self._called_with:
            # Set first: a function that calls itself, which ONNX forbids, must end here too.
            self._called_with[value] = None
            # A function serves calls of several types: only what all agree on is known.
            dtypes = {self.common([argument]) for argument in self._arguments.get(value, ())}
            self._called_with[value] = dtypes.pop() if len(dtypes) == 1 else None
        return self._called_with[value]

    def _from_inference(self, value: ir.Value) -> ir.DataType | None:
        inferred = self._inferred.get(value)
        return None if inferred is None else _declared(inferred)

    @cached_property
    def _inferred(self) -> dict[ir.Value, ir.Value]:
        """Each node's outputs, and the same outputs in the model after shape inference."""
        try:
            proto = onnx.shape_inference.infer_shapes(self._proto)
        except (onnx.shape_inference.InferenceError, ValueError):
            return {}
        pairs = zip(_outputs(self._model), _outputs(ir.from_proto(proto)), strict=True)
        return dict(pairs)


def _declared(value: ir.Value) -> ir.DataType | None:
    dtype = value.dtype
    if dtype is None and value.const_value is not None:
        dtype = value.const_value.dtype
    return None if dtype == ir.DataType.UNDEFINED else dtype


def _outputs(model: ir.Model) -> Iterator[ir.Value]:
    for scope in scopes(model):
        for node in scope.graph:
            yield from node.outputs
