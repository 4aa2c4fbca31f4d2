"""A model folder of onnxruntime-genai."""

import json
import shutil
from pathlib import Path
from typing import Any

from lean_attention.errors import LeanAttentionError
from lean_attention.operator_library import LIBRARY_NAME, get_library_path
from lean_attention.rewrite.files import (
    link_or_copy,
    make_writable,
    move_folder,
    staging_folder,
)
from lean_attention.rewrite.model_file import ModelFile, check_location
from lean_attention.rewrite.options import Options
from lean_attention.rewrite.outcome import check, unchanged
from lean_attention.rewrite.report import RewriteResult

__all__ = ["GENAI_CONFIG", "find_decoder", "rewrite_folder"]

GENAI_CONFIG = "genai_config.json"
# Smaller files are copied, so that editing one in the new folder leaves the source alone.
LINK_FROM_BYTES = 16 << 20


def rewrite_folder(source: Path, destination: Path, options: Options) -> RewriteResult:
    """Rewrites the decoder of a model folder and makes the folder load the operator library.

    onnxruntime-genai accepts a library only by its bare name and inside the model folder, so the
    library is copied in; a folder that is restored has neither any more.

    Args:
        source: The model folder, an absolute path.
        destination: The folder to write, an absolute path where nothing is yet.
        options: What is asked for.

    Raises:
        LeanAttentionError: See ``lean_attention.rewrite``.
    """
    if destination.suffix == ".onnx":
        raise LeanAttentionError(
            f"{source} is a folder, so the destination must be one too, and {destination.name} "
            "names a file"
        )
    config_path = source / GENAI_CONFIG
    config, decoder = _read_config(config_path)
    file = ModelFile.read(_decoder_path(config_path, decoder))
    changes = file.change(options)
    if not changes.replaced:
        return unchanged(source, destination, changes, options)
    if options.restore:
        _forget_library(decoder)
    else:
        _name_library(config_path, decoder)
    config_text = _config_text(config_path, config)
    library = None if options.restore else get_library_path()

    data = {file.path.parent / location for location in file.data_locations()}
    rewritten = {file.path, config_path, source / LIBRARY_NAME}

    def place(origin: str, target: str) -> None:
        original = Path(origin)
        if original in rewritten:
            return
        if original in data or original.stat().st_size >= LINK_FROM_BYTES:
            link_or_copy(original, Path(target))
        else:
            shutil.copy2(origin, target)

    with staging_folder(destination) as (staging, _):
        shutil.copytree(source, staging, copy_function=place, dirs_exist_ok=True)
        # The copies have the modes of their sources, which may be read-only.
        make_writable(staging)
        staged = staging / file.path.relative_to(source)
        file.write(staged)
        if library is not None:
            shutil.copy(library, staging / LIBRARY_NAME)
        (staging / GENAI_CONFIG).write_text(config_text, encoding="utf-8")
        result = check(file, staged, source, destination, changes, options)
        move_folder(staging, destination)
    return result


def find_decoder(source: Path) -> Path:
    """The decoder's model file in a model folder.

    Raises:
        LeanAttentionError: The folder has no configuration, or that names no such file.
    """
    config_path = source / GENAI_CONFIG
    _, decoder = _read_config(config_path)
    return _decoder_path(config_path, decoder)


def _decoder_path(config_path: Path, decoder: dict[str, Any]) -> Path:
    path = check_location(config_path, decoder["filename"])
    if not path.is_file():
        raise LeanAttentionError(
            f"{config_path} names the model {path.name!r}, which is not there; put it back"
        )
    return path


def _read_config(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration, and the decoder's part of it."""
    if not path.is_file():
        raise LeanAttentionError(
            f"{path.parent} has no {GENAI_CONFIG}, so it is not a model folder of "
            "onnxruntime-genai; name the model file instead"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LeanAttentionError(f"{path} is not valid JSON: {error}") from error
    except RecursionError as error:
        raise _too_deep(path) from error
    try:
        decoder = config["model"]["decoder"]
        if isinstance(decoder["filename"], str):
            return config, decoder
    except (KeyError, TypeError):
        pass
    raise LeanAttentionError(
        f"{path} names no model.decoder.filename; rewrite the decoder's model file by itself"
    )


def _name_library(path: Path, decoder: dict[str, Any]) -> None:
    if decoder.get("session_options") is None:
        decoder["session_options"] = {}
    options = decoder["session_options"]
    if not isinstance(options, dict):
        raise LeanAttentionError(
            f"{path} has model.decoder.session_options {str(options)[:40]!r}, which is not a JSON "
            "object; correct it"
        )
    other = options.get("custom_ops_library", LIBRARY_NAME)
    if other != LIBRARY_NAME:
        raise LeanAttentionError(
            f"{path} loads the operator library {other!r} already, and onnxruntime-genai loads "
            "only one"
        )
    options["custom_ops_library"] = LIBRARY_NAME


def _forget_library(decoder: dict[str, Any]) -> None:
    options = decoder.get("session_options")
    if isinstance(options, dict) and options.get("custom_ops_library") == LIBRARY_NAME:
        del options["custom_ops_library"]


def _config_text(path: Path, config: dict[str, Any]) -> str:
    try:
        # ASCII: a text of the source may hold half of a surrogate pair, which UTF-8 cannot.
        return json.dumps(config, indent=4)
    except RecursionError as error:
        raise _too_deep(path) from error


def _too_deep(path: Path) -> LeanAttentionError:
    return LeanAttentionError(f"{path} is nested too deeply; correct it")
