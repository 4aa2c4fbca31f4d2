"""Checks who includes whom under ops/, and that Python knows the library only as a file.

`decode` knows nobody; `cpu`, `gpu` and `emulator` know `decode`; `c_api` and `onnxruntime` know
`decode`, `cpu` and, of `gpu`, the launcher's header, not each other. Kernels do not know where they
run: of `gpu`, `portable.h` alone includes the emulator, and there one header. Only `onnxruntime`
includes ONNX Runtime's headers, only `cpu` Highway's, only `emulator` Boost's, only `gpu` CUDA's
and HIP's.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAY_KNOW = {
    "decode": set[str](),
    "cpu": {"decode"},
    "gpu": {"decode"},
    "emulator": {"decode"},
    "c_api": {"decode", "cpu"},
    "onnxruntime": {"decode", "cpu"},
}
# Outside headers that belong to one room.
OWNERS = {
    "onnxruntime_": "onnxruntime",
    "hwy/": "cpu",
    "boost/": "emulator",
    "cuda_": "gpu",
    "hip/": "gpu",
}
# A file or room, and the one header that it may include of a room that it does not know.
LAUNCHER = "ops/gpu/launch/launcher.h"
GATES = {
    "ops/gpu/portable.h": "ops/emulator/device.h",
    "c_api": LAUNCHER,
    "onnxruntime": LAUNCHER,
}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def breaches(path: Path) -> list[str]:
    """Returns what a source file includes and may not."""
    file = path.relative_to(ROOT).as_posix()
    room = file.split("/")[1]
    found = []
    for header in INCLUDE.findall(path.read_text()):
        if header.startswith("ops/"):
            other = header.split("/")[1]
            known = other == room or other in MAY_KNOW.get(room, set())
            if not known and header not in {GATES.get(file), GATES.get(room)}:
                found.append(f"{file}: {room} may not know {other} ({header})")
        for prefix, owner in OWNERS.items():
            if header.startswith(prefix) and room != owner:
                found.append(f"{file}: only {owner} may include {header}")
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
