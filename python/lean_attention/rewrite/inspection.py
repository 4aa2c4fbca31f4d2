"""What a rewrite would do to a model, without doing it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lean_attention._version import __version__
from lean_attention.rewrite.apply import judge
from lean_attention.rewrite.files import check_source
from lean_attention.rewrite.gqa_node import DOMAIN
from lean_attention.rewrite.graph_walk import count_ops
from lean_attention.rewrite.model_file import ModelFile
from lean_attention.rewrite.model_folder import find_decoder
from lean_attention.rewrite.options import Options
from lean_attention.rewrite.patterns import describe
from lean_attention.rewrite.report import NodeReport

__all__ = ["Inspection", "inspect_model"]


@dataclass(frozen=True)
class Inspection:
    """What a rewrite would do.

    Attributes:
        path: The model file that was read.
        accepted: The nodes that would be replaced, each with its rule.
        left: The nodes that would stay, each with the reason and what to do about it.
        operators: How many nodes of each operator the model has.
        patterns: Attention that is written out in small nodes, where none of it would be replaced.
    """

    path: Path
    accepted: tuple[NodeReport, ...]
    left: tuple[NodeReport, ...]
    operators: Mapping[str, int]
    patterns: tuple[str, ...] = ()

    @property
    def ours(self) -> int:
        """How many nodes are LeanAttention's already."""
        return sum(count for op, count in self.operators.items() if op.startswith(f"{DOMAIN}::"))

    def to_dict(self) -> dict[str, object]:
        """Everything, as JSON takes it."""
        return {
            "lean_attention": __version__,
            "model": str(self.path),
            "operators": dict(self.operators),
            "patterns": list(self.patterns),
            "nodes": [
                *(node.to_dict("would be replaced") for node in self.accepted),
                *(node.to_dict("would be left") for node in self.left),
            ],
        }


def inspect_model(source: Path, options: Options) -> Inspection:
    """Reads a model, and says of each attention node what a rewrite would do.

    Args:
        source: A model file, or a model folder of onnxruntime-genai.
        options: What a rewrite would be asked for.

    Raises:
        LeanAttentionError: The model cannot be read; the message says what to do.
    """
    check_source(source)
    file = ModelFile.read(find_decoder(source) if source.is_dir() else source)
    accepted, left = judge(file.model, file.proto, options)
    patterns = () if accepted else tuple(describe(file.model))
    return Inspection(file.path, accepted, left, count_ops(file.model), patterns)
