"""A model file: its structure, and the data files that it refers to."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]

from lean_attention.errors import LeanAttentionError
from lean_attention.rewrite.apply import apply_rules
from lean_attention.rewrite.files import link_or_copy, make_folders, staging_folder
from lean_attention.rewrite.graph_walk import scopes
from lean_attention.rewrite.proto_check import check_proto
from lean_attention.rewrite.report import NodeReport, RewriteResult

__all__ = ["ModelFile", "check_location", "rewrite_file"]


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
        file._check_data()
        return file

    def data_locations(self) -> list[str]:
        """The data files that tensors refer to, relative to the model's folder, sorted."""
        return sorted({str(tensor.location) for tensor in self._external_tensors()})

    def rewrite(self, *, schedule: str) -> tuple[tuple[NodeReport, ...], tuple[NodeReport, ...]]:
        """Replaces the attention nodes, in place; see ``apply_rules``."""
        try:
            return apply_rules(self.model, self.proto, schedule=schedule)
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


def rewrite_file(source: Path, destination: Path, *, schedule: str) -> RewriteResult:
    """Rewrites a model file; its data files are linked to the destination's folder.

    Args:
        source: The model file, an absolute path.
        destination: The file to write, an absolute path where nothing is yet.
        schedule: The operator's ``schedule`` attribute.

    Raises:
        LeanAttentionError: See ``lean_attention.rewrite``.
    """
    if not destination.suffix:
        raise LeanAttentionError(
            f"{source.name} is a file, so the destination must be one too: name it, for example "
            f"{destination / source.name}"
        )
    file = ModelFile.read(source)
    replaced, left = file.rewrite(schedule=schedule)
    missing = [
        location for location in file.data_locations() if not _shared(file, destination, location)
    ]
    with staging_folder(destination) as (staging, undo):
        for location in missing:
            staged, target = staging / location, destination.parent / location
            staged.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(source.parent / location, staged)
            make_folders(target.parent, undo)
            undo.callback(target.unlink, missing_ok=True)
            staged.rename(target)
        file.write(staging / destination.name)
        (staging / destination.name).rename(destination)
    return RewriteResult(source, destination, replaced, left)


def _shared(file: ModelFile, destination: Path, location: str) -> bool:
    """Whether the destination's folder has the data file already."""
    target = destination.parent / location
    if target == destination:
        raise LeanAttentionError(
            f"{destination} is the name of the model's data file; name another destination"
        )
    if not target.exists() and not target.is_symlink():
        return False
    if not target.exists() or not target.samefile(file.path.parent / location):
        raise LeanAttentionError(
            f"{target} exists and is not the data file of {file.path}; name a destination in "
            "another folder, or remove it"
        )
    return True


def _root_cause(error: BaseException) -> str:
    # The context too: onnx_ir fails at times while it describes an error.
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(error).splitlines()[0] if str(error) else repr(error)
