"""Links, copies, and nothing half-written."""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import open as open_with_progress

from lean_attention.errors import LeanAttentionError

__all__ = [
    "check_destination",
    "check_source",
    "link_or_copy",
    "make_folders",
    "make_writable",
    "move_folder",
    "staging_folder",
    "taken",
]

COPY_CHUNK_BYTES = 16 << 20
# Below this a copy is over before a progress bar could be read.
PROGRESS_FROM_BYTES = 256 << 20


def check_source(source: Path) -> None:
    """Refuses a source that is not there.

    Raises:
        LeanAttentionError: The message says what to give instead.
    """
    if not source.exists():
        raise LeanAttentionError(
            f"there is no model at {source}; give a model file or a folder with genai_config.json"
        )


def check_destination(source: Path, destination: Path) -> None:
    """Refuses a source that is not there and a destination that is already taken.

    Raises:
        LeanAttentionError: The message says which, and what to do.
    """
    check_source(source)
    if destination.exists() and destination.samefile(source):
        raise LeanAttentionError(
            f"{destination} is the source itself; name another destination, the source stays as "
            "it is"
        )
    if destination.exists() or destination.is_symlink():
        raise taken(destination)
    try:
        real = destination.resolve()
    except (RuntimeError, ValueError) as error:
        raise LeanAttentionError(
            f"{str(destination)!r} cannot be written ({error}); name another destination"
        ) from error
    if source.is_dir() and real.is_relative_to(source.resolve()):
        raise LeanAttentionError(
            f"{destination} lies inside the source folder; name a destination outside of it"
        )


@contextmanager
def staging_folder(destination: Path) -> Iterator[tuple[Path, ExitStack]]:
    """A temporary folder beside a destination, to build in what is then moved into place.

    Missing parents of the destination are made. Whatever ends the block early, Ctrl-C included,
    the folder, those parents and everything that was noted on the stack are undone.

    Args:
        destination: The file or folder to be written in the end.

    Yields:
        The folder, and the stack on which to note how to undo each further step.
    """
    parent = destination.parent
    with ExitStack() as undo:
        make_folders(parent, undo)
        staging = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=parent))
        try:
            yield staging, undo
        finally:
            with suppress(OSError):
                make_writable(staging)
            shutil.rmtree(staging, ignore_errors=True)
        undo.pop_all()


def make_writable(folder: Path) -> None:
    """Lets the owner write into a folder and all folders below it."""
    for path, _, _ in os.walk(folder):
        os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) | stat.S_IRWXU)


def move_folder(staged: Path, destination: Path) -> None:
    """Renames a folder to its destination on the same file system.

    Raises:
        LeanAttentionError: Something was put there since the destination was checked.
    """
    try:
        staged.rename(destination)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise taken(destination) from error
        raise


def make_folders(folder: Path, undo: ExitStack) -> None:
    """Makes a folder and its missing parents, and notes on the stack how to undo that."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir()
        undo.callback(_remove_if_empty, path)


def link_or_copy(source: Path, destination: Path) -> None:
    """Places a file by a hard link, or by a copy where the file system allows no link.

    A symbolic link is followed: ONNX Runtime refuses data that one takes out of the model's
    folder. A copy of a large file shows a progress bar on a terminal.

    Args:
        source: The file to place.
        destination: Its new path; nothing is there yet.
    """
    real = source.resolve()
    try:
        os.link(real, destination)
    except OSError:
        # Another file system, too many links, or links forbidden: where the trouble is another,
        # the copy meets and reports it.
        console = Console(stderr=True)
        small = real.stat().st_size < PROGRESS_FROM_BYTES
        with (
            open_with_progress(
                real,
                "rb",
                description=f"Copying {escape(source.name)}",
                console=console,
                transient=True,
                disable=small or not console.is_terminal,
            ) as reader,
            destination.open("xb") as writer,
        ):
            shutil.copyfileobj(reader, writer, COPY_CHUNK_BYTES)


def taken(destination: Path) -> LeanAttentionError:
    """The error for a destination at which something is."""
    return LeanAttentionError(
        f"{destination} exists already; remove it or name another destination"
    )


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
