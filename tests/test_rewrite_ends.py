"""How a rewrite ends: a path that is too long, a destination that is taken meanwhile, no space."""

import resource
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from hand_made_attention import parsed
from lean_attention import LeanAttentionError, inspect, rewrite
from lean_attention.commands.rewrite_report import ReportFile
from lean_attention.rewrite import single_file
from lean_attention.rewrite.hub import HubSource
from test_sources_onnx import INPUTS, OUTPUTS
from test_sources_softmax import body

TOO_LONG = "x" * 5000


@pytest.fixture
def stock(tmp_path: Path) -> Path:
    """A model that keeps its constants in a data file."""
    made = parsed(body(), INPUTS, OUTPUTS)
    weights = onnx.numpy_helper.from_array(np.ones(64, np.float32), "weights")
    made.graph.initializer.append(weights)
    made.graph.node.add(op_type="Identity", input=["weights"], output=["more"])
    (tmp_path / "stock").mkdir()
    path = tmp_path / "stock" / "model.onnx"
    ir.save(ir.from_proto(made), path, external_data="model.data", size_threshold_bytes=0)
    return path


def test_a_path_that_is_too_long_is_one_line(tmp_path: Path) -> None:
    for do in (lambda: rewrite(TOO_LONG, tmp_path / "lean.onnx"), lambda: inspect(TOO_LONG)):
        with pytest.raises(LeanAttentionError, match="File name too long"):
            do()


def test_a_destination_that_is_taken_meanwhile_is_kept(
    stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lean = tmp_path / "lean" / "model.onnx"
    check = single_file.check

    def checks_while_another_writes(*args: object) -> object:
        lean.write_text("another's")
        return check(*args)

    monkeypatch.setattr(single_file, "check", checks_while_another_writes)
    with pytest.raises(LeanAttentionError, match="exists already"):
        rewrite(stock, lean)
    assert [path.name for path in lean.parent.iterdir()] == ["model.onnx"]
    assert lean.read_text() == "another's"


def test_ctrl_c_while_cleaning_up_leaves_the_result_whole(
    stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lean = tmp_path / "lean" / "model.onnx"
    remove = shutil.rmtree

    def interrupted(path: Path, **options: bool) -> None:
        remove(path, **options)
        if lean.exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rewrite(stock, lean, verify=False)
    assert sorted(path.name for path in lean.parent.iterdir()) == ["model.data", "model.onnx"]
    onnx.load(lean, load_external_data=False)


def test_a_report_for_which_there_is_no_space_is_not_left_half(tmp_path: Path) -> None:
    report = ReportFile(tmp_path / "report.json")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, limits[1]))
    try:
        with pytest.raises(LeanAttentionError, match="cannot be written"):
            report.write({"nodes": ["x" * 100] * 1000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_a_subfolder_stays_in_its_repository() -> None:
    with pytest.raises(LeanAttentionError, match="leads out of org/name"):
        HubSource.parse("org/name", "../../other")
