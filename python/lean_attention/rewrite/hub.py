"""Models of the Hugging Face Hub as sources: which part of a repository, downloaded where."""

import glob
import re
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from lean_attention.errors import LeanAttentionError
from lean_attention.rewrite.model_file import check_location, external_locations, read_proto
from lean_attention.runtime.reasons import first_line

__all__ = ["HubSource", "find_source"]

# What a model folder of onnxruntime-genai holds, weights in other formats left out.
NEEDED = (
    "*.onnx",
    "*.json",
    "*.jinja",
    "*.txt",
    "*.model",
)
PART = r"[A-Za-z0-9][\w.-]*"
ID = re.compile(rf"(?P<repo>{PART}/{PART})(?P<folder>(?:/{PART})*)(?:@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True)
class HubSource:
    """A folder, or a model file, of a repository on the Hub.

    Attributes:
        repo: The repository, as ``organisation/name``.
        path: The folder or the file in it; empty for its top.
        revision: A branch, tag or commit; None for the main branch.
    """

    repo: str
    path: str = ""
    revision: str | None = None

    @classmethod
    def parse(cls, text: str, subfolder: str = "") -> "HubSource | None":
        """Reads ``org/name``, ``org/name/sub/folder`` and these with ``@revision``.

        Args:
            text: What a user gave as the source.
            subfolder: A folder within, after what the text names.

        Returns:
            The source, or None for a text that is no such id.

        Raises:
            LeanAttentionError: The folder leads out of the repository.
        """
        match = ID.fullmatch(text)
        if match is None:
            return None
        if ".." in PurePosixPath(subfolder).parts:
            raise LeanAttentionError(
                f"the subfolder {subfolder!r} leads out of {match['repo']}; name a folder in it"
            )
        folders = [match["folder"], subfolder]
        path = "/".join(folder.strip("/") for folder in folders if folder.strip("/"))
        return cls(match["repo"], path, match["revision"])

    def __str__(self) -> str:
        """The id, as `parse` reads it."""
        path = f"/{self.path}" if self.path else ""
        return f"{self.repo}{path}{f'@{self.revision}' if self.revision else ''}"

    def download(self) -> Path:
        """Downloads what a rewrite needs into the Hub's cache, unless it is there.

        Returns:
            The folder or the model file.

        Raises:
            LeanAttentionError: There is no such repository, revision, or model, the Hub cannot be
                reached, or huggingface_hub is not installed.
        """
        try:
            from huggingface_hub.utils import disable_progress_bars
        except ImportError as error:
            raise LeanAttentionError(
                f"there is no {self} here, and to download it the Hub's client is needed: "
                "pip install 'lean-attention[hub]'"
            ) from error
        if not sys.stderr.isatty():
            disable_progress_bars()
        try:
            found = self._fetch(*self._patterns()) / self.path
            # Data files may have any name.
            if missing := sorted(_missing_data(found)):
                self._fetch([glob.escape(f"{self._folder}{name}") for name in missing], [])
        except Exception as error:  # Of the Hub, its HTTP client, and the file system.
            raise LeanAttentionError(self._reason(error)) from error
        if not (found.is_file() or any(found.glob("*.onnx"))):
            raise LeanAttentionError(
                f"the Hub's repository {self.repo} has no ONNX model at "
                f"{self.path or 'its top'}{self._folders_with_models()}"
            )
        return found

    @property
    def _folder(self) -> str:
        """The folder that holds the model, with a slash behind; empty for the top."""
        folder = self.path.rpartition("/")[0] if self.path.endswith(".onnx") else self.path
        return f"{folder}/" if folder else ""

    def _fetch(self, allowed: list[str], ignored: list[str]) -> Path:
        """The snapshot, with those files in it."""
        from huggingface_hub import snapshot_download

        snapshot = snapshot_download(
            self.repo, revision=self.revision, allow_patterns=allowed, ignore_patterns=ignored
        )
        return Path(snapshot)

    def _patterns(self) -> tuple[list[str], list[str]]:
        """File names to download, and those of them not to, as the Hub's client reads them."""
        if self.path.endswith(".onnx"):
            return [glob.escape(self.path)], []
        prefix = glob.escape(self._folder)
        return [f"{prefix}{name}" for name in NEEDED], [f"{prefix}*/*"]

    def _reason(self, error: Exception) -> str:
        if isinstance(error, LeanAttentionError):
            return str(error)
        from huggingface_hub import errors

        repo = self.repo
        chain = [error, error.__cause__, error.__context__]
        if any(isinstance(each, errors.GatedRepoError) for each in chain):
            return (
                f"the Hub's repository {repo} asks you to agree to its terms: do so on its page, "
                "then log in with 'hf auth login'"
            )
        if any(isinstance(each, errors.RepositoryNotFoundError) for each in chain):
            return (
                f"there is no {self} here, and the Hub has no repository {repo} (a private one "
                "needs 'hf auth login')"
            )
        if isinstance(error, errors.RevisionNotFoundError):
            return f"the Hub's repository {repo} has no revision {self.revision}"
        if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
            return (
                f"there is no {self} here, and the Hub cannot be reached to download it: go online "
                "(HF_HUB_OFFLINE unset), or name a local model"
            )
        return f"{self} cannot be downloaded from the Hub: {first_line(error)}"

    def _folders_with_models(self) -> str:
        """A clause on where else in the repository models are; empty where nobody knows."""
        import huggingface_hub

        try:
            files = huggingface_hub.list_repo_files(self.repo, revision=self.revision)
        except Exception:  # This only helps an error that is reported already.
            return ""
        folders = sorted({name.rpartition("/")[0] for name in files if name.endswith(".onnx")})
        named = ", ".join(f"{self.repo}/{folder}" for folder in folders if folder)
        return f"; it has models at {named}" if named else "; it has none anywhere"


def _missing_data(found: Path) -> set[str]:
    """Data files that the models of a folder, or a model file, refer to and that are not there."""
    models = [found] if found.is_file() else found.glob("*.onnx")
    return {
        location
        for path in models
        for location in external_locations(read_proto(path))
        if not check_location(path, location).exists()
    }


def find_source(source: str | Path, subfolder: str = "") -> Path:
    """The source as a local path: as it is where something is there, else from the Hub.

    Args:
        source: A path, or the id of a model on the Hub, see `HubSource.parse`.
        subfolder: A folder within the source.

    Raises:
        LeanAttentionError: It is the id of a model that cannot be had.
    """
    path = Path(source).absolute()
    if not path.exists():
        hub = HubSource.parse(str(source), subfolder)
        # A file that is named is a local one: an id names a repository first.
        if hub is not None and (hub.path or not hub.repo.endswith(".onnx")):
            return hub.download()
    return path / subfolder if subfolder else path
