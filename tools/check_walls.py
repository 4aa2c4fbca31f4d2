"""Checks who includes whom under ops/, and that Python knows the library only as a file.

`decode` knows nobody; `cpu` knows `decode`; `c_api` and `onnxruntime` know both, not each other.
Only `onnxruntime` includes ONNX Runtime's headers, only `cpu` Highway's.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAY_KNOW = {
    "decode": set[str](),
    "cpu": {"decode"},
    "c_api": {"decode", "cpu"},
    "onnxruntime": {"decode", "cpu"},
}
# Outside headers that belong to one room.
OWNERS = {"onnxruntime_": "onnxruntime", "hwy/": "cpu"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def breaches(path: Path) -> list[str]:
    """Returns what a source file includes and may not."""
    room = path.relative_to(ROOT / "ops").parts[0]
    found = []
    for header in INCLUDE.findall(path.read_text()):
        if header.startswith("ops/"):
            other = header.split("/")[1]
            if other != room and other not in MAY_KNOW.get(room, set()):
                found.append(f"{path.relative_to(ROOT)}: {room} may not know {other} ({header})")
        for prefix, owner in OWNERS.items():
            if header.startswith(prefix) and room != owner:
                found.append(f"{path.relative_to(ROOT)}: only {owner} may include {header}")
    return found


def main() -> int:
    """Prints every breach; returns the exit status."""
    sources = [p for p in (ROOT / "ops").rglob("*") if p.suffix in {".h", ".cc", ".cuh", ".cu"}]
    rooms = {path.relative_to(ROOT / "ops").parts[0] for path in sources}
    found = [f"ops/{room} is no room that this check knows" for room in rooms - MAY_KNOW.keys()]
    for path in sorted(sources):
        found += breaches(path)
    for line in found:
        print(line)
    if not found:
        print(f"{len(sources)} sources keep the walls")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
