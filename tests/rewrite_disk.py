"""What the rewriter's tests write to the disk, and what they find there."""

import json
from pathlib import Path

import onnx


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=4, ensure_ascii=False), encoding="utf-8")


def listing(folder: Path) -> dict[str, bytes]:
    """Every path below a folder, with the files' contents."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


def nodes_of(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path, load_external_data=False).graph.node]
