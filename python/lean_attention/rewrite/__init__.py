"""Puts the LeanAttention operator into exported models, in place of the stock one.

* ``rules/``            one file per rule: match, check (a reason to leave a node), rewrite
* ``apply.py``          the rules over a whole model: graph, subgraphs, functions
* ``restore.py``        the way back to the stock operator
* ``options.py``        what is asked for
* ``graph_walk.py``     every graph of a model and where it lies
* ``function_calls.py`` what ONNX Runtime needs around a function with a custom operator
* ``value_types.py``    element types of values, as far as a file tells them
* ``model_file.py``     a model file: its structure, and the data files that it refers to
* ``proto_check.py``    texts and numbers of a model file, before its structure is built
* ``single_file.py``    a model file on its way to another place
* ``model_folder.py``   a model folder of onnxruntime-genai, likewise
* ``decode_form.py``    other operators' attention in the form of ours, and ours in their place
* ``masks.py``          what a mask hides, seen by running it
* ``cache_update.py``   caches that the graph itself appends to
* ``probe.py``          runs a piece of a model
* ``fusion.py``         onnxscript's fusions around attention
* ``patterns.py``       names attention that is written out in small nodes
* ``files.py``          links, copies, and nothing half-written
* ``verification/``     source and result run on the same inputs and compared
* ``hub.py``            models of the Hugging Face Hub as sources
* ``inspection.py``     what a rewrite would do
* ``outcome.py``        verified, or with the reason why not
* ``report.py``         what was replaced, what was left, and why
"""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lean_attention.errors import LeanAttentionError
from lean_attention.rewrite.files import check_destination
from lean_attention.rewrite.hub import find_source
from lean_attention.rewrite.inspection import Inspection, inspect_model
from lean_attention.rewrite.model_folder import rewrite_folder
from lean_attention.rewrite.options import Options
from lean_attention.rewrite.report import NodeReport, RewriteResult, VerificationError
from lean_attention.rewrite.rules import RULES
from lean_attention.rewrite.rules.group_query_attention import SCHEDULES
from lean_attention.rewrite.single_file import rewrite_file

__all__ = [
    "RULES",
    "SCHEDULES",
    "Inspection",
    "NodeReport",
    "RewriteResult",
    "VerificationError",
    "inspect",
    "restore",
    "rewrite",
]


def rewrite(
    source: str | Path,
    destination: str | Path,
    *,
    schedule: str = "auto",
    skip_rules: Iterable[str] = (),
    verify: bool = True,
    subfolder: str = "",
    fuse: bool = False,
) -> RewriteResult:
    """Writes a copy of a model whose attention nodes are LeanAttention's.

    Every ``com.microsoft::GroupQueryAttention`` that the operator library supports, in the graph,
    its subgraphs and its functions, becomes ``com.leanattention::LeanGroupQueryAttention`` with
    the same inputs, outputs and attributes. So does attention over a cache in other forms:
    ``com.microsoft::MultiHeadAttention``, ONNX's own ``Attention``, and MatMul, Softmax, MatMul;
    their masks become its bias. Other nodes stay as they are, and the result says why.
    Weights are not loaded: data files are shared with the source through hard links, or copied
    where the file system has none. The source is not changed.

    Before the destination is written, both models are run in ONNX Runtime's CPU provider on the
    same random inputs, one after the other, and every output is compared; see
    ``verification/comparison.py`` for the tolerance. Where that provider cannot run the source,
    the result says why and the model is written.

    Args:
        source: A model file, or a model folder of onnxruntime-genai; or, where nothing is at that
            path, a model on the Hugging Face Hub as ``org/name``, ``org/name/sub/folder`` or one
            of these with ``@revision``, of which what is needed is downloaded.
        destination: The file or the folder to write; nothing may be there yet. A folder also
            receives the operator library and names it in ``genai_config.json``, so that
            onnxruntime-genai runs it as it is.
        schedule: How the operator cuts its work: ``auto``, ``lean``, ``fixed_split``, ``direct``
            or ``stock``.
        skip_rules: Names of rules that are not applied.
        verify: Whether the models are compared.
        subfolder: A folder within the source.
        fuse: Whether onnxscript first fuses norms and activations into ONNX Runtime's own
            operators.

    Returns:
        Which nodes were replaced, which were left, and why. Of a model that is rewritten already
        nothing is written, and the result's ``unchanged`` says so.

    Raises:
        VerificationError: The models differ.
        LeanAttentionError: The source cannot be read or has no node to replace, its data files
            are missing, or the destination cannot be written. Nothing is left behind then.
    """
    options = Options(schedule=schedule, skip_rules=frozenset(skip_rules), verify=verify, fuse=fuse)
    with _one_line(Path(source)):
        found = find_source(source, subfolder)
    return _write(found, destination, options)


def restore(source: str | Path, destination: str | Path, *, verify: bool = True) -> RewriteResult:
    """Writes a copy of a rewritten model whose attention nodes are ONNX Runtime's own again.

    Args:
        source: A rewritten model file or model folder.
        destination: The file or the folder to write; nothing may be there yet. A folder loads no
            operator library.
        verify: Whether the models are run and compared.

    Returns:
        Which nodes were restored. Of a model without such nodes nothing is written, and the
        result's ``unchanged`` says so.

    Raises:
        VerificationError: The models differ.
        LeanAttentionError: The source cannot be read, or the destination cannot be written.
            Nothing is left behind then.
    """
    return _write(source, destination, Options(restore=True, verify=verify))


def inspect(
    source: str | Path, *, skip_rules: Iterable[str] = (), subfolder: str = ""
) -> Inspection:
    """Says of each attention node of a model what `rewrite` would do, and writes nothing.

    Args:
        source: As that of `rewrite`.
        skip_rules: Names of rules that are not applied.
        subfolder: A folder within the source.

    Returns:
        Which nodes would be replaced, which would be left, and why.

    Raises:
        LeanAttentionError: The source cannot be read.
    """
    with _one_line(Path(source)):
        found = find_source(source, subfolder)
        return inspect_model(found, Options(skip_rules=frozenset(skip_rules)))


def _write(source: str | Path, destination: str | Path, options: Options) -> RewriteResult:
    source, destination = Path(source).absolute(), Path(destination).absolute()
    with _one_line(source):
        check_destination(source, destination)
        rewriter = rewrite_folder if source.is_dir() else rewrite_file
        return rewriter(source, destination, options)


@contextmanager
def _one_line(source: Path) -> Iterator[None]:
    """What the file system refuses, as one line."""
    try:
        yield
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
