"""The package as users meet it: what it declares that it needs, and what its help says."""

import ast
import re
import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

import lean_attention
from lean_attention.__main__ import app

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "python" / "lean_attention"

toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
PROJECT: dict[str, Any] = toml.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def canonical(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def names_of(requirements: Iterable[str]) -> set[str]:
    """Returns the distributions that lines such as ``rich>=13`` name."""
    return {canonical(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in requirements}


def imported_by(files: Iterable[Path]) -> set[str]:
    """Returns the distributions of others that files import, wherever in them."""
    modules: set[str] = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                modules.add(node.module)
    tops = {module.split(".")[0] for module in modules}
    # The namespace google belongs to several; ours is protobuf's part.
    owners = packages_distributions() | {"google": ["protobuf"]}
    others = tops - {*sys.stdlib_module_names, "lean_attention"}
    return {canonical(owner) for top in others for owner in owners[top]}


CORE = names_of(PROJECT["dependencies"])
EXTRAS = {name: names_of(lines) for name, lines in PROJECT["optional-dependencies"].items()}


def test_whatever_a_command_imports_is_declared() -> None:
    exporters = set((PACKAGE / "export").glob("*.py"))
    others = set(PACKAGE.rglob("*.py")) - exporters
    # The benchmark measures PyTorch where it is installed, and says so where it is not.
    assert imported_by(others) - {"torch"} <= CORE | EXTRAS["cpu"] | EXTRAS["hub"]
    assert imported_by(exporters) <= CORE | EXTRAS["cpu"] | EXTRAS["genai"]


def test_what_transformers_only_needs_for_chat_templates_is_declared() -> None:
    assert {"jinja2", "transformers"} <= CORE


@pytest.mark.parametrize("environment", ["", "oldest-", "optimum-"])
def test_dependencies_are_pinned(environment: str) -> None:
    file = REPOSITORY / "requirements" / f"{environment}constraints.txt"
    pins = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    assert all("==" in line for line in pins)
    # tomli is for Pythons before those that the pins were tested on.
    assert CORE - {"tomli"} <= names_of(pins)


def commands(command: Any, name: str) -> list[tuple[str, str]]:
    """Returns a command and each below it, with their help."""
    found = [(name, command.help)]
    # Not by its class: newer versions of typer bring a click of their own.
    for key, below in getattr(command, "commands", {}).items():
        found += commands(below, f"{name} {key}")
    return found


@pytest.mark.parametrize(
    ("name", "text"), commands(typer.main.get_command(app), "lean-attention")[1:]
)
def test_a_commands_help_begins_with_an_imperative(name: str, text: str) -> None:
    verb = text.replace(",", " ").split()[0]
    assert verb in {"Build", "Continue", "Measure", "Print", "Replace", "Time"}, name


def test_the_command_knows_its_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"{lean_attention.__version__}\n")
