"""A model file: its structure, and the data files that it refers to."""

import graphlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]

from lean_attention.errors import LeanAttentionError
from lean_attention.rewrite.apply import apply_rules
from lean_attention.rewrite.fusion import fuse
from lean_attention.rewrite.graph_walk import count_ops, node_name, scopes
from lean_attention.rewrite.options import Options
from lean_attention.rewrite.proto_check import check_proto
from lean_attention.rewrite.report import Changes
from lean_attention.rewrite.restore import restore_nodes

__all__ = ["ModelFile", "check_location", "external_locations", "read_proto"]


@dataclass(frozen=True)
class ModelFile:
    """The structure of a model, without the weights that it keeps in data files.

    Attributes:
        path: The file that it was read from.
        proto: The model as it was read.
        model: The same model, to be changed; small tensors are shared with ``proto``.
    """

    path: Path
    proto: onnx.ModelProto
    model: ir.Model

    @classmethod
    def read(cls, path: Path) -> "ModelFile":
        """Reads a model file and checks that its data files are there.

        Raises:
            LeanAttentionError: The file is not an ONNX model or not one that can be kept whole,
                or a data file is missing, too short, or outside the model's folder.
        """
        proto = read_proto(path)
        if proto.training_info or proto.graph.sparse_initializer:
            raise LeanAttentionError(
                f"{path} holds training information or sparse initializers, which a rewrite would "
                "lose; export it for inference, with dense weights"
            )
        check_proto(path, proto)
        try:
            file = cls(path, proto, ir.from_proto(proto))
        except (ir.serde.SerdeError, ValueError) as error:
            raise LeanAttentionError(
                f"{path} is not a valid ONNX model: {_root_cause(error)}"
            ) from error
        file._check_order()
        file._check_data()
        return file

    def data_locations(self) -> list[str]:
        """The data files that tensors refer to, relative to the model's folder, sorted."""
        return sorted({str(tensor.location) for tensor in self._external_tensors()})

    def change(self, options: Options) -> Changes:
        """Replaces or restores the attention nodes, in place; see ``apply_rules``."""
        if options.restore:
            return restore_nodes(self.model)
        before, proto = count_ops(self.model), self.proto
        if options.fuse and fuse(self.model):
            proto = ir.to_proto(self.model)
        try:
            return replace(apply_rules(self.model, proto, options), before=before)
        except LeanAttentionError as error:
            raise LeanAttentionError(f"{self.path} {error}") from error

    def write(self, path: Path) -> None:
        """Writes the structure, which goes on referring to the same data files."""
        try:
            data = ir.to_proto(self.model).SerializeToString(deterministic=True)
        except (ir.serde.SerdeError, EncodeError, ValueError) as error:
            raise LeanAttentionError(
                f"{self.path} cannot be written again ({_root_cause(error)}); a model of 2 GB "
                "keeps its weights in a data file"
            ) from error
        path.write_bytes(data)

    def _external_tensors(self) -> Iterator[ir.ExternalTensor]:
        for scope in scopes(self.model):
            for value in scope.graph.initializers.values():
                if isinstance(value.const_value, ir.ExternalTensor):
                    yield value.const_value
            for node in scope.graph:
                for attribute in node.attributes.values():
                    if isinstance(attribute.value, ir.ExternalTensor):
                        yield attribute.value

    def _check_order(self) -> None:
        """Refuses a graph that runs in circles, in which no walk would end."""
        sorter: graphlib.TopologicalSorter[ir.Node] = graphlib.TopologicalSorter()
        for scope in scopes(self.model):
            for node in scope.graph:
                producers = (value.producer() for value in node.inputs if value is not None)
                sorter.add(node, *(each for each in producers if each is not None))
        try:
            sorter.prepare()
        except graphlib.CycleError as error:
            raise LeanAttentionError(
                f"{self.path} is not a valid ONNX model: {node_name(error.args[1][0])} reads what "
                "is computed from its own output; export or download it again"
            ) from error

    def _check_data(self) -> None:
        ends: dict[str, int] = {}
        for tensor in self._external_tensors():
            location = str(tensor.location)
            end = (tensor.offset or 0) + (tensor.length or tensor.nbytes)
            ends[location] = max(end, ends.get(location, 0))
        for location, end in ends.items():
            path = check_location(self.path, location)
            if not path.is_file():
                raise LeanAttentionError(
                    f"{self.path} keeps weights in {path}, which is gone; put that file back "
                    "beside the model"
                )
            if (size := path.stat().st_size) < end:
                raise LeanAttentionError(
                    f"{path} is cut short: {size} bytes, and {self.path.name} needs {end}; "
                    "export or download it again"
                )


def read_proto(path: Path) -> onnx.ModelProto:
    """Reads the structure of a model file.

    Raises:
        LeanAttentionError: The file is not an ONNX model.
    """
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise LeanAttentionError(
            f"{path} is not an ONNX model ({error}); export or download it again"
        ) from error
    if not proto.ir_version or not proto.graph.node:
        raise LeanAttentionError(
            f"{path} is not an ONNX model (it holds no graph); export or download it again"
        )
    return proto


def external_locations(proto: onnx.ModelProto) -> set[str]:
    """The data files that a model's weights are in, relative to the model's folder."""
    return {
        entry.value
        for tensor in proto.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }


def check_location(referrer: Path, location: str) -> Path:
    """The file that a relative path names beside the file that refers to it.

    Raises:
        LeanAttentionError: The path is absolute, empty, or leads out of the folder.
    """
    relative = PurePosixPath(location)
    if relative.is_absolute() or ".." in relative.parts or not relative.parts:
        raise LeanAttentionError(
            f"{referrer} refers to the file {location!r}, which leads out of its folder; only "
            "files beside the model are read"
        )
    return referrer.parent / relative


def _root_cause(error: BaseException) -> str:
    # The context too: onnx_ir fails at times while it describes an error.
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(error).splitlines()[0] if str(error) else repr(error)
