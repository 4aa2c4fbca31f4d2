"""Puts the LeanAttention operator into exported models, in place of the stock one.

* ``rules/``            one file per rule: match, check (a reason to leave a node), rewrite
* ``apply.py``          the rules over a whole model: graph, subgraphs, functions
* ``graph_walk.py``     every graph of a model and where it lies
* ``function_calls.py`` what ONNX Runtime needs around a function with a custom operator
* ``value_types.py``    element types of values, as far as a file tells them
* ``model_file.py``     a model file: its structure, and the data files that it refers to
* ``proto_check.py``    texts and numbers of a model file, before its structure is built
* ``model_folder.py``   a model folder of onnxruntime-genai
* ``files.py``          links, copies, and nothing half-written
* ``report.py``         what was replaced, what was left, and why
"""

import shutil
from pathlib import Path

from lean_attention.errors import LeanAttentionError
from lean_attention.rewrite.files import check_destination
from lean_attention.rewrite.model_file import rewrite_file
from lean_attention.rewrite.model_folder import rewrite_folder
from lean_attention.rewrite.report import NodeReport, RewriteResult
from lean_attention.rewrite.rules.group_query_attention import SCHEDULES

__all__ = ["SCHEDULES", "NodeReport", "RewriteResult", "rewrite"]


def rewrite(
    source: str | Path, destination: str | Path, *, schedule: str = "auto"
) -> RewriteResult:
    """Writes a copy of a model whose attention nodes are LeanAttention's.

    Every ``com.microsoft::GroupQueryAttention`` that the operator library supports, in the graph,
    its subgraphs and its functions, becomes ``com.leanattention::LeanGroupQueryAttention`` with
    the same inputs, outputs and attributes. Other nodes stay as they are, and the result says why.
    Weights are not loaded: data files are shared with the source through hard links, or copied
    where the file system has none. The source is not changed.

    Args:
        source: A model file, or a model folder of onnxruntime-genai.
        destination: The file or the folder to write; nothing may be there yet. A folder also
            receives the operator library and names it in ``genai_config.json``, so that
            onnxruntime-genai runs it as it is.
        schedule: How the operator cuts its work: ``auto``, ``lean``, ``fixed_split``, ``direct``
            or ``stock``.

    Returns:
        Which nodes were replaced, which were left, and why.

    Raises:
        LeanAttentionError: The source cannot be read or has no node to replace, its data files
            are missing, or the destination cannot be written. Nothing is left behind then.
    """
    if schedule not in SCHEDULES:
        raise LeanAttentionError(
            f"there is no schedule {schedule!r}; choose one of {', '.join(SCHEDULES)}"
        )
    source, destination = Path(source).absolute(), Path(destination).absolute()
    try:
        check_destination(source, destination)
        rewriter = rewrite_folder if source.is_dir() else rewrite_file
        return rewriter(source, destination, schedule=schedule)
    except shutil.Error as error:
        # A list of (source, destination, reason), one for each file that could not be copied.
        (_, _, reason), *more = error.args[0]
        others = f" (and {len(more)} more)" if more else ""
        raise LeanAttentionError(f"could not rewrite {source}: {reason}{others}") from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise LeanAttentionError(
            f"could not rewrite {source}: {where}{error.strerror or error}"
        ) from error
