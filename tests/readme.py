"""The README's own code, taken out of it to be run."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"
PARTS = re.compile(r"^#+ (?P<heading>.+)$|^```python\n(?P<code>[\s\S]*?)^```$", re.MULTILINE)


def code_blocks() -> Iterator[tuple[str, str]]:
    """Yields each block of Python with the heading that it stands under."""
    heading = ""
    for part in PARTS.finditer(README.read_text(encoding="utf-8")):
        heading = part["heading"] or heading
        if part["code"]:
            yield heading, part["code"]


def run_blocks(
    heading: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """Runs the blocks under a heading one after the other, as a reader would.

    Args:
        heading: Without its marks.
        folder: Where they run; has what they name.
        monkeypatch: Changes the working directory back.

    Yields:
        The names that are there after each block.
    """
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {"__name__": "__main__"}
    for at, code in code_blocks():
        if at == heading:
            exec(compile(code, f"README.md: {heading}", "exec"), names)
            yield names
