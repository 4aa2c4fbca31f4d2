"""The outcome of a change to a model: verified, or with the reason why not."""

from pathlib import Path

import onnx_ir as ir

from lean_attention.rewrite.gqa_node import DOMAIN, OP_TYPE
from lean_attention.rewrite.model_file import ModelFile
from lean_attention.rewrite.options import Options
from lean_attention.rewrite.report import Changes, RewriteResult, VerificationError
from lean_attention.rewrite.verification.result import Verification
from lean_attention.rewrite.verification.session import RunError
from lean_attention.rewrite.verification.verify import verify

__all__ = ["check", "unchanged"]


def unchanged(source: Path, destination: Path, changes: Changes, options: Options) -> RewriteResult:
    """The result for a model in which there was nothing to do."""
    ours = sum(count for op, count in changes.before.items() if op.startswith(f"{DOMAIN}::"))
    reason = (
        f"has no {OP_TYPE} node"
        if options.restore
        else f"is already rewritten: {ours} of its nodes are LeanAttention's"
    )
    return _result(source, destination, changes, options, unchanged=reason)


def check(
    file: ModelFile,
    staged: Path,
    source: Path,
    destination: Path,
    changes: Changes,
    options: Options,
) -> RewriteResult:
    """The result for a changed model, after running both models where that is asked for.

    Args:
        file: The source's model file, and the model after the change.
        staged: The changed model as a file, beside its data files.
        source: What was read: the model file or its folder.
        destination: What is about to be written.
        changes: What became of the nodes.
        options: What is asked for.

    Raises:
        VerificationError: The models differ, or the changed one does not run.
        LeanAttentionError: The operator library cannot be loaded.
    """
    if not options.verify:
        return _result(source, destination, changes, options)
    failure = ""
    try:
        found = verify(file.path, file.proto, ir.to_proto(file.model), staged, changes.replaced)
    except RunError as error:
        found, failure = Verification(obstacle=str(error)), str(error)
    result = _result(source, destination, changes, options, verification=found)
    if found.failed:
        worst = max(found.failed, key=lambda output: output.ratio)
        others = f", and {len(found.failed) - 1} more outputs" if len(found.failed) > 1 else ""
        failure = (
            f"the new model computes something else: {worst.name} differs by "
            f"{worst.difference:.2g}, and {worst.tolerance:.2g} is the tolerance ({worst.run})"
            f"{others}"
        )
    if failure:
        raise VerificationError(
            f"{failure}; nothing was written (--no-verify writes it as it is)", result
        )
    return result


def _result(
    source: Path,
    destination: Path,
    changes: Changes,
    options: Options,
    *,
    unchanged: str = "",
    verification: Verification | None = None,
) -> RewriteResult:
    return RewriteResult(
        replaced=changes.replaced,
        left=changes.left,
        before=changes.before,
        after=changes.after,
        source=source,
        destination=destination,
        done="restored" if options.restore else "replaced",
        unchanged=unchanged,
        verification=verification,
    )
