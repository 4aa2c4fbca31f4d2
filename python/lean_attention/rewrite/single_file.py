"""A model file on its way to another place, its data files with it."""

from pathlib import Path

from lean_attention.errors import LeanAttentionError
from lean_attention.rewrite.files import link_or_copy, make_folders, staging_folder, taken
from lean_attention.rewrite.model_file import ModelFile
from lean_attention.rewrite.options import Options
from lean_attention.rewrite.outcome import check, unchanged
from lean_attention.rewrite.report import RewriteResult

__all__ = ["rewrite_file"]


def rewrite_file(source: Path, destination: Path, options: Options) -> RewriteResult:
    """Rewrites a model file; its data files are linked to the destination's folder.

    Args:
        source: The model file, an absolute path.
        destination: The file to write, an absolute path where nothing is yet.
        options: What is asked for.

    Raises:
        LeanAttentionError: See ``lean_attention.rewrite``.
    """
    if not destination.suffix:
        raise LeanAttentionError(
            f"{source.name} is a file, so the destination must be one too: name it, for example "
            f"{destination / source.name}"
        )
    file = ModelFile.read(source)
    changes = file.change(options)
    if not changes.replaced:
        return unchanged(source, destination, changes, options)
    missing = [
        location for location in file.data_locations() if not _shared(file, destination, location)
    ]
    with staging_folder(destination) as (staging, undo):
        for location in file.data_locations():
            if location in missing or options.verify:
                staged = staging / location
                staged.parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(source.parent / location, staged)
        file.write(staging / destination.name)
        result = check(file, staging / destination.name, source, destination, changes, options)
        for location in missing:
            target = destination.parent / location
            make_folders(target.parent, undo)
            undo.callback(target.unlink, missing_ok=True)
            (staging / location).rename(target)
        if destination.exists() or destination.is_symlink():
            raise taken(destination)
        (staging / destination.name).rename(destination)
        # From here on the result is whole, and what ends the cleaning up must not take its data.
        undo.pop_all()
    return result


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
