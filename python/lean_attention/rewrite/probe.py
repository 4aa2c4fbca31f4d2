"""Runs a piece of a model on a few small inputs, to learn what it computes.

A mask or a repeated cache is a few dozen nodes over shapes and over the padding mask, written by
every exporter in its own way. What they compute for given shapes can be seen; how they are written
need not be known.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

__all__ = ["Case", "Probe", "ProbeError", "numbers_of", "static_size"]

Array = npt.NDArray[np.generic]

# Larger constants are weights: they are not looked at, and stand for a dependence on the model.
MAX_CONSTANT = 1 << 16
# In a data file: scales and the like, which some tools put there with everything else.
MAX_EXTERNAL = 1 << 10
WEIGHTS = "the model's weights"
PRODUCTS = ("MatMul", "Gemm", "Einsum", "Conv")
# What no shape tells.
DEFAULT_HEADS, DEFAULT_WIDTH = 2, 4


class ProbeError(Exception):
    """A piece of a model cannot be run by itself; the message says why, as a clause."""


@dataclass(frozen=True)
class Case:
    """The sizes of one run.

    Attributes:
        past: Tokens in the cache.
        new: Tokens of this step.
        mask: The padding mask, [batch, past + new], 1 for a token and 0 for padding.
    """

    past: int
    new: int
    mask: npt.NDArray[np.int64]

    @property
    def batch(self) -> int:
        """The number of sequences."""
        return len(self.mask)

    @property
    def total(self) -> int:
        """All tokens, T."""
        return self.past + self.new


class Probe:
    """The nodes that compute some values of a model.

    Args:
        values: What is to be computed.
        given: Values that the caller of ``run`` provides; what computes them is left out.

    Raises:
        ProbeError: A node on the way has subgraphs, multiplies with the model's weights, or belongs
            to no operator set of ONNX.
    """

    def __init__(self, values: Sequence[ir.Value], given: Collection[ir.Value] = ()) -> None:
        """Collects the nodes, and the inputs that they read."""
        self._values, self._given = tuple(values), tuple(given)
        self._nodes: list[ir.Node] = []
        self._inputs: dict[str, ir.Value] = {}
        self._constants: dict[str, Array] = {}
        self._reads: dict[ir.Value, frozenset[str]] = {}
        for value in values:
            self._visit(value)
        graph = self._nodes[0].graph if self._nodes else None
        self._opset = (graph.opset_imports if graph is not None else {}).get("", 18)
        self._evaluator: ReferenceEvaluator | None = None

    @property
    def reads(self) -> frozenset[str]:
        """Inputs whose numbers, not only shapes, decide on the values; weights among them."""
        return frozenset().union(*(self._reads[value] for value in self._values))

    def run(self, case: Case, given: Mapping[ir.Value, Array] | None = None) -> list[Array]:
        """Computes the values for one case.

        Raises:
            ProbeError: An input of the model has no meaning here, or a node failed.
        """
        feeds = {name: _example(value, case) for name, value in self._inputs.items()}
        feeds |= {str(value.name): array for value, array in (given or {}).items()}
        feeds |= self._constants
        try:
            if self._evaluator is None:
                self._evaluator = self._compile()
            # Masks overflow to -inf on purpose.
            with np.errstate(all="ignore"):
                results = self._evaluator.run(None, feeds)
            return [np.asarray(result) for result in results]
        except Exception as error:  # The evaluator raises whatever NumPy raises.
            raise ProbeError(f"it cannot be computed for itself ({_line(error)})") from error

    def _visit(self, value: ir.Value) -> None:
        # Not by recursion: deep models have long chains.
        stack = [value]
        while stack:
            top = stack[-1]
            if top in self._reads:
                stack.pop()
            elif (node := top.producer()) is None or top in self._given:
                self._leaf(top)
                stack.pop()
            elif waiting := [i for i in node.inputs if i is not None and i not in self._reads]:
                stack.extend(waiting)
            else:
                self._add(node)
                stack.pop()

    def _add(self, node: ir.Node) -> None:
        if node.domain not in ("", "ai.onnx"):
            raise ProbeError(f"it depends on a node of {node.domain}::{node.op_type}")
        if any(
            a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) or a.is_ref()
            for a in node.attributes.values()
        ):
            raise ProbeError(f"it depends on a node of {node.op_type}, which chooses what to run")
        if node.op_type in PRODUCTS and any(
            WEIGHTS in self._reads[i] for i in node.inputs if i is not None
        ):
            # Large models would be computed layer by layer, for a shape at most.
            raise ProbeError(f"it depends on hidden states, through {node.name or node.op_type}")
        self._nodes.append(node)
        reads: frozenset[str] = frozenset()
        if node.op_type not in ("Shape", "Size", "ConstantOfShape"):
            reads = reads.union(*(self._reads[i] for i in node.inputs if i is not None))
        elif node.op_type == "ConstantOfShape" and node.inputs[0] is not None:
            reads = self._reads[node.inputs[0]]
        for output in node.outputs:
            self._reads[output] = reads

    def _leaf(self, value: ir.Value) -> None:
        name = str(value.name)
        constant = value.const_value
        if value in self._given:
            self._reads[value] = frozenset({name})
        elif constant is None:
            self._inputs[name] = value
            self._reads[value] = frozenset({name})
        elif (numbers := numbers_of(constant)) is None:
            # Zeros that take no memory; whatever depends on them is refused.
            dtype = constant.dtype.numpy()
            self._constants[name] = np.broadcast_to(np.zeros((), dtype), constant.shape.numpy())
            self._reads[value] = frozenset({WEIGHTS})
        else:
            self._constants[name] = numbers
            self._reads[value] = frozenset()

    def _compile(self) -> ReferenceEvaluator:
        names = [*self._inputs, *(str(v.name) for v in self._given), *self._constants]
        graph = onnx.helper.make_graph(
            [ir.serde.serialize_node(node) for node in self._nodes],
            "probe",
            [onnx.helper.make_empty_tensor_value_info(name) for name in names],
            [onnx.helper.make_empty_tensor_value_info(str(v.name)) for v in self._values],
        )
        opsets = [onnx.helper.make_opsetid("", self._opset)]
        return ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=opsets))


def numbers_of(constant: ir.TensorProtocol) -> Array | None:
    """What a small constant holds; None of a large one, and of one that cannot be read."""
    external = isinstance(constant, ir.ExternalTensor)
    if constant.size > (MAX_EXTERNAL if external else MAX_CONSTANT):
        return None
    try:
        return constant.numpy()
    except (OSError, ValueError):
        return None


def static_size(value: ir.Value, axis: int) -> int | None:
    """A dimension that the file tells; some exporters write fixed sizes as names, like "2"."""
    if value.shape is None or not -len(value.shape) <= axis < len(value.shape):
        return None
    size = value.shape[axis]
    if isinstance(size, int):
        return size
    return int(size.value) if size.value is not None and size.value.isdigit() else None


def _example(value: ir.Value, case: Case) -> Array:
    """An input of the model for a case, by what the field calls it: a cache, hidden states, ..."""
    dtype = value.dtype.numpy() if value.dtype is not None else np.dtype(np.int64)
    rank = None if value.shape is None else len(value.shape)
    width = static_size(value, -1) or DEFAULT_WIDTH
    if value.dtype is not None and value.dtype.is_floating_point():
        if rank == 4:
            heads = static_size(value, 1) or DEFAULT_HEADS
            return np.zeros((case.batch, heads, case.past, width), dtype)
        if rank == 3:
            return np.zeros((case.batch, case.new, width), dtype)
    if value.name == "input_ids":
        return np.ones((case.batch, case.new), dtype)
    if value.name == "attention_mask" and rank in (2, None):
        return case.mask.astype(dtype)
    if value.name == "position_ids":
        positions = np.maximum(case.mask.cumsum(1) - 1, 0)
        new: Array = positions[:, case.past :].astype(dtype)
        return new
    raise ProbeError(f"it depends on the input {value.name!r}, whose meaning is not known")


def _line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
