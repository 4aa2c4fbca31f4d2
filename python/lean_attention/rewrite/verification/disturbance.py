"""The source model with attention that errs by a few roundings, to see what such an error does."""

import math
from collections.abc import Collection

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir

from lean_attention.rewrite.gqa_node import Input, head_size, input_of
from lean_attention.rewrite.graph_walk import Scope, op_name, scopes
from lean_attention.rewrite.value_types import ValueTypes
from lean_attention.rewrite.verification.comparison import unit_roundoff

__all__ = ["DRAW", "SIZE", "disturb"]

DRAW = "lean_attention/draw"
"""The input of a disturbed model that decides which errors it makes: a number of some thousands."""
SIZE = "lean_attention/size"
"""The input that multiplies the errors; 1 for those that another implementation may make."""

# The largest in use; where the model does not tell it.
DEFAULT_HEAD_SIZE = 256
# ReduceMax has its axes as an input since.
AXES_ARE_INPUT = 18
# In place of a row's largest number where that is 0.
TINY = 1e-30


def disturb(proto: onnx.ModelProto, ops: Collection[str]) -> onnx.ModelProto:
    """A copy of a model in which attention errs as another implementation of it may.

    An output of attention is a sum of values by weights exp(q·k). Rotated queries and keys, the
    weights and the output may each be rounded to the numbers' type, of unit roundoff u. Sums are
    of float32, and two right implementations add up each q·k, of ``head_size`` products, in
    different orders: the sum of n roundings grows as sqrt(n) (Higham and Mary, 2019, doi
    10.1137/18M1226312). So, with v float32's unit roundoff,

        out' = out + SIZE (4 u + sqrt(head_size) v) max|out| r,    r in [-1, 1],

    with the maximum of a token's row, and r as good as random: what follows the point in
    out / max|out| times the input ``DRAW``. (ONNX Runtime lacks the newest random operators.)

    Args:
        proto: The model before its attention is replaced.
        ops: Which of its operators err, as ``com.microsoft::GroupQueryAttention``.
    """
    if proto.functions:
        # A function would not see the input.
        proto = onnx.inliner.inline_local_functions(proto)
    model = ir.from_proto(proto)
    types = ValueTypes(model, proto)
    version = model.opset_imports.setdefault("", AXES_ARE_INPUT)
    draw, size = (ir.val(name, ir.DataType.FLOAT, []) for name in (DRAW, SIZE))
    model.graph.inputs.extend([draw, size])
    nodes = [
        (scope, node) for scope in scopes(model) for node in scope.graph if op_name(node) in ops
    ]
    for index, (scope, node) in enumerate(nodes):
        dtype = types.common([node.outputs[0], input_of(node, Input.QUERY)]) or ir.DataType.FLOAT
        sums = math.sqrt(head_size(node) or DEFAULT_HEAD_SIZE)
        error = 4 * unit_roundoff(dtype.numpy()) + sums * unit_roundoff(np.dtype(np.float32))
        new = _NewNodes(f"lean_attention/disturbed{index}")
        result = new.erring(node.outputs[0], draw, size, error, version)
        _put_behind(scope, node, new, new.add("Cast", [result], to=dtype))
    _forget_shapes(model)
    return ir.to_proto(model)


def _forget_shapes(model: ir.Model) -> None:
    """Takes back what a model declares of its inner shapes, which some exporters get wrong.

    ONNX Runtime reuses memory by them. Where nothing fits, as it happens in the source, a wrong one
    does no harm.
    """
    for scope in scopes(model):
        for node in scope.graph:
            for value in node.outputs:
                if not value.is_graph_output():
                    value.shape = None


class _NewNodes:
    """Nodes with names that no other node has."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.nodes: list[ir.Node] = []

    def add(
        self,
        op: str,
        inputs: list[ir.Value],
        **attributes: int | list[int] | ir.TensorProtocol,
    ) -> ir.Value:
        """Adds a node of one output, and returns that."""
        name = f"{self.prefix}/{len(self.nodes)}"
        node = ir.Node(
            "", op, inputs, ir.convenience.convert_attributes(attributes), name=f"{name}/node"
        )
        node.outputs[0].name = name
        self.nodes.append(node)
        return node.outputs[0]

    def constant(self, array: np.typing.NDArray[np.generic]) -> ir.Value:
        """Adds a constant."""
        return self.add("Constant", [], value=ir.tensor(array))

    def erring(
        self, output: ir.Value, draw: ir.Value, size: ir.Value, error: float, version: int
    ) -> ir.Value:
        """Adds the equation of `disturb`, in float32."""
        exact = self.add("Cast", [output], to=ir.DataType.FLOAT)
        magnitude = self.add("Abs", [exact])
        if version < AXES_ARE_INPUT:
            highest = self.add("ReduceMax", [magnitude], axes=[-1], keepdims=1)
        else:
            axes = self.constant(np.array([-1], np.int64))
            highest = self.add("ReduceMax", [magnitude, axes], keepdims=1)
        largest = self.add("Add", [highest, self.constant(np.array(TINY, np.float32))])
        drawn = self.add("Mul", [self.add("Div", [exact, largest]), draw])
        fraction = self.add("Sub", [drawn, self.add("Floor", [drawn])])
        twice, once = (self.constant(np.array(n * error, np.float32)) for n in (2, 1))
        relative = self.add("Sub", [self.add("Mul", [fraction, twice]), once])
        errors = self.add("Mul", [self.add("Mul", [relative, largest]), size])
        return self.add("Add", [exact, errors])


def _put_behind(scope: Scope, node: ir.Node, new: _NewNodes, result: ir.Value) -> None:
    """Puts new nodes behind a node, and the last one's result in the place of its first output."""
    output = node.outputs[0]
    result.type, result.shape = output.type, output.shape
    readers = [(use.node, use.idx) for use in output.uses() if use.node not in new.nodes]
    for reader, position in readers:
        reader.replace_input_with(position, result)
    for position, value in enumerate(scope.graph.outputs):
        if value is output:
            scope.graph.outputs[position] = result
            result.name, output.name = output.name, f"{new.prefix}/exact"
    scope.graph.insert_after(node, new.nodes)
