"""Builds what stands in for CUDA's libraries, so that ONNX Runtime's CUDA execution provider loads.

    build.py FOLDER

The provider is the one of the onnxruntime-gpu that is installed. `runtime.cc` does what matters;
every other function that the provider links does nothing and returns success.
"""

import argparse
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

SOURCE = Path(__file__).parent / "runtime.cc"


def package_folder(name: str) -> Path:
    """Returns where a package is installed, without importing it."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"build.py: the package {name} is not installed")
    return Path(spec.submodule_search_locations[0])


def linked_functions(provider: Path) -> dict[str, list[str]]:
    """Returns the functions that the provider links, by the CUDA library that has them."""

    def tell(*command: str) -> str:
        return subprocess.run(
            [*command, provider], capture_output=True, text=True, check=True
        ).stdout

    functions: dict[str, list[str]] = {
        library: [] for library in re.findall(r"\[(libcu\w+\.so\.\d+)\]", tell("readelf", "-d"))
    }
    # The driver's functions have no version.
    for function, library in re.findall(
        r" U (\w+)(?:@(lib\w+\.so\.\d+))?$", tell("nm", "-D", "--undefined-only"), re.MULTILINE
    ):
        if library in functions:
            functions[library].append(function)
        elif not library and re.match("cu[A-Z]", function):
            functions["libcuda.so.1"].append(function)
    return functions


def stub(function: str) -> str:
    """Returns a function that does nothing; one that creates something returns a handle to it."""
    if "Create" in function:
        return f"int {function}(void** handle) {{ *handle = handle; return 0; }}"
    if re.search(r"Status(Name|String)$", function):
        return f'const char* {function}(int status) {{ return "an error of the stand-in"; }}'
    return f"int {function}() {{ return 0; }}"


def build(folder: Path, library: str, functions: list[str], source: str) -> None:
    """Compiles a library with a source of its own, and stubs of what that has not."""
    stubs = [stub(name) for name in functions if not re.search(rf"\b{name}\(", source)]
    code = folder / f"{library}.c"
    code.write_text("\n".join(stubs) + "\n")
    versions = folder / f"{library}.map"
    versions.write_text(f"{library} {{ global: *; }};\n")
    includes = ["-I" + str(package_folder("nvidia") / "cu13" / "include")] if source else []
    objects = []
    for compiler, file in [("cc", code)] + ([("c++", SOURCE)] if source else []):
        target = folder / f"{file.name}.o"
        subprocess.run(
            [compiler, "-w", "-O1", "-fPIC", *includes, "-c", file, "-o", target], check=True
        )
        objects.append(target)
    options = ["-shared", f"-Wl,-soname,{library}", f"-Wl,--version-script={versions}"]
    subprocess.run(["c++", *options, *objects, "-o", folder / library], check=True)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the libraries go")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    provider = package_folder("onnxruntime") / "capi" / "libonnxruntime_providers_cuda.so"
    for library, functions in linked_functions(provider).items():
        source = SOURCE.read_text() if library.startswith("libcudart") else ""
        build(folder, library, functions, source)


if __name__ == "__main__":
    main()
